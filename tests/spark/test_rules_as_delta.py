"""Rules of rows (constraints, generated, default and identity columns) against Delta on Spark."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.data.conform import wide_field
from lakelog.data.row_expression import RowExpression, translate
from lakelog.model import contract
from lakelog.model.contract import Field, Primitive, Struct
from lakelog.sql.condition import new_value
from lakelog.sql.values import UnsupportedExpressionError, type_name
from tests.budget import rng_of, share_of

pytestmark = pytest.mark.reference

EXPRESSIONS = (Path(__file__).parent / "rule_expressions.txt").read_text("utf-8").splitlines()

TYPES: dict[str, contract.DataType] = {
    "b": Primitive("byte"),
    "s": Primitive("short"),
    "i": Primitive("integer"),
    "l": Primitive("long"),
    "f": Primitive("float"),
    "d": Primitive("double"),
    "de": contract.Decimal(10, 2),
    "dw": contract.Decimal(5, 0),
    "t": Primitive("string"),
    "t2": Primitive("string"),
    "da": Primitive("date"),
    "ts": Primitive("timestamp"),
    "nt": Primitive("timestamp_ntz"),
    "bo": Primitive("boolean"),
    "st": Struct(
        (Field("x", Primitive("integer")), Field("y", Struct((Field("z", Primitive("string")),))))
    ),
}
SCHEMA = Struct(tuple(Field(name, type_) for name, type_ in TYPES.items()))
_MOMENTS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1582, 10, 10, 3, 4, 5, 6),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    dt.datetime(1970, 1, 1),
    dt.datetime(2024, 2, 29, 12, 30, 15, 500000),
    dt.datetime(2026, 7, 5, 0, 0, 0, 1),
    dt.datetime(9999, 12, 30, 23, 59, 59),
]
_NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
VALUES: dict[str, list[Any]] = {
    "b": [0, 1, -1, 127, -128, 7],
    "s": [0, 1, -32768, 32767, 50],
    "i": [0, 1, -1, 2**31 - 1, -(2**31), 42, -7],
    "l": [0, 1, -1, 2**63 - 1, -(2**63), 100, -7, 10**12],
    "f": [0.0, -0.0, 1.5, -2.25, 0.1, *_NOT_FINITE],
    "d": [0.0, -0.0, 1.5, -2.75, 0.1, 1e300, 3.0, *_NOT_FINITE],
    "de": [Decimal(v) for v in ("0.00", "1.25", "-1.25", "99999999.99", "-0.05")],
    "dw": [Decimal(v) for v in ("0", "99999", "-3")],
    "t": [
        *("", "a", "abc", "ABC", "héllo", "x%y", "2024-02-29", "1969-12-31 23:59:59.5", "5", " 7 "),
        *("-3", "true", "no", "a\nb", "z" * 3000, "Straße", "日本語", "12345678901"),
    ],
    "t2": ["", "b", "abc", "lo"],
    "da": [moment.date() for moment in _MOMENTS],
    "ts": [moment.replace(tzinfo=dt.UTC) for moment in _MOMENTS],
    "nt": _MOMENTS,
    "bo": [True, False],
    "st": [{"x": 1, "y": {"z": "q"}}, {"x": None, "y": None}, {"x": -5, "y": {"z": None}}],
}


def some_rows(rng: random.Random, count: int) -> pa.Table:
    rows = [
        {name: rng.choice([None, *values]) for name, values in VALUES.items()} for _ in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([wide_field(f) for f in SCHEMA.fields]))


@pytest.fixture
def utc(spark: Any) -> Iterator[Any]:
    """The session with the zone UTC, whose ANSI mode is set back at the end."""
    wanted = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # Hundreds of expressions for a few rows are not worth compiling.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    before = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.set(key, value)


def translated(text: str) -> RowExpression:
    return translate(text, SCHEMA, None, now_us=0)


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Values that are compared: NaN equals itself, and times are numbers."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    return ["NaN" if isinstance(v, float) and math.isnan(v) else v for v in column.to_pylist()]


def ours(texts: Sequence[str], rows: pa.Table) -> tuple[dict[str, list[Any]], dict[str, pl.Series]]:
    """For each expression its values and the rows for which it has a certain one."""
    frame = pl.DataFrame(rows).with_row_index("\0")
    values, certain = {}, {}
    for text in texts:
        found = translated(text)
        bad = [each.condition.fill_null(value=False) for each in found.errors] or [
            pl.lit(value=False)
        ]
        answer = frame.select("\0", value=found.expr, bad=pl.any_horizontal(bad))
        array = answer["value"].to_arrow(compat_level=pl.CompatLevel.oldest())
        values[text] = values_of(pa.chunked_array([array]))
        certain[text] = ~answer["bad"]
    return values, certain


def assert_as_spark(spark: Any, tmp_path: Path, texts: Sequence[str], rows: pa.Table) -> None:
    """The expressions have the values and the types that Spark gives them, in both modes."""
    values, certain = ours(texts, rows)
    table = rows.append_column("row", pa.array(range(rows.num_rows)))
    for number, text in enumerate(texts):
        table = table.append_column(f"ok{number}", certain[text].to_arrow())
    pq.write_table(table, tmp_path / "rows.parquet")
    frame = spark.read.parquet(str(tmp_path / "rows.parquet")).cache()
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        for start in range(0, len(texts), 150):
            part = texts[start : start + 150]
            columns = [f"if(ok{start + n}, ({text}), null) v{n}" for n, text in enumerate(part)]
            chosen = frame.selectExpr("row", *columns)
            found = chosen.toArrow().sort_by("row")
            for n, text in enumerate(part):
                type_ = chosen.schema[f"v{n}"].dataType.simpleString()
                assert type_ in {type_name(translated(text).type), "void"}, text
                theirs = values_of(found[f"v{n}"])
                for row, known in enumerate(certain[text]):
                    assert not known or values[text][row] == theirs[row], (
                        f"ansi {ansi}: {text}",
                        rows.select(translated(text).columns).slice(row, 1).to_pylist(),
                    )
    frame.unpersist()


def test_expressions_have_the_values_of_spark(utc: Any, tmp_path: Path) -> None:
    assert_as_spark(utc, tmp_path, EXPRESSIONS, some_rows(random.Random(3), 100))


CONDITION_VALUES = [
    *("d / 10", "d / 3D", "i / 100", "f / 3", "l / 7", "10 / nullif(d, 0)", "de / 7D"),
    *("d / (5 + 0 * length('ab'))", "d / nullif(5, 0)", "unix_micros(ts) / 1e6"),
    *(f"round({x}, {n})" for x in ("q", "d", "f", "de", "i") for n in (0, 1, 2)),
    *("round(q, 5)", "round(q * 1e-4, 6)", "round(q * 1e12, 2)", "round(d * 1e-18, 20)"),
    *(f"cast(round(de, {n}) as string)" for n in (0, 1, 4)),
    *("floor(d)", "ceil(d)", "floor(f)", "floor(de)", "ceil(de)", "ceil(dw)"),
    *("de % 2", "de % -0.7", "de % nullif(dw, 0)", "pmod(de, 2)", "pmod(de, -0.7)", "i % 1.5"),
    *("coalesce(f, 0)", "coalesce(f, 0.5)", "if(f > 1, f, 0)", "coalesce(d, i)", "coalesce(de, f)"),
    *("greatest(d, 1)", "least(d, i)", "greatest(f, d)", "least(f, 0.5)", "greatest(d, f, -0.0D)"),
    *(f"{pad}(t, {n}, 'xy')" for pad in ("lpad", "rpad") for n in (0, 4, 9)),
    *("lpad(t, 5, '-')", "rpad(t, 5)"),
]
"""Values of conditions, whose result may depend on the settings of Spark."""


def test_values_of_conditions_have_the_values_of_spark(utc: Any, tmp_path: Path) -> None:
    rng = random.Random(5)
    halves = [rng.randrange(-(10**6), 10**6) / 1000 for _ in range(180)]
    odd = [1.005, 0.285, 2.5, -2.5, 3002399751580330.5, 1e22, 5e-7, 0.0049999999999999999, 0.045]
    quarters = pa.array([*halves, *odd, *(-x for x in odd), None, math.inf])
    rows = some_rows(rng, len(quarters)).append_column("q", quarters)
    schema = Struct((*SCHEMA.fields, Field("q", Primitive("double"))))
    frame = pl.DataFrame(rows)
    pq.write_table(rows.append_column("row", pa.array(range(len(rows)))), tmp_path / "rows.parquet")
    theirs = utc.read.parquet(str(tmp_path / "rows.parquet"))
    names = [f"v{n}" for n in range(len(CONDITION_VALUES))]
    texts = [f"({text}) {name}" for text, name in zip(CONDITION_VALUES, names, strict=True)]
    found = theirs.selectExpr("row", *texts).toArrow().sort_by("row")
    for text, name in zip(CONDITION_VALUES, names, strict=True):
        expected = found[name]
        expr = new_value(text, schema, name, Primitive("void"), 0)
        values = frame.with_columns(expr.alias(name))[name].to_arrow()
        assert values_of(pa.chunked_array([values])) == values_of(expected), text


ODD_TEXTS = [
    *("abc", "é", "a\n", "a\r\n", "٣", "\u00a0", "a\rb", "<b>", "a+", "ABC", "a\x85", "", None),
    *(
        "e\u0301x",
        "\t5",
        "5\r",
        " 5 ",
        "\x1f1.5\n",
        "\u00a05",
        "\u30005",
        "5\x00",
        "a\u2028",
        "x_1",
    ),
]
PATTERNS = [
    *(r"^\w+$", r"^[^\w]$", r"^\W$", r"\d|\s$", r"^\S\D$", "^a$", "^(x|a$)", "^a.b$", "(?s)^a.b$"),
    *("(?i)^ABC$", r"\<b\>", "[*+?]$", r"^\p{L}\z", "^$", r"a[\s]$", "(?s)a.$", r"\r$", "^.$"),
]


def test_texts_have_the_values_of_spark(utc: Any, tmp_path: Path) -> None:
    rows = pa.table({"t": ODD_TEXTS, "row": range(len(ODD_TEXTS))})
    pq.write_table(rows, tmp_path / "rows.parquet")
    texts = [f"t RLIKE '{pattern}'" for pattern in PATTERNS]
    texts += ["reverse(t)", "try_cast(t AS BIGINT)", "try_cast(t AS DOUBLE)", "try_cast(t AS INT)"]
    utc.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    try:
        theirs = utc.read.parquet(str(tmp_path / "rows.parquet"))
        chosen = (f"({text}) v{number}" for number, text in enumerate(texts))
        found = theirs.selectExpr("row", *chosen).toArrow().sort_by("row")
    finally:
        utc.conf.unset("spark.sql.parser.escapedStringLiterals")
    schema = Struct((Field("t", Primitive("string")),))
    for number, text in enumerate(texts):
        expr = new_value(text, schema, "v", Primitive("void"), 0)
        values = pl.DataFrame(rows).select(v=expr)["v"].to_arrow()
        assert values_of(pa.chunked_array([values])) == values_of(found[f"v{number}"]), text


class Grammar:
    """Random expressions of the supported subset, by type."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def of(self, kind: str, depth: int) -> str:
        leaves, forms = _GRAMMAR[kind]
        form: str = self._rng.choice([*leaves, *(forms * 2 if depth else ())])
        while "{" in form:
            start, end = form.index("{"), form.index("}")
            form = (
                form[:start] + self.of(form[start + 1 : end], max(0, depth - 1)) + form[end + 1 :]
            )
        return form


