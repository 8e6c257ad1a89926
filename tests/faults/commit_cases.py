"""Every way to write a table, and the expected content of the table before and after. Shared by the
tests that fail, interrupt and kill writers. A case is run with a faulty store in `lakelog.open` and
`lakelog.create`, so that every operation of a commit is tested.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl

import lakelog
from lakelog import Table, TableNotFoundError
from lakelog.storage import LogStore, open_store
from lakelog.storage.bounded import DEFAULT_LIMITS, BoundedStore, ReadLimits, open_bounded
from lakelog.transaction import transaction
from tests import checkpoint_writer
from tests.model import replay
from tests.model.compare import normal, rows_of

SCHEMA = {"p": pl.String, "x": pl.Int64}
FORMATS = ("delta", "indextables")
FOLDERS = {"delta": "_delta_log", "indextables": "_transaction_log"}

VOLATILE = frozenset(
    "metadataId createdTime modificationTime deletionTimestamp lastUpdated skipTimestamp".split()
    + "retryAfter version position".split()
)
"""Columns that differ between runs or versions, and are irrelevant here."""

State = dict[str, Any] | None
"""The content of a table; None if the table does not exist."""


@dataclass(frozen=True)
class Case:
    """One way to write.

    Attributes:
        name: Name of the case.
        formats: Dialects that have it.
        write: Writes one version to the table at a location.
        configuration: Table properties.
        app: Whether a repeated `write` commits nothing.
        creates: Whether it creates the table.
        checkpoint: Whether the table has a checkpoint, and its first commit was deleted.
        features: Table features that are enabled by name.
    """

    name: str
    write: Callable[[str], int | None]
    formats: tuple[str, ...] = FORMATS
    configuration: dict[str, str] = field(default_factory=dict)
    app: bool = False
    creates: bool = False
    checkpoint: bool = False
    features: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _create(format_: str) -> Callable[[str], int | None]:
    def write(location: str) -> int | None:
        made = lakelog.create(location, SCHEMA, ["p"], format_, {"owner": "me"}, name="t")
        return 0 if made.format == format_ else None

    return write


def _append(location: str) -> int | None:
    with lakelog.open(location).transaction() as tx:
        tx.add(path="new", size=7, partitionValues={"p": "é /%"}, stats='{"numRecords":3}')
    return tx.version


def many_adds(count: int) -> pl.DataFrame:
    """Adds as a data frame."""
    values = [{"p": str(i % 3)} for i in range(count)]
    return pl.DataFrame(
        {
            "path": [f"many-{i:06d}" for i in range(count)],
            "size": range(count),
            "partitionValues": pl.Series(values, dtype=pl.Struct({"p": pl.String})),
        }
    )


def _append_many(location: str) -> int | None:
    with lakelog.open(location).transaction() as tx:
        tx.add(many_adds(30))
    return tx.version


def _remove(location: str) -> int | None:
    table = lakelog.open(location)
    with table.transaction() as tx:
        tx.remove(tx.read(pl.col("p") == "a"))
        tx.add(path="compacted", size=9, partitionValues={"p": "a"})
    return tx.version


def _set_metadata(location: str) -> int | None:
    with lakelog.open(location).transaction() as tx:
        tx.set_metadata(schema={**SCHEMA, "y": pl.Float64}, configuration={"owner": "you"})
    return tx.version


def _enable_feature(location: str) -> int | None:
    """Metadata and protocol together; the first in-commit timestamp, which reads the file time."""
    with lakelog.open(location).transaction() as tx:
        tx.set_metadata(configuration={"delta.enableInCommitTimestamps": "true"})
        tx.add(path="stamped", size=1, partitionValues={"p": None})
    return tx.version


def _with_app_id(location: str) -> int | None:
    with lakelog.open(location).transaction(app_id="app", app_version=5) as tx:
        tx.add(path="once", size=1, partitionValues={"p": "b"})
    return tx.version


def _domain(location: str) -> int | None:
    with lakelog.open(location).transaction() as tx:
        tx.set_domain(domain="mine", configuration='{"a":1}')
        tx.remove_domain("theirs")
    return tx.version


def _skip(location: str) -> int | None:
    with lakelog.open(location).transaction() as tx:
        tx.skip(path="a0", reason="broken", operation="merge")
    return tx.version


def _add_column(location: str) -> int | None:
    return lakelog.open(location).alter.add_columns({"y": pl.Float64}, after="p")


def _rename_column(location: str) -> int | None:
    """Two commits: the first enables column mapping."""
    return lakelog.open(location).alter.rename_column("x", "z", enable=True)


def _upgrade(location: str) -> int | None:
    return lakelog.open(location).alter.upgrade(["domainMetadata"])


def _columnar(location: str) -> int | None:
    with mock.patch.object(transaction, "COLUMNAR_ABOVE_BYTES", 1000):
        return _append_many(location)


def _rebased(location: str) -> int | None:
    """Two other transactions commit while it is open; it reads their commits and is rebased."""
    table = lakelog.open(location)
    with table.transaction() as tx:
        tx.read(pl.col("p") == "a")
        tx.add(path="late", size=1, partitionValues={"p": "a"})
        others = _without_faults(location)
        for number in range(2):
            with others.transaction() as other:
                other.add(path=f"other-{number}", size=1, partitionValues={"p": "b"})
    return tx.version


def _without_faults(location: str) -> Table:
    """The table, on a store without faults."""
    with mock.patch("lakelog.table_functions.open_bounded", open_bounded):
        return lakelog.open(location)


PREPARED = 2
"""The version of a table after `prepare`."""

ICT = {"delta.enableInCommitTimestamps": "true"}
ROW_IDS = {"delta.enableRowTracking": "true"}

CASES = (
    *(Case(f"create {f}", _create(f), formats=(f,), creates=True) for f in FORMATS),
    Case("append", _append),
    Case("append after a checkpoint", _append, formats=("delta",), checkpoint=True),
    Case("append with row ids and times", _append, ("delta",), {**ICT, **ROW_IDS}),
    Case("append a table", _append_many),
    Case("replace", _remove),
    Case("metadata", _set_metadata),
    Case("enable a feature", _enable_feature, formats=("delta",)),
    Case("app id", _with_app_id, formats=("delta",), app=True),
    Case("domain", _domain, formats=("delta",), features=("domainMetadata",)),
    Case("skip", _skip, formats=("indextables",)),
    Case("alter add column", _add_column, formats=("delta",)),
    Case("alter rename column", _rename_column, formats=("delta",)),
    Case("alter upgrade", _upgrade, formats=("delta",)),
    Case("rebased", _rebased),
    Case("columnar", _columnar, formats=("indextables",), features=("columnarCommits",)),
)
RUNS = [(case, form) for case in CASES for form in case.formats]
RUN_IDS = [f"{case}-{form}" if not case.creates else case.name for case, form in RUNS]


def prepare(location: str, case: Case, form: str) -> None:
    """The initial table of a case: version `PREPARED`, or nothing."""
    if case.creates:
        return
    table = lakelog.create(location, SCHEMA, ["p"], form, case.configuration)
    with table.transaction() as tx:
        for path, p in (("a0", "a"), ("a1", "a"), ("b0", "b")):
            stats = '{"numRecords":2}'
            tx.add(path=path, size=5, partitionValues={"p": p}, stats=stats)
        if case.features:
            tx.set_protocol(features=case.features)
        if "domainMetadata" in case.features:
            tx.set_domain(domain="theirs", configuration="x")
    with table.transaction() as tx:
        tx.remove(path="b0")
        if form == "delta":
            tx.set_txn(appId="app", version=4)
        else:
            tx.skip(path="a0", reason="broken before", operation="merge")
    assert tx.version == PREPARED
    if case.checkpoint:
        root = Path(location)
        checkpoint_writer.write(root, replay.replay(root, 1), "classic", random.Random(1))
        (root / "_delta_log" / f"{0:020d}.json").unlink()


def files_of(location: str) -> dict[str, bytes]:
    """Every file of a table, for copies."""
    store = open_store(location)
    folders = [f"{log}{below}" for log in FOLDERS.values() for below in ("", "/_sidecars")]
    names = [f"{folder}/{e.name}" for folder in folders for e in store.list_from(folder)]
    return {name: store.read(name) for name in names}


def copy_to(location: str, files: dict[str, bytes]) -> None:
    """A copy of a table."""
    store = open_store(location)
    for name, data in files.items():
        if "://" in location:
            store.put(name, data)
        else:
            path = Path(location, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@dataclass(frozen=True)
class Expected:
    """The result of a case.

    Attributes:
        files: The table before, file by file.
        befores: Its possible contents if the case wrote nothing.
        after: Its content after the case.
    """

    files: dict[str, bytes]
    befores: list[State]
    after: State


def expect(location: str, case: Case, form: str) -> Expected:
    """Run a case once without faults, at a new location."""
    prepare(location, case, form)
    files = files_of(location)
    before = read(location)
    version = case.write(location)
    after = read(location)
    assert after is not None
    assert version is not None
    assert version == after["version"]
    others = [read(location, v) for v in range(PREPARED + 1, version)] if before else []
    return Expected(files, [before, *others], after)


Shape = tuple[tuple[str, bytes], ...]
RANDOM = rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|\b[0-9]{13}\b"
_read: dict[Shape, State] = {}
_committed_after: set[tuple[str, Shape]] = set()


def shape(location: str) -> Shape:
    """Every file of a table, including temporary ones, without random names, ids and times. Many
    faults leave the same state, which is read, and followed by a commit, only once.
    """
    store = open_store(location)
    return tuple(
        sorted(
            (
                re.sub(RANDOM, b"*", entry.name.encode()).decode(),
                re.sub(RANDOM, b"*", store.read(entry.name)),
            )
            for batch in store.walk()
            for entry in batch
        )
    )


def read(location: str, version: int | None = None) -> State:
    """The complete content of a table, opened again, without random values."""
    if version is not None:
        return _read_uncached(location, version)
    seen = shape(location)
    if seen not in _read:
        _read[seen] = _read_uncached(location)
    return _read[seen]


def _read_uncached(location: str, version: int | None = None) -> State:
    try:
        snapshot = lakelog.open(location).snapshot(version)
    except TableNotFoundError:
        return None
    frames = {
        "files": snapshot.files(),
        "tombstones": snapshot.tombstones(),
        "transactions": snapshot.transactions(),
        "domains": snapshot.domains(),
        "skips": snapshot.skips(),
    }
    found: dict[str, Any] = {}
    for name, frame in frames.items():
        rows = [normal(row) for row in rows_of(frame)]
        kept = [{k: v for k, v in row.items() if k not in VOLATILE} for row in rows]
        found[name] = sorted(kept, key=repr)
    configuration = {
        k: v
        for k, v in snapshot.metadata.configuration.items()
        if not k.startswith(("delta.inCommitTimestampEnablement", "delta.rowTracking.materialized"))
    }
    found["metadata"] = (snapshot.metadata.name, snapshot.metadata.schema_string, configuration)
    found["protocol"] = snapshot.protocol
    found["version"] = snapshot.version
    return found


def commit_again(location: str, form: str, state: State) -> None:
    """The next writer is not affected by the files of a failed one."""
    left = (form, shape(location))
    if left in _committed_after:
        return
    _commit_next(location, form, state)
    _committed_after.add(left)


def _commit_next(location: str, form: str, state: State) -> None:
    if state is None:
        assert lakelog.create(location, SCHEMA, ["p"], form).version() == 0
        return
    with lakelog.open(location).transaction() as tx:
        tx.add(path="the next", size=1, partitionValues={"p": "b"}, stats='{"numRecords":1}')
    assert tx.version == state["version"] + 1


@contextlib.contextmanager
def store_replaced(replace: Callable[[LogStore], LogStore]) -> Iterator[None]:
    """`lakelog.open` and `lakelog.create` get their store from `replace`."""

    def opened(
        location: str, storage_options: Any = None, limits: ReadLimits = DEFAULT_LIMITS
    ) -> LogStore:
        below = replace(open_store(location, storage_options))
        return BoundedStore(below, limits, by_location=True)

    with mock.patch("lakelog.table_functions.open_bounded", opened):
        yield
