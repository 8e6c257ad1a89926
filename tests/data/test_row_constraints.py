"""CHECK constraints, invariants, generated columns, defaults and identity columns of new rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest

import lakelog
from lakelog import Ingestor, Table
from lakelog.data.row_commit import RowCommit
from lakelog.errors import (
    ConflictError,
    ConstraintViolationError,
    InvalidInputError,
    SchemaEvolutionError,
    UnsupportedFeatureError,
)
from lakelog.model.contract import Field, Primitive, Struct
from tests.concurrency import run_concurrently
from tests.data.rows import data_files
from tests.handmade import set_unchecked_metadata

LONG, STRING, DATE = Primitive("long"), Primitive("string"), Primitive("date")
TIMESTAMP, INTEGER = Primitive("timestamp"), Primitive("integer")
VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}


def checked(path: Path, text: str = "id > 0", **configuration: str) -> Table:
    return lakelog.create(
        path,
        {"id": pl.Int64, "x": pl.String},
        configuration={"delta.constraints.positive": text, **configuration},
        upkeep=False,
    )


def frame(*ids: int | None, x: str = "a") -> pl.DataFrame:
    return pl.DataFrame({"id": ids, "x": [x] * len(ids)}, schema={"id": pl.Int64, "x": pl.String})


def new_table(path: Path, *fields: Field, by: tuple[str, ...] = (), **configuration: str) -> Table:
    return lakelog.create(path, Struct(fields), by, configuration=configuration, upkeep=False)


def foreign_table(path: Path, *fields: Field, **configuration: str) -> Table:
    """A table whose metadata another writer made, so that its expressions are not checked."""
    table = new_table(path, Field("id", LONG), Field("x", STRING))
    set_unchecked_metadata(table, schema=Struct(fields), configuration=configuration)
    return table


def rows(table: Table) -> list[tuple[Any, ...]]:
    return sorted(table.scan().collect().rows(), key=str)


# --- CHECK constraints and invariants ------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, None])
def test_row_for_which_a_constraint_is_false_or_null_raises_in_every_verb(
    tmp_path: Path, bad: int | None
) -> None:
    table = checked(tmp_path)
    table.append(frame(1, 2, 3))
    files = data_files(tmp_path)

    def in_transaction() -> None:
        with table.transaction() as tx:
            tx.append(frame(bad))

    writers: list[Callable[[], Any]] = [
        lambda: table.append(frame(5, bad, bad)),
        lambda: table.overwrite(frame(bad)),
        lambda: table.overwrite(frame(bad), where="x = 'a'"),
        lambda: table.update({"id": bad}, where="id = 2"),
        lambda: table.upsert(frame(bad, x="new"), on="x"),
        lambda: (
            table.merge(frame(1, x="z"), on="x")
            .when_not_matched_by_source_update({"id": bad})
            .execute()
        ),
        in_transaction,
        lambda: lakelog.write(tmp_path, frame(bad)),
    ]
    for write in writers:
        with pytest.raises(ConstraintViolationError, match="CHECK constraint 'positive'") as caught:
            write()
        assert caught.value.expected == "id > 0"
        assert dict(caught.value.found or {})["example"] == {"id": bad}
    with pytest.raises(ConstraintViolationError) as caught:
        table.append(frame(5, bad, bad))
    assert dict(caught.value.found or {})["rows"] == 2
    assert data_files(tmp_path) == files
    assert table.version() == 1


@pytest.mark.parametrize("configuration", [{}, VECTORS, FEED], ids=["copy", "vectors", "feed"])
def test_rows_of_a_table_with_constraints_are_written_by_every_verb(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    table = checked(tmp_path, **configuration)
    table.append(frame(*range(1, 20)))
    table.delete("id % 3 = 0")
    table.update({"id": "id + 100"}, where="id < 3")
    table.upsert(frame(4, 50, x="new"), on="id")
    table.overwrite(frame(60, 61), where="id BETWEEN 60 AND 99")
    with table.transaction() as tx:
        tx.delete("id = 5")
        tx.append(frame(70))
    found = {row[0] for row in rows(table)}
    assert found == {101, 102, 4, 7, 8, 10, 11, 13, 14, 16, 17, 19, 50, 60, 61, 70}
    table.compact()
    table.restore(1)
    assert len(rows(table)) == 19
    peer = deltalake.DeltaTable(tmp_path)
    assert peer.metadata().configuration["delta.constraints.positive"] == "id > 0"


def test_deltalake_enforces_the_constraint_that_lakelog_added(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"id": pl.Int64, "x": pl.String}, upkeep=False)
    table.append(frame(1))
    table.alter.add_constraint("positive", "id > 0 AND length(x) < 5")
    table.append(frame(2))
    deltalake.write_deltalake(str(tmp_path), frame(3), mode="append")
    with pytest.raises(deltalake.exceptions.DeltaError, match="validation check"):
        deltalake.write_deltalake(str(tmp_path), frame(-3), mode="append")
    table.append(frame(4))
    assert [row[0] for row in rows(table)] == [1, 2, 3, 4]


def test_constraint_with_the_name_of_a_column_in_double_quotes_is_ambiguous(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1], "Name": ["a"]}))
    deltalake.DeltaTable(tmp_path).alter.add_constraint({"x": "Name <> 'z'"})
    table = lakelog.open(tmp_path)
    (text,) = table.snapshot().metadata.constraints.values()
    assert text == "\"Name\" != 'z'"
    with pytest.raises(UnsupportedFeatureError, match='"Name" is ambiguous') as raised:
        table.append(pl.DataFrame({"id": [2], "Name": ["z"]}))
    assert "backquotes" in (raised.value.hint or "")
    assert rows(table) == [(1, "a")]
    (found,) = (each for each in table.doctor().findings if each.kind == "rule-ambiguous")
    assert found.severity == "warning"
    assert "'x' (\"Name\" != 'z')" in found.problem
    with pytest.raises(InvalidInputError, match="ambiguous"):
        table.alter.add_constraint("y", '"NAME" <> "z"')
    table.alter.drop_constraint("x")
    table.alter.add_constraint("x", "`Name` <> 'z'")
    with pytest.raises(ConstraintViolationError):
        table.append(pl.DataFrame({"id": [2], "Name": ["z"]}))
    with pytest.raises(Exception, match="failed validation"):
        deltalake.write_deltalake(
            tmp_path, pl.DataFrame({"id": [2], "Name": ["z"]}).to_arrow(), mode="append"
        )


def test_constraint_added_while_rows_are_written_is_a_conflict(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"id": pl.Int64, "x": pl.String}, upkeep=False)
    tx = table.transaction()
    tx.append(frame(-1))
    lakelog.open(tmp_path, upkeep=False).alter.add_constraint("positive", "id > 0")
    with pytest.raises(ConflictError):
        tx.commit()
    assert rows(table) == []


def test_files_added_by_path_need_a_declaration_of_checked_rows(tmp_path: Path) -> None:
    table = checked(tmp_path)
    frame(1).write_parquet(tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    with (
        pytest.raises(UnsupportedFeatureError, match="CHECK constraint"),
        table.transaction() as tx,
    ):
        tx.add(path="a.parquet", size=size)
    with table.transaction() as tx:
        tx.add(path="a.parquet", size=size)
        tx.declare_rows_checked(["a.parquet"])
    assert len(rows(table)) == 1


UNSUPPORTED = [
    ("x RLIKE 'a'", "RegexpLike"),
    ("hash(id) > 0", "function hash"),
    ("x LIKE 'a\\\\_b'", "backslash"),
    ("id > 'one'", "the string 'one'"),
    ("nope > 1", "column nope"),
    ("id", "bigint in place of boolean"),
    ("id > (SELECT 1)", "Subquery"),
    ("CAST(x AS CHAR(3)) = 'a'", "type char"),
    ("CAST(id AS DOUBLE) / 3 = x", "comparison of double with string"),
    ("x || 'a' + 'b' = 'c'", "without brackets"),
    ("true = id > 0", "without brackets"),
    ("id = x IN (1)", "without brackets"),
    ("id BETWEEN 0 AND 1 = true", "without brackets"),
    ("TRY_CAST(x AS INT) > 0", "TRY_CAST"),
    ("x > INT '5'", "a literal of the type int"),
    ("CAST(x AS STRING COLLATE UTF8_LCASE) = 'a'", "type STRING COLLATE"),
    ("EXTRACT(length FROM x) = 1", "part length"),
    ("week(x) = 1", "function week"),
    ("id > 0;", "semicolon"),
    ("date_format(x, 'EEE') = 'Mon'", "date_format"),
    ("x LIKE x", "literal pattern"),
    ("id > 1 OVER ()", "parsed"),
    ("id > ", "parsed"),
    ("rand() > 0", "function rand"),
    ("max(id) > 1", "function max"),
    ("length(x, 1) = 1", "length with 2 arguments"),
]


@pytest.mark.parametrize(("text", "part"), UNSUPPORTED, ids=[text for text, _ in UNSUPPORTED])
def test_unsupported_expression_raises_before_a_row_is_written(
    tmp_path: Path, text: str, part: str
) -> None:
    rule = {"delta.constraints.positive": text}
    table = foreign_table(tmp_path, Field("id", LONG), Field("x", STRING), **rule)
    with pytest.raises(UnsupportedFeatureError, match="CHECK constraint 'positive'") as caught:
        table.append(frame(1))
    assert part in caught.value.message
    assert caught.value.expected == text
    assert data_files(tmp_path) == []


def test_seconds_that_are_extracted_have_a_fraction(tmp_path: Path) -> None:
    table = checked(tmp_path, "EXTRACT(SECOND FROM timestamp_millis(id)) = 1")
    table.append(frame(61_000))
    with pytest.raises(ConstraintViolationError):
        table.append(frame(1_500))


def test_rows_are_deleted_from_a_table_whose_constraint_is_not_supported(tmp_path: Path) -> None:
    for name, configuration in (("copy", {}), ("vectors", VECTORS)):
        table = lakelog.create(tmp_path / name, frame().schema, configuration=configuration)
        table.append(frame(*range(10)))
        set_unchecked_metadata(table, configuration={"delta.constraints.c": "x RLIKE 'a'"})
        table.delete("id > 4")
        assert len(rows(table)) == 5
        with pytest.raises(UnsupportedFeatureError, match="RegexpLike"):
            table.update({"x": "'b'"}, where="id = 1")


@pytest.mark.parametrize(
    ("text", "bad", "reason"),
    [
        ("id + 1 > 0", 2**63 - 1, "overflow of bigint"),
        ("10 / id > 0", 0, "division by zero"),
        ("CAST(id AS INT) > 0", 2**31, "overflow of int"),
        ("10 % id = 0", 0, "division by zero"),
    ],
)
def test_value_that_depends_on_the_settings_of_spark_raises(
    tmp_path: Path, text: str, bad: int, reason: str
) -> None:
    table = checked(tmp_path, text)
    table.append(frame(1))
    with pytest.raises(InvalidInputError, match=reason) as caught:
        table.append(frame(1, bad))
    assert dict(caught.value.found or {})["id"] == bad


@pytest.mark.parametrize("text", ["CAST(day AS STRING) > ''", "year(day) > 0", "day IS NULL"])
def test_date_that_spark_does_not_support_raises(tmp_path: Path, text: str) -> None:
    table = lakelog.create(tmp_path, {"day": pl.Date}, upkeep=False)
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.constraints.c": text})
        tx.declare_constraints_hold()
    for days in (2**31 - 1, 3_000_000, -800_000):
        with pytest.raises(InvalidInputError, match="a year beyond 1 to 9999"):
            table.append(pl.DataFrame({"day": pl.Series([0, days]).cast(pl.Int32).cast(pl.Date)}))


@pytest.mark.parametrize(
    "text",
    [
        "id <> 0 AND 10 / id > 1",
        "CASE WHEN id = 0 THEN false ELSE 10 / id > 1 END",
        "IF(id = 0, false, 10 / id > 1)",
        "COALESCE(10 / NULLIF(id, 0), 0) > 1",
    ],
)
def test_branch_that_is_not_taken_is_not_evaluated(tmp_path: Path, text: str) -> None:
    table = checked(tmp_path, text)
    table.append(frame(1))
    with pytest.raises(ConstraintViolationError):
        table.append(frame(0))


def test_invariants_are_checked(tmp_path: Path) -> None:
    text = json.dumps({"expression": {"expression": "id > 3"}})
    id_ = Field("id", LONG, metadata={"delta.invariants": text})
    table = new_table(tmp_path, id_, Field("x", STRING))
    table.append(frame(4))
    for bad in (3, None):
        with pytest.raises(ConstraintViolationError, match="invariant of 'id'") as caught:
            table.append(frame(bad))
        assert caught.value.column == "id"
    form = '{"expression": {"expression": "<SQL>"}}'
    for wrong, why, *fields in (
        ("id > 3", "cannot be read", form, "id > 3"),
        (text.replace("id >", "hash(id) >"), "hash", "hash(id) > 3", "invariants"),
    ):
        broken = foreign_table(
            tmp_path / why, Field("id", LONG, metadata={"delta.invariants": wrong})
        )
        with pytest.raises(UnsupportedFeatureError, match=why) as refused:
            broken.append(frame(4).select("id"))
        assert [refused.value.expected, refused.value.found] == fields


# --- generated columns ---------------------------------------------------------------------------

AT = dt.datetime(2026, 1, 31, 23, 30, tzinfo=dt.UTC)


def computed(name: str, text: str, type_: Primitive = LONG) -> Field:
    return Field(name, type_, metadata={"delta.generationExpression": text})


def generated(path: Path, **configuration: str) -> Table:
    return new_table(
        path,
        Field("id", LONG),
        Field("at", TIMESTAMP),
        computed("day", "CAST(at AS DATE)", DATE),
        computed("month", "date_format(at, 'yyyy-MM')", STRING),
        by=("day",),
        **configuration,
    )


def events(*ids: int, at: dt.datetime | None = AT) -> pl.DataFrame:
    schema: dict[str, Any] = {"id": pl.Int64, "at": pl.Datetime("us", "UTC")}
    return pl.DataFrame({"id": ids, "at": [at] * len(ids)}, schema=schema)


def test_generated_columns_are_computed_and_given_values_compared(tmp_path: Path) -> None:
    table = generated(tmp_path)
    table.append(events(1))
    table.append(events(2, at=None))
    given = events(3).with_columns(day=pl.lit(AT.date()), month=pl.lit("2026-01"))
    table.append(given)
    assert rows(table) == [
        (1, AT, AT.date(), "2026-01"),
        (2, None, None, None),
        (3, AT, AT.date(), "2026-01"),
    ]
    assert len(list(tmp_path.glob("day=2026-01-31/*.parquet"))) == 2
    for wrong in (pl.lit(dt.date(2026, 2, 1)), pl.lit(None, pl.Date)):
        with pytest.raises(ConstraintViolationError, match="generated column 'day'") as caught:
            table.append(events(4).with_columns(day=wrong))
        assert caught.value.expected == "CAST(at AS DATE)"
        assert dict(caught.value.found or {})["example"]["computed"] == AT.date()


@pytest.mark.filterwarnings("ignore:empty values of the partition column")
def test_generated_partition_column_may_be_empty_which_is_stored_as_null(tmp_path: Path) -> None:
    first = computed("g", "substring(s, 1, 1)", STRING)
    table = new_table(tmp_path / "t", Field("id", LONG), Field("s", STRING), first, by=("g",))
    given = pl.DataFrame({"id": [1, 2], "s": ["", "x"], "g": ["", "x"]})
    table.append(given)
    table.append(table.to_polars().with_columns(pl.col("id") + 2))
    table.update({"id": 9}, where="id = 1")
    with Ingestor(table, tmp_path / "ingest") as ingestor:
        ingestor.write([{"id": 5, "s": "", "g": ""}])
    with Ingestor(table, tmp_path / "ingest") as ingestor:
        ingestor.write([{"id": 6, "s": "", "g": None}])
    assert sorted(rows(table)) == [
        (2, "x", "x"),
        *((n, "x" if n == 4 else "", "x" if n == 4 else None) for n in (3, 4, 5, 6, 9)),
    ]
    with pytest.raises(ConstraintViolationError, match="generated column 'g'"):
        table.append(given.with_columns(s=pl.lit("y")))


@pytest.mark.parametrize("configuration", [{}, VECTORS, FEED], ids=["copy", "vectors", "feed"])
def test_update_of_a_base_column_recomputes_generated_columns(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    table = generated(tmp_path, **configuration)
    table.append(events(1, 2, 3))
    later = AT + dt.timedelta(hours=1)
    table.update({"at": later}, where="id = 1")
    table.upsert(events(2, 9, at=later), on="id")
    table.update({"id": 30}, where="id = 3")
    moved = (later, later.date(), "2026-02")
    assert rows(table) == [(1, *moved), (2, *moved), (30, AT, AT.date(), "2026-01"), (9, *moved)]
    with pytest.raises(ConstraintViolationError, match="generated column"):
        table.update({"day": dt.date(2000, 1, 1)}, where="id = 1")
    merge = table.merge(events(10, at=later), on="id")
    merge.when_not_matched_insert({"id": "id", "at": "at"}).execute()
    assert len(rows(table)) == 5
    if configuration == FEED:
        feed = table.changes(3, 3).collect().filter(pl.col("_change_type") == "insert")
        assert feed["month"].to_list() == ["2026-02"]


def test_generated_struct_is_computed_under_column_mapping(tmp_path: Path) -> None:
    struct = Struct((Field("y", LONG, nullable=False), Field("z", STRING)))
    fields = (Field("s", struct), Field("g", struct, metadata={"delta.generationExpression": "s"}))
    table = new_table(tmp_path, *fields, by=(), **{"delta.columnMapping.mode": "name"})
    table.append(pl.DataFrame({"s": [{"y": 1, "z": "a"}]}))
    assert rows(table) == [({"y": 1, "z": "a"}, {"y": 1, "z": "a"})]


def test_generated_column_with_the_name_of_a_column_in_double_quotes_raises(tmp_path: Path) -> None:
    column = computed("g", 'upper("Na""me")', STRING)
    table = foreign_table(tmp_path, Field('Na"me', STRING), column)
    with pytest.raises(UnsupportedFeatureError, match="ambiguous"):
        table.append(pl.DataFrame({'Na"me': ["a"]}))


@pytest.mark.parametrize("text", ["CAST(id AS SMALLINT)", "7"])
def test_new_generated_column_has_the_type_of_its_expression(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match="'g' has another type than the column"):
        new_table(tmp_path / "new", Field("id", LONG), computed("g", text), by=())
    table = new_table(tmp_path / "t", Field("id", LONG), by=())
    with pytest.raises(InvalidInputError, match="'g' has another type than the column"):
        table.alter.add_columns(Struct((computed("g", text),)))
    there = foreign_table(tmp_path / "other", Field("id", LONG), computed("g", text))
    there.append(pl.DataFrame({"id": [7]}))
    assert rows(there) == [(7, 7)]


@pytest.mark.parametrize("text", ["id * 1.5", "hash(id)"], ids=["another type", "unsupported"])
def test_invalid_expression_of_a_generated_column_raises(tmp_path: Path, text: str) -> None:
    table = foreign_table(tmp_path, Field("id", LONG), computed("x", text))
    with pytest.raises(UnsupportedFeatureError, match="generated column 'x'") as refused:
        table.append(frame(1).select("id"))
    assert refused.value.found == "generatedColumns"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (("h = g + 1", "g = id + 1"), "'h' depends on the column 'g'"),
        (("g = id + 1", "h = G + 1"), "'h' depends on the column 'g'"),
        (("g = g + 1",), "'g' depends on the column 'g'"),
        (("g = IF(current_date() > DATE '2026-01-01', 1, 0)",), "'g' depends on the current time"),
    ],
)
def test_generated_column_that_other_columns_do_not_determine_raises(
    tmp_path: Path, fields: tuple[str, ...], reason: str
) -> None:
    texts = [text.partition(" = ")[::2] for text in fields]
    columns = (Field("id", LONG), *(computed(name, text) for name, text in texts))
    with pytest.raises(InvalidInputError, match=reason) as invalid:
        new_table(tmp_path / "new", *columns)
    assert invalid.value.column == texts[-1 if "G" in fields[-1] else 0][0]
    table = foreign_table(tmp_path / "foreign", *columns)
    given = {name: pl.lit(1) for name, _ in texts}
    writers: list[Callable[[], Any]] = [
        lambda: table.append(frame(1).select("id")),
        lambda: table.overwrite(frame(1).select("id")),
        lambda: table.update({"id": 7}),
        lambda: table.upsert(frame(1).select("id"), on="id"),
        lambda: table.append(frame(1).select("id", **given)),
    ]
    for write in writers:
        with pytest.raises(UnsupportedFeatureError, match=reason) as refused:
            write()
        assert refused.value.column == invalid.value.column
    table.delete("id = 1")
    assert data_files(tmp_path / "foreign") == []


# --- defaults ------------------------------------------------------------------------------------


def test_omitted_column_gets_its_default(tmp_path: Path) -> None:
    def field(name: str, type_: Any, text: str) -> Field:
        return Field(name, type_, metadata={"CURRENT_DEFAULT": text})

    table = new_table(
        tmp_path,
        Field("id", LONG),
        field("a", INTEGER, "1 + 1"),
        field("b", STRING, "concat('x', 'y')"),
        field("c", DATE, "DATE '2026-01-31'"),
        field("d", TIMESTAMP, "current_timestamp()"),
        Field("e", STRING),
    )
    before = dt.datetime.now(dt.UTC)
    table.append(frame(1).select("id"))
    table.append(frame(2).select("id", a=pl.lit(None, pl.Int32), b=pl.lit("z")))
    table.upsert(frame(3).select("id"), on="id")
    found = table.scan().collect().sort("id")
    assert found.drop("d").rows() == [
        (1, 2, "xy", dt.date(2026, 1, 31), None),
        (2, None, "z", dt.date(2026, 1, 31), None),
        (3, 2, "xy", dt.date(2026, 1, 31), None),
    ]
    assert found["d"].is_between(before, dt.datetime.now(dt.UTC)).all()


# --- identity columns ----------------------------------------------------------------------------


def identity(path: Path, start: int = 1, step: int = 1, **metadata: Any) -> Table:
    known = {
        "delta.identity.start": start,
        "delta.identity.step": step,
        "delta.identity.allowExplicitInsert": False,
    }
    numbers = {f"delta.identity.{key}": value for key, value in metadata.items()}
    return new_table(path, Field("id", LONG, metadata=known | numbers), Field("x", STRING))


def named(*names: str) -> pl.DataFrame:
    return pl.DataFrame({"x": names}, schema={"x": pl.String})


def mark_of(table: Table) -> Any:
    return table.snapshot().schema.fields[0].metadata.get("delta.identity.highWaterMark")


@pytest.mark.parametrize(("start", "step"), [(1, 1), (10, 5), (-3, -2), (0, -1)])
def test_identity_values_continue_after_the_last_one(tmp_path: Path, start: int, step: int) -> None:
    table = identity(tmp_path, start, step)
    assert mark_of(table) is None
    table.append(named("a", "b"))
    table.append(named())
    with table.transaction() as tx:
        tx.append(named("c"))
        tx.append(named("d"))
    table.upsert(named("a", "e"), on="x")
    found = dict(table.scan().select("x", "id").collect().rows())
    assert found == {name: start + n * step for n, name in enumerate("abcde")}
    assert mark_of(table) == start + 4 * step


@pytest.mark.parametrize("mapped_before", [True, False])
def test_identity_values_of_a_column_renamed_since_are_not_generated_again_after_a_restore(
    tmp_path: Path, mapped_before: bool
) -> None:
    table = identity(tmp_path)
    mapping = {"delta.columnMapping.mode": "name"}
    if mapped_before:
        table.alter.set_properties(mapping)
    table.append(named("a", "b"))
    version = table.version()
    if not mapped_before:
        table.alter.set_properties(mapping)
    table.alter.rename_column("id", "key")
    table.append(named("c", "d"))
    table.restore(version)
    assert mark_of(table) == 4
    table.append(named("e"))
    assert rows(table) == [(1, "a"), (2, "b"), (5, "e")]


def test_identity_values_are_never_generated_twice(tmp_path: Path) -> None:
    table = identity(tmp_path)
    table.append(named("a"))
    other = lakelog.open(tmp_path, upkeep=False)
    late = table.transaction()
    late.append(named("lost"))
    other.append(named("b"))
    with pytest.raises(ConflictError):
        late.commit()
    table.append(named("c"))
    table.restore(1)
    table.append(named("d"))
    assert rows(table) == [(1, "a"), (4, "d")]
    table.overwrite(named("e", "f"))
    assert rows(table) == [(5, "e"), (6, "f")]
    deletes = lakelog.open(tmp_path, upkeep=False)
    with table.transaction() as tx:
        tx.delete("id = 5")
        deletes.append(named("g"))  # its new high-water mark alone does not conflict
    assert rows(table) == [(6, "f"), (7, "g")]


def test_appends_at_the_same_time_generate_each_identity_value_once(tmp_path: Path) -> None:
    identity(tmp_path)

    def append(number: int) -> None:
        table = lakelog.open(tmp_path, upkeep=False)
        for row in range(3):
            table.append(named(f"{number}.{row}"))

    run_concurrently(*(partial(append, number) for number in range(3)))
    found = rows(lakelog.open(tmp_path))
    assert [number for number, _ in found] == list(range(1, 10))
    assert len({name for _, name in found}) == 9
    assert len(data_files(tmp_path)) == 9


def test_lost_identity_values_are_generated_again_only_for_rows_that_can_be_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = identity(tmp_path), lakelog.open(tmp_path, upkeep=False)
    commit, changes = RowCommit.commit, list[Any]()

    def overtaken(own: RowCommit, report: Any) -> Any:
        if changes:
            changes.pop()()
        return commit(own, report)

    monkeypatch.setattr(RowCommit, "commit", overtaken)
    changes.append(lambda: other.append(named("a")))
    assert table.append(named("b")).version == 2
    for given, attempts in ((named("x").to_arrow().to_reader(), None), (named("x"), 1)):
        changes.append(lambda: other.append(named("c")))
        with pytest.raises(ConflictError):
            table.append(given, max_attempts=attempts)
    changes.append(lambda: other.alter.add_columns({"new": pl.Int64}))
    with pytest.raises(ConflictError):
        table.append(named("x"))
    assert [(row[0], row[1]) for row in rows(table)] == [(1, "a"), (2, "b"), (3, "c"), (4, "c")]
    assert len(data_files(tmp_path)) == 4


def test_explicit_value_of_an_always_generated_identity_column_raises(
    tmp_path: Path,
) -> None:
    always = identity(tmp_path / "always")
    with pytest.raises(InvalidInputError, match="always generated"):
        always.append(frame(1))
    always.append(named("a"))
    with pytest.raises(InvalidInputError, match="cannot be updated"):
        always.update({"id": 7})
    default = identity(tmp_path / "default", allowExplicitInsert=True)
    default.append(frame(100))
    default.append(named("b"))
    assert rows(default) == [(1, "b"), (100, "a")]


def test_identity_values_out_of_range_raise(tmp_path: Path) -> None:
    table = identity(tmp_path, highWaterMark=2**63 - 2)
    with pytest.raises(InvalidInputError, match="used up"):
        table.append(named("a", "b"))
    table.append(named("a"))
    assert rows(table) == [(2**63 - 1, "a")]
    assert deltalake.DeltaTable(tmp_path).version() == 1


def test_high_water_mark_between_two_values_is_rounded_up(tmp_path: Path) -> None:
    table = identity(tmp_path, 10, 10, highWaterMark=25)
    table.append(named("a"))
    assert rows(table) == [(30, "a")]


# --- rules of new tables -------------------------------------------------------------------------

IDENTITY = {
    "delta.identity.start": 1,
    "delta.identity.step": 1,
    "delta.identity.allowExplicitInsert": False,
}


def defaulted(text: str, type_: Primitive = LONG, more: Mapping[str, Any] | None = None) -> Field:
    return Field("c", type_, metadata={"CURRENT_DEFAULT": text, **(more or {})})


INVALID: dict[str, tuple[Field, str]] = {
    "identity of another type": (Field("c", INTEGER, metadata=IDENTITY), "identity column 'c'"),
    "identity of step 0": (
        Field("c", LONG, metadata={**IDENTITY, "delta.identity.step": 0}),
        "identity column 'c'",
    ),
    "identity without a rule": (
        Field("c", LONG, metadata={"delta.identity.start": 1, "delta.identity.step": 1}),
        "incomplete",
    ),
    "default out of range": (defaulted("300", Primitive("byte")), "default of the column 'c'.*300"),
    "default of another type": (defaulted("'abc'"), "default of the column 'c'.*'abc'"),
    "default of a column": (defaulted("id + 1"), "column id, which is not found"),
    "default that is an error": (defaulted("1 DIV 0"), "division by zero"),
    "default and expression": (
        defaulted("1", more={"delta.generationExpression": "id"}),
        "several sources",
    ),
    "default and identity": (defaulted("1", more=IDENTITY), "several sources"),
    "expression and identity": (
        Field("c", LONG, metadata={**IDENTITY, "delta.generationExpression": "id"}),
        "several sources",
    ),
    "expression of an unknown column": (computed("c", "k + 1"), "column k, which is not found"),
    "expression of another type": (computed("c", "upper(x)"), "string in place of bigint"),
    "expression in a struct": (
        Field("c", Struct((computed("d", "id"),))),
        "'c.d' is a field of another column",
    ),
    "invariant that cannot be read": (
        Field("c", LONG, metadata={"delta.invariants": "c > 1"}),
        "invariant of 'c'",
    ),
}


@pytest.mark.parametrize(("field", "reason"), INVALID.values(), ids=INVALID)
def test_table_with_an_invalid_rule_is_not_created(
    tmp_path: Path, field: Field, reason: str
) -> None:
    schema = Struct((Field("id", LONG), Field("x", STRING), field))
    with pytest.raises(InvalidInputError, match=reason) as caught:
        lakelog.create(tmp_path / "new", schema)
    assert str(caught.value.column).startswith("c")
    assert not (tmp_path / "new").exists()
    table = checked(tmp_path / "old")
    with pytest.raises(InvalidInputError, match=reason):
        lakelog.create(tmp_path / "old", schema, mode="overwrite")
    assert table.version() == 0


@pytest.mark.parametrize("text", ["zzz > 0", "id + 1"])
def test_table_with_an_invalid_constraint_is_not_created(tmp_path: Path, text: str) -> None:
    rule = {"delta.constraints.c": text}
    pl.DataFrame({"id": [1]}).write_parquet(tmp_path / "a.parquet")
    for create in (
        lambda: lakelog.create(tmp_path, frame().schema, configuration=rule),
        lambda: lakelog.write(tmp_path, frame(1), configuration=rule),
        lambda: lakelog.convert(tmp_path, configuration=rule),
    ):
        with pytest.raises(InvalidInputError, match="CHECK constraint 'c'") as caught:
            create()
        assert caught.value.found == text
    assert data_files(tmp_path) == ["a.parquet"]


def test_table_with_a_rule_that_lakelog_does_not_evaluate_is_not_created(tmp_path: Path) -> None:
    for field in (computed("c", "hash(id)"), defaulted("hash(1)")):
        with pytest.raises(UnsupportedFeatureError, match="function hash") as caught:
            new_table(tmp_path, Field("id", LONG), field)
        assert caught.value.column == "c"
        assert "could not write rows" in str(caught.value)


def test_table_is_not_partitioned_by_an_identity_column(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be a partition column"):
        new_table(tmp_path, Field("c", LONG, metadata=IDENTITY), Field("x", STRING), by=("c",))


def test_type_of_a_column_with_computed_values_cannot_change(tmp_path: Path) -> None:
    fields = (Field("c", LONG, metadata=IDENTITY), Field("id", LONG))
    table = new_table(tmp_path, *fields, computed("g", "CAST(id AS INT)", INTEGER))
    for name, wider in (("c", "decimal(20,0)"), ("g", "long")):
        with pytest.raises(SchemaEvolutionError, match="generated or identity") as caught:
            table.alter.widen_column(name, wider, enable=True)
        assert caught.value.column == name
    table.append(frame(1).select("id"))
    assert rows(table) == [(1, 1, 1)]


def test_constraint_may_depend_on_the_current_time(tmp_path: Path) -> None:
    table = checked(tmp_path, "timestamp_millis(id) <= current_timestamp()")
    table.append(frame(1))
    with pytest.raises(ConstraintViolationError):
        table.append(frame(2**45))


def test_overwrite_of_the_schema_drops_rules_of_columns_and_keeps_constraints(
    tmp_path: Path,
) -> None:
    schema = Struct((Field("id", LONG, nullable=False), computed("g", "id + 1"), defaulted("7")))
    table = lakelog.create(tmp_path, schema, upkeep=False)
    table.alter.add_constraint("positive", "id > 0")
    table.alter.set_comment("key", "id")
    with pytest.raises(InvalidInputError, match="the column id, which is not found"):
        table.overwrite(named("a"), schema_mode="overwrite")
    table.overwrite(pl.DataFrame({"id": [1], "g": [9], "c": [3]}), schema_mode="overwrite")
    assert [(f.nullable, f.metadata) for f in table.snapshot().schema.fields] == [(True, {})] * 3
    with pytest.raises(ConstraintViolationError, match="'positive'"):
        table.append(frame(0).select("id"))


# --- versions of the protocol --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"delta.generationExpression": "id +"}, "cannot be parsed"),
        ({"delta.generationExpression": "missing"}, "missing"),
        ({"CURRENT_DEFAULT": "1 +"}, "cannot be parsed"),
        ({"delta.identity.start": 1}, "identity column 'g'"),
        ({"delta.invariants": "g > 0"}, "cannot be read"),
        ({"delta.generationExpression": "id", "CURRENT_DEFAULT": "1"}, "several sources"),
    ],
)
def test_rules_that_create_refuses_are_refused_in_changes_of_the_metadata(
    tmp_path: Path, metadata: dict[str, Any], reason: str
) -> None:
    added = Field("g", LONG, metadata=metadata)
    refused = (InvalidInputError, UnsupportedFeatureError)
    with pytest.raises(refused, match=reason):
        new_table(tmp_path / "new", Field("id", LONG), added)
    table = new_table(tmp_path / "t", Field("id", LONG))
    with pytest.raises(refused, match=reason), table.transaction() as tx:
        tx.set_metadata(schema=Struct((Field("id", LONG), added)))
    with pytest.raises(refused, match=reason):
        table.alter.add_columns(Struct((added,)))
    assert table.version() == 0


def test_constraint_of_a_transaction_is_checked_before_it_is_committed(tmp_path: Path) -> None:
    table = new_table(tmp_path, Field("id", LONG))
    tx = table.transaction()
    tx.set_metadata(configuration={"delta.constraints.c": "id >"})
    tx.declare_constraints_hold()
    with pytest.raises(UnsupportedFeatureError, match="CHECK constraint 'c'"):
        tx.commit()
    assert table.version() == 0


def test_rules_of_another_writer_do_not_prevent_changes_of_the_metadata(tmp_path: Path) -> None:
    unknown = {"delta.generationExpression": "my_function(id)"}
    fields = (Field("id", LONG), Field("g", LONG, metadata=unknown))
    default = Field("d", LONG, metadata={"CURRENT_DEFAULT": "my_function()"})
    table = foreign_table(tmp_path, *fields, default, **{"delta.columnMapping.mode": "name"})
    table.alter.set_properties({"owner": "a"})
    table.alter.add_columns({"more": pl.Int64})
    table.alter.rename_column("d", "e")
    table.alter.set_comment("about")
    assert table.snapshot().schema.names == ("id", "g", "e", "more")


@pytest.mark.parametrize("writer", [3, 4, 6, 7])
def test_constraints_are_checked_in_every_version_of_the_protocol(
    tmp_path: Path, writer: int
) -> None:
    lists: Mapping[str, Any] = (
        {"writerFeatures": ["appendOnly", "checkConstraints", "invariants"]} if writer == 7 else {}
    )
    table = lakelog.create(tmp_path, frame().schema, upkeep=False)
    with table.transaction() as tx:
        tx.set_protocol(minReaderVersion=1, minWriterVersion=writer, **lists)
        tx.set_metadata(configuration={"delta.constraints.c": "id > 0"})
        tx.declare_constraints_hold()
    table.append(frame(1))
    with pytest.raises(ConstraintViolationError):
        table.append(frame(-1))


def test_decimals_are_compared_exactly(tmp_path: Path) -> None:
    price = pl.Decimal(10, 2)
    table = lakelog.create(tmp_path, {"price": price}, upkeep=False)
    table.alter.add_constraint("c", "price * 2 <= 2.50 AND price + 1 > 0.995")
    table.append(pl.DataFrame({"price": [Decimal("1.25"), Decimal("0.00")]}, {"price": price}))
    for bad in ("1.26", "-0.01"):
        with pytest.raises(ConstraintViolationError):
            table.append(pl.DataFrame({"price": [Decimal(bad)]}, {"price": price}))


def test_rules_of_columns_named_like_patterns_read_those_columns(tmp_path: Path) -> None:
    rows = {"*": [1], "^x$": [1], "x": [2]}
    lakelog.write(tmp_path, pl.DataFrame(rows))
    table = lakelog.open(tmp_path, upkeep=False)
    table.alter.add_constraint("positive", "`^x$` > 0")
    table.alter.add_constraint("less", "`*` < `x`")
    for wrong in ({"^x$": [-1]}, {"*": [3]}):
        with pytest.raises(ConstraintViolationError):
            table.append(pl.DataFrame(rows | wrong))
    assert table.to_arrow().to_pydict() == rows