_GRAMMAR: dict[str, tuple[list[str], list[str]]] = {
    "whole": (
        ["i", "l", "b", "s", "0", "1", "-7", "length(t)", "st.x"],
        [
            "({whole} + {whole})",
            "({whole} - {whole})",
            "({whole} * {whole})",
            "({whole} % {whole})",
            "abs({whole})",
            "-{whole}",
            "if({truth}, {whole}, {whole})",
            "coalesce({whole}, {whole})",
            "case when {truth} then {whole} when {truth} then {whole} end",
            "year({day})",
            "month({day})",
            "nullif({whole}, {whole})",
            "({whole} div {whole})",
            "pmod({whole}, {whole})",
            "datediff({day}, {day})",
            "length({text})",
            "cast({whole} as bigint)",
            "cast({truth} as int)",
        ],
    ),
    "number": (
        ["de", "dw", "1.5", "0.05", "i"],
        ["({number} + {number})", "({number} - {number})"],
    ),
    "truth": (
        ["bo", "true", "(null is null)", "(i > 0)", "(t = 'abc')"],
        [
            "({whole} < {whole})",
            "({whole} = {whole})",
            "({whole} <=> {whole})",
            "({truth} and {truth})",
            "({truth} or {truth})",
            "(not {truth})",
            "({text} like '%b%')",
            "({text} in ('a', {text}))",
            "({day} >= {day})",
            "({whole} between {whole} and {whole})",
            "({text} is null)",
            "({number} > {number})",
            "({text} <> {text})",
            "(d > {whole})",
            "({truth} = {truth})",
        ],
    ),
    "text": (
        ["t", "t2", "'abc'", "''", "st.y.z"],
        [
            "concat({text}, '-', {text})",
            "upper({text})",
            "substring({text}, 1, 2)",
            "trim({text})",
            "if({truth}, {text}, {text})",
            "cast({whole} as string)",
            "cast({day} as string)",
            "date_format({day}, 'yyyy-MM')",
            "coalesce({text}, 'x')",
            "right({text}, 3)",
            "substring({text}, -2, 5)",
            "replace({text}, 'a', 'bb')",
        ],
    ),
    "day": (
        ["da", "date '2024-02-29'", "cast(ts as date)", "to_date(nt)"],
        [
            "date_add({day}, 3)",
            "trunc({day}, 'MM')",
            "last_day({day})",
            "least({day}, {day})",
            "if({truth}, {day}, {day})",
        ],
    ),
}


