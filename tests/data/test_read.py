"""The rows of data files: partition values, deletion vectors, batches, predicates, paths."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import deltalake
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.data.files import FILE_COLUMNS, ReadPlan
from lakelog.data.read import FILE_INDEX, read_files
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    UnsupportedFeatureError,
)
from lakelog.storage import StoreWrapper, open_store, ranged
from lakelog.storage.ranged import Range, RangedFile
from tests.data.rows import batches, data_file, rows, snapshot_of, sorted_rows
from tests.data.vector_writer import inline, vector_file
from tests.handmade import field

NUMBERS = (field("n"),)
WHEN = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)


def numbers(*values: int | None) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


# --- against a peer ------------------------------------------------------------------------------


def everything(count: int) -> pa.Table:
    """A column of each type, including nested ones, with nulls."""
    when = WHEN
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "i": pa.array([None if n % 7 == 0 else n for n in range(count)], pa.int32()),
            "s": pa.array([n % 100 for n in range(count)], pa.int16()),
            "b": pa.array([n % 100 for n in range(count)], pa.int8()),
            "f": pa.array([n / 4 for n in range(count)], pa.float32()),
            "d": pa.array([float("nan") if n == 3 else n / 3 for n in range(count)]),
            "t": pa.array([None if n % 5 == 0 else f"é{n}" for n in range(count)]),
            "bin": pa.array([bytes([n % 256]) for n in range(count)], pa.binary()),
            "bool": pa.array([n % 2 == 0 for n in range(count)]),
            "day": pa.array([when.date() + dt.timedelta(n) for n in range(count)]),
            "at": pa.array(
                [when + dt.timedelta(n) for n in range(count)], pa.timestamp("us", "UTC")
            ),
            "ntz": pa.array([when - dt.timedelta(n) for n in range(count)], pa.timestamp("us")),
            "dec": pa.array([decimal.Decimal(n) / 100 for n in range(count)], pa.decimal128(12, 2)),
            "st": pa.array(
                [{"a": n, "b": [{"c": str(n)}, None]} if n % 3 else None for n in range(count)]
            ),
            "m": pa.array(
                [[(str(n), n), ("x", None)] if n % 4 else None for n in range(count)],
                pa.map_(pa.string(), pa.int64()),
            ),
            "p": pa.array([["a b", "ü/=", None, "50%"][n % 4] for n in range(count)]),
        }
    )


def test_rows_equal_those_of_deltalake(tmp_path: Path) -> None:
    table = everything(500)
    deltalake.write_deltalake(tmp_path, table, partition_by=["p"])
    fewer = table.slice(0, 40).select(["id", "t", "p"])
    deltalake.write_deltalake(tmp_path, fewer, mode="append", schema_mode="merge")
    deltalake.DeltaTable(tmp_path).delete("id > 450")
    snapshot = lakelog.open(tmp_path).snapshot()
    theirs = deltalake.DeltaTable(tmp_path).to_pyarrow_table()
    ours = pa.Table.from_batches(batches(snapshot))
    assert ours.num_rows == 491
    assert sorted_rows(ours.select(theirs.column_names)) == sorted_rows(theirs)
    predicate = (pl.col("id") < 30) & (pl.col("p") == "50%")
    few = rows(snapshot, ["p", "id"], predicate=predicate)
    assert sorted(row["id"] for row in few) == sorted([3, 7, 11, 15, 19, 23, 27] * 2)


def test_plan_has_the_arrow_types_and_can_be_pickled(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, everything(8), partition_by=["p"])
    plan = ReadPlan.of(lakelog.open(tmp_path).snapshot(), ["at", "ntz", "dec", "p", "m"])
    assert plan.arrow_schema.field("at").type == pa.timestamp("us", "UTC")
    assert plan.arrow_schema.field("ntz").type == pa.timestamp("us")
    assert plan.arrow_schema.field("dec").type == pa.decimal128(12, 2)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.arrow_schema.equals(plan.arrow_schema)
    assert Path(plan.location).is_absolute()


# --- partition values ----------------------------------------------------------------------------

PARTITIONS: list[tuple[str, str | None, Any]] = [
    ("string", "a b/ü=%", "a b/ü=%"),
    ("string", "", None),
    ("string", None, None),
    ("string", "__HIVE_DEFAULT_PARTITION__", "__HIVE_DEFAULT_PARTITION__"),
    ("varchar(5)", "x", "x"),
    ("long", "-9223372036854775808", -(2**63)),
    ("integer", "7", 7),
    ("short", "-3", -3),
    ("byte", "127", 127),
    ("byte", "", None),
    ("float", "1.5", 1.5),
    ("double", "1.0E10", 1e10),
    ("double", "Infinity", float("inf")),
    ("boolean", "true", True),
    ("binary", "\x01\x02", b"\x01\x02"),
    ("binary", "ÿ", b"\xc3\xbf"),
    ("date", "1970-01-01", dt.date(1970, 1, 1)),
    ("timestamp", "2024-01-01 10:00:00", dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC)),
    ("timestamp", "2024-01-01T10:00:00.5Z", dt.datetime(2024, 1, 1, 10, 0, 0, 500_000, dt.UTC)),
    ("timestamp_ntz", "2024-02-29 12:30:15.123456", WHEN),
    ("decimal(10,2)", "12.30", decimal.Decimal("12.30")),
    ("decimal(38,18)", "0E-18", decimal.Decimal(0)),
]


@pytest.mark.parametrize(("type_", "text", "value"), PARTITIONS)
def test_partition_values_are_typed(
    tmp_path: Path, type_: str, text: str | None, value: Any
) -> None:
    snapshot = snapshot_of(
        tmp_path,
        (field("n"), field("p", type_)),
        data_file(tmp_path, "a.parquet", numbers(1, 2), partitionValues={"p": text}),
        partitioned=["p"],
    )
    assert rows(snapshot) == [{"n": 1, "p": value}, {"n": 2, "p": value}]
    assert rows(snapshot, ["p"]) == [{"p": value}] * 2


@pytest.mark.parametrize("column", ["P", "q"])
def test_partition_column_of_another_case_is_read_and_an_unknown_one_not_written(
    tmp_path: Path, column: str
) -> None:
    add = data_file(tmp_path, "a.parquet", numbers(1), partitionValues={column: "x"})
    fields = (field("n"), field("p", "string"))[: 2 if column == "P" else 1]
    snapshot = snapshot_of(tmp_path, fields, add, partitioned=[column])
    expected = {"n": 1, "p": "x"} if column == "P" else {"n": 1}
    assert rows(snapshot) == [expected]
    assert snapshot.scan(pl.col("n") == 1).collect().to_dicts() == [expected]
    assert lakelog.open(tmp_path).changes(0).select(*expected).collect().to_dicts() == [expected]
    if column == "P":
        assert snapshot.scan(pl.col("p") == "x").collect().height == 1
        assert snapshot.scan(pl.col("p") != "x").collect().height == 0
    table = lakelog.open(tmp_path)
    writes: list[Callable[[], Any]] = [
        lambda: table.append(pl.DataFrame([expected])),
        lambda: table.overwrite(pl.DataFrame([expected])),
        lambda: table.update({"n": 2}),
        lambda: table.compact(order_by=["n"]),
    ]
    for write in writes:
        with pytest.raises(CorruptionError, match="not in the schema") as caught:
            write()
        assert caught.value.found == column


@pytest.mark.parametrize(
    ("type_", "values", "error"),
    [
        ("long", {"p": "x"}, CorruptionError),
        ("byte", {"p": "300"}, CorruptionError),
        ("decimal(4,1)", {"p": "1.25"}, CorruptionError),
        ("string", {}, CorruptionError),
    ],
)
def test_invalid_partition_value_raises_corruption_error(
    tmp_path: Path, type_: str, values: dict[str, str], error: type[lakelog.LakelogError]
) -> None:
    snapshot = snapshot_of(
        tmp_path,
        (field("n"), field("p", type_)),
        data_file(tmp_path, "a.parquet", numbers(1), partitionValues=values),
        partitioned=["p"],
    )
    with pytest.raises(error, match="partition value") as caught:
        rows(snapshot)
    assert (caught.value.path, caught.value.version) == ("a.parquet", 0)
    assert rows(snapshot, ["n"]) == [{"n": 1}]


# --- deletion vectors ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_deleted_rows_are_omitted_for_every_storage_type_of_the_vector(
    tmp_path: Path, seed: int
) -> None:
    random.seed(seed)
    count = random.choice([1, 50, 3000])
    sets = {
        name: set(random.sample(range(count), random.choice([0, 1, count // 2, count])))
        for name in ("inline", "relative", "prefixed", "absolute")
    }
    names = ("relative", "prefixed", "absolute")
    described = {
        "inline": inline(sets["inline"]),
        **vector_file(tmp_path, {n: sets[n] for n in names[:1]}),
        **vector_file(tmp_path, {n: sets[n] for n in names[1:2]}, prefix="ab"),
        **vector_file(tmp_path / "else where", {n: sets[n] for n in names[2:]}, absolute=True),
    }
    adds = [
        data_file(
            tmp_path,
            f"{name}.parquet",
            numbers(*range(count)),
            deletionVector=described[name],
            parquet={"row_group_size": 700},
        )
        for name in sets
    ]
    adds.append(data_file(tmp_path, "whole.parquet", numbers(*range(count))))
    snapshot = snapshot_of(tmp_path, NUMBERS, *adds)
    expected = {f"{name}.parquet": deleted for name, deleted in sets.items()}
    for path, deleted in {**expected, "whole.parquet": set()}.items():
        files = snapshot.files().filter(pl.col("path") == path).collect()
        plan = ReadPlan.of(snapshot)
        live = [n for n in range(count) if n not in deleted]
        for size in (65_536, 333):
            read = [n for b in read_files(plan, files, batch_rows=size) for n in b["n"].to_pylist()]
            assert read == live, f"seed {seed}, {path}"
        counted = sum(b.num_rows for b in read_files(plan.select([]), files, batch_rows=333))
        assert counted == len(live), f"seed {seed}, {path}"
        odd = read_files(plan, files, predicate=pl.col("n") % 2 == 1, batch_rows=333)
        assert [n for b in odd for n in b["n"].to_pylist()] == [n for n in live if n % 2]


def test_vector_with_rows_beyond_the_file_raises_corruption_error(tmp_path: Path) -> None:
    file = data_file(tmp_path, "a.parquet", numbers(1, 2), deletionVector=inline([2]))
    with pytest.raises(CorruptionError, match="beyond the end") as caught:
        rows(snapshot_of(tmp_path, NUMBERS, file))
    assert caught.value.path == "a.parquet"


def test_files_without_a_required_column_raise(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, NUMBERS, data_file(tmp_path, "a.parquet", numbers(1)))
    files = snapshot.files().collect()
    for column in FILE_COLUMNS:
        with pytest.raises(InvalidInputError, match="lack"):
            read_files(ReadPlan.of(snapshot), files.drop(column))


# --- batches, columns, predicates ----------------------------------------------------------------


def test_rows_keep_the_order_of_the_files_and_of_their_rows(tmp_path: Path) -> None:
    adds = [
        data_file(
            tmp_path,
            f"{n:03}.parquet",
            numbers(*range(n * 1000, n * 1000 + (n * 37) % 900)),
            parquet={"row_group_size": 100},
        )
        for n in range(60)
    ]
    snapshot = snapshot_of(tmp_path, NUMBERS, *adds)
    expected = [n * 1000 + i for n in range(60) for i in range((n * 37) % 900)]
    assert [row["n"] for row in rows(snapshot)] == expected
    sizes = [batch.num_rows for batch in batches(snapshot, batch_rows=2000)]
    assert max(sizes) <= 2000
    assert sum(sizes) >= 1000 * len(sizes), "small files are combined"
    assert all(batch.num_rows <= 10 for batch in batches(snapshot, batch_rows=10))


@pytest.mark.parametrize("seed", range(4))
def test_small_files_that_are_combined_give_the_rows_of_each_alone(
    tmp_path: Path, seed: int
) -> None:
    random.seed(seed)
    invalid = random.choice([None, 30])  # a file with a null in a required column
    fields = ({**field("r"), "nullable": False}, field("i"), field("t", "string"), field("p"))
    adds = []
    for number in range(50):
        count = random.choice([0, 1, 3, 40])
        columns = {"r": pa.array(range(number, number + count), pa.int64())}
        if number == invalid:
            columns["r"], count = pa.array([1, None], pa.int64()), 2
        if number % 10 < 8:  # runs of equal schemas, so that neighbours are combined
            kind = (pa.int64(), pa.int32())[number // 10 % 2]
            columns["i"] = pa.array([random.choice([None, n]) for n in range(count)], kind)
        texts = pa.array([random.choice([None, "a", "é" * n]) for n in range(count)], pa.string())
        columns["t"] = texts.dictionary_encode() if number > 40 else texts
        more: dict[str, Any] = {"partitionValues": {"p": random.choice(["1", "2", None])}}
        if count and random.random() < 0.3:
            more["deletionVector"] = inline(random.sample(range(count), random.randint(1, count)))
        adds.append(data_file(tmp_path, f"{number:03}.parquet", pa.table(columns), **more))
    snapshot = snapshot_of(tmp_path, fields, *adds, partitioned=["p"])
    files = snapshot.files().sort("path").collect()
    options: dict[str, Any] = {"positions": random.random() < 0.5}
    if random.random() < 0.5:
        options["predicate"] = pl.col("r") % 3 != 0
    columns_wanted = random.choice([None, ["t", "p"], ["p"], []])
    plan = ReadPlan.of(snapshot, columns_wanted)

    def read(frames: Sequence[pl.DataFrame], batch_rows: int) -> tuple[list[Any], str]:
        found: list[Any] = []
        index = 0
        try:
            for frame in frames:
                for batch in read_files(plan, frame, batch_rows=batch_rows, **options):
                    batch.validate(full=True)
                    assert batch.num_rows <= batch_rows
                    of_batch = batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows
                    for row in of_batch:
                        if FILE_INDEX in row:
                            row[FILE_INDEX] += index
                    found += of_batch
                index += frame.height
        except CorruptionError as error:
            return found, str(error)
        return found, ""

    alone, error = read([files[n : n + 1] for n in range(files.height)], 65_536)
    assert read([files], 1) == (alone, error), f"seed {seed}"
    for batch_rows in (100, 65_536):
        combined, its_error = read([files], batch_rows)
        assert its_error == error, f"seed {seed}"
        assert combined == (alone[: len(combined)] if error else alone), f"seed {seed}"


def test_large_file_is_read_in_batches_and_the_read_can_be_closed_early(tmp_path: Path) -> None:
    count = 700_000
    table = pa.table({"n": pa.array(random.Random(1).choices(range(1 << 60), k=count))})
    file = data_file(tmp_path, "a.parquet", table, parquet={"row_group_size": 200_000})
    assert file["add"]["size"] > 4 << 20
    snapshot = snapshot_of(tmp_path, NUMBERS, file, data_file(tmp_path, "b.parquet", numbers(1)))
    found = batches(snapshot)
    assert all(batch.num_rows <= 65_536 for batch in found)
    read = pa.Table.from_batches(found)["n"].to_pylist()
    assert read == [*table["n"].to_pylist(), 1]
    files = snapshot.files().sort("path").collect()
    started = read_files(ReadPlan.of(snapshot), files)
    assert isinstance(started, Generator)
    assert next(started).num_rows <= 65_536
    started.close()


def test_read_without_columns_counts_the_rows(tmp_path: Path) -> None:
    adds = [data_file(tmp_path, f"{n}.parquet", numbers(*range(n))) for n in range(5)]
    snapshot = snapshot_of(tmp_path, NUMBERS, *adds)
    assert sum(batch.num_rows for batch in batches(snapshot, [])) == 10
    few = batches(snapshot, [], predicate=pl.col("n") >= 2)
    assert [(batch.num_rows, batch.num_columns) for batch in few] == [(3, 0)]
    assert batches(snapshot, [], predicate=pl.lit(False)) == []
    assert sum(batch.num_rows for batch in batches(snapshot, [], predicate=pl.lit(True))) == 10


def test_predicate_keeps_only_rows_for_which_it_is_true(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None, 3, 4], pa.int64()), "s": ["a", "b", None, "d"]})
    snapshot = snapshot_of(
        tmp_path, (field("n"), field("s", "string")), data_file(tmp_path, "a.parquet", table)
    )
    assert rows(snapshot, ["s"], predicate=pl.col("n") > 1) == [{"s": None}, {"s": "d"}]
    assert rows(snapshot, ["n"], predicate=pl.col("s").is_null()) == [{"n": 3}]
    assert rows(snapshot, ["s", "n"], predicate=pl.lit(True) & (pl.col("n") == 4)) == [
        {"s": "d", "n": 4}
    ]
    with pytest.raises(InvalidInputError, match="does not have"):
        rows(snapshot, predicate=pl.col("missing") > 1)
    with pytest.raises(InvalidInputError):
        rows(snapshot, predicate=pl.col("n") > pl.col("n").mean())


def test_error_in_a_predicate_is_not_reported_as_a_damaged_file(tmp_path: Path) -> None:
    def refuse(_value: int) -> bool:
        raise ValueError("not this one")

    snapshot = snapshot_of(tmp_path, NUMBERS, data_file(tmp_path, "a.parquet", numbers(1)))
    with pytest.raises(Exception, match="not this one") as caught:
        rows(snapshot, predicate=pl.col("n").map_elements(refuse, return_dtype=pl.Boolean))
    assert not isinstance(caught.value, LakelogError)


@pytest.mark.parametrize("seed", range(4))
def test_row_groups_skipped_by_statistics_do_not_change_the_result(
    tmp_path: Path, seed: int
) -> None:
    random.seed(seed)
    count = 2000
    when = WHEN
    table = pa.table(
        {
            "n": pa.array([None if n % 97 == 0 else n for n in range(count)], pa.int32()),
            "f": pa.array([random.choice([float("nan"), -0.0, n / 2]) for n in range(count)]),
            "s": pa.array([f"{n:05}" * random.randrange(1, 20) for n in range(count)]),
            "at": pa.array(
                [when + dt.timedelta(hours=n) for n in range(count)], pa.timestamp("us")
            ),
            "dec": pa.array([decimal.Decimal(n) / 10 for n in range(count)], pa.decimal128(9, 1)),
            "none": pa.nulls(count, pa.int64()),
        }
    )
    deleted = inline(random.sample(range(count), 300))
    fields = (
        field("n", "integer"),
        field("f", "double"),
        field("s", "string"),
        field("at", "timestamp_ntz"),
        field("dec", "decimal(9,1)"),
        field("none"),
    )
    file = data_file(
        tmp_path, "a.parquet", table, deletionVector=deleted, parquet={"row_group_size": 61}
    )
    snapshot = snapshot_of(tmp_path, fields, file)
    whole = pl.DataFrame(pl.from_arrow(pa.Table.from_batches(batches(snapshot))))
    bound = random.randrange(count)
    for predicate in (
        pl.col("n") == bound,
        pl.col("n").is_null(),
        pl.col("n").is_between(bound, bound + 100) | (pl.col("f") > bound / 2),
        pl.col("f").is_nan(),
        ~(pl.col("f") <= bound),
        pl.col("s") >= f"{bound:05}",
        pl.col("s").str.starts_with(f"{bound // 100:03}"),
        pl.col("at").dt.date() == (when + dt.timedelta(hours=bound)).date(),
        pl.col("dec") < decimal.Decimal(bound) / 10,
        pl.col("none").is_not_null(),
        pl.col("n").cast(pl.Int64) + pl.col("none").fill_null(1) > bound,
    ):
        found = [row for b in batches(snapshot, predicate=predicate) for row in b.to_pylist()]
        assert repr(found) == repr(whole.filter(predicate).to_dicts()), f"seed {seed}: {predicate}"


def test_row_groups_that_cannot_match_are_not_read(tmp_path: Path) -> None:
    table = numbers(*range(1000))
    file = data_file(tmp_path, "a.parquet", table, parquet={"row_group_size": 100})
    snapshot = snapshot_of(tmp_path, NUMBERS, file)
    path = tmp_path / "a.parquet"
    import pyarrow.parquet as pq

    last = pq.read_metadata(path).row_group(9).column(0)
    content = bytearray(path.read_bytes())
    start = last.dictionary_page_offset or last.data_page_offset
    content[start : start + last.total_compressed_size] = bytes(last.total_compressed_size)
    path.write_bytes(content)
    assert [row["n"] for row in rows(snapshot, predicate=pl.col("n") < 3)] == [0, 1, 2]
    with pytest.raises(CorruptionError):
        rows(snapshot)


def test_columns_have_the_requested_order_and_unknown_ones_raise(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, everything(8), partition_by=["p"])
    snapshot = lakelog.open(tmp_path).snapshot()
    assert batches(snapshot, ["t", "p", "id"])[0].schema.names == ["t", "p", "id"]
    assert batches(snapshot, ["T", "P"])[0].schema.names == ["t", "p"]
    with pytest.raises(InvalidInputError, match="no column 'other'"):
        ReadPlan.of(snapshot, ["other"])
    for twice in (["id", "id"], ["id", "ID"]):
        with pytest.raises(InvalidInputError, match="twice"):
            ReadPlan.of(snapshot, twice)
    with pytest.raises(InvalidInputError, match="invalid batch_rows"):
        read_files(ReadPlan.of(snapshot), snapshot.files().collect(), batch_rows=0)


def test_empty_table_and_empty_files_have_no_rows(tmp_path: Path) -> None:
    assert rows(snapshot_of(tmp_path / "none", NUMBERS)) == []
    empty = data_file(tmp_path / "empty", "a.parquet", numbers())
    snapshot = snapshot_of(tmp_path / "empty", NUMBERS, empty)
    assert rows(snapshot) == []
    assert batches(snapshot, []) == []


# --- locations of files --------------------------------------------------------------------------


def test_other_stores_are_read_in_ranges(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    count = 3000
    vector = vector_file(tmp_path, {"v": range(0, count, 2)})["v"]
    adds = [
        data_file(tmp_path, "a.parquet", numbers(*range(count)), deletionVector=vector),
        data_file(tmp_path, "b.parquet", numbers(-1)),
    ]
    adds[1]["add"]["path"] = "memory://elsewhere/b%20c.parquet"
    snapshot_of(tmp_path, NUMBERS, *adds)
    snapshot = lakelog.open(tmp_path, allow_external="memory://elsewhere").snapshot()
    try:
        memory.put(str(tmp_path), "/lakelog-rows", recursive=True)
        memory.pipe("/elsewhere/b c.parquet", (tmp_path / "b.parquet").read_bytes())
        remote = lakelog.open(
            "memory://lakelog-rows", allow_external="memory://elsewhere"
        ).snapshot()
        plan = ReadPlan.of(remote)
        assert plan.location == "memory://lakelog-rows"
        files = remote.files().sort("path").collect()
        expected = [*range(1, count, 2), -1]
        for store in (None, open_store("memory://lakelog-rows")):
            read = [n for b in read_files(plan, files, store=store) for n in b["n"].to_pylist()]
            assert read == expected
        assert [row["n"] for row in rows(snapshot)] == expected
    finally:
        memory.rm("/lakelog-rows", recursive=True)
        memory.rm("/elsewhere", recursive=True)


class RangedStore(StoreWrapper):
    """A store that fetches ranges, as remote ones do, and counts their bytes."""

    def __init__(self, root: Path) -> None:
        super().__init__(open_store(str(root)))
        self.fetched: list[int] = []

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        content = self._store.read(path)
        assert size_bytes in {None, len(content)}

        def fetch(ranges: Sequence[Range]) -> list[bytes]:
            self.fetched.extend(end - start for start, end in ranges)
            return [content[start:end] for start, end in ranges]

        return cast("BinaryIO", RangedFile(fetch, len(content)))


def test_only_required_ranges_of_a_large_remote_file_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "WHOLE_BYTES", 1 << 20)
    count = 200_000
    random.seed(5)
    wide = {f"c{n}": random.choices(range(1 << 60), k=count) for n in range(6)}
    table = pa.table({"n": range(count), **wide})
    fields = [field(name) for name in table.column_names]
    file = data_file(tmp_path, "a.parquet", table, parquet={"row_group_size": count // 4})
    snapshot = snapshot_of(tmp_path, fields, file)
    files, plan = snapshot.files().collect(), ReadPlan.of(snapshot)
    assert file["add"]["size"] > 9 << 20
    store = RangedStore(tmp_path)
    whole = pa.Table.from_batches(read_files(plan, files, store=store))
    assert whole.equals(table)
    store = RangedStore(tmp_path)
    one = pa.Table.from_batches(read_files(plan.select(["c2"]), files, store=store))
    assert one["c2"].equals(table["c2"])
    assert sum(store.fetched) < file["add"]["size"] * 0.8
    store = RangedStore(tmp_path)
    few = read_files(plan, files, store=store, predicate=pl.col("n") < 10)
    assert sum(batch.num_rows for batch in few) == 10
    assert sum(store.fetched) < file["add"]["size"] / 2


# --- errors --------------------------------------------------------------------------------------


def test_unsupported_types_raise_and_are_named(tmp_path: Path) -> None:
    fields = (field("n"), field("v", "interval"), field("g", "geometry(4326)"))
    nested = field("a", {"type": "array", "elementType": "interval", "containsNull": True})
    snapshot = snapshot_of(
        tmp_path,
        (*fields, nested),
        data_file(tmp_path, "a.parquet", numbers(5)),
    )
    for name, kind in (("v", "interval"), ("g", "geometry"), ("a", "interval")):
        with pytest.raises(UnsupportedFeatureError, match=f"{name!r}.*{kind}"):
            snapshot.to_polars(columns=["n", name])
    with pytest.raises(UnsupportedFeatureError):
        snapshot.scan().collect()
    assert snapshot.scan().select("n").collect()["n"].to_list() == [5]


def test_unknown_type_change_raises(tmp_path: Path) -> None:
    for before, after in (("string", "long"), ("byte", "decimal(3,1)"), ("long", "double")):
        column = field("n", **{"delta.typeChanges": [{"fromType": before, "toType": after}]})
        snapshot = snapshot_of(tmp_path / before, [column])
        with pytest.raises(UnsupportedFeatureError, match="unknown type change"):
            ReadPlan.of(snapshot)


def test_a_whole_number_is_read_as_a_decimal_that_holds_its_digits(tmp_path: Path) -> None:
    """The protocol asks for ten digits; other writers record shorter decimals."""
    change = {"fromType": "byte", "toType": "decimal(4,1)"}
    column = field("n", "decimal(4,1)", **{"delta.typeChanges": [change]})
    old = pa.table({"n": pa.array([-128, 127, None], pa.int8())})
    snapshot = snapshot_of(tmp_path, [column], data_file(tmp_path, "a.parquet", old))
    assert [row["n"] for row in rows(snapshot)] == [-128, 127, None]
