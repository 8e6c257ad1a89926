"""Rows as records of an Ingestor's log, and back. Pure functions of rows and a schema."""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import orjson
import pyarrow as pa

from lakelog.arrow_arrays import from_python
from lakelog.data.conform import (
    Conform,
    Incoming,
    find_invalid,
    required_field,
    to_table,
    wide_field,
)
from lakelog.data.row_rules import RowRules, default_expression
from lakelog.errors import (
    InvalidInputError,
    MalformedLogError,
    UnsupportedFeatureError,
)
from lakelog.ingest.records import (
    ARROW,
    EMPTY,
    JSON,
    Record,
    Records,
    buffers_of,
    data_of,
    filtered,
    records_of_lines,
    records_of_table,
)
from lakelog.ingest.texts import JsonReader, column_names, read_texts
from lakelog.model import contract
from lakelog.model.contract import Decimal, Field, Primitive, Struct

_BATCH_ROWS = 2048
"""Batches with fewer rows on average are joined when they are read: each costs time of its own."""

_INTEGERS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_EXACT = 1 << 53

Check: TypeAlias = Callable[[Any], bool]
_SHOWN = 200  # characters of a row in an error

Given: TypeAlias = "pa.Table | list[Mapping[str, Any]] | list[bytes] | TextRows"
"""Rows before validation: a table, rows of Python values, lines of JSON, or values as text."""


_Part: TypeAlias = "list[bytes] | pa.Table"
"""Rows in one form of a record: lines of JSON, or a table in the schema."""


@dataclass(frozen=True)
class BadRow:
    """A row that does not fit the table, as a dict or text, with the reason; its number in the
    batch; and the file, with the line where it begins, or its number in the file, from 1.
    """

    row: Any
    reason: InvalidInputError
    number: int
    file: str | None = None
    line: int | None = None
    row_number: int | None = None


class TextRows:
    """Rows whose values are text that is cast to the table's types, as in CSV.

    Args:
        table: The values.
        texts: Returns the text of every row of the batch.
        numbers: Of the rows of `table` in the batch.
        bad: The other rows of the batch, in order.
    """

    def __init__(
        self,
        table: pa.Table,
        texts: Callable[[], Sequence[str]],
        numbers: Sequence[int] | None = None,
        bad: Sequence[BadRow] = (),
    ) -> None:
        self.table, self.texts, self.bad = table, texts, bad
        self.numbers = range(table.num_rows) if numbers is None else numbers

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, part: slice) -> TextRows:
        return TextRows(self.table[part], self.texts, self.numbers[part])

    def refused(self, bad: Sequence[BadRow]) -> list[BadRow]:
        """Rows of the table that do not fit, and the other bad rows, in order, with their text."""
        texts = self.texts() if bad else ()
        numbers = [self.numbers[each.number] for each in bad]
        found = [
            replace(each, row=texts[number], number=number)
            for each, number in zip(bad, numbers, strict=True)
        ]
        return sorted([*found, *self.bad], key=lambda each: each.number)


@dataclass(frozen=True)
class FileRows:
    """Rows of a file, and where they are: `numbers` returns the number of each, from 1. Its `unit`
    is the line where the row begins, or the row, if the file is not text. `file` is None for a
    stream, which no later call reads again. `fingerprint` is of the file up to the end of the rows.
    `is_incomplete` is true for the last line of a file if it has no newline and is not a whole
    object: another program may be writing it.
    """

    rows: Any
    file: str | None
    unit: Literal["line", "row"]
    numbers: Callable[[], Sequence[int]]
    fingerprint: str | None = None
    is_incomplete: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def located(self, bad: Sequence[BadRow]) -> list[BadRow]:
        """Bad rows with their places."""
        numbers = self.numbers() if bad else ()
        found = []
        for each in bad:
            number = numbers[each.number]
            line, row = (number, None) if self.unit == "line" else (None, number)
            found.append(replace(each, file=self.file, line=line, row_number=row))
        return found


