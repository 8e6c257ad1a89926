"""The plain model of a table under transactions: a list of commits, and loops over them.

A commit is a list of actions in their JSON form. The model shares no code with lakelog. The effect
of an earlier commit on a transaction is defined by `tests.model.conflicts`.

Source: Delta protocol, Action Reconciliation; Transaction Identifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.model.conflicts import Action, Predicate, broken_rules

Key = tuple[str, str | None]
"""A logical file: its path, and the location of its deletion vector."""


@dataclass
class State:
    """The state of a table version.

    Attributes:
        files: Live files: size and partition values.
        tombstones: Removed files.
        apps: Last version of each application.
        domains: Configuration of each domain.
        configuration: Table properties.
    """

    files: dict[Key, tuple[int, dict[str, str | None]]] = field(default_factory=dict)
    tombstones: set[Key] = field(default_factory=set)
    apps: dict[str, int] = field(default_factory=dict)
    domains: dict[str, str] = field(default_factory=dict)
    configuration: dict[str, str] = field(default_factory=dict)

    def apply(self, action: Action) -> None:
        """Reconcile one action; the newest counts."""
        [(kind, body)] = action.items()
        if kind == "add":
            self.tombstones.discard(key_of(body))
            self.files[key_of(body)] = (body["size"], body["partitionValues"])
        elif kind == "remove":
            self.files.pop(key_of(body), None)
            self.tombstones.add(key_of(body))
        elif kind == "txn":
            self.apps[body["appId"]] = body["version"]
        elif kind == "domainMetadata":
            self.domains.pop(body["domain"], None)
            if not body["removed"]:
                self.domains[body["domain"]] = body["configuration"]
        elif kind == "metaData":
            self.configuration = body["configuration"]


def key_of(body: dict[str, Any]) -> Key:
    """The logical file of an add or a remove."""
    vector = body.get("deletionVector")
    return unquote(body["path"]), vector and vector["pathOrInlineDv"]


@dataclass
class Pending:
    """A transaction that has not been committed.

    Attributes:
        read_version: The latest version when it began.
        isolation: Its isolation level.
        actions: Its actions.
        predicates: The predicates of its reads.
        whole: Whether it has read the whole table.
        app: Application and version that it writes once.
    """

    read_version: int
    isolation: str = "WriteSerializable"
    actions: list[Action] = field(default_factory=list)
    predicates: list[Predicate] = field(default_factory=list)
    whole: bool = False
    app: tuple[str, int] | None = None


class Table:
    """A table.

    Args:
        protocol: Body of its protocol.
        metadata: Body of its metaData.
        types: Partition columns, and the function that parses each one's text.
        physical: Each column's name in the log.
    """

    def __init__(
        self,
        protocol: dict[str, Any],
        metadata: dict[str, Any],
        types: dict[str, type],
        physical: dict[str, str],
    ) -> None:
        self.commits: list[list[Action]] = [[{"protocol": protocol}, {"metaData": metadata}]]
        self._types, self._physical = types, physical

    @property
    def version(self) -> int:
        """The latest version."""
        return len(self.commits) - 1

    def state(self, version: int | None = None) -> State:
        """The table at a version (default: the latest)."""
        state = State()
        for actions in self.commits[: None if version is None else version + 1]:
            for action in actions:
                state.apply(action)
        return state

    def metadata(self, version: int) -> dict[str, Any]:
        """Body of the metaData in force at a version."""
        return self._last("metaData", version)

    def _last(self, kind: str, version: int) -> dict[str, Any]:
        bodies = [a[kind] for actions in self.commits[: version + 1] for a in actions if kind in a]
        last: dict[str, Any] = bodies[-1]
        return last

    def commit(self, pending: Pending) -> int | str | None:
        """Commit a transaction.

        Returns:
            Its version; the name of the rule that an earlier commit violated; or None if there is
            nothing to write, or the application's version is already committed.
        """
        if pending.app is not None:
            app_id, app_version = pending.app
            recorded = self.state(pending.read_version).apps.get(app_id)
            if recorded is not None and recorded >= app_version:
                return None
        if not pending.actions:
            return None
        for version in range(pending.read_version + 1, self.version + 1):
            theirs = self.commits[version]
            if pending.app is not None and _covers(theirs, *pending.app):
                return None
            rules = broken_rules(
                self._ours(pending, version - 1), theirs, self._types, self._physical
            )
            if rules:
                return rules[0]
        blind = not pending.predicates and not pending.whole
        blind = blind and not any("remove" in action for action in pending.actions)
        info = {"commitInfo": {"operation": "any", "isBlindAppend": blind}}
        self.commits.append([info, *pending.actions])
        return self.version

    def _ours(self, pending: Pending, version: int) -> dict[str, Any]:
        """The transaction, with the protocol and metadata of a later version than it read."""
        return {
            "isolation": pending.isolation,
            "whole": pending.whole,
            "predicates": pending.predicates,
            "appIds": [] if pending.app is None else [pending.app[0]],
            "actions": pending.actions,
            "protocol": self._last("protocol", version),
            "metadata": self.metadata(version),
        }


def _covers(actions: Sequence[Action], app_id: str, app_version: int) -> bool:
    return any(
        "txn" in a and a["txn"]["appId"] == app_id and a["txn"]["version"] >= app_version
        for a in actions
    )
