"""Updates with structs that lack fields of the table's: the fields are kept, or the call refused.

With schema_mode="merge" the result equals a model of Delta on Spark (UpdateExpressionsSupport).
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import Table
from lakelog.errors import InvalidInputError
from lakelog.model import contract
from tests.budget import rng_of, share_of
from tests.data.rows import commit_info, data_files

Shape = Mapping[str, Any] | None
"""The fields of a struct; None is a number."""

TABLE: Shape = {
    "k": None,
    "s": {"a": None, "b": None, "x": {"p": None, "q": None}, "y": {"m": None}},
}
SOURCE: Shape = {"k": None, "s": {"y": {"m": None}, "x": {"new": None, "Q": None}, "A": None}}
EVOLVED: Shape = {
    "a": None,
    "b": None,
    "x": {"p": None, "q": None, "new": None},
    "y": {"m": None},
}
ROWS = pl.DataFrame({"k": [1, 2], "s": [{"a": 1, "b": 10}, {"a": 2, "b": 20}]})
LESS = pl.DataFrame({"k": [1, 3], "s": [{"a": 100}, {"a": 300}]})
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "vectors": {"delta.enableDeletionVectors": "true"},
    "feed": {"delta.enableChangeDataFeed": "true"},
    "feed and vectors": {
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "true",
    },
    "mapped by name": {"delta.columnMapping.mode": "name"},
    "mapped by id": {"delta.columnMapping.mode": "id"},
}


def dtype_of(shape: Shape) -> pl.DataType:
    if shape is None:
        return pl.Int64()
    return pl.Struct({name: dtype_of(each) for name, each in shape.items()})


def value_of(rng: random.Random, shape: Shape) -> Any:
    if rng.random() < 0.3:
        return None
    if shape is None:
        return rng.randrange(1000)
    return {name: value_of(rng, each) for name, each in shape.items()}


def frame_of(rng: random.Random, shape: Shape, keys: list[int]) -> pl.DataFrame:
    assert shape is not None
    rows = [{"k": key, "s": value_of(rng, shape["s"])} for key in keys]
    return pl.DataFrame(rows, schema={name: dtype_of(each) for name, each in shape.items()})


def folded(value: Any) -> Any:
    """The value with names of fields in lower case."""
    if isinstance(value, Mapping):
        return {name.lower(): folded(each) for name, each in value.items()}
    return value


def lacks(given: Shape, shape: Shape) -> bool:
    if given is None or shape is None:
        return False
    return any(n not in given or lacks(given[n], each) for n, each in shape.items())


def updated(new: Any, given: Shape, old: Any, shape: Shape) -> Any:
    if given is None or shape is None or not lacks(given, shape):
        return new
    if new is None and old is None:
        return None
    new, old = new or {}, old or {}
    return {
        name: updated(new.get(name), given[name], old.get(name), each)
        if name in given
        else old.get(name)
        for name, each in shape.items()
    }


def inserted(new: Any, shape: Shape) -> Any:
    if new is None or shape is None:
        return new
    return {name: inserted(new.get(name), each) for name, each in shape.items()}


def new_table(path: Path, rows: pl.DataFrame = ROWS, **properties: str) -> Table:
    lakelog.write(path, rows, configuration=properties)
    return lakelog.open(path, upkeep=False)


@pytest.mark.parametrize("seed", range(share_of(3)))
@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=list(CONFIGURATIONS))
def test_upsert_keeps_the_fields_that_the_source_lacks(
    tmp_path: Path, configuration: dict[str, str], seed: int
) -> None:
    rng = rng_of(f"structs {seed}")
    rows, source = frame_of(rng, TABLE, list(range(30))), frame_of(rng, SOURCE, list(range(15, 45)))
    table = new_table(tmp_path, rows, **configuration)
    table.upsert(source, on="k", schema_mode="merge")
    old, new = dict(rows.rows()), dict(source.rows())
    given = folded(SOURCE)["s"]
    expected = {k: inserted(v, EVOLVED) for k, v in old.items() if k not in new}
    for k, v in new.items():
        has = k in old
        value = (
            updated(folded(v), given, old.get(k), EVOLVED) if has else inserted(folded(v), EVOLVED)
        )
        expected[k] = value
    found = lakelog.open(tmp_path, upkeep=False).to_polars()
    assert dict(found.rows()) == expected
    assert found["s"].struct.fields == ["a", "b", "x", "y"]
    if "delta.enableChangeDataFeed" in configuration:
        changes = table.changes(1).collect()
        for kind, values, keys in (
            (
                "update_preimage",
                {k: inserted(v, EVOLVED) for k, v in old.items()},
                old.keys() & new,
            ),
            ("update_postimage", expected, old.keys() & new),
            ("insert", expected, new.keys() - old.keys()),
        ):
            of_kind = changes.filter(_change_type=kind).select("k", "s")
            assert dict(of_kind.rows()) == {k: values[k] for k in keys}


def test_update_of_delta_s_own_tests_gives_its_result(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {"key": [1, 2], "x": [{"a": 1, "b": 10, "c": 100}, {"a": 2, "b": 20, "c": 0}]}
    )
    table = new_table(tmp_path, rows)
    source = pl.DataFrame({"key": [1], "x": [{"a": 0, "c": 0}]})
    table.merge(source, on="key", schema_mode="merge").when_matched_update_all().execute()
    assert dict(table.to_polars().rows()) == {
        1: {"a": 0, "b": 10, "c": 0},
        2: {"a": 2, "b": 20, "c": 0},
    }
    with pytest.raises(InvalidInputError) as error:
        table.upsert(source, on="key")
    assert error.value.column == "x.b"
    assert error.value.expected == "x.a, x.b, x.c"
    assert error.value.found == "x.a, x.c"
    assert 'schema_mode="merge"' in str(error.value)


SOURCE_S, TARGET_S = (pl.col(side).struct.field("s") for side in ("source", "target"))


@pytest.mark.parametrize("mode", [None, "merge"])
@pytest.mark.parametrize("vectors", ["false", "true"])
@pytest.mark.parametrize(
    "call",
    [
        lambda table, new: table.when_matched_update({"s": "source.s"}),
        lambda table, new: table.when_matched_update({"S": SOURCE_S}),
        lambda table, new: table.when_matched_update({"s": new}, "source.s.a > 1"),
        lambda table, new: table.when_matched_update(
            {"s": pl.when(SOURCE_S.struct.field("a") > 1).then(SOURCE_S).otherwise(TARGET_S)}
        ),
        lambda table, new: table.when_matched_update(
            {"s": "case when source.s.a > 1 then source.s else target.s end"}
        ),
        lambda table, new: table.when_not_matched_by_source_update({"s": new}),
        lambda table, new: table.when_matched_delete().when_not_matched_by_source_update(
            {"s": new}
        ),
    ],
)
def test_merge_refuses_assigned_structs_without_some_fields(
    tmp_path: Path, call: Callable[..., Any], vectors: str, mode: Any
) -> None:
    table = new_table(tmp_path, ROWS, **{"delta.enableDeletionVectors": vectors})
    files = data_files(tmp_path)
    merge = call(table.merge(LESS, on="k", schema_mode=mode), pl.struct(a=pl.lit(5)))
    with pytest.raises(InvalidInputError, match=r"lacks the field 's\.b'|different"):
        merge.execute()
    assert data_files(tmp_path) == files
    assert table.version() == 0


@pytest.mark.parametrize(
    "value",
    [
        {"a": 5},
        pl.struct(a=pl.col("s").struct.field("a") + 1),
        pl.when(pl.col("k") == 1).then(pl.struct(a=5)).otherwise(pl.col("s")),
        pl.when(pl.col("k") == 1).then(pl.struct(a=5)),
    ],
)
def test_update_refuses_structs_without_some_fields(tmp_path: Path, value: Any) -> None:
    table = new_table(tmp_path)
    files = data_files(tmp_path)
    with pytest.raises(InvalidInputError, match=r"lacks the field 's\.b'|different fields"):
        table.update({"s": value}, "k = 1")
    assert data_files(tmp_path) == files
    assert table.version() == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 5, "b": None}, {"a": 5, "b": None}),
        (pl.struct(b=None, A=5), {"a": 5, "b": None}),
        (None, None),
        (pl.col("s").struct.with_fields(a=pl.field("a") * 7), {"a": 7, "b": 10}),
        (
            pl.when(pl.col("k") == 1).then(pl.struct(a=5, b=None)).otherwise(pl.col("s")),
            {"a": 5, "b": None},
        ),
    ],
)
def test_update_takes_nulls_that_are_given(tmp_path: Path, value: Any, expected: Any) -> None:
    table = new_table(tmp_path)
    table.update({"s": value}, "k = 1")
    assert dict(table.to_polars().rows()) == {1: expected, 2: {"a": 2, "b": 20}}


DEEP = [{"a": 1, "x": {"p": 10, "q": 20}}, {"a": 2, "x": None}, None]


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_fields_of_structs_are_updated_alone(tmp_path: Path, configuration: dict[str, str]) -> None:
    table = new_table(tmp_path, pl.DataFrame({"k": [1, 2, 3], "s": DEEP}), **configuration)
    table.update({"S.X.p": "s.a + k", "s.a": pl.col("s").struct.field("a") * 100}, "k < 3")
    assert dict(table.to_polars().rows()) == {
        1: {"a": 100, "x": {"p": 2, "q": 20}},
        2: {"a": 200, "x": {"p": 4, "q": None}},
        3: None,
    }
    table.update({"s.x": {"p": 5, "q": None}, "s.a": None}, "k > 1")  # a null struct gets them
    assert (
        table.to_polars().sort("k")["s"].to_list()[1:]
        == [{"a": None, "x": {"p": 5, "q": None}}] * 2
    )


def test_merges_assign_fields_of_structs_alone(tmp_path: Path) -> None:
    rows = pl.DataFrame({"k": [1, 2], "source": [{"a": 1, "b": 10}, {"a": 2, "b": 20}]})
    table = new_table(tmp_path, rows)
    new = pl.DataFrame({"k": [1, 3], "v": [7, 8]})
    merge = table.merge(new, on="k").when_matched_update({"source.a": "source.v"})
    merge.when_not_matched_by_source_update({"source.b": "target.source.a + 5"}).execute()
    expected = {1: {"a": 7, "b": 10}, 2: {"a": 2, "b": 7}}
    assert dict(table.to_polars().rows()) == expected
    insert = table.merge(new, on="k").when_not_matched_insert({"k": "source.k", "source.a": 1})
    with pytest.raises(InvalidInputError, match=r"the field 'source\.a' alone"):
        insert.execute()
    assert dict(table.to_polars().rows()) == expected


KEYED: dict[str, Any] = {"s": pl.Struct({"id": pl.Int64, "x": pl.String}), "v": pl.Int64}


def keyed(*rows: tuple[int | None, int]) -> pl.DataFrame:
    """Rows with the field `s.id`; the struct of a negative id is null."""
    structs = [None if n is not None and n < 0 else {"id": n, "x": f"x{n}"} for n, _ in rows]
    return pl.DataFrame({"s": structs, "v": [v for _, v in rows]}, schema=KEYED)


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_rows_are_upserted_by_a_field_of_a_struct(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    rng = rng_of(f"field keys {configuration}")
    for round_ in range(share_of(4)):
        table = new_table(tmp_path / str(round_), keyed().clear(), **configuration)
        model: dict[int, int] = {}
        nulls = 0
        for step in range(4):
            new = {rng.randrange(-3, 12): step for _ in range(rng.randrange(8))}
            rows = [(None, step), *new.items()]
            table.upsert(
                keyed(*rows), on=rng.choice(["s.id", ["S.ID"], "target.s.id = source.s.id"])
            )
            model |= {key: v for key, v in new.items() if key >= 0}
            nulls += sum(key is None or key < 0 for key, _ in rows)
        found = table.to_polars().select(pl.col("s").struct.field("id"), "v")
        assert dict(found.drop_nulls("id").rows()) == model
        assert found.height == len(model) + nulls, "nulls match nothing"


@pytest.mark.parametrize(
    ("on", "source"),
    [
        ({"s.id": "id"}, pl.DataFrame({"id": [2, 9]})),
        ({"s.id": "id"}, pl.DataFrame({"id": [2.0, 2.5]})),
        ({"`s`.id": "o.`i.d`"}, pl.DataFrame({"o": [{"i.d": 2}, None]})),
        ({"s.id": "s.id", "v": "v"}, keyed((2, 20), (3, 0))),
        ("s.x", keyed((2, 0), (9, 0))),
        ("target.s.id = source.id", pl.DataFrame({"id": [2, 9]})),
        ("source.s.x = target.s.x AND target.s.id = source.s.id", keyed((2, 0))),
        ("target.s.id = source.id AND target.s.x = source.x", pl.DataFrame({"id": 2, "x": ["x2"]})),
        ("target.v = source.v AND target.s.id = source.s.id", keyed((2, 20), (1, 20))),
        (
            "target.v = source.v AND target.s.id = CAST(source.t AS BIGINT)",
            pl.DataFrame({"v": [20, 20], "t": ["2", "3"]}),
        ),
    ],
)
def test_merges_compare_fields_of_structs(tmp_path: Path, on: Any, source: pl.DataFrame) -> None:
    table = new_table(tmp_path, keyed((1, 10), (2, 20), (3, 30), (-1, 20), (None, 20)))
    report = table.merge(source, on).when_matched_update({"v": "target.s.id * -1"}).execute()
    assert report.num_updated_rows == 1
    assert table.to_polars().filter(pl.col("v") < 0)["s"].to_list() == [{"id": 2, "x": "x2"}]


def test_predicate_of_a_merge_by_a_field_names_its_path(tmp_path: Path) -> None:
    table = new_table(tmp_path, keyed((1, 10)))
    table.merge(keyed((1, 1)), "s.id").when_matched_delete().execute()
    parameters = commit_info(tmp_path, 1)["operationParameters"]
    assert parameters["predicate"] == '["(target.`s`.`id` = source.`s`.`id`)"]'


@pytest.mark.parametrize("ids", [[2], range(100, 300)], ids=["listed keys", "bounds of keys"])
def test_files_that_cannot_hold_a_field_s_keys_are_not_opened(tmp_path: Path, ids: Any) -> None:
    table = new_table(tmp_path, keyed(*((n, n) for n in ids)))
    for far in (-50, 5000):
        rows = keyed((1, 0)).with_columns(s=pl.struct(id=pl.lit(far), x=pl.lit("far")))
        before = data_files(tmp_path)
        table.append(rows)
        [path] = set(data_files(tmp_path)) - set(before)
        (tmp_path / path).unlink()
    report = table.merge(keyed(*((n, 0) for n in ids)), "s.id").when_matched_delete().execute()
    assert report.num_deleted_rows == len(ids)


def test_null_struct_over_a_value_is_no_key(tmp_path: Path) -> None:
    table = new_table(tmp_path, keyed((1, 10), (2, 20)))
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, 2]), pa.array(["a", "b"])], ["id", "x"], mask=pa.array([True, False])
    )
    merge = table.merge(pa.table({"s": hidden}), "s.id").when_matched_delete()
    assert merge.execute().num_deleted_rows == 1
    assert table.to_polars()["v"].to_list() == [10]


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("target.s.x = source.s.id", "the key 's.id' of the merge's source has another type"),
        ({"s.id": "s.x"}, "the key 's.x' of the merge's source has another type than 's.id'"),
        (["s.no"], "the target of the merge has no column 's.no'"),
        ({"s.id": "s.no"}, "the source of the merge has no column 's.no'"),
        ({"s.id": "s.id", "S.ID": "v"}, "compared twice"),
        ("target.s.no = source.s.id", "the target of the merge has no column"),
        ({"s.id": "u"}, "found=a type that no table has"),
    ],
)
def test_keys_that_cannot_be_compared_are_refused(tmp_path: Path, on: Any, message: str) -> None:
    table = new_table(tmp_path, keyed((1, 10)))
    source = keyed((1, 1)).with_columns(u=pl.lit(1, pl.UInt64))
    with pytest.raises(InvalidInputError, match=message):
        table.merge(source, on).when_matched_delete().execute()
    assert table.version() == 0


@pytest.mark.parametrize(
    ("values", "message", "column"),
    [
        ({"s.z": 1}, "no column", "s.z"),
        ({"s.x.p.z": 1}, "no column", "s.x.p.z"),
        ({"z.a": 1}, "no column", "z.a"),
        ({"": 1}, "has no column", ""),
        ({"s.": None}, "has no column", "s."),
        ({"s.a": 1, "S.A": 2}, "two new values", "s.a"),
        ({"s.x.p": 1, "s.x": None}, "two new values", "s.x"),
        ({"s.x": None, "s.x.p": 1}, "two new values", "s.x.p"),
        ({"s.x.p": "'text'"}, "another type", "s.x.p"),
        ({"s.x.p": 1.5}, "without loss", "s.x.p"),
        ({"s.x": {"p": 1}}, r"lacks the field 's\.x\.q'", "s.x.q"),
    ],
)
def test_update_refuses_fields_that_it_cannot_assign(
    tmp_path: Path, values: Any, message: str, column: str
) -> None:
    table = new_table(tmp_path, pl.DataFrame({"k": [1, 2, 3], "s": DEEP}))
    with pytest.raises(InvalidInputError, match=message) as error:
        table.update(values)
    assert error.value.column == column
    assert table.version() == 0


def test_a_dict_is_a_new_value_of_a_map(tmp_path: Path) -> None:
    dtype = pl.Map(pl.String, pl.Int64)
    schema = pl.Schema({"k": pl.Int64(), "m": dtype, "s": pl.Struct({"m": dtype})})
    rows = pl.DataFrame({"k": [1], "m": [{"a": 1}], "s": [{"m": {"a": 1}}]}, schema=schema)
    table = new_table(tmp_path, rows)
    table.update({"m": {"b": 2, "c": None}, "s.m": {}})
    new = table.merge(pl.DataFrame({"k": [2]}), on="k")
    new.when_not_matched_insert({"k": 2, "m": {"d": 3}}).execute()
    rows = table.to_polars().sort("k")
    assert rows["m"].to_list() == [{"b": 2, "c": None}, {"d": 3}]
    assert rows["s"].to_list() == [{"m": {}}, None]
    table.update({"m": [("b", 1.0)]}, "k = 1")
    assert table.to_polars().sort("k")["m"].to_list()[0] == {"b": 1}
    twice = [("b", 1), ("b", 2)]
    for value in ({None: 1}, {"b": Decimal("NaN")}, {"b": 1, "c": "x"}, [1], twice):
        with pytest.raises(InvalidInputError, match="not a literal of its type") as error:
            table.update({"m": value})
        assert error.value.expected == "map<string,long>"


LOSSY: list[tuple[pl.DataType, Any, str]] = [
    (pl.Int64(), 1.5, "without loss"),
    (pl.Int64(), True, "another type"),
    (pl.Float32(), 1e300, "without loss"),
    (pl.Float32(), 2**24 + 1, "without loss"),
    (pl.Float64(), 2**53 + 1, "without loss"),
    (pl.Decimal(10, 2), Decimal("1.109"), "without loss"),
    (pl.Decimal(10, 2), 1.1, "another type"),
    (pl.Decimal(10, 2), Decimal("NaN"), "precision"),
    (pl.Date(), dt.datetime(2026, 1, 1, 5), "another type"),
    (pl.Date(), 1, "another type"),
    (pl.Datetime("us", "UTC"), dt.datetime(2026, 1, 1), "another type"),
    (pl.Datetime("us"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "another type"),
    (pl.Datetime("us"), pd.Timestamp("2026-01-01T00:00:00.123456789"), "nanoseconds"),
    (pl.List(pl.Datetime("us")), [pd.Timestamp(1)], "nanoseconds"),
    (pl.Struct({"a": pl.Int64, "b": pl.Int64}), {"a": 1, "b": 2, "c": 3}, "no field 'c'"),
]


@pytest.mark.parametrize(("dtype", "value", "message"), LOSSY)
def test_literals_are_cast_without_loss_also_in_maps(
    tmp_path: Path, dtype: pl.DataType, value: Any, message: str
) -> None:
    schema = {"k": pl.Int64(), "x": dtype, "m": pl.Map(pl.String, dtype)}
    table = lakelog.create(tmp_path / "t", schema, upkeep=False)
    table.append(pl.DataFrame({"k": [1]}))
    with lakelog.Ingestor(table, tmp_path / "log") as ingestor:
        for new in ({"x": value}, {"m": {"y": value}}):
            with pytest.raises(InvalidInputError, match=message):
                table.update(new)
            with pytest.raises(InvalidInputError, match=message):
                ingestor.write(new)
    assert table.to_polars().rows() == [(1, None, None)]


def test_python_floats_are_floats_of_the_column(tmp_path: Path) -> None:
    float_ = pl.Float32()
    schema = {"id": pl.Int64(), "f": float_, "s": pl.Struct({"f": float_})}
    table = lakelog.create(tmp_path / "t", schema, upkeep=False)
    table.append(pl.DataFrame({"id": [1], "f": [0.0], "s": [{"f": 0.0}]}, schema=schema))
    table.update({"f": 0.1, "s.f": -0.1})
    expected = pl.Series([0.1, -0.1], dtype=pl.Float32).to_list()
    assert table.to_polars().select("f", pl.col("s").struct[0].alias("g")).row(0) == (*expected,)
    with pytest.raises(InvalidInputError, match="without loss"):
        table.update({"f": pl.lit(0.1, dtype=pl.Float64)})


MISSING: list[tuple[pl.DataType, Any, Any]] = [
    (pl.Int64(), pd.NA, None),
    (pl.Datetime("us"), pd.NaT, None),
    (pl.Datetime("us", "UTC"), pd.NaT, None),
    (pl.List(pl.Int64()), [1, pd.NA], [1, None]),
    (pl.Struct({"a": pl.Int64, "b": pl.Date}), {"a": 1, "b": pd.NaT}, {"a": 1, "b": None}),
    (pl.Map(pl.String, pl.Int64), {"a": pd.NA}, {"a": None}),
    (pl.Map(pl.String, pl.Int64), pd.NA, None),
    (pl.Map(pl.String, pl.Int64), pd.NaT, None),
    (pl.Float64(), float("nan"), float("nan")),
]


@pytest.mark.parametrize(("dtype", "value", "stored"), MISSING)
def test_missing_values_of_pandas_are_null(
    tmp_path: Path, dtype: pl.DataType, value: Any, stored: Any
) -> None:
    table = lakelog.create(tmp_path / "t", {"k": pl.Int64(), "x": dtype}, upkeep=False)
    table.append(pl.DataFrame({"k": [1]}))
    table.update({"x": value})
    with lakelog.Ingestor(table, tmp_path / "log") as ingestor:
        ingestor.write([{"k": 2, "x": value}, {"k": 3}])
    expected = pl.DataFrame(
        {"k": [1, 2, 3], "x": [stored, stored, None]}, {"k": pl.Int64, "x": dtype}
    )
    assert table.to_polars().sort("k").equals(expected)


def test_a_name_of_a_column_and_of_a_field_is_ambiguous_without_backquotes(tmp_path: Path) -> None:
    rows = pl.DataFrame({"s.a": [1], "s": [{"a": 2, "b": 3, "c.d": 4, "c": {"d": 5}}]})
    table = new_table(tmp_path, rows, **{"delta.columnMapping.mode": "name"})
    for ambiguous in ("s.a", "S.A", "s.c.d"):
        with pytest.raises(InvalidInputError, match="is ambiguous") as raised:
            table.update({ambiguous: 9})
        assert raised.value.column == ambiguous
    with pytest.raises(InvalidInputError, match="is ambiguous"):
        table.alter.set_comment("x", "s.a")
    assert str(table.snapshot().schema).split("\n")[0] == "`s.a` long"
    table.update({"`s.a`": 9, "`S`.`a`": 1, "s.b": 8, "s.`c.d`": 7})
    assert table.to_polars().rows() == [(9, {"a": 1, "b": 8, "c.d": 7, "c": {"d": 5}})]
    table.alter.set_comment("x", "`s.a`")
    assert str(table.snapshot().schema).split("\n")[0] == "`s.a` long -- x"


def test_new_rows_have_nulls_in_fields_that_the_source_lacks(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    merge = table.merge(LESS, on="k").when_matched_delete().when_not_matched_insert_all()
    merge.execute()
    fours = LESS.with_columns(k=pl.lit(4)).head(1)
    table.merge(fours, on="k").when_not_matched_insert({"k": 4, "s": "source.s"}).execute()
    assert dict(table.to_polars().rows()) == {
        2: {"a": 2, "b": 20},
        3: {"a": 300, "b": None},
        4: {"a": 100, "b": None},
    }


@pytest.mark.parametrize(
    ("dtype", "old", "dtype_of_source", "new", "stored", "missing"),
    [
        (
            pl.List(pl.Struct({"a": pl.Int64, "b": pl.Int64})),
            [{"a": 1, "b": 2}, None],
            pl.List(pl.Struct({"b": pl.Int64})),
            [{"b": 9}, None],
            [{"a": None, "b": 9}, None],
            "s.element.a",
        ),
        (
            pl.Map(pl.String, pl.Struct({"a": pl.Int64, "b": pl.Int64})),
            {"x": {"a": 1, "b": 2}},
            pl.Map(pl.String, pl.Struct({"b": pl.Int64})),
            {"x": {"b": 9}},
            {"x": {"a": None, "b": 9}},
            "s.value.a",
        ),
        (
            pl.Struct({"l": pl.List(pl.Struct({"a": pl.Int64, "b": pl.Int64})), "n": pl.Int64}),
            {"l": [{"a": 1, "b": 2}], "n": 5},
            pl.Struct({"l": pl.List(pl.Struct({"b": pl.Int64}))}),
            {"l": [{"b": 9}]},
            {"l": [{"a": None, "b": 9}], "n": 5},
            "s.l.element.a",
        ),
    ],
)
def test_elements_and_values_of_maps_are_replaced_with_schema_mode(
    tmp_path: Path, dtype: Any, old: Any, dtype_of_source: Any, new: Any, stored: Any, missing: str
) -> None:
    rows = pl.DataFrame({"k": [1], "s": [old]}, schema={"k": pl.Int64, "s": dtype})
    source = pl.DataFrame({"k": [1], "s": [new]}, schema={"k": pl.Int64, "s": dtype_of_source})
    table = new_table(tmp_path, rows)
    with pytest.raises(InvalidInputError, match="lacks the field") as error:
        table.upsert(source, on="k")
    assert error.value.column == missing
    for mode in (None, "merge"):
        merge = table.merge(source, on="k", schema_mode=mode)
        with pytest.raises(InvalidInputError, match="lacks the field"):
            merge.when_matched_update({"s": "source.s"}).execute()
    table.upsert(source, on="k", schema_mode="merge")
    assert table.to_polars()["s"].to_list() == [stored]


def test_not_null_fields_that_the_source_lacks_are_kept_or_refused(tmp_path: Path) -> None:
    inside = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])
    schema = pa.schema([("k", pa.int64()), ("s", inside)])
    rows = pa.table({"k": [1, 2], "s": [{"a": 1, "b": 10}, None]}, schema)
    deltalake.write_deltalake(tmp_path, rows)
    table = lakelog.open(tmp_path, upkeep=False)
    assert table.snapshot().schema == contract.from_arrow(schema)
    table.merge(LESS, on="k", schema_mode="merge").when_matched_update_all().execute()
    expected = {1: {"a": 100, "b": 10}, 2: None}
    assert dict(table.to_polars().rows()) == expected
    for key in (2, 3):
        with pytest.raises(InvalidInputError, match=r"'s\.b' is NOT NULL"):
            table.upsert(LESS.head(1).with_columns(k=pl.lit(key)), on="k", schema_mode="merge")
    assert dict(table.to_polars().rows()) == expected


def test_columns_named_source_and_target_keep_their_fields(tmp_path: Path) -> None:
    rows = ROWS.select("k", source="s", target="s")
    table = new_table(tmp_path, rows)
    table.upsert(LESS.select("k", source="s", target="s"), on="k", schema_mode="merge")
    assert {row[0]: row[1:] for row in table.to_polars().rows()} == {
        1: ({"a": 100, "b": 10},) * 2,
        2: ({"a": 2, "b": 20},) * 2,
        3: ({"a": 300, "b": None},) * 2,
    }


@pytest.mark.parametrize("names", [("*", "^a.*$"), ("a.b", "a")])
def test_fields_named_like_patterns_are_kept(tmp_path: Path, names: tuple[str, str]) -> None:
    one, two = names
    rows = pl.DataFrame({"k": [1], "s": [{one: 1, two: {one: 2, two: 3}}]})
    table = new_table(tmp_path, rows)
    source = pl.DataFrame({"k": [1], "s": [{two: {two: 9}}]})
    table.upsert(source, on="k", schema_mode="merge")
    assert table.to_polars()["s"].to_list() == [{one: 1, two: {one: 2, two: 9}}]


def test_encoded_structs_and_structs_without_fields_keep_the_table_s_fields(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    encoded = pa.DictionaryArray.from_arrays([0], pa.array([{"a": 100}]))
    source = pa.table({"k": [1], "s": encoded})
    empty = pa.table({"k": [2], "s": pa.array([{}], pa.struct([]))})
    for rows in (source, empty):
        with pytest.raises(InvalidInputError, match="lacks the field"):
            table.upsert(rows, on="k")
        table.upsert(rows, on="k", schema_mode="merge")
    assert dict(table.to_polars().rows()) == {1: {"a": 100, "b": 10}, 2: {"a": 2, "b": 20}}


@pytest.mark.parametrize("mode", [None, "merge"])
def test_keys_without_some_fields_are_refused(tmp_path: Path, mode: Any) -> None:
    rows = ROWS.select(k="s", v="k")
    table = new_table(tmp_path, rows)
    with pytest.raises(InvalidInputError, match=r"the key 'k' .* lacks the field 'k\.b'"):
        table.upsert(LESS.select(k="s", v="k"), on="k", schema_mode=mode)
    table.upsert(rows.with_columns(v=pl.col("v") * 5), on="k", schema_mode=mode)
    assert sorted(table.to_polars()["v"]) == [5, 10]


def test_void_fields_need_not_be_given(tmp_path: Path) -> None:
    pair = pa.struct([("a", pa.int64()), ("void", pa.null())])
    schema = contract.from_arrow(pa.schema([("k", pa.int64()), ("s", pair)]), void=True)
    table = lakelog.create(tmp_path, schema, upkeep=False)
    table.append(LESS)
    table.update({"s": {"a": 5}}, "k = 1")
    table.upsert(LESS.filter(k=3).with_columns(s=pl.struct(a=7)), on="k")
    found = {k: s["a"] for k, s in table.to_polars().rows()}
    assert found == {1: 5, 3: 7}


REQUIRED = pa.struct([pa.field("b", pa.int64(), nullable=False)])
SOME_NULL = pa.array([{"b": 1}, None, {"b": 3}], REQUIRED)


@pytest.mark.parametrize(
    "lists",
    [
        pa.ListArray.from_arrays([0, 3], SOME_NULL),
        pa.LargeListArray.from_arrays([0, 3], SOME_NULL),
        pa.FixedSizeListArray.from_arrays(SOME_NULL, 3),
        pa.ListViewArray.from_arrays([0], [3], SOME_NULL),
    ],
    ids=lambda lists: str(lists.type).partition("<")[0],
)
def test_null_elements_with_required_fields_are_kept_by_every_change(
    tmp_path: Path, lists: pa.Array
) -> None:
    kept = SOME_NULL.to_pylist()
    lakelog.write(tmp_path / "t", pa.table({"id": [1], "x": lists}))
    table = lakelog.open(tmp_path / "t", upkeep=False)
    table.append(pa.table({"id": [2], "x": lists}))
    table.append(table.to_arrow())
    table.delete("id = 2")
    table.update({"id": "id + 1"})
    merge = table.merge(pl.DataFrame({"id": [2]}), "id")
    merge.when_matched_update({"id": "target.id + 1"}).execute()
    table.compact(order_by="id")
    assert table.to_arrow().to_pylist() == [{"id": 3, "x": kept}] * 2


@pytest.mark.parametrize("vectors", ["true", "false"])
@pytest.mark.parametrize(
    ("type_", "old", "new"),
    [
        (pa.list_(REQUIRED), [{"b": 1}], [None]),
        (pa.map_(pa.string(), REQUIRED), [("k", {"b": 1})], [("k", None)]),
    ],
    ids=["element", "value"],
)
def test_structs_with_required_fields_inside_lists_and_maps_may_become_null(
    tmp_path: Path, type_: pa.DataType, old: Any, new: Any, vectors: str
) -> None:
    rows = pa.table({"id": [1, 2], "x": pa.array([old, old], type_)})
    schema = pa.schema([("id", pa.int64()), ("x", type_)])
    properties = {"delta.enableDeletionVectors": vectors}
    table = lakelog.create(tmp_path / "t", schema, configuration=properties, upkeep=False)
    table.append(rows)
    table.upsert(pa.table({"id": [1], "x": pa.array([new], type_)}), "id")
    assert table.to_arrow().sort_by("id")["x"].to_pylist() == [new, old]
    table.update({"x": None}, "id = 2")
    assert table.to_arrow().sort_by("id")["x"].to_pylist() == [new, None]


def test_null_structs_with_required_fields_and_metadata_are_written(tmp_path: Path) -> None:
    type_ = pa.struct([pa.field("b", pa.int64(), nullable=False, metadata={"k": "v"})])
    values = pa.array([{"b": 1}, None], type_)
    rows = pa.table({"l": pa.ListArray.from_arrays([0, 2, 2], values)})
    for number, given in enumerate([rows, rows.to_reader(), rows.to_batches()]):
        lakelog.write(tmp_path / str(number), given)
        assert lakelog.open(tmp_path / str(number)).to_arrow().to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_null_structs_with_required_fields_are_refused_and_those_of_others_kept(
    tmp_path: Path, vectors: str
) -> None:
    outer = pa.struct([pa.field("s", REQUIRED)])
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", REQUIRED), ("o", outer)])
    one = {"s": {"b": 1}}
    rows: list[dict[str, Any]]
    rows = [{"id": 1, "v": 1, "s": {"b": 1}, "o": one}, {"id": 2, "v": 1, "s": None, "o": None}]
    deltalake.write_deltalake(tmp_path, pa.Table.from_pylist(rows, schema))
    table = lakelog.open(tmp_path, upkeep=False)
    table.alter.set_properties({"delta.enableDeletionVectors": vectors})
    given: list[dict[str, Any]] = [
        {"id": 3, "v": 3, "o": one},
        {"id": 3, "v": 3, "s": None, "o": one},
        {"id": 3, "v": 3, "s": {"b": 1}, "o": {"s": None}},
    ]
    for row, name in zip(given, ["s.b", "s.b", "o.s.b"], strict=True):
        source = pa.Table.from_pylist([row], pa.schema([schema.field(key) for key in row]))
        for verb, key in (("append", {}), ("overwrite", {}), ("upsert", {"on": "id"})):
            with pytest.raises(InvalidInputError, match="is NOT NULL, and the struct") as refused:
                getattr(table, verb)(source, **key)
            assert refused.value.column == name
    with pytest.raises(InvalidInputError, match=r"'s\.b' is NOT NULL, and the struct 's'"):
        table.update({"s": None}, "id = 1")
    table.update({"v": "v + 1"})
    table.merge(pl.DataFrame({"id": [2]}), "id").when_matched_update({"v": "9"}).execute()
    table.compact(order_by="id")
    kept = [{**rows[0], "v": 2}, {**rows[1], "v": 9}]
    assert table.to_arrow().sort_by("id").to_pylist() == kept
