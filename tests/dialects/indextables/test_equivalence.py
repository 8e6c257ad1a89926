"""The same rows are read from every checkpoint layout."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.indextables import DIALECT
from tests.budget import share_of
from tests.dialects.indextables.test_json_checkpoint import write_json_checkpoint
from tests.dialects.indextables.writing import (
    ENTRY_FIELDS,
    PROTOCOL,
    JsonObject,
    Log,
    add,
    flat_rows,
    metadata,
    read_files,
)

_COLUMNS = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "dataChange",
    "stats",
    "minValues",
    "maxValues",
    "numRecords",
    "docMappingRef",
)
_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
_maps = st.dictionaries(_text, _text, max_size=3)
_int64 = st.integers(-(2**63), 2**63 - 1)
_fields = st.fixed_dictionaries(
    {
        "partitionValues": _maps,
        "size": st.integers(0, 2**40),
        "modificationTime": _int64,
        "dataChange": st.booleans(),
    },
    optional={
        "stats": _text,
        "minValues": _maps,
        "maxValues": _maps,
        "numRecords": _int64,
        "docMappingRef": _text,
    },
)
_states = st.dictionaries(_text.map(lambda t: f"f{t}"), _fields, max_size=6)


def _rows(state: dict[str, JsonObject]) -> list[JsonObject]:
    return [add(path, **fields) for path, fields in state.items()]


def _entry(row: JsonObject) -> JsonObject:
    return {"hasFooterOffsets": False} | {
        field["name"]: row["add"].get(field["name"])
        for field in ENTRY_FIELDS
        if field["name"] in row["add"]
    }


def _write_all(folder: Path, state: dict[str, JsonObject]) -> dict[str, Log]:
    rows = _rows(state)
    logs = {name: Log(folder / name) for name in ("commit", "avro", "flattened")}
    logs["commit"].commit(5, [PROTOCOL, metadata(), *rows])
    logs["avro"].commit(0, [PROTOCOL, metadata()])
    total = sum(fields["size"] for fields in state.values())
    cut = len(rows) // 2
    for number, part in enumerate((rows[:cut], rows[cut:])):
        logs["avro"].manifest(f"manifests/manifest-{number}.avro", [_entry(r) for r in part])
    logs["avro"].state(
        5,
        {"manifests/manifest-0.avro": cut, "manifests/manifest-1.avro": len(rows) - cut},
        totalBytes=total,
    )
    flat = flat_rows([{"actionType": "add"} | row["add"] for row in rows])
    logs["flattened"].flattened(f"{5:020d}.checkpoint.parquet", flat)
    for form in ("object", "lines", "parts"):
        logs[form] = Log(folder / form)
        write_json_checkpoint(logs[form], 5, form, [PROTOCOL, metadata(), *rows])
    return logs


def _read(log: Log) -> pl.DataFrame:
    (last,) = log.checkpoints() or (None,)
    if last is None:
        commits = DIALECT.list_log(log.store, hint=False).commits
        files = DIALECT.decode(log.store, commits).files
        return files.select(c for c in _COLUMNS if c in files.columns)
    return read_files(DIALECT.open_checkpoint(log.store, last), _COLUMNS).drop("actionType")


@settings(max_examples=share_of(25))
@given(_states)
def test_every_checkpoint_layout_gives_the_rows_of_the_commit(state: dict[str, JsonObject]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        logs = _write_all(Path(folder), state)
        expected = flat_rows([{"actionType": "add"} | row["add"] for row in _rows(state)])
        for name, log in logs.items():
            found = _read(log)
            if not found.height:
                assert not state, name
                continue
            shown = found.select(_COLUMNS if name != "commit" else found.columns).sort("path")
            # As dicts, because the order of a map's keys is not significant.
            assert shown.to_dicts() == expected.select(shown.columns).sort("path").to_dicts(), name
