"""Small tables, logs and stores with a file of every kind, to be mutated; and their content."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import polars as pl

import lakelog
from lakelog import KeyedStore, WriteAheadLog
from tests.dialects.indextables import writing
from tests.dialects.indextables.test_json_checkpoint import write_json_checkpoint
from tests.spark.data_files import data_file, ids

Content = Any

_KINDS = (
    (r"_delta_log/\d{20}\.json", "commit"),
    (r"_delta_log/\d{20}\.\d{20}\.compacted\.json", "compaction"),
    (r"_delta_log/\d{20}\.checkpoint\.[0-9a-f-]{36}\.json", "JSON manifest"),
    (r"_delta_log/\d{20}\.checkpoint.*\.parquet", "checkpoint"),
    (r"_delta_log/_sidecars/.*", "sidecar"),
    (r".*\.crc", "checksum"),
    (r".*/_last_checkpoint", "pointer"),
    (r"_transaction_log/\d{20}\.json", "commit"),
    (r"_transaction_log/\d{20}\.checkpoint.*\.json", "JSON checkpoint"),
    (r"_transaction_log/_checkpoints/.*\.parquet", "checkpoint"),
    (r"_transaction_log/_checkpoints/.*\.json", "pointer"),
    (r"_transaction_log/.*\.avro", "Avro"),
    (r"deletion_vector.*\.bin", "deletion vector"),
    (r".*\.wal", "WAL segment"),
    (r"keyed/.*(?<!\.lock)", "keyed file"),
    (r".*\.parquet", "data file"),
)


def kind_of(name: str) -> str | None:
    """The kind of a file by its path in the subject; None if it is not part of the content."""
    for pattern, kind in _KINDS:
        if re.fullmatch(pattern, name):
            return kind
    return None


@dataclass(frozen=True)
class Subject:
    """Something to mutate.

    Attributes:
        make: Writes it into a new folder.
        read: Its complete content, in a comparable form.
        delete_commits: Deletes the commits that its checkpoint covers, so that a reader needs it;
            None if it never has one.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], Content]
    delete_commits: Callable[[Path], None] | None = None


def read_table(root: Path) -> Content:
    """State and, on Delta, rows."""
    snapshot = lakelog.open(root, upkeep=False).snapshot()
    files = snapshot.files().drop("version", "extra").collect().to_dicts()
    state = {
        "version": snapshot.version,
        "protocol": repr(snapshot.protocol),
        "metadata": repr(snapshot.metadata),
        "files": sorted((_without_nulls(file) for file in files), key=lambda file: file["path"]),
        "transactions": sorted(
            snapshot.transactions().select("appId", "txnVersion").collect().rows()
        ),
        "domains": sorted(snapshot.domains().select("domain").collect().rows()),
    }
    if (root / "_delta_log").is_dir():
        state["rows"] = sorted(map(repr, snapshot.scan().collect().rows()))
    return state


def _without_nulls(file: dict[str, Any]) -> dict[str, Any]:
    """A file's fields; statistics as JSON, as in checkpoints."""
    found = {name: value for name, value in file.items() if value not in (None, {})}
    with contextlib.suppress(KeyError, ValueError):
        found["stats"] = json.loads(found["stats"])
    return found


def _delete_delta_commits(root: Path) -> None:
    for file in sorted((root / "_delta_log").glob("*.json")):
        if "checkpoint" not in file.name and int(file.name[:20]) < _CHECKPOINT:
            file.unlink()


def _delete_indextables_commits(root: Path) -> None:
    for file in (root / "_transaction_log").glob("*.json"):
        if file.stem.isdigit() and int(file.stem) < _CHECKPOINT:
            file.unlink()


_CHECKPOINT = 4
_COMMITS = 6


def _make_delta(root: Path, layout: str | None, *, compaction: bool = False) -> None:
    from tests.data.vector_writer import vector_file

    properties = {"spark.indextables.checkpoint.enabled": "false"}
    properties["delta.enableDeletionVectors"] = "true"
    if (layout or "").startswith("v2"):
        properties["delta.checkpointPolicy"] = "v2"
    table = lakelog.create(root, {"id": pl.Int64, "p": pl.String}, ["p"], configuration=properties)
    vector = vector_file(root, {"0": [1, 3]})["0"]
    with table.transaction() as tx:
        file = data_file(str(root), "p=v/0.parquet", ids(*range(5)), {"p": "v"})
        stats = json.dumps(json.loads(file["stats"]) | {"tightBounds": False})
        tx.add(**file | {"stats": stats, "deletionVector": vector})
    for number in range(2, _COMMITS + 1):
        rows = {
            "id": [10 * number, 10 * number + 1, 10 * number + 2],
            "p": ["a", "é", f"n{number}"],
        }
        if number in {3, 6}:
            table.overwrite(pl.DataFrame(rows).head(1), where=pl.col("p") == "a")
        else:
            table.append(pl.DataFrame(rows), app_id="app", app_version=number)
        if number == _CHECKPOINT and layout:
            table.checkpoint(layout=layout)
    if compaction:
        table.compact_log(1, 4)
    else:
        table.write_checksum()