class RowCodec:
    """Checks rows against a schema (the table's columns, or the key columns of deleted rows),
    encodes them, and decodes records. Columns of `key` must not be null.
    """

    def __init__(
        self,
        schema: Struct,
        partition_columns: Sequence[str] = (),
        key: Sequence[str] = (),
        rules: RowRules | None = None,
    ) -> None:
        self.schema, self.rules = schema, rules
        self._key, self._partition_columns = tuple(key), partition_columns
        self._conform = Conform(schema.fields, partition_columns, new=True)
        self._new_rows: dict[frozenset[str], Conform] = {}
        self._stored_rows: dict[frozenset[str], Conform] = {}
        self._identities = frozenset(() if rules is None else (i.column for i in rules.identities))
        self.computed = self._identities.union(
            () if rules is None else (str(rule.column) for rule in rules.generated)
        )
        """Identity and generated columns."""
        if rules is not None:
            self._require_checkable(rules)
        defaults = [field for field in schema.fields if contract.CURRENT_DEFAULT in field.metadata]
        self._reads_clock = any(map(_default_reads_clock, defaults)) or (
            rules is not None and rules.reads_clock
        )
        self._fitting: pa.Schema | None = None
        self._never_null = [f.name for f in schema.fields if not f.nullable or f.name in key]
        self._plain_types = {
            field.name: ()
            if field.name in partition_columns or _needs_look(field)
            else (contract.to_arrow(field.type), self._conform.schema.field(field.name).type)
            for field in schema.fields
        }
        self._checks = {
            field.name: check
            for field in schema.fields
            if (check := _check(field, field.name in key, field.name in partition_columns))
        }
        # A row without one of these gets a value.
        self._filled = self.computed.union(field.name for field in defaults)
        # A row without one of these needs a value, or an error.
        self._given = self._filled.union(
            field.name
            for field in schema.fields
            if not field.nullable
            or field.name in key
            or (isinstance(field.type, Struct) and required_field(field.type))
        )
        self._json = JsonReader(schema)
        self._readable_filled = self._filled.intersection(self._json.names)

    def _require_checkable(self, rules: RowRules) -> None:
        """Refuse conditions on values that are generated on commit, and unknown before."""
        late = self._identities | self._late_columns(rules, self._identities)
        known = rules.without(late).checks
        for rule in rules.checks:
            if rule not in known:
                raise UnsupportedFeatureError(
                    f"{rule.name} depends on an identity column, whose values are generated when "
                    "rows are committed",
                    column=rule.column,
                    expected="constraints that can be checked when a row is written",
                    found=rule.text,
                    hint="write the rows with Table.append, or drop the constraint",
                )

    @staticmethod
    def _late_columns(rules: RowRules, omitted: Collection[str]) -> set[str]:
        """Generated columns that are computed from omitted ones."""
        known = rules.without(omitted).generated
        return {str(rule.column) for rule in rules.generated if rule not in known}

    def empty(self) -> pa.Table:
        """No rows."""
        return self._conform.schema.empty_table()

    def encode_row(self, row: dict[str, Any]) -> bytes | None:
        """A row of plain values as a line of JSON; None if it needs `tables`."""
        if self.rules is not None or not row:
            return None
        checks = self._checks
        for name, value in row.items():
            check = checks.get(name)
            if check is None or not check(value):
                return None
        if not self._given <= row.keys():
            return None
        try:
            return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:  # a lone surrogate
            return None

    def records(self, rows: Given | FileRows) -> Iterator[Record]:
        """Rows as records of about `RECORD_BYTES`; InvalidInputError for an unfit row."""
        for part in self._parts(_given(rows)):
            yield from _records_of(part)

    def _parts(self, rows: Given) -> Iterator[_Part]:
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            lines = [self.encode_row(row) for row in rows if type(row) is dict]
            if len(lines) == len(rows) and None not in lines:
                yield [line for line in lines if line is not None]
                return
        yield from self.tables(rows)

    def tables(self, rows: Given) -> Iterator[pa.Table]:
        """Rows in the schema; InvalidInputError for a row that does not fit."""
        if isinstance(rows, pa.Table):
            yield rows if self.rules is None and self._is_fitting(rows) else self._fitted(rows)
        elif isinstance(rows, TextRows):
            if rows.bad:
                raise rows.bad[0].reason
            yield self._fitted(self._cast(rows.table))
        elif rows and isinstance(rows[0], bytes):
            lines: list[bytes] = rows  # type: ignore[assignment]
            if not self._filled:
                yield self._fitted(self._json.read(lines))
                return
            for given, group in itertools.groupby(lines, key=self._filled_by):
                table = self._json.read(list(group))
                yield self._fitted(table.drop_columns(sorted(self._readable_filled - given)))
        else:
            # Rows that lack a column with a default get it; others have a null there.
            for _, run in itertools.groupby(rows, key=self._given_by):
                yield self._fitted(_table_of_rows(list(run), self.schema))

    def checked(self, rows: Given | FileRows) -> tuple[list[Record], list[BadRow]]:
        """The records of the rows that fit, and the rows that do not, each in order."""
        given = _given(rows)
        if isinstance(given, TextRows):
            parts, bad = self._parted(given[:])
            bad = given.refused(bad)
        else:
            parts, bad = self._parted(given)
        # The rows between bad ones are not records of their own, each of which costs time.
        runs = itertools.groupby(parts, key=lambda each: isinstance(each, list) or each.schema)
        good = [record for _, run in runs for record in _records_of(_joined(list(run)))]
        return good, rows.located(bad) if isinstance(rows, FileRows) else bad

    def _parted(
        self, rows: Given, first: int = 0, *, is_part: bool = False
    ) -> tuple[list[_Part], list[BadRow]]:
        """The parts with the rows that fit, and the others, by bisection; `first` is the number of
        the first row.
        """
        try:
            return list(self._parts(rows)), []
        except InvalidInputError as error:
            # A part has the columns of the whole.
            of_all = None if is_part else self._error_of_columns(rows)
            if len(rows) <= 1 or of_all is not None:
                plain = enumerate(_plain_rows(rows), first)
                return [], [BadRow(row, of_all or error, number) for number, row in plain]
        middle = len(rows) // 2
        good, bad = self._parted(rows[:middle], first, is_part=True)
        more_good, more_bad = self._parted(rows[middle:], first + middle, is_part=True)
        return good + more_good, bad + more_bad

    def first_error(
        self, rows: Given | FileRows, error: InvalidInputError, *, of_keys: bool = False
    ) -> InvalidInputError:
        """The error of the first bad row of a list or file, with the row and its place; `error` for
        what names its rows, and what concerns all rows. The schema of keys lacks other columns.
        """
        found = self._first_error(rows, error)
        if not of_keys or found.column in (None, *self.schema.names):
            return found
        return InvalidInputError(
            f"{found.column!r} is not a key column",
            column=found.column,
            expected=", ".join(self.schema.names),
            found=found.found,
            hint="pass the key columns only",
        )

    def _first_error(self, rows: Given | FileRows, error: InvalidInputError) -> InvalidInputError:
        given, is_file = _given(rows), isinstance(rows, FileRows)
        if (of_all := self._error_of_columns(given)) is not None:
            return of_all
        if not (is_file or (isinstance(given, list) and isinstance(error.found, str))):
            return error
        if (bad := self._first_bad(given)) is None:
            return error
        single, place = bad.reason, f"row {bad.number}: "
        if isinstance(rows, FileRows):
            (bad,) = rows.located([bad])
            single.path, single.line = bad.file, bad.line
            place = "" if bad.row_number is None else f"row {bad.row_number}: "
        if isinstance(single.found, str):
            single.found = f"{place}{str(bad.row)[:_SHOWN]}: {single.found}"
        return single

    def _first_bad(self, rows: Given) -> BadRow | None:
        if isinstance(rows, TextRows) and rows.bad:
            other = rows.bad[0]
            found = self._first_bad(rows[: bisect.bisect(rows.numbers, other.number)])
            return found or other
        first, left = 0, rows
        while len(left) > 1:
            half = left[: len(left) // 2]
            if self._error_of(half) is None:
                first, half = first + len(half), left[len(half) :]
            left = half
        if not len(left) or (error := self._error_of(left)) is None:
            return None
        bad = BadRow(_plain_rows(left)[0], error, first)
        return rows.refused([bad])[0] if isinstance(rows, TextRows) else bad

    def _error_of(self, rows: Given) -> InvalidInputError | None:
        try:
            for _ in self.records(rows):
                pass
        except InvalidInputError as error:
            return error
        return None

    def _is_fitting(self, rows: pa.Table) -> bool:
        """Whether rows have the table's types and nullability, and need no conversion."""
        schema = rows.schema
        if self._fitting is None or not schema.equals(self._fitting):
            types = {f.name: f.type for f in schema}
            if (
                len(types) < len(schema)
                or types.keys() != self._plain_types.keys()
                or any(types[name] not in known for name, known in self._plain_types.items())
            ):
                return False
            self._fitting = contract.schema_without_metadata(schema)
        return not any(rows[name].null_count for name in self._never_null)

    def is_joined(self, rows: Any) -> bool:
        """Whether rows are an Arrow table with the schema of rows that did fit, need no check but
        this one, and may share a record with others.
        """
        known = self._fitting
        return (
            self.rules is None
            and known is not None
            and isinstance(rows, pa.Table)
            and rows.schema.equals(known, check_metadata=True)
            and rows.num_rows > 0
            and not any(rows[name].null_count for name in self._never_null)
            and find_invalid(rows) is None
        )

    def _given_by(self, row: Any) -> frozenset[str]:
        if not self._given or not isinstance(row, Mapping):
            return frozenset()
        fields = (self.schema.field(name) for name in row if isinstance(name, str))
        return self._given.intersection(field.name for field in fields if field is not None)

    def _filled_by(self, line: bytes) -> frozenset[str]:
        try:
            return self._filled.intersection(orjson.loads(line).keys())
        except (ValueError, AttributeError):
            return self._filled.intersection(column_names(line))

    def _error_of_columns(self, rows: Given) -> InvalidInputError | None:
        """The error of columns that do not fit, whatever their values."""
        if isinstance(rows, list) or (isinstance(rows, TextRows) and not len(rows)):
            return None
        try:
            empty = self._cast(rows.table[:0]) if isinstance(rows, TextRows) else rows[:0]
            self._conform_of(empty.column_names).table(empty)
        except InvalidInputError as error:
            return error
        return None

    def _conform_of(self, names: Sequence[str]) -> Conform:
        """Brings new rows with these columns under the schema and the rules, except for values
        that are generated on commit, and what depends on them.
        """
        rules = self.rules
        if rules is None and not self._reads_clock:
            return self._conform
        omitted: frozenset[str] = frozenset()
        if rules is not None:
            given = {field.name for name in names if (field := self.schema.field(name))}
            rules.require_insertable(given)
            omitted = self._identities - given
            if omitted:
                late = self._late_columns(rules, omitted) - given
                rules, omitted = rules.without(omitted), omitted | late
        conform = self._new_rows.get(omitted)
        if conform is None or self._reads_clock:
            if rules is not None:
                rules = replace(rules, now_us=time.time_ns() // 1000)
            conform = Conform(self._without(omitted), self._partition_columns, rules)
            self._new_rows[omitted] = conform
        return conform

    def _without(self, names: Collection[str]) -> list[Field]:
        return [field for field in self.schema.fields if field.name not in names]

    def _fitted(self, rows: pa.Table) -> pa.Table:
        table = self._conform_of(rows.column_names).table(rows)
        for name in self._key:
            if name not in table.column_names:
                raise InvalidInputError(
                    f"the key column {name!r} is missing", column=name, expected="a value"
                )
            nulls = table[name].null_count
            if nulls:
                raise InvalidInputError(
                    f"the key column {name!r} contains nulls",
                    column=name,
                    expected="no nulls",
                    found=f"{nulls} nulls",
                )
        return table

    def _cast(self, rows: pa.Table) -> pa.Table:
        """Text in the schema's types."""
        for position, name in enumerate(rows.column_names):
            field = self.schema.field(name)
            if field is None or not pa.types.is_string(rows[name].type):
                continue
            try:
                values = read_texts(rows[name], wide_field(field).type)
            except pa.ArrowException as cause:
                raise InvalidInputError(
                    f"a text of {name!r} cannot be read in the table's type",
                    column=name,
                    expected=contract.type_text(field.type),
                    found=str(cause).split("\n", 1)[0],
                ) from cause
            rows = rows.set_column(position, name, values)
        return rows

    def decode(self, records: Records) -> list[pa.Table]:
        """The rows of records, which are all of one operation, in the schema, without `computed`
        columns that they lack; in the order of `Records.numbers`.

        Raises:
            InvalidInputError: A row no longer fits the schema.
            MalformedLogError: A record has an unknown form.
        """
        known = np.isin(records.forms, (EMPTY, JSON, ARROW))
        if not known.all():
            raise MalformedLogError(
                "a record of the ingest log has an unknown form",
                expected="0, 1 or 2",
                found=int(records.forms[~known][0]),
                hint="upgrade lakelog",
            )
        return [self._stored(each) for each in self._read(records)]

    def without_bad(self, records: Records) -> tuple[Records, list[BadRow]]:
        """Records without the rows that no longer fit the schema and the rules, and these rows."""
        puts, places = records.of("PUT")
        parts, bad, start = [], [], 0
        for number in self._unfitting(puts, 0):
            place, record = int(places[number]), puts[number : number + 1]
            parts.append(records[start:place])
            start = place + 1
            for rows in self._readable(record):
                good, refused = self.checked(rows)
                parts.append(record.replaced(good))
                bad += refused
        return Records.concat([*parts, records[start:]]), bad

    def _unfitting(self, records: Records, first: int) -> list[int]:
        """The numbers of the records with a row that does not fit, found by bisection."""
        try:
            for table in self.decode(records):
                self._fitted(table)
        except InvalidInputError:
            if len(records) == 1:
                return [first]
            middle = len(records) // 2
            return [
                *self._unfitting(records[:middle], first),
                *self._unfitting(records[middle:], first + middle),
            ]
        return []

    def _read(self, records: Records) -> Iterator[pa.Table]:
        """The rows of records as they were written, in the order of `Records.numbers`."""
        is_json = records.forms == JSON
        if is_json.any():
            # A chunk at a time: one array has at most 2 GiB.
            for chunk in filtered(records.values, is_json).chunks:
                if len(chunk):
                    yield self._read_json(data_of(chunk))
        is_arrow = records.forms == ARROW
        if is_arrow.any():
            streams = buffers_of(filtered(records.values, is_arrow))
            given = [pa.ipc.open_stream(stream).read_all() for stream in streams]
            for _, group in itertools.groupby(given, key=lambda table: table.schema):
                yield _joined_tables(list(group))

    def _read_json(self, lines: pa.Buffer) -> pa.Table:
        try:
            table = self._json.stored(lines)
        except pa.ArrowException as cause:  # a column that it has was lost
            raise InvalidInputError(
                "a row of the ingest log cannot be read with the table's columns",
                column=getattr(cause, "column", None),
                expected=", ".join(self._json.names),
                found=str(cause).split("\n", 1)[0],
            ) from cause
        names = self.computed.intersection(table.column_names)  # null before there were rules
        return table.drop_columns([n for n in names if table[n].null_count == len(table)])

    def _readable(self, record: Records) -> list[Given]:
        """The rows of a record; its lines, if it is JSON that cannot be read as a whole."""
        try:
            return list(self._read(record))
        except InvalidInputError:
            (value,) = record.values.to_pylist()
            return [value.splitlines()]

    def _stored(self, rows: pa.Table) -> pa.Table:
        omitted = self.computed.difference(rows.column_names)
        if omitted not in self._stored_rows:
            self._stored_rows[omitted] = Conform(self._without(omitted), self._partition_columns)
        return self._stored_rows[omitted].table(rows)

    def concat(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Rows of `decode` as one table; `computed` columns that rows lack are null."""
        return pa.concat_tables([self.empty(), *tables], promote_options="default")


def _joined(parts: Sequence[_Part]) -> _Part:
    """Parts of one form as one."""
    if isinstance(parts[0], list):
        return list(itertools.chain.from_iterable(cast("Sequence[list[bytes]]", parts)))
    return _joined_tables(parts)


def _joined_tables(tables: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables(tables)
    batches = table.column(0).num_chunks
    return table.combine_chunks() if len(table) < _BATCH_ROWS * batches else table


def _records_of(part: _Part) -> Iterator[Record]:
    return records_of_lines(part) if isinstance(part, list) else records_of_table(part)


def _given(rows: Given | FileRows) -> Given:
    return cast("Given", rows.rows) if isinstance(rows, FileRows) else rows


def batches_of(rows: Any) -> Iterator[Given | FileRows]:
    """Rows of a caller, batch by batch."""
    if isinstance(rows, Mapping):
        yield [rows]
    elif isinstance(rows, FileRows):
        for batch in batches_of(rows.rows):
            yield replace(rows, rows=batch)
    elif isinstance(rows, TextRows):
        yield rows
    elif isinstance(rows, bytes | bytearray | memoryview):
        lines = [line for line in bytes(rows).split(b"\n") if line.strip()]
        if lines:
            yield lines
    elif isinstance(rows, list | tuple):
        for row in rows:
            if not isinstance(row, Mapping):
                raise InvalidInputError(
                    "a list of rows must contain mappings of column names to values",
                    expected="a dict",
                    found=type(row).__name__,
                )
        if rows:
            yield list(rows)
    elif isinstance(rows, str | int | float):
        raise InvalidInputError(
            "the argument is not a row, rows or a frame",
            expected="a dict, a list of dicts, NDJSON as bytes, or a Polars, pandas or Arrow frame",
            found=type(rows).__name__,
            hint="pass NDJSON as bytes, with .encode()" if isinstance(rows, str) else None,
        )
    else:
        for batch in Incoming.of(rows).batches:
            table = to_table(batch)
            if table.num_rows:
                yield table


def _table_of_rows(rows: list[Mapping[str, Any]], schema: Struct) -> pa.Table:
    """Rows of Python values as columns, with the types of the values."""
    if not all(rows):
        raise InvalidInputError(
            "a row has no columns",
            expected="at least one column and its value",
            found="{}",
            hint="name a column; None is a null",
        )
    names: dict[Any, None] = dict.fromkeys(itertools.chain.from_iterable(rows))
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(
            "the names of columns must be str", expected="str", found=repr(list(names))
        )
    try:
        "".join(names).encode()
    except UnicodeEncodeError as cause:
        raise InvalidInputError(
            "the name of a column cannot be encoded as text", found=repr(list(names))
        ) from cause
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        field = schema.field(name)
        try:
            type_ = pa.null() if field is None else wide_field(field).type
            columns.append(from_python(values, type_))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as cause:
            raise InvalidInputError(
                f"the values of the column {name!r} have no common type",
                column=str(name),
                expected="null" if field is None else contract.type_text(field.type),
                found=str(cause).split("\n", 1)[0],
            ) from cause
    if not names:
        return pa.table({"": pa.nulls(len(rows))}).select([])
    return pa.Table.from_arrays(columns, names=list(names))


def _plain_rows(rows: Given) -> list[Any]:
    rows = rows.table if isinstance(rows, TextRows) else rows
    if isinstance(rows, pa.Table):
        columns = map(_python_values, rows.columns)
        return [
            dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    return [row.decode("utf-8", "replace") if isinstance(row, bytes) else row for row in rows]


def _python_values(values: pa.ChunkedArray) -> list[Any]:
    try:
        return list(values.to_pylist())
    except (ValueError, OverflowError):  # times that Python does not have
        return list(values.cast(_times_as_text(values.type)).to_pylist())


def _times_as_text(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_times_as_text(field.type)) for field in type_])
    if pa.types.is_large_list(type_):
        return pa.large_list(_times_as_text(type_.value_type))
    if pa.types.is_list(type_):
        return pa.list_(_times_as_text(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(_times_as_text(type_.key_type), _times_as_text(type_.item_type))
    return type_


def _check(field: Field, in_key: bool, in_partition: bool) -> Check | None:
    """Whether a value can be written as JSON of the field's type; None if no value can."""
    null = field.nullable and not in_key
    name = field.type.name if isinstance(field.type, Primitive) else ""
    if name in _INTEGERS:
        most = (1 << _INTEGERS[name]) - 1
        return lambda v: null if v is None else type(v) is int and -most <= v <= most
    if name == "double":
        return lambda v: null if v is None else _is_double(v)
    if name == "boolean":
        return lambda v: null if v is None else type(v) is bool
    if name == "string" and not any("CHAR" in key for key in field.metadata):
        least = 1 if in_partition else 0
        return lambda v: null if v is None else type(v) is str and len(v) >= least
    if name == "date":
        return lambda v: null if v is None else type(v) is dt.date and v.year >= 1000
    if name in {"timestamp", "timestamp_ntz"}:
        zone = dt.UTC if name == "timestamp" else None
        return lambda v: (
            null
            if v is None
            else type(v) is dt.datetime and v.tzinfo is zone and v.year >= 1000 and not v.fold
        )
    return None


def _needs_look(field: Field) -> bool:
    """Whether values of the right Arrow type may still not fit."""
    plain = isinstance(field.type, Decimal) or (
        isinstance(field.type, Primitive) and contract.is_known(field.type)
    )
    return not plain or field.type in _OPAQUE or any("CHAR" in key for key in field.metadata)


_OPAQUE = (contract.VARIANT, contract.VOID)


def _is_double(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and -_EXACT <= value <= _EXACT


def _default_reads_clock(column: Field) -> bool:
    try:
        return default_expression(column).reads_clock
    except UnsupportedFeatureError:  # reported if a row lacks the column
        return False
