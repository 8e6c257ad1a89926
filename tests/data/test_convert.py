"""`lakelog.convert`: a folder of Parquet files becomes a Delta table, in place."""

from __future__ import annotations

import datetime as dt
import json
import math
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.schema import PrimitiveType

import lakelog
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    InvalidPropertyError,
    InvalidTransactionError,
    LakelogError,
    LakelogWarning,
    NotFoundError,
    TableExistsError,
    UnsupportedFeatureError,
)
from lakelog.storage import open_store
from lakelog.storage.base import StoreWrapper
from lakelog.testing import InjectingStore, Rule


def put(root: Path, name: str, table: pa.Table | dict[str, Any], **options: Any) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = table if isinstance(table, pa.Table) else pa.table(table)
    pq.write_table(rows, path, **options)
    return path


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and times of the files of a folder, except those of the log."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file() and "_delta_log" not in path.parts
    }


def stats(root: Path) -> dict[str, dict[str, Any]]:
    files = lakelog.open(root).snapshot().files().select("path", "stats").collect()
    return {path: json.loads(text) for path, text in files.iter_rows()}


def test_a_folder_with_another_table_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", {"id": [1]})
    lakelog.write(tmp_path / "below/other", pl.DataFrame({"id": [2]}))
    with pytest.raises(InvalidInputError, match="contains another table") as caught:
        lakelog.convert(tmp_path, plan=True)
    assert caught.value.path == "below/other"
    (tmp_path / "below").rename(tmp_path / "_below")  # hidden, and so its files are not converted
    assert lakelog.convert(tmp_path, plan=True).num_files == 1


