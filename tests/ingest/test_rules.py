"""Ingestors of tables with CHECK constraints, generated, default and identity columns."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import (
    ConstraintViolationError,
    InvalidInputError,
    StreamMismatchError,
    UnavailableError,
    UnsupportedFeatureError,
)
from lakelog.ingest.files import read_file
from lakelog.model.contract import Field, Primitive, Struct
from lakelog.testing import InjectingStore
from tests.handmade import set_unchecked_metadata
from tests.ingest.ingestors import FailingTable, ids, quiet

LONG, STRING, TIMESTAMP = Primitive("long"), Primitive("string"), Primitive("timestamp")
DOUBLED = Field("doubled", LONG, metadata={"delta.generationExpression": "id * 2"})


def new_table(path: Path, *fields: Field, **configuration: str) -> lakelog.Table:
    return lakelog.create(path, Struct(fields), configuration=configuration, upkeep=False)


def numbered(*, by_default: bool = False) -> Field:
    metadata = {
        "delta.identity.start": 10,
        "delta.identity.step": 5,
        "delta.identity.allowExplicitInsert": by_default,
    }
    return Field("number", LONG, metadata=metadata)


@pytest.fixture
def checked(tmp_path: Path) -> lakelog.Table:
    rule = {"delta.constraints.positive": "id > 0"}
    return new_table(tmp_path / "table", Field("id", LONG), Field("name", STRING), **rule)


FORMS: dict[str, Any] = {
    "dict": lambda ids: [{"id": each} for each in ids],
    "lines": lambda ids: b"\n".join(b'{"id": %d}' % each for each in ids),
    "frame": lambda ids: pl.DataFrame({"id": ids}),
    "exact": lambda ids: pa.table({"id": ids, "name": pa.array(["a"] * len(ids), pa.string())}),
}


def with_struct(*, nullable: bool) -> pa.Schema:
    inside = pa.struct([pa.field("x", pa.int64(), nullable=nullable)])
    return pa.schema([("id", pa.int64()), ("s", inside), ("o", pa.struct([("s", inside)]))])


@pytest.mark.parametrize("key", [None, "id"])
def test_row_without_a_struct_whose_fields_are_not_null_raises_in_write_or_is_diverted(
    tmp_path: Path, directory: Path, key: str | None
) -> None:
    table = lakelog.create(tmp_path / "table", with_struct(nullable=False), upkeep=False)
    good, x = {"id": 1, "s": {"x": 1}, "o": {"s": {"x": 1}}}, {"x": 1}
    lacking = [{"id": 2}, {"id": 3, "o": {"s": x}}, {"id": 4, "s": x}, {"id": 5, "s": x, "o": {}}]
    bad: list[Any] = [*lacking, lacking, [good, lacking[0]], pl.DataFrame({"id": [6]})]
    with quiet(table, directory, key=key) as ingestor:
        for rows in (*bad, b'{"id": 7}'):
            with pytest.raises(InvalidInputError, match=r"s\.x' is NOT NULL, and the struct"):
                ingestor.write(rows)
        assert ingestor.status().durable_seq == 0
        ingestor.write(good)
    file = tmp_path / "rows.ndjson"
    file.write_bytes(b'{"id": 8}\n{"id": 9, "s": {"x": 9}, "o": {"s": {"x": 9}}}\n')
    with quiet(table, directory, key=key, on_bad_row="divert") as ingestor:
        ingestor.write([*lacking, {**good, "id": 10}])
        for part, _ in read_file(str(file), "ndjson", table.snapshot().schema.names, 0):
            ingestor.write(part)
        assert ingestor.rejected()["column"].to_list() == ["s.x", "s.x", "o.s.x", "o.s.x", "s.x"]
    assert ids(table.scan()) == [1, 9, 10]


def test_waiting_null_structs_whose_fields_became_not_null_are_diverted_or_wait_for_the_table(
    tmp_path: Path, directory: Path
) -> None:
    table = lakelog.create(tmp_path / "table", with_struct(nullable=True), upkeep=False)
    with quiet(table, directory) as ingestor:
        ingestor.write([{"id": 1}, {"id": 2, "s": {"x": 1}, "o": {"s": {"x": 1}}}])
        lakelog.create(tmp_path / "table", with_struct(nullable=False), mode="overwrite")
        with pytest.raises(StreamMismatchError, match="'s' around it is null") as refused:
            ingestor.flush()
        assert "alter.set_nullable" in str(refused.value.hint)
        for name in ("s.x", "o.s.x"):
            table.alter.set_nullable(name)
        ingestor.flush()
        assert ids(table.scan()) == [1, 2]
        ingestor.write([{"id": 3}, {"id": 4, "s": {"x": 1}, "o": {"s": {"x": 1}}}])
        lakelog.create(tmp_path / "table", with_struct(nullable=False), mode="overwrite")
        with pytest.raises(StreamMismatchError, match="'s' around it is null"):
            ingestor.flush()
        ingestor.close(flush=False)
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.flush()
        assert ingestor.rejected()["row"].to_list() == ['{"id":3,"s":null,"o":null}']
    assert ids(table.scan()) == [4]


@pytest.mark.parametrize("form", FORMS)
def test_row_that_violates_a_constraint_raises_in_write_or_is_diverted(
    checked: lakelog.Table, directory: Path, form: str
) -> None:
    with quiet(checked, directory) as ingestor:
        with pytest.raises(ConstraintViolationError, match="'positive'"):
            ingestor.write(FORMS[form]([1, 0]))
        assert ingestor.status().durable_seq == 0
        ingestor.write(FORMS[form]([1, 2]))
    with quiet(checked, directory, on_bad_row="divert") as ingestor:
        ingestor.write(FORMS[form]([3, -1, 4]))
        assert ids(ingestor.read_your_writes()) == [1, 2, 3, 4]
        assert ingestor.rejected()["kind"].to_list() == ["constraint_violation"]
    assert ids(checked.scan()) == [1, 2, 3, 4]


def test_single_row_that_violates_a_constraint_raises(
    checked: lakelog.Table, directory: Path
) -> None:
    with quiet(checked, directory) as ingestor:
        for bad in ({"id": 0}, {"id": None}, {"name": "x"}):
            with pytest.raises(ConstraintViolationError):
                ingestor.write(bad)
        assert ingestor.write({"id": 1}) == 1


def test_constraints_are_checked_while_the_table_is_unavailable(
    checked: lakelog.Table, directory: Path
) -> None:
    failing = FailingTable(checked)
    quiet(failing.table, directory).close()
    failing.fails = True
    ingestor = quiet(failing.table, directory)
    with pytest.raises(ConstraintViolationError):
        ingestor.write({"id": 0})
    ingestor.write({"id": 1})
    failing.fails = False
    ingestor.close()
    assert ids(checked.scan()) == [1]


@pytest.mark.parametrize("key", [None, "id"])
def test_generated_and_default_values_are_computed_when_a_row_is_written(
    tmp_path: Path, directory: Path, key: str | None
) -> None:
    state = Field("state", STRING, metadata={"CURRENT_DEFAULT": "'new'"})
    at = Field("at", TIMESTAMP, metadata={"CURRENT_DEFAULT": "current_timestamp()"})
    features = {"delta.feature.allowColumnDefaults": "supported"}
    table = new_table(tmp_path / "table", Field("id", LONG), DOUBLED, state, at, **features)
    with quiet(table, directory, key=key) as ingestor:
        opened = dt.datetime.now(dt.UTC)
        ingestor.write({"id": 1})
        ingestor.write(pl.DataFrame({"id": [2, 3], "doubled": [4, 6]}))
        ingestor.write(b'{"id": 4}\n{"id": 5, "state": null}\n{"id": 6, "state": "old"}')
        written = dt.datetime.now(dt.UTC)
        with pytest.raises(ConstraintViolationError, match="doubled"):
            ingestor.write({"id": 7, "doubled": 15})
        pending = ingestor.read_your_writes().sort("id").collect()
    rows = table.to_polars().sort("id")
    assert rows.equals(pending)
    assert rows["doubled"].to_list() == [2, 4, 6, 8, 10, 12]
    assert rows["state"].to_list() == ["new", "new", "new", "new", None, "old"]
    assert rows["at"].is_between(opened, written).all()


def test_constraint_on_the_time_uses_the_time_of_the_write(tmp_path: Path, directory: Path) -> None:
    rule = {"delta.constraints.past": "at <= current_timestamp()"}
    table = new_table(tmp_path / "table", Field("at", TIMESTAMP), **rule)
    with quiet(table, directory) as ingestor:
        now = dt.datetime.now(dt.UTC)
        ingestor.write({"at": now})
        with pytest.raises(ConstraintViolationError):
            ingestor.write({"at": now + dt.timedelta(days=1)})
    assert table.to_polars().height == 1


def test_identity_values_are_assigned_on_commit(tmp_path: Path, directory: Path) -> None:
    after = Field("after", LONG, metadata={"delta.generationExpression": "number + id"})
    rule = {"delta.constraints.positive": "id > 0"}
    table = new_table(tmp_path / "table", numbered(), Field("id", LONG), after, **rule)
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1})
        ingestor.write(pl.DataFrame({"id": [2, 3]}))
        with pytest.raises(InvalidInputError, match="always generated"):
            ingestor.write({"id": 4, "number": 7})
        with pytest.raises(ConstraintViolationError):
            ingestor.write({"id": 0})
        pending = ingestor.read_your_writes().sort("id").collect()
        assert pending.select("id", "number", "after").rows() == [
            (1, None, None),
            (2, None, None),
            (3, None, None),
        ]
        ingestor.flush()
        ingestor.write(b'{"id": 4}')
    table.append(pl.DataFrame({"id": [5]}))
    rows = table.to_polars().sort("id")
    assert rows["number"].to_list() == [10, 15, 20, 25, 30]
    assert rows["after"].to_list() == [11, 17, 23, 29, 35]


def test_explicit_identity_values_are_kept(tmp_path: Path, directory: Path) -> None:
    table = new_table(tmp_path / "table", numbered(by_default=True), Field("id", LONG))
    with quiet(table, directory) as ingestor:
        ingestor.write([{"id": 1}, {"id": 2, "number": 7}, {"id": 3}])
        ingestor.write(b'{"id": 4, "number": 8}\n{"id": 5}')
    assert dict(table.to_polars().select("id", "number").rows()) == {
        1: 10,
        2: 7,
        3: 15,
        4: 8,
        5: 20,
    }


LINES = {
    "NaN": b'{"x":NaN,%s}',
    "Infinity": b'{"x":-Infinity,%s}',
    "Inf": b'{"x":Inf,%s}',
    "mark": b'\xef\xbb\xbf{"x":1.5,%s}',
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_values_of_any_line_are_kept_if_a_column_has_a_source_of_its_own(
    tmp_path: Path, directory: Path, line: bytes
) -> None:
    x = Field("x", Primitive("double"))
    state = Field("state", STRING, metadata={"CURRENT_DEFAULT": "'new'"})
    twice = Field("twice", Primitive("double"), metadata={"delta.generationExpression": "x * 2"})
    features = {"delta.feature.allowColumnDefaults": "supported"}
    fields = (x, state, twice, numbered(by_default=True))
    table = new_table(tmp_path / "table", *fields, **features)
    with quiet(table, directory) as ingestor:
        ingestor.write(line % b'"state":"old","number":7')
        ingestor.write(line % b'"state":null,"number":8')
        with pytest.raises(ConstraintViolationError, match="twice"):
            ingestor.write(line % b'"twice":7.0')
    rows = table.to_polars().select("state", "number").sort("number").rows()
    assert rows == [("old", 7), (None, 8)]


def test_names_of_dicts_are_matched_in_any_case(tmp_path: Path, directory: Path) -> None:
    state = Field("state", STRING, metadata={"CURRENT_DEFAULT": "'new'"})
    features = {"delta.feature.allowColumnDefaults": "supported"}
    fields = (Field("id", LONG), state, DOUBLED, numbered(by_default=True))
    table = new_table(tmp_path / "table", *fields, **features)
    with quiet(table, directory) as ingestor:
        ingestor.write([{"id": 1, "State": "old"}, {"id": 2}])
        ingestor.write([{"ID": 3, "NUMBER": 8, "Doubled": 6}, {"id": 4}])
    rows = table.to_polars().sort("id").rows()
    assert [row[:3] for row in rows] == [(1, "old", 2), (2, "new", 4), (3, "new", 6), (4, "new", 8)]
    assert [row[3] for row in rows] == [10, 15, 8, 20]


def test_rows_that_replace_existing_rows_keep_their_identity_values(
    tmp_path: Path, directory: Path
) -> None:
    table = new_table(
        tmp_path / "table", numbered(by_default=True), Field("id", LONG), Field("name", STRING)
    )
    with quiet(table, directory, key="id") as ingestor:
        ingestor.write([{"id": 1, "name": "a"}, {"id": 2, "name": "b", "number": 7}])
        ingestor.flush()
        ingestor.write([{"id": 1, "name": "c"}, {"id": 3, "name": "d"}])
        ingestor.delete({"id": 2})
    found = table.to_polars().sort("id").select("id", "name", "number").rows()
    assert found == [(1, "c", 10), (3, "d", 15)]
    with quiet(table, tmp_path / "other", key="number") as ingestor:
        ingestor.write({"number": 15, "id": 30})
    assert sorted(table.to_polars()["id"]) == [1, 30]


def test_key_on_an_always_generated_identity_column_raises(tmp_path: Path, directory: Path) -> None:
    table = new_table(tmp_path / "table", numbered(), Field("id", LONG))
    with pytest.raises(InvalidInputError, match="always generated"):
        quiet(table, directory, key="number")


def test_column_that_is_generated_from_a_generated_one_raises(
    tmp_path: Path, directory: Path
) -> None:
    after = Field("after", LONG, metadata={"delta.generationExpression": "doubled + 1"})
    table = new_table(tmp_path / "table", Field("id", LONG))
    set_unchecked_metadata(table, schema=Struct((Field("id", LONG), after, DOUBLED)))
    with pytest.raises(UnsupportedFeatureError, match="'after' depends on the column 'doubled'"):
        quiet(table, directory)


@pytest.mark.parametrize("text", ["id > 0 AND number > 0", "after > 0"])
def test_constraint_on_an_identity_column_raises(
    tmp_path: Path, directory: Path, text: str
) -> None:
    after = Field("after", LONG, metadata={"delta.generationExpression": "number + id"})
    rule = {"delta.constraints.c": text}
    fields = (numbered(), Field("id", LONG), after)
    with pytest.raises(UnsupportedFeatureError, match="'c' depends on an identity column"):
        quiet(new_table(tmp_path / "table", *fields, **rule), directory)
    table = new_table(tmp_path / "later", *fields)
    ingestor = quiet(table, tmp_path / "other")
    ingestor.write({"id": -100})
    table.alter.add_constraint("c", text)
    with pytest.raises(UnsupportedFeatureError, match="'c' depends on an identity column"):
        ingestor.flush()
    with pytest.raises(StreamMismatchError, match="'c' depends on an identity column"):
        ingestor.write({"id": 1})
    table.alter.drop_constraint("c")
    ingestor.close()
    assert table.to_polars()["id"].to_list() == [-100]


# --- constraints and columns changed while rows are pending ----------------------------------


@pytest.mark.parametrize("key", [None, "id"])
def test_durable_rows_that_violate_a_new_constraint_stay_pending_or_are_diverted(
    tmp_path: Path, directory: Path, key: str | None
) -> None:
    table = new_table(tmp_path / "table", Field("id", LONG), Field("name", STRING))
    ingestor = quiet(table, directory, key=key)
    for number in range(6):
        ingestor.write({"id": number})
    ingestor.write(pl.DataFrame({"id": [6, -1, 7]}))
    table.alter.add_constraint("positive", "id > 0")
    with pytest.raises(StreamMismatchError, match="'positive'"):
        ingestor.flush()
    with pytest.raises(StreamMismatchError, match="'positive'"):
        ingestor.write({"id": 8})
    with pytest.raises(StreamMismatchError, match="'positive'"):
        ingestor.close()
    assert ids(table.scan()) == []
    with quiet(table, directory, key=key, on_bad_row="divert") as ingestor:
        assert ids(ingestor.read_your_writes()) == [-1, *range(8)]
        ingestor.flush()
        status = ingestor.status()
        assert (status.rows_committed, status.rows_diverted, status.backlog_bytes) == (7, 2, 0)
        assert ingestor.rejected()["row"].to_list() == [
            '{"id":0,"name":null}',
            '{"id":-1,"name":null}',
        ]
        ingestor.write({"id": 0})
        ingestor.write({"id": 9})
    assert ids(table.scan()) == [*range(1, 8), 9]


def test_rows_are_diverted_once_when_a_commit_is_retried(tmp_path: Path, directory: Path) -> None:
    class Store(InjectingStore):
        fails = False

        def put_if_absent(self, path: str, data: bytes) -> bool:
            if self.fails:
                raise UnavailableError("the store is down")
            return super().put_if_absent(path, data)

    table = new_table(tmp_path / "table", Field("id", LONG))
    store = Store(table.log.store)
    with quiet(lakelog.open(store=store, upkeep=False), directory, on_bad_row="divert") as ingestor:
        ingestor.write([{"id": 1}, {"id": -1}])
        table.alter.add_constraint("positive", "id > 0")
        store.fails = True
        for _ in range(2):
            with pytest.raises(UnavailableError):
                ingestor.flush()
        store.fails = False
        ingestor.flush()
        assert ingestor.rejected()["row"].to_list() == ['{"id":-1}']
        assert ingestor.status().rows_diverted == 1
    assert ids(table.scan()) == [1]


def test_flush_of_diverted_rows_only_writes_no_version(tmp_path: Path, directory: Path) -> None:
    table = new_table(tmp_path / "table", Field("id", LONG))
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write({"id": -1}, source="s", offset=3)
        table.alter.add_constraint("positive", "id > 0")
        version = table.version()
        ingestor.flush()
        assert ingestor.status().rows_diverted == 1
        assert ingestor.offsets() == {"s": 3}
    assert table.version() == version
    with quiet(table, directory) as ingestor:
        assert ingestor.offsets() == {"s": 3}
        assert ids(ingestor.read_your_writes()) == []


def test_rows_stay_pending_until_a_violated_constraint_is_dropped(
    tmp_path: Path, directory: Path
) -> None:
    table = new_table(tmp_path / "table", Field("id", LONG))
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": -1})
        table.alter.add_constraint("positive", "id > 0")
        with pytest.raises(StreamMismatchError):
            ingestor.flush()
        table.alter.drop_constraint("positive")
        ingestor.flush()
        ingestor.write({"id": -2})
    assert ids(table.scan()) == [-2, -1]


def test_rows_written_before_a_column_became_generated_get_its_values(
    tmp_path: Path, directory: Path
) -> None:
    table = new_table(tmp_path / "table", Field("id", LONG))
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1})
        ingestor.write(pl.DataFrame({"id": [2]}))
        ingestor.close(flush=False)
    features = {"delta.feature.generatedColumns": "supported"}
    table.alter.set_properties(features)
    with table.transaction() as tx:
        tx.set_metadata(schema=Struct((Field("id", LONG), DOUBLED)))
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 3})
        assert ids(ingestor.read_your_writes()) == [1, 2, 3]
    assert dict(table.to_polars().rows()) == {1: 2, 2: 4, 3: 6}