def test_random_expressions_have_the_values_of_spark(utc: Any, tmp_path: Path) -> None:
    rng = rng_of("rules")
    texts: dict[str, None] = {}
    while len(texts) < share_of(60):
        text = Grammar(rng).of(rng.choice(list(_GRAMMAR)), 3)
        try:
            translated(text)
        except UnsupportedExpressionError:
            continue
        texts[text] = None
    assert_as_spark(utc, tmp_path, list(texts), some_rows(rng, 60))


# --- tables --------------------------------------------------------------------------------------


def rows_of(spark: Any, path: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.read.format("delta").load(path).collect()), key=str)


def our_rows(table: lakelog.Table) -> list[tuple[Any, ...]]:
    return sorted(table.scan().collect().rows(), key=str)


def accepts(write: Callable[[], object]) -> bool:
    """Whether a row is written, and does not violate a constraint."""
    try:
        write()
    except Exception as error:
        if "violate" not in str(error).lower():
            raise
        return False
    return True


def test_both_engines_refuse_the_same_rows_of_a_table_with_constraints(
    delta: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    name = f"delta.`{path}`"
    delta.sql(f"create table {name} (id bigint, x string not null, price decimal(8,2)) using delta")
    delta.sql(f"alter table {name} add constraint c check (id % 2 = 0 or x like 'odd%')")
    table = lakelog.open(path, upkeep=False)
    table.alter.add_constraint("d", "price >= 0.05 AND upper(x) <> 'NO'")
    schema: dict[str, Any] = {"id": pl.Int64, "x": pl.String, "price": pl.Decimal(8, 2)}
    good = [(2, "a", "0.05"), (3, "odd", "1.00"), (None, "odd", "1.00"), (-4, "é", "9.99")]
    bad = [(3, "a", "1.00"), (None, "a", "1.00"), (2, "No", "1.00"), (2, "a", None)]
    rows = [[(id_, x, price and Decimal(price)) for id_, x, price in part] for part in (good, bad)]
    frames = [pl.DataFrame(part, schema, orient="row") for part in rows]
    for frame in (frames[0], *frames[1].iter_slices(1)):
        source = delta.createDataFrame(frame.to_arrow(compat_level=pl.CompatLevel.oldest()))
        write = source.write.format("delta").mode("append")
        own, theirs = accepts(partial(table.append, frame)), accepts(partial(write.save, path))
        assert own is theirs is (frame.height > 1)
    assert rows_of(delta, path) == our_rows(table) == sorted(rows[0] * 2, key=str)


def test_generated_columns_and_defaults_of_either_engine_are_the_same(
    utc: Any, delta: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    name = f"delta.`{path}`"
    delta.sql(
        f"create table {name} (id int, at timestamp,"
        " day date generated always as (cast(at as date)),"
        " month string generated always as (date_format(at, 'yyyy-MM')),"
        " part int generated always as (year(at) * 100 + month(at)), note string default 'none')"
        " using delta partitioned by (day)"
        " tblproperties ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    table = lakelog.open(path, upkeep=False)
    moments = [
        dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    ]
    for number, moment in enumerate([*moments, None]):
        text = "null" if moment is None else f"timestamp'{moment:%Y-%m-%d %H:%M:%S}'"
        delta.sql(f"insert into {name} (id, at) values ({number}, {text})")
        schema: dict[str, Any] = {"id": pl.Int32, "at": pl.Datetime("us", "UTC")}
        table.append(pl.DataFrame([[10 + number, moment]], schema, orient="row"))
    table.update({"at": moments[1]}, where="id = 10")
    delta.sql(f"update {name} set at = timestamp'2026-01-01 00:00:00' where id = 0")
    found = table.scan().sort("id").collect()
    assert found[:3].drop("id").rows() == found[3:].drop("id").rows()
    assert found["part"].to_list() == [202601, 202601, None] * 2
    assert found["note"].unique().to_list() == ["none"]
    count = delta.read.format("delta").load(path).where("day = '2026-01-01'").count()
    assert count == 4


def test_dataframe_writes_obey_the_rules(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    rule = {"delta.generationExpression": "id % 10"}
    long = Primitive("long")
    schema = Struct((Field("id", long), Field("last", long, metadata=rule)))
    check = {"delta.constraints.positive": "id > 0"}
    table = lakelog.create(path, schema, ["last"], configuration=check, upkeep=False)

    def save(*ids: int) -> None:
        frame = delta.createDataFrame([(id_,) for id_ in ids], "id long")
        frame.write.format("lakelog").mode("append").save(path)

    save(7, 12)
    with pytest.raises(Exception, match="violate the CHECK constraint 'positive'"):
        save(3, -1)
    assert our_rows(table) == rows_of(delta, path) == [(12, 2), (7, 7)]
    identity = {"start": 1, "step": 1, "allowExplicitInsert": False}
    numbers = {f"delta.identity.{key}": value for key, value in identity.items()}
    schema = Struct((Field("id", long), Field("n", long, metadata=numbers)))
    path = str(tmp_path / "identity")
    lakelog.create(path, schema, upkeep=False)
    with pytest.raises(Exception, match="identity column 'n' cannot be generated"):
        save(1)


def test_identity_values_of_either_engine_are_unique(delta: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    name = f"delta.`{path}`"
    delta.sql(
        f"create table {name} (id bigint generated always as identity"
        " (start with 5 increment by 3), x string) using delta"
    )
    table = lakelog.open(path, upkeep=False)
    for number in range(3):
        delta.sql(f"insert into {name} (x) values ('s{number}'), ('t{number}')")
        table.append(pl.DataFrame({"x": [f"l{number}", f"m{number}"]}))
    ids = [row[0] for row in rows_of(delta, path)]
    assert len(set(ids)) == len(ids) == 12
    assert all(id_ >= 5 and (id_ - 5) % 3 == 0 for id_ in ids)
    assert our_rows(table) == rows_of(delta, path)