def test_folder_becomes_a_table_and_its_files_are_unchanged(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", {"id": [1, 2], "name": ["x", None]})
    put(tmp_path, "below/b.parquet", {"name": ["y"], "more": [True], "id": [3]})
    (tmp_path / "notes.txt").write_text("other")
    before = contents(tmp_path)
    planned = lakelog.convert(tmp_path, plan=True)
    assert not (tmp_path / "_delta_log").exists()
    report = lakelog.convert(tmp_path, name="t", user_name="ann")
    assert (planned.version, report.version) == (None, 0)
    assert (report.num_files, report.num_rows, report.num_other_files) == (2, 3, 1)
    assert (planned.num_bytes, planned.num_rows) == (report.num_bytes, report.num_rows)
    assert contents(tmp_path) == before
    table = lakelog.open(tmp_path)
    expected = {"id": [1, 2, 3], "name": ["x", None, "y"], "more": [None, None, True]}
    assert table.to_polars().sort("id").to_dict(as_series=False) == expected
    assert pl.read_delta(str(tmp_path)).sort("id").to_dict(as_series=False) == expected
    first = table.history().row(0, named=True)
    assert (first["operation"], first["userName"]) == ("CONVERT", "ann")
    table.append(pl.DataFrame({"id": [4]}))
    assert table.delete("id = 1").num_deleted_rows == 1
    assert table.to_polars()["id"].sort().to_list() == [2, 3, 4]


def test_folders_of_given_columns_may_begin_with_a_dot(tmp_path: Path) -> None:
    put(tmp_path, "_k=1/.d=a/x.parquet", {"id": [1]})
    put(tmp_path, "_k=1/.e=a/x.parquet", {"no": [1]})
    lakelog.convert(tmp_path, partition_by={"_k": pl.Int64, ".d": pl.String})
    assert lakelog.open(tmp_path).to_polars().rows() == [(1, 1, "a")]


def test_folders_are_partitions_with_decoded_values(tmp_path: Path) -> None:
    put(tmp_path, "_p=1/day=2026-01-31/kind=a%20b%2Fc/x.parquet", {"id": [1], "KIND": ["lost"]})
    put(tmp_path, "_p=-7/day=__HIVE_DEFAULT_PARTITION__/kind=é=ü/x.parquet", {"id": [2]})
    put(tmp_path, "_p=2/day=2026-02-01/kind=/x.parquet", {"id": [3]})
    put(tmp_path, "_p=2/.hidden/kind=z/x.parquet", {"no": [1]})
    put(tmp_path, "_temporary/_p=2/x.parquet", {"no": [1]})
    put(tmp_path, "_p=2/day=2026-02-01/kind=/_x.parquet", {"no": [1]})
    report = lakelog.convert(tmp_path)
    assert report.partition_by == ("_p", "day", "kind")
    rows = lakelog.open(tmp_path).to_polars().sort("id").rows()
    assert rows == [
        (1, 1, dt.date(2026, 1, 31), "a b/c"),
        (2, -7, None, "é=ü"),
        (3, 2, dt.date(2026, 2, 1), None),
    ]
    assert {name for each in stats(tmp_path).values() for name in each["nullCount"]} == {"id"}
    theirs = pl.DataFrame(deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table())
    assert theirs.sort("id").select("id", "_p", "day", "kind").rows() == rows


def test_types_of_partition_columns_are_inferred_without_loss_or_given(tmp_path: Path) -> None:
    for month in ("01", "11"):
        put(tmp_path, f"a/month={month}/x.parquet", {"id": [1]})
        put(tmp_path, f"b/month={month}/x.parquet", {"id": [1]})
    lakelog.convert(tmp_path / "a", ["month"])
    lakelog.convert(tmp_path / "b", {"month": pl.Int32})
    read = [lakelog.open(tmp_path / name).to_polars()["month"].sort() for name in "ab"]
    assert read[0].to_list() == ["01", "11"]
    assert read[1].dtype == pl.Int32
    assert read[1].to_list() == [1, 11]
    values = lakelog.open(tmp_path / "b").snapshot().files().collect()["partitionValues"].to_list()
    assert sorted(value["month"] for value in values) == ["1", "11"]


def test_mapped_columns_keep_their_names_in_the_files(tmp_path: Path) -> None:
    nested = pa.array([{"b (c)": 5}, None], pa.struct([("b (c)", pa.int64())]))
    put(tmp_path, "p q=1/a.parquet", pa.table({"id": [1, 2], "s": nested}))
    mapped = {"delta.columnMapping.mode": "name"}
    lakelog.convert(tmp_path, configuration=mapped)
    table = lakelog.open(tmp_path)
    expected = [
        {"id": 1, "s": {"b (c)": 5}, "p q": 1},
        {"id": 2, "s": None, "p q": 1},
    ]
    assert table.to_polars().to_dicts() == expected
    table.append(table.to_polars())
    table.alter.rename_column("id", "number")
    assert table.to_polars(where="number = 2 AND `p q` = 1").height == 2
    other = tmp_path / "other"
    put(other, "a.parquet", {"id": [1]})
    with pytest.raises(InvalidPropertyError, match="no ids"):
        lakelog.convert(other, configuration={"delta.columnMapping.mode": "id"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["day"], "not those of the partition columns"),
        ([], "not those of the partition columns"),
        ({"p": pl.Int64}, "not a value of the column's type"),
    ],
)
def test_folders_that_differ_from_the_partition_columns_raise(
    tmp_path: Path, given: Any, message: str
) -> None:
    put(tmp_path, "p=1/x.parquet", {"id": [1]})
    put(tmp_path, "p=one/x.parquet", {"id": [1]})
    with pytest.raises(InvalidInputError, match=message) as caught:
        lakelog.convert(tmp_path, given)
    assert caught.value.path is not None
    assert not (tmp_path / "_delta_log").exists()


