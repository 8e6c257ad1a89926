"""Each file of a checkpoint truncated and flipped: a clear error or the same rows, never fewer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lakelog.dialects.indextables import DIALECT
from lakelog.errors import CorruptionError, UnsupportedError
from lakelog.model import actions
from tests.budget import share_of
from tests.dialects.indextables.test_json_checkpoint import write_json_checkpoint
from tests.dialects.indextables.writing import PROTOCOL, Log, add, flat_rows, metadata

_SEED = 20251006
_ADDS = [add(f"p=x/part-{n}.split", size=n, partitionValues={"p": "x"}) for n in range(1, 9)]
_KINDS = ("object", "lines", "parts", "avro", "flattened")


def _write(log: Log, kind: str) -> list[Path]:
    rows = [PROTOCOL, metadata(), *_ADDS]
    if kind in {"object", "lines", "parts"}:
        return write_json_checkpoint(log, 5, kind, rows)
    if kind == "avro":
        log.commit(0, [PROTOCOL, metadata()])
        entries = [row["add"] for row in _ADDS]
        name = "manifests/manifest-0123abcd.avro"
        shared = log.manifest(name, entries)
        return [log.state(5, {name: 8}, totalBytes=36), shared]
    flat = [{"actionType": "add"} | row["add"] for row in _ADDS]
    head: list[dict[str, Any]] = [
        {"actionType": "protocol", "minReaderVersion": 2, "minWriterVersion": 2},
        {"actionType": "metaData", "metadataId": "table-1", "schemaString": "{}"},
    ]
    return [log.flattened(f"{5:020d}.checkpoint.parquet", flat_rows([*head, *flat]))]


def _read(log: Log) -> pl.DataFrame:
    """Every action of the checkpoint, or of the commits without it."""
    listing = DIALECT.list_log(log.store, hint=False)
    if listing.checkpoints:
        reader = DIALECT.open_checkpoint(log.store, listing.checkpoints[-1])
        frames = [reader.read_meta(), *reader.iter_files(list(actions.schema()))]
    else:
        decoded = DIALECT.decode(log.store, listing.commits)
        frames = [decoded.meta, decoded.files]
    return actions.conform(actions.concat(frames))


def _plain_reading(log: Log) -> set[str] | None:
    """The paths that the plain JSON files add, read by line; None if a file is not plain JSON."""
    found = set()
    for target in log.folder.rglob("*"):
        if target.suffix != ".json":
            return None
        for row in _objects(target.read_bytes()):
            adds = row.get("add") or []
            found |= {add["path"] for add in (adds if isinstance(adds, list) else [adds])}
    return found


def _objects(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.split(b"\n") if line.strip()]


def _check(log: Log, whole: pl.DataFrame, change: str) -> None:
    """An error, or the same rows; for plain JSON, the result of a plain reading."""
    try:
        found = _read(log)
    except (CorruptionError, UnsupportedError) as error:
        if error.path is None:
            pytest.fail(f"{change}: the error names no file")
        return
    if found.height == whole.height:
        return
    # A checkpoint that is reported as incomplete is not read.
    if DIALECT.list_log(log.store, hint=False).notes:
        assert not found.height, change
        return
    added = found.filter(pl.col("actionType") == "add")["path"]
    assert set(added) == _plain_reading(log), change


@pytest.fixture(params=_KINDS)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Log, list[Path]]:
    log = Log(tmp_path / "t")
    return log, _write(log, request.param)


def test_truncated_file_is_refused_or_gives_the_same_rows(damaged: tuple[Log, list[Path]]) -> None:
    log, files = damaged
    whole = _read(log)
    assert whole.height > len(_ADDS)
    for target in files:
        data = target.read_bytes()
        for length in range(0, len(data), max(1, len(data) // (60 // len(files)))):
            target.write_bytes(data[:length])
            _check(log, whole, f"{target.name} cut at {length}")
        target.write_bytes(data)


def test_flipped_bytes_never_lose_a_row_silently(damaged: tuple[Log, list[Path]]) -> None:
    log, files = damaged
    whole = _read(log)
    rng = random.Random(_SEED)
    for target in files:
        data = target.read_bytes()
        for _ in range(share_of(150, 3) // len(files)):
            at, bit = rng.randrange(len(data)), rng.randrange(8)
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            target.write_bytes(bytes(changed))
            _check(log, whole, f"{target.name} byte {at} bit {bit} (seed {_SEED})")
        target.write_bytes(data)


def test_emptied_file_is_refused(damaged: tuple[Log, list[Path]]) -> None:
    log, files = damaged
    for target in files:
        data = target.read_bytes()
        target.write_bytes(b"")
        with pytest.raises(CorruptionError) as caught:
            _read(log)
        assert caught.value.path is not None
        target.write_bytes(data)