def _make_indextables(root: Path, form: str) -> None:
    log = writing.Log(root)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 3}
    rows: list[Any] = [writing.PROTOCOL, writing.metadata()]
    if form == "own json parts":
        rows[0] = {"protocol": protocol}
    if form == "avro":
        rows[0] = {"protocol": {"minReaderVersion": 4, "minWriterVersion": 4}}
    framing = form if form in writing.FRAMINGS else "plain"
    adds = [
        writing.add(
            f"p=x/part-{n} é.split",
            size=n,
            partitionValues={"p": "x"},
            numRecords=n,
            hasFooterOffsets=False,
        )
        for n in range(1, 9)
    ]
    log.commit(0, rows, framing)
    for version in range(1, _CHECKPOINT + 1):
        log.commit(version, adds[2 * version - 2 : 2 * version], framing)
    if form in {"object", "lines", "parts"}:
        write_json_checkpoint(log, _CHECKPOINT, form, [*rows, *adds])
        counts = {"size": len(rows + adds), "numFiles": len(adds), "sizeInBytes": 36}
        pointer = {"version": _CHECKPOINT, **counts, "createdTime": 1_700_000_000_000}
        log.write("_last_checkpoint", json.dumps(pointer).encode())
    if form == "avro":
        name = "manifests/manifest-0123abcd.avro"
        shared = [row["add"] | {"addedAtVersion": 1} for row in adds]
        log.manifest(name, shared)
        state = {"totalBytes": sum(row["size"] for row in shared), "protocolVersion": 4}
        log.state(_CHECKPOINT, {name: 8}, **state, metadata=json.dumps(rows[1]["metaData"]))
    if form in {"flattened", "own json", "own json parts"}:
        layout = {"flattened": "flattened", "own json": "json"}.get(form, "json-multipart")
        lakelog.open(root, upkeep=False).checkpoint(layout=layout)
    if form != "avro":
        log.commit(_CHECKPOINT + 1, [writing.add("late.split", size=3)], framing)


def _make_columnar(root: Path) -> None:
    table = lakelog.create(root, {"id": pl.Int64}, format="indextables", upkeep=False)
    with table.transaction() as tx:
        tx.set_protocol(features=["columnarCommits"])
    with table.transaction() as tx:
        # Long enough that the commit is written as Parquet.
        paths = [f"{n:05d}{'x' * 400}.split" for n in range(4_000)]
        tx.add(pl.DataFrame({"path": paths, "size": range(4_000)}))


def _make_wal(root: Path) -> None:
    with WriteAheadLog(root / "wal", segment_bytes=600, clock=lambda: 1_700_000_000_000) as log:
        for number in range(24):
            log.append("PUT", b"key %d" % number, b"value %d " % number * 5)


def _read_wal(root: Path) -> Content:
    with WriteAheadLog(root / "wal", read_only=True) as log:
        return [repr(row) for row in pl.DataFrame(log.replay()).iter_rows()]


def _make_keyed(root: Path) -> None:
    with KeyedStore(root / "keyed") as store:
        for turn in range(3):
            store.put_many({b"key %d" % n: b"%d " % turn * n for n in range(turn, 20)})
            store.delete(b"key %d" % (turn + 5))
            store.flush()
        store.put(b"late", b"in the log only")


def _read_keyed(root: Path) -> Content:
    with KeyedStore(root / "keyed", read_only=True) as store:
        return [repr(row) for row in store.scan().iter_rows()]


_DELTA_LAYOUTS = ("classic", "multipart", "v2-json", "v2-parquet")
_INDEXTABLES_FORMS = ("object", "lines", "parts", "avro", "flattened", "own json", "own json parts")

SUBJECTS: dict[str, Subject] = {
    "Delta commits": Subject(partial(_make_delta, layout=None), read_table),
    "Delta compaction": Subject(partial(_make_delta, layout=None, compaction=True), read_table),
    **{
        f"Delta {layout}": Subject(
            partial(_make_delta, layout=layout), read_table, _delete_delta_commits
        )
        for layout in _DELTA_LAYOUTS
    },
    **{
        f"IndexTables commits, {framing}": Subject(
            partial(_make_indextables, form=framing), read_table
        )
        for framing in writing.FRAMINGS
    },
    "IndexTables columnar": Subject(_make_columnar, read_table),
    **{
        f"IndexTables {form}": Subject(
            partial(_make_indextables, form=form), read_table, _delete_indextables_commits
        )
        for form in _INDEXTABLES_FORMS
    },
    "write-ahead log": Subject(_make_wal, _read_wal),
    "keyed store": Subject(_make_keyed, _read_keyed),
}


@cache
def made(name: str) -> Path:
    """The subject of that name, created once per process."""
    root = Path(mkdtemp()) / "t"
    root.mkdir()
    shutil.rmtree(root)
    SUBJECTS[name].make(root)
    return root