def test_numbers_get_the_widest_type(tmp_path: Path) -> None:
    for number, (whole, real) in enumerate(
        [(pa.int8(), pa.float32()), (pa.int64(), pa.float64()), (pa.int16(), pa.float32())]
    ):
        whole_values, nested = (
            pa.array([number], whole),
            pa.array([{"x": number}], pa.struct([("x", whole)])),
        )
        columns = {"n": whole_values, "r": pa.array([number / 2], real), "s": nested}
        put(tmp_path, f"{number}.parquet", columns)
    lakelog.convert(tmp_path)
    for rows in (lakelog.open(tmp_path).to_polars(), pl.read_delta(str(tmp_path))):
        assert rows.schema["n"] == pl.Int64
        assert rows.schema["r"] == pl.Float64
        assert rows.sort("n").rows() == [(n, n / 2, {"x": n}) for n in range(3)]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"id": ["text"]}, "another type"),
        ({"id": [1.5]}, "another type"),
        ({"ID": [1]}, "case only"),
        ({"id": pa.array([1], pa.timestamp("ns"))}, "nanoseconds"),
        ({"id": pa.array([1], pa.uint64())}, "no equivalent"),
    ],
)
def test_unsupported_column_raises_with_the_file(
    tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    put(tmp_path, "a.parquet", {"id": [1]})
    put(tmp_path, "b.parquet", other)
    with pytest.raises(LakelogError, match=message) as caught:
        lakelog.convert(tmp_path)
    assert isinstance(caught.value, UnsupportedFeatureError | InvalidInputError)
    assert caught.value.path == "b.parquet"
    assert not (tmp_path / "_delta_log").exists()


def test_column_of_nulls_has_the_type_of_the_other_files(tmp_path: Path) -> None:
    nothing = pa.nulls(2)
    nested = pa.StructArray.from_arrays([nothing, pa.array([1, 2])], ["x", "y"])
    put(tmp_path, "a.parquet", {"id": nothing, "text": nothing, "l": [[], [None]], "s": nested})
    more = {"text": ["x"], "l": [["y"]], "s": [{"x": {"z": 1}, "y": 3}]}
    put(tmp_path, "b.parquet", {"id": pa.array([3], pa.int32()), **more})
    put(tmp_path, "c.parquet", {"id": [4], "text": pa.nulls(1), "l": pa.nulls(1), "s": pa.nulls(1)})
    lakelog.convert(tmp_path)
    table = lakelog.open(tmp_path)
    expected: list[dict[str, Any]] = [
        {"id": None, "text": None, "l": [], "s": {"x": None, "y": 1}},
        {"id": None, "text": None, "l": [None], "s": {"x": None, "y": 2}},
        {"id": 3, "text": "x", "l": ["y"], "s": {"x": {"z": 1}, "y": 3}},
        {"id": 4, "text": None, "l": None, "s": None},
    ]
    assert table.to_polars().sort("s", nulls_last=True).to_dicts() == expected
    for where, count in (("text IS NULL", 3), ("text IS NOT NULL", 1), ("id > 3", 1)):
        assert table.to_polars(where).height == count
    assert stats(tmp_path)["a.parquet"]["nullCount"] == {"s": {"y": 0}}
    theirs = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table(columns=["id", "text"])
    assert sorted(map(repr, theirs.to_pylist())) == sorted(
        repr({"id": row["id"], "text": row["text"]}) for row in expected
    )
    table.update({"text": "'z'"}, "id IS NULL")
    assert table.to_polars("text = 'z'")["l"].to_list() == [[], [None]]


def test_column_of_nulls_in_all_files_is_left_out_with_a_warning(tmp_path: Path) -> None:
    for name in "ab":
        put(tmp_path, f"{name}.parquet", {"id": [1], "none": pa.nulls(1)})
    with pytest.warns(LakelogWarning, match="'none': .*add it with Table.alter.add_columns"):
        lakelog.convert(tmp_path)
    table = lakelog.open(tmp_path)
    assert table.to_polars().to_dicts() == [{"id": 1}] * 2
    table.alter.add_columns({"none": pl.String})
    table.append(pl.DataFrame({"id": [2], "none": ["x"]}))
    assert table.to_polars("id = 1")["none"].to_list() == [None, None]
    put(tmp_path / "empty", "a.parquet", {"id": [1], "lists": [[]]})
    with pytest.raises(InvalidInputError, match="'lists' has a part without a type") as caught:
        lakelog.convert(tmp_path / "empty")
    assert caught.value.column == "lists"
    put(tmp_path / "none", "p=1/a.parquet", {"none": pa.nulls(1)})
    with pytest.raises(InvalidInputError, match="no column of the files has a type"):
        lakelog.convert(tmp_path / "none")


def test_statistics_have_only_exact_values_of_the_footer(tmp_path: Path) -> None:
    us, ms = pa.timestamp("us"), pa.timestamp("ms", "UTC")
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)
    columns = {
        "whole": pa.array([3, None, 1], pa.int32()),
        "real": pa.array([1.0, math.nan, 2.0]),
        "text": ["b", "a" * 40, None],
        "long_text": ["x" * 5000, "y", "z"],
        "day": pa.array([dt.date(2026, 1, 1), None, dt.date(2026, 1, 9)]),
        "old": pa.array([dt.date(1, 1, 1), None, dt.date(2026, 1, 9)]),
        "at": pa.array([at, None, at], us),
        "at_ms": pa.array([at, None, at], ms),
        "money": pa.array([Decimal("1.25"), Decimal("-2.50"), None], pa.decimal128(10, 2)),
        "unsigned": pa.array([1, 2**31 + 5, None], pa.uint32()),
        "list": [[1], None, [2, 3]],
        "nested": [{"x": 1}, None, {"x": 5}],
    }
    put(tmp_path, "a.parquet", columns, store_decimal_as_integer=True)
    found = (lakelog.convert(tmp_path), stats(tmp_path)["a.parquet"])[1]
    low, high, nulls = found["minValues"], found["maxValues"], found["nullCount"]
    assert found["numRecords"] == 3
    bounds = {
        "whole": (1, 3),
        "text": ("a" * 32, "b"),
        "day": ("2026-01-01", "2026-01-09"),
        "at": ("2026-01-02T03:04:05.678", "2026-01-02T03:04:05.679"),
        "at_ms": ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.678Z"),
        "money": (-2.50, 1.25),
        "nested": ({"x": 1}, {"x": 5}),
    }
    assert {name: (low.get(name), high.get(name)) for name in low | high} == bounds
    expected: dict[str, Any] = dict.fromkeys(columns, 1)
    expected |= {"real": 0, "long_text": 0, "nested": {"x": 1}}
    del expected["list"]
    assert nulls == expected


