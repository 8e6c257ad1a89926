"""Compares the counts that the pointer and the version checksum record with a checkpoint's content.

A checkpoint file that another program wrote again with fewer rows is valid Parquet, and a JSON
manifest that was truncated at a line end is valid JSON. Only counts in other files reveal that.
These are hints: if they differ, the reader uses older files, which prove the correct state. Without
older files, `RecordMismatchError.accepted` decides: the checkpoint is rejected if the evidence is
against it.

Writers record different counts, so a difference is reported only if no writer would cause it:

- The number of live files is the same in every checkpoint of a version. All writers record it as
  the pointer's ``numOfAddFiles`` and the checksum's ``numFiles``.
- The pointer's ``size`` is the number of actions of one checkpoint; another one of the same version
  may have other tombstones. It is compared if the pointer refers to this checkpoint and records
  another length of its files, which shows that it was replaced. The Java Kernel writes the number
  of ``add`` actions, and old versions of deltalake the length in bytes; neither writes
  ``sizeInBytes``. The Flink sink of Delta estimates it, so it is ignored.

Source: Delta protocol, Last Checkpoint File Schema; Version Checksum File Schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import polars as pl

from lakelog.dialects.checkpoint_sources import FileTotals
from lakelog.dialects.delta.last_checkpoint import read_last_checkpoint, read_version_checksum
from lakelog.dialects.delta.names import LAST_CHECKPOINT
from lakelog.dialects.log_content import Checkpoint, RecordedCounts, RecordMismatchError
from lakelog.lazy import cached_property
from lakelog.model import actions
from lakelog.storage import LogStore
from lakelog.storage.bounded import on_local_disk

_RETENTION = "delta.setTransactionRetentionDuration"
_LISTS = (
    ("txn", "setTransactions", ("appId", "version"), ("appId", "txnVersion")),
    (
        "domainMetadata",
        "domainMetadata",
        ("domain", "configuration"),
        ("domain", "domainConfiguration"),
    ),
)


class RecordedContent:
    """The counts of one checkpoint in other files; read on demand."""

    def __init__(self, store: LogStore, checkpoint: Checkpoint) -> None:
        self._store = store
        self._checkpoint = checkpoint

    def load(self, pool: Executor) -> None:
        """Read the records while files are read, if that saves a round trip."""
        checkpoint = self._checkpoint
        is_recorded = checkpoint.checksum_path is not None or checkpoint.pointer_path is not None
        if is_recorded and not on_local_disk(self._store):
            pool.submit(lambda: (self._pointer, self._checksum))

    @cached_property
    def _pointer(self) -> RecordedCounts:
        found = self._checkpoint.recorded
        if found is None and self._checkpoint.pointer_path is not None:
            found = read_last_checkpoint(self._store).counts_of(self._checkpoint)
        return found or RecordedCounts()

    @cached_property
    def _checksum(self) -> Mapping[str, Any]:
        if self._checkpoint.checksum_path is None:
            return {}
        return read_version_checksum(self._store, self._checkpoint.version) or {}

    def require_actions(self, held: FileTotals | None) -> None:
        """Compare the number of actions, if it is known, with the pointer's ``size``."""
        pointer = self._pointer
        if held is None or pointer.actions is None or held.actions >= pointer.actions:
            return
        if _is_of(pointer, held):
            return
        raise self._mismatch(
            "actions",
            LAST_CHECKPOINT,
            (f"{pointer.actions} actions", f"{held.actions}"),
            replace(self._checkpoint, recorded=replace(pointer, actions=None), pointer_path=None),
        )

    def require_files(
        self, adds: int, held: FileTotals | None, add_bytes: int | None = None
    ) -> None:
        """Compare count and length of live files with pointer and checksum. The checksum is
        computed from commits, so it confirms the checkpoint if it agrees.
        """
        pointer, expected = self._pointer, _number(self._checksum.get("numFiles"))
        length = _number(self._checksum.get("tableSizeBytes"))
        of_checksum: tuple[str, str, str] | None = None
        if expected not in {None, adds}:
            of_checksum = ("files", f"{expected} add actions", f"{adds}")
        elif expected is not None and None not in {length, add_bytes} and length != add_bytes:
            of_checksum = ("bytes of the files", f"{length} bytes", f"{add_bytes}")
        elif expected is not None:
            return
        if pointer.adds not in {None, adds}:
            is_replaced = held is not None and pointer.size_bytes not in {None, held.size_bytes}
            proven = expected == pointer.adds or pointer.is_checked or is_replaced
            raise self._mismatch(
                "files",
                LAST_CHECKPOINT,
                (f"{pointer.adds} add actions", f"{adds}"),
                None if proven else self._checkpoint.without_records(),
            )
        if of_checksum is not None:
            assert self._checkpoint.checksum_path is not None
            noun, *values = of_checksum
            raise self._mismatch(
                noun,
                self._checkpoint.checksum_path,
                (values[0], values[1]),
                self._checkpoint.without_records(),
            )
        if (
            held is not None
            and pointer.adds is None
            and pointer.actions is not None
            and adds < pointer.actions != held.actions
            and not _is_of(pointer, held)
        ):
            raise self._mismatch(
                "files",
                LAST_CHECKPOINT,
                (f"{pointer.actions} actions or add actions", f"{adds} add actions"),
                self._checkpoint.without_records(),
            )

    def require_others(self, meta: pl.DataFrame, kinds: Sequence[str]) -> None:
        """Compare transactions and domains with the checksum, which may list only some."""
        for kind, name, fields, columns in _LISTS:
            if kind not in kinds or not (recorded := self._listed(name, *fields)):
                continue
            rows = actions.conform(actions.of_type(meta, kind), columns)
            own = dict(rows.iter_rows())
            for key, value in recorded.items():
                if own.get(key) != value:
                    assert self._checkpoint.checksum_path is not None
                    raise self._mismatch(
                        f"{kind} actions",
                        self._checkpoint.checksum_path,
                        (f"{kind} {key:.100}", f"{own.get(key, 'none')!s:.100}"),
                        replace(self._checkpoint, checksum_path=None),
                    )

    def _listed(self, name: str, key: str, value: str) -> dict[str, Any]:
        """The actions of one kind that the checksum lists."""
        listed = self._checksum.get(name)
        if not isinstance(listed, list) or not all(isinstance(body, dict) for body in listed):
            return {}
        if name == "setTransactions":
            metadata = self._checksum.get("metadata")
            properties = metadata.get("configuration") if isinstance(metadata, dict) else None
            if not isinstance(properties, dict) or _RETENTION in properties:
                return {}  # each writer omits those that have expired for it
        live = (body for body in listed if not body.get("removed"))
        return {body[key]: body.get(value) for body in live if isinstance(body.get(key), str)}

    def _mismatch(
        self, noun: str, path: str, values: tuple[str, str], accepted: Checkpoint | None
    ) -> RecordMismatchError:
        expected, found = values
        error = RecordMismatchError(
            f"the number of {noun} in the checkpoint differs from {path}",
            path=path,
            version=self._checkpoint.version,
            expected=expected,
            found=f"{found} in {self._checkpoint.paths[0]}",
            hint="restore the checkpoint's files, or remove them if its commits exist; if they are "
            f"complete, remove {path}",
        )
        error.accepted = accepted
        return error


def _is_of(pointer: RecordedCounts, held: FileTotals) -> bool:
    """Whether the pointer was written for files of this length, but with other counts."""
    size = pointer.actions if pointer.size_bytes is None else pointer.size_bytes
    return size == held.size_bytes


def _number(value: object) -> int | None:
    return value if type(value) is int else None
