"""Fingerprints of sidecars: their filters never lose a path, and changes are detected."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta import sidecar_fingerprints
from lakelog.dialects.delta.checkpoint_rows import file_action_columns
from lakelog.dialects.delta.path_filters import filter_options, hash_paths, xxh64
from lakelog.dialects.delta.paths import encode_path
from lakelog.dialects.delta.sidecar_fingerprints import (
    FINGERPRINT_TAG,
    TOTAL_TAG,
    Fingerprint,
    SidecarRecord,
    check_inspection,
    inspect_sidecar,
    recognise_sidecar,
    shape_of,
    take_fingerprint,
    total_of_tags,
    total_tags,
)
from lakelog.dialects.digest import Digest, digest
from lakelog.dialects.log_content import CheckpointPlan, SidecarFile
from lakelog.errors import MalformedLogError
from lakelog.model import contract
from lakelog.storage import LogStore, open_store
from tests.budget import share_of

SIDECAR = "_delta_log/_sidecars/one.parquet"
SCHEMA = contract.parse_schema(
    '{"type":"struct","fields":[{"name":"a","type":"integer","nullable":true,"metadata":{}}]}'
)
FOOTER = {"length": 9, "checksum": "0", "last_deletion_ms": None, "spans": [[4, 5]]}
PLAN = CheckpointPlan(3, "v2-json", 1, SCHEMA, ())


def hash_one(data: bytes) -> int:
    return int(xxh64(np.frombuffer(data, np.uint8), [0], [len(data)])[0])


def write_sidecar(
    store: LogStore,
    adds: list[str],
    removes: list[str] | None = None,
    *,
    filters: bool = True,
    row_group_rows: int = 1000,
    deleted_ms: int = 7,
) -> SidecarFile:
    """A sidecar of paths, percent-encoded by every writer in the same way."""
    removes = removes or []
    nulls: list[None] = [None]
    add = pa.array([{"path": encode_path(p)} for p in adds] + nulls * len(removes), ADD)
    tombstones = [{"path": encode_path(p), "deletionTimestamp": deleted_ms} for p in removes]
    remove = pa.array(nulls * len(adds) + tombstones, REMOVE)
    sink = pa.BufferOutputStream()
    options = filter_options(row_group_rows) if filters else {}
    table = pa.table({"add": add, "remove": remove})
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=row_group_rows)
    data = sink.getvalue().to_pybytes()
    store.put(SIDECAR, data)
    return SidecarFile(SIDECAR, len(data), 0)


SHAPE = "shape"
DIGEST = Digest({"add": 2, "remove": 1}, {"add": 5, "remove": 6})
ADD = pa.struct({"path": pa.string()})
REMOVE = pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64()})


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return open_store(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_gives_the_published_hashes(text: bytes, expected: int) -> None:
    assert hash_one(text) == expected


@given(st.lists(st.binary(max_size=100), max_size=20))
@settings(max_examples=share_of(50), deadline=None)
def test_hashing_many_slices_together_equals_hashing_each(slices: list[bytes]) -> None:
    lengths = [len(s) for s in slices]
    starts = np.cumsum([0, *lengths])[:-1].tolist() if slices else []
    together = xxh64(np.frombuffer(b"".join(slices), np.uint8), starts, lengths)
    assert together.tolist() == [hash_one(s) for s in slices]


@given(st.lists(st.text(max_size=70), max_size=40, unique=True), st.integers(1, 17))
@settings(max_examples=share_of(40), deadline=None)
def test_filter_written_by_arrow_contains_every_path(paths: list[str], group: int) -> None:
    store = open_store("memory://filters")
    half = len(paths) // 2
    write_sidecar(store, paths[:half], paths[half:], row_group_rows=group)
    found = inspect_sidecar(store, SIDECAR)
    assert (found.adds, found.removes, found.rows) == (half, len(paths) - half, len(paths))
    assert found.filter is not None
    assert found.filter.may_hold(hash_paths(pl.Series(paths, dtype=pl.String))).all()


def test_filter_has_few_false_positives(store: LogStore) -> None:
    paths = [f"day={i % 7}/part-{i:05d}.parquet" for i in range(5000)]
    write_sidecar(store, paths, row_group_rows=5000)
    others = pl.Series([f"day={i % 7}/other-{i:05d}.parquet" for i in range(50_000)])
    found = inspect_sidecar(store, SIDECAR)
    assert found.filter is not None
    assert found.filter.may_hold(hash_paths(others)).mean() < 0.002


def test_paths_are_hashed_as_they_are_written() -> None:
    paths = ["a b", "é", "%2F", "x:y", "s3://b/c d", "plain"]
    assert hash_paths(pl.Series(paths)).tolist() == [
        hash_one(encode_path(p).encode()) for p in paths
    ]
    assert hash_paths(pl.Series(["x", *paths]).slice(1)).tolist() == (
        hash_paths(pl.Series(paths)).tolist()
    )
    assert hash_paths(pl.Series([], dtype=pl.String)).tolist() == []


def test_path_encoding_is_part_of_the_format() -> None:
    """A change of `encode_paths` must increase `FORMAT`, because old filters use the old
    encoding.
    """
    encoded = {
        "a b": "a%20b",
        "é": "é",
        "p=1/x+y": "p=1/x+y",
        "%2F": "%252F",
        "a#b?c": "a%23b%3Fc",
        "x:y/z": "x%3Ay/z",
        "\u00a0[]": "%C2%A0%5B%5D",
    }
    assert {path: encode_path(path) for path in encoded} == encoded
    assert sidecar_fingerprints.FORMAT == 1


def test_fingerprint_is_read_back_from_its_tags(store: LogStore) -> None:
    file = write_sidecar(store, ["a", "b"], ["c"])
    taken = take_fingerprint(store, file, DIGEST, SHAPE)
    assert (taken.adds, taken.removes, taken.digest) == (2, 1, DIGEST)
    assert taken.filters
    assert Fingerprint.of_tags({"other": "x", **taken.to_tags()}) == taken


def test_record_digests_the_written_rows(store: LogStore) -> None:
    file = write_sidecar(store, ["a", "b"], ["c"])
    record = SidecarRecord(SHAPE, digest)
    for kind, paths in (("add", ["a"]), ("remove", ["c"]), ("add", ["b"])):
        record.add(pl.DataFrame({"actionType": [kind], "path": paths}))
    tags = record.tags(store, file)
    taken = Fingerprint.of_tags(tags)
    assert taken is not None
    rows = pl.DataFrame({"actionType": ["remove", "add", "add"], "path": ["c", "b", "a"]})
    assert taken.digest == digest(rows)
    assert total_of_tags(total_tags([tags, tags])) == digest(pl.concat([rows, rows]))
    assert total_tags([tags, {}]) == {}
    assert total_of_tags({TOTAL_TAG: "{}"}) is None


def test_sidecar_that_lost_a_row_is_not_recorded(store: LogStore) -> None:
    file = write_sidecar(store, ["a"], ["c"])
    with pytest.raises(MalformedLogError, match="differs from its manifest: rows"):
        take_fingerprint(store, file, DIGEST, "")


def test_sidecar_with_other_paths_differs_from_its_record(store: LogStore) -> None:
    file = write_sidecar(store, ["a", "b"], ["c"])
    recorded = take_fingerprint(store, file, DIGEST, "")
    other = write_sidecar(store, ["a", "b"], ["d"])
    with pytest.raises(MalformedLogError, match="path filters"):
        check_inspection(inspect_sidecar(store, SIDECAR), other, recorded)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"adds": 3},
        {"adds": "2"},
        {"removes": True},
        {"digest": 7},
        {"digest": '{"algorithm":"another","add":[2,"00"]}'},
        {"shape": None},
        {"new": 1},
        {"footer": 7},
        {"footer": {"length": 9, "checksum": "0", "last_deletion_ms": None}},
        {"footer": FOOTER | {"length": -1}},
        {"footer": FOOTER | {"length": True}},
        {"footer": FOOTER | {"checksum": None}},
        {"footer": FOOTER | {"last_deletion_ms": "1"}},
        {"footer": FOOTER | {"spans": [[1, 2, 3]]}},
        {"footer": FOOTER | {"spans": [[-1, 2]]}},
        None,
    ],
)
def test_fingerprint_of_another_format_is_ignored(change: dict[str, object] | None) -> None:
    body = orjson.loads(Fingerprint(2, 1, DIGEST, "s").to_tags()[FINGERPRINT_TAG])
    text = orjson.dumps(body | change).decode() if change is not None else "[]"
    assert Fingerprint.of_tags({FINGERPRINT_TAG: text}) is None


def test_footer_is_recorded_and_read_back() -> None:
    body = orjson.loads(Fingerprint(2, 1, DIGEST, "s").to_tags()[FINGERPRINT_TAG])
    assert "footer" not in body
    text = orjson.dumps(body | {"footer": FOOTER}).decode()
    found = Fingerprint.of_tags({FINGERPRINT_TAG: text})
    assert found is not None
    assert found.footer is not None
    assert found.footer.spans == ((4, 5),)
    assert Fingerprint.of_tags(found.to_tags()) == found


@pytest.mark.parametrize("filters", [True, False])
def test_recognised_sidecar_equals_its_inspection(store: LogStore, filters: bool) -> None:
    file = write_sidecar(store, ["a", "b"], ["c"], filters=filters, deleted_ms=99)
    inspected = inspect_sidecar(store, SIDECAR)
    found = recognise_sidecar(store, SIDECAR, file.size_bytes, (2, 1), inspected.footer)
    assert found is not None
    assert (found.filter is not None) == filters == (inspected.filter is not None)
    if found.filter is not None and inspected.filter is not None:
        assert found.filter.checksum == inspected.filter.checksum
        assert found.filter.may_hold(hash_paths(pl.Series(["a", "b", "c"]))).all()
    assert replace(found, filter=None) == replace(inspected, filter=None)


def test_sidecar_with_a_changed_footer_is_not_recognised(store: LogStore) -> None:
    file = write_sidecar(store, ["a", "b"], ["c"])
    footer = inspect_sidecar(store, SIDECAR).footer
    data = store.read(SIDECAR)

    def is_recognised(content: bytes, size: int = file.size_bytes) -> bool:
        store.put(SIDECAR, content)
        return recognise_sidecar(store, SIDECAR, size, (2, 1), footer) is not None

    assert is_recognised(data)
    for place in range(len(data) - footer.length, len(data)):
        assert not is_recognised(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    assert not is_recognised(data[:-1])
    assert not is_recognised(data, file.size_bytes + 1)
    assert not is_recognised(b"")


@pytest.mark.parametrize("tags", [None, {}, {FINGERPRINT_TAG: None}, {FINGERPRINT_TAG: "{"}])
def test_tags_of_other_writers_contain_no_fingerprint(tags: dict[str, str | None] | None) -> None:
    assert Fingerprint.of_tags(tags) is None


def test_sidecar_without_filters_is_inspected_without_a_filter(store: LogStore) -> None:
    write_sidecar(store, ["a"], filters=False)
    found = inspect_sidecar(store, SIDECAR)
    assert found.filter is None
    assert (found.adds, found.removes) == (1, 0)


def test_every_changed_byte_of_the_filters_changes_their_checksum(store: LogStore) -> None:
    rng = random.Random(7)
    write_sidecar(store, [f"p{i}" for i in range(50)])
    before = inspect_sidecar(store, SIDECAR).filter
    assert before is not None
    data = store.read(SIDECAR)
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    for _ in range(20):
        place = chunk.bloom_filter_offset + rng.randrange(chunk.bloom_filter_length)
        store.put(SIDECAR, data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
        after = inspect_sidecar(store, SIDECAR).filter
        assert after is None or after.checksum != before.checksum


def test_latest_deletion_time_is_read_from_the_footer(store: LogStore) -> None:
    write_sidecar(store, ["a"], ["b", "c"], deleted_ms=99)
    assert inspect_sidecar(store, SIDECAR).last_deletion_ms == 99
    write_sidecar(store, ["a"])
    assert inspect_sidecar(store, SIDECAR).last_deletion_ms is None


def shape(plan: CheckpointPlan, **configuration: str) -> str:
    plan = replace(plan, configuration=configuration)
    return shape_of(plan, file_action_columns(plan)[0])


def test_shape_depends_on_everything_that_determines_the_columns() -> None:
    other = contract.parse_schema('{"type":"struct","fields":[]}')
    typed = replace(PLAN, stats_as_struct=True)
    shapes = [
        shape(plan)
        for plan in (
            PLAN,
            replace(PLAN, stats_as_json=False),
            typed,
            replace(typed, schema=other),
            replace(typed, partition_columns=("a",)),
            replace(typed, mapping="name"),
            replace(typed, deletion_vectors=True),
        )
    ]
    shapes.append(shape(typed, **{"delta.dataSkippingNumIndexedCols": "0"}))
    assert len(set(shapes)) == len(shapes)
    same = replace(PLAN, schema=other, version=9, parts=4, layout="v2-parquet", created_ms=5)
    assert shape(same) == shape(PLAN)