def test_int96_timestamps_are_instants_without_bounds(tmp_path: Path) -> None:
    at = pa.array([dt.datetime(2026, 1, 1, 12)], pa.timestamp("us"))
    put(tmp_path, "a.parquet", {"at": at}, use_deprecated_int96_timestamps=True)
    lakelog.convert(tmp_path)
    rows = lakelog.open(tmp_path).to_polars()
    assert rows.schema["at"] == pl.Datetime("us", "UTC")
    assert rows["at"][0] == dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    assert "at" not in stats(tmp_path)["a.parquet"].get("minValues", {})


@pytest.mark.parametrize("number", range(3))
def test_conditions_give_the_same_rows_as_polars_on_the_files(tmp_path: Path, number: int) -> None:
    for part in range(4):
        ids = [None if n % 5 == number else n * 7 % 30 + part * 20 for n in range(20)]
        reals = [math.nan if n % 4 == number else n / 3 for n in range(20)]
        rows = {"id": ids, "real": reals, "text": [f"{n or 0:03}é" * 15 for n in ids]}
        put(tmp_path, f"p={part}/x.parquet", rows, row_group_size=6)
    lakelog.convert(tmp_path)
    plain = pl.read_parquet(tmp_path / "*" / "*.parquet", hive_partitioning=True)
    for where in ("id > 40", "real > 5", "text <= '050'", "id IS NULL AND p > 1", "real < 1"):
        ours = lakelog.open(tmp_path).to_polars(where)
        assert ours.sort(ours.columns).equals(
            plain.sql(f"SELECT * FROM self WHERE {where}").sort(ours.columns)
        )


def test_schema_and_rows_equal_those_of_deltalake(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        put(
            tmp_path / name,
            "p=a/x.parquet",
            {"id": [1, 2], "at": pa.array([1, 2], pa.timestamp("us", "UTC"))},
        )
        put(
            tmp_path / name,
            "p=b/x.parquet",
            {"id": [3, None], "at": pa.array([3, 4], pa.timestamp("us", "UTC"))},
        )
    lakelog.convert(tmp_path / "ours")
    deltalake.convert_to_deltalake(
        str(tmp_path / "theirs"),
        partition_by=deltalake.Schema([deltalake.Field("p", PrimitiveType("string"))]),
        partition_strategy="hive",
    )
    ours, theirs = (pl.read_delta(str(tmp_path / name)) for name in ("ours", "theirs"))
    assert ours.sort("at").equals(theirs.select(ours.columns).sort("at"))


def test_conversion_of_a_table_raises_or_is_ignored(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", {"id": [1]})
    assert lakelog.convert(tmp_path, mode="ignore").version == 0
    with pytest.raises(TableExistsError):
        lakelog.convert(tmp_path)
    assert lakelog.convert(tmp_path, mode="ignore").version is None
    lakelog.create(tmp_path / "i", {"id": pl.Int64}, format="indextables")
    with pytest.raises(TableExistsError, match="indextables"):
        lakelog.convert(tmp_path / "i")
    assert lakelog.open(tmp_path).version() == 0


def test_folder_without_valid_parquet_files_raises(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no Parquet file"):
        lakelog.convert(tmp_path / "none")
    path = put(tmp_path, "a.parquet", {"id": [1]})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptionError, match="not a valid Parquet file") as caught:
        lakelog.convert(tmp_path)
    assert caught.value.path == "a.parquet"
    with pytest.raises(TypeError, match=r"^convert\(\) got an unexpected keyword argument 'x'"):
        lakelog.convert(tmp_path, x=1)  # type: ignore[call-arg] # the point


@pytest.mark.parametrize("fault", ["fail", "lost", "unknown"])
def test_files_are_unchanged_after_a_failure_of_any_operation(tmp_path: Path, fault: Any) -> None:
    for nth in range(1, 60):
        root = tmp_path / str(nth)
        put(root, "p=1/a.parquet", {"id": [1]})
        put(root, "p=2/a.parquet", {"id": [2]})
        before = contents(root)
        store = InjectingStore(open_store(str(root)), [Rule(fault, nth=nth)])
        try:
            lakelog.convert(None, store=store)
        except (LakelogError, OSError):
            lakelog.convert(root, mode="ignore")
        assert contents(root) == before
        assert lakelog.open(root).to_polars()["id"].sort().to_list() == [1, 2]
        if len(store.operations) < nth:
            return
    pytest.fail("a conversion has fewer operations")


def test_file_with_duplicate_column_names_raises(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(UnsupportedFeatureError, match="two columns of one name") as caught:
        lakelog.convert(tmp_path)
    assert (caught.value.path, caught.value.column) == ("a.parquet", "x")
    assert not (tmp_path / "_delta_log").exists()


def test_folders_named_like_patterns_are_partitions(tmp_path: Path) -> None:
    folder = tmp_path / "^a$=2026-01-02" / "*=5"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), folder / "a.parquet")
    lakelog.convert(tmp_path, partition_by=["^a$", "*"])
    found = lakelog.open(tmp_path).to_arrow().select(["a", "^a$", "*"])
    assert found.to_pylist() == [{"a": 1, "^a$": dt.date(2026, 1, 2), "*": 5}]


class Converts(StoreWrapper):
    """The folder is converted immediately before the first commit."""

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(open_store(str(root)))
        self._options = options
        self._path: Path | None = root

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if self._path is not None:
            root, self._path = self._path, None
            lakelog.convert(root, **self._options)
        return super().put_if_absent(path, data)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("append", [1, 2, 7]), ("overwrite", [7]), ("error", [1, 2]), ("ignore", [1, 2])],
)
def test_rows_of_a_write_at_the_same_time_are_not_taken_into_the_table(
    tmp_path: Path, mode: Any, expected: list[int]
) -> None:
    put(tmp_path, "a.parquet", {"id": [1, 2]})
    raised = pytest.raises(TableExistsError) if mode == "error" else nullcontext()
    with raised:
        lakelog.write(None, pl.DataFrame({"id": [7]}), mode=mode, store=Converts(tmp_path))
    assert lakelog.open(tmp_path).to_polars()["id"].sort().to_list() == expected


def test_write_reports_rows_that_cannot_be_removed_again(tmp_path: Path) -> None:
    put(tmp_path, "a.parquet", {"id": [1, 2]})
    store = Converts(tmp_path, configuration={"delta.appendOnly": "true"})
    with pytest.raises(InvalidTransactionError) as error:
        lakelog.write(None, pl.DataFrame({"id": [7]}), store=store)
    assert "do not write their rows again" in error.value.__notes__[0]
    assert lakelog.open(tmp_path).to_polars()["id"].sort().to_list() == [1, 2, 7]
