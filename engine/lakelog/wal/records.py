"""Validates records of callers, and converts them to bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa

from lakelog.arrow_arrays import valid_mask
from lakelog.errors import InvalidInputError
from lakelog.model.contract import require_exportable, without_metadata
from lakelog.wal.encode import Columns, column_of
from lakelog.wal.frames import DELETE, OPS, PUT, Op

_CODES: dict[str, bytes] = {name: bytes((code,)) for code, name in enumerate(OPS, 1)}
_DATA = {"PUT": PUT, "DELETE": DELETE}
_NAMES = frozenset(("op", "key", "value"))


class WalRecord(NamedTuple):
    """One record, as in specification 002.

    Attributes:
        seq_num: Sequence number.
        op_type: PUT, DELETE, COMMIT or CHECKPOINT.
        key: Bytes; empty in control marks.
        value: Bytes, or None.
    """

    seq_num: int
    op_type: Op
    key: bytes
    value: bytes | None

    @property
    def checksum(self) -> int:
        """CRC-32 over the operation's code, the key and the value, as in specification 002."""
        start = zlib.crc32(self.key, zlib.crc32(_CODES[self.op_type]))
        return zlib.crc32(self.value or b"", start)


class WalRecords:
    """Records of a log: a sequence of `WalRecord`, and a table.

    Iteration, ``len`` and indexing by numbers return `WalRecord` objects, created on demand.
    Indexing by a column's name, and every attribute of `pyarrow.Table`, return columns. Readers of
    Arrow streams (`polars.DataFrame`, Pandas, DuckDB) read it as a table; for functions that accept
    only a `pyarrow.Table`, pass `table`.

    Attributes:
        table: ``seqNum`` (int64), ``op`` (dictionary of strings), ``key`` and ``value`` (binary).

    Example:
        >>> from lakelog import WriteAheadLog
        >>> with WriteAheadLog("log") as log:
        ...     _ = log.append("PUT", "city", "Ghent")
        ...     for record in log.replay():
        ...         print(record.op_type, record.key, record.value, record.seq_num)
        ...     log.replay()["key"].to_pylist(), log.replay().num_rows
        PUT b'city' b'Ghent' 1
        ([b'city'], 1)
    """

    __slots__ = ("table",)
    __hash__ = None  # type: ignore[assignment] # it equals lists

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[WalRecord]:
        return records_of((self.table,))

    @overload
    def __getitem__(self, key: int) -> WalRecord: ...

    @overload
    def __getitem__(self, key: slice) -> list[WalRecord]: ...

    @overload
    def __getitem__(self, key: str) -> pa.ChunkedArray: ...

    def __getitem__(self, key: int | slice | str) -> WalRecord | list[WalRecord] | pa.ChunkedArray:
        if isinstance(key, str):
            return self.table[key]
        if isinstance(key, slice):
            return list(records_of((self.table.take(list(range(len(self))[key])),)))
        row = range(len(self))[key]
        return next(records_of((self.table.slice(row, 1),)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, WalRecords):
            return bool(self.table.equals(other.table))
        if isinstance(other, pa.Table):
            return bool(self.table.equals(other))
        return list(self) == other if isinstance(other, list) else NotImplemented

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.table, name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return WalRecords, (self.table,)

    def __repr__(self) -> str:
        return f"WalRecords({len(self)} records)"


def records_of(tables: Iterable[pa.Table]) -> Iterator[WalRecord]:
    """The rows of record tables, one by one."""
    for each in tables:
        for batch in each.to_batches(max_chunksize=1 << 14):
            yield from map(WalRecord, *(column.to_pylist() for column in batch.columns))


def code_of(op: str) -> bytes:
    """An operation's code, as one byte."""
    try:
        return _CODES[op]
    except (KeyError, TypeError):
        raise InvalidInputError(
            "unknown operation", expected=", ".join(OPS), found=repr(op)
        ) from None


def data_of(text: bytes | str | bytearray | memoryview, what: str = "key") -> bytes:
    r"""Bytes unchanged, text as UTF-8; raises InvalidInputError for others."""
    if type(text) is bytes:
        return text
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as cause:
            raise InvalidInputError(
                f"a {what} cannot be encoded as text", found=repr(text)
            ) from cause
    if isinstance(text, bytes | bytearray | memoryview):
        return bytes(text)
    raise InvalidInputError(
        f"a {what} must be bytes or text", expected="bytes or str", found=type(text).__name__
    )


def put_without_value() -> InvalidInputError:
    """A PUT record whose value is None."""
    return InvalidInputError(
        "a PUT record must have a value",
        expected="bytes or text",
        found="None",
        hint="pass b'' for an empty value, or DELETE to remove the key",
    )


def batch_of(
    records: Iterable[tuple[str, bytes | str, bytes | str | None]],
) -> tuple[bytes, list[bytes], list[bytes | None]]:
    """Codes, keys and values of a batch."""
    ops, keys, values = bytearray(), [], []
    if not isinstance(records, Iterable):
        raise InvalidInputError("a batch must be a list of records", found=type(records).__name__)
    for record in records:
        try:
            op, key, value = record
            code = _DATA[op]
        except (TypeError, ValueError, KeyError):
            raise InvalidInputError(
                "a batch must contain tuples of operation, key and value",
                expected="('PUT' or 'DELETE', key, value or None)",
                found=repr(record),
            ) from None
        ops.append(code)
        keys.append(key if type(key) is bytes else data_of(key))
        if value is None:
            if code == PUT:
                raise put_without_value()
        elif type(value) is not bytes:
            value = data_of(value, "value")
        values.append(value)
    return bytes(ops), keys, values


def arrow_table(table: Any) -> pa.Table:
    """An object with an Arrow stream, as an Arrow table."""
    if type(table).__module__.startswith("polars.") and hasattr(table, "collect_schema"):
        table = getattr(table, "collect", lambda: table)()
        require_exportable(table.schema)
        table = table.to_arrow()
    if isinstance(table, pa.Table):
        return without_metadata(table)
    if isinstance(table, pa.RecordBatch):
        return without_metadata(pa.Table.from_batches([table]))
    try:
        if hasattr(table, "__arrow_c_stream__"):
            return without_metadata(pa.table(table))
        cause = None
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        cause = error
    raise InvalidInputError(
        "records in columns must be an Arrow or a Polars table", found=type(table).__name__
    ) from cause


def columns_of_table(table: Any) -> Iterator[Columns]:
    """Records of an Arrow or Polars table, chunk by chunk."""
    table = arrow_table(table)
    if frozenset(table.column_names) != _NAMES or table.num_columns != len(_NAMES):
        raise InvalidInputError(
            "a table of records has other columns",
            expected="op, key, value",
            found=", ".join(table.column_names),
        )
    for batch in table.select(["op", "key", "value"]).to_batches():
        ops = _codes(batch["op"])
        keys = _bytes(batch["key"], "key")
        if keys.null_count:
            raise InvalidInputError("a key must not be null")
        values = _bytes(batch["value"], "value")
        if values.null_count and not valid_mask(values)[ops == PUT].all():
            raise put_without_value()
        yield Columns(ops, keys, values)


def _codes(column: pa.Array) -> Any:
    import pyarrow.compute as pc  # imported here, because single records do not need it

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_binary(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_binary())
    if not (_is_text(column.type) or pa.types.is_large_binary(column.type)):
        raise InvalidInputError(
            "the column of operations has another type",
            expected="text or bytes",
            found=str(column.type),
        )
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    for name, code in _DATA.items():
        if _is_all(column, name.encode()):
            return np.full(len(column), code, dtype=np.uint8)
    found = pc.index_in(column, column_of([name.encode() for name in _DATA]).cast(column.type))
    if found.null_count:
        strange = column.filter(found.is_null())[0].as_py()
        raise InvalidInputError(
            "a batch contains an unknown operation", expected="PUT or DELETE", found=repr(strange)
        )
    indexes = np.frombuffer(found.buffers()[1], dtype=np.int32)[found.offset :][: len(found)]
    return indexes.astype(np.uint8) + np.uint8(1)


def _is_all(column: pa.Array, text: bytes) -> bool:
    """Whether all elements of a column are known to equal one text."""
    width = {pa.string(): np.int32, pa.large_string(): np.int64}.get(column.type)
    if width is None or column.null_count or not len(column):
        return False
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=width)[column.offset : column.offset + len(column) + 1]
    size = int(ends[-1] - ends[0])
    if size != len(column) * len(text) or not (np.diff(ends) == len(text)).all():
        return False
    return bool(data.slice(int(ends[0]), size).equals(pa.py_buffer(text * len(column))))


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _bytes(column: pa.Array, what: str) -> pa.LargeBinaryArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.large_binary())
    if not (
        _is_text(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        raise InvalidInputError(
            f"the column of {what}s has another type",
            expected="bytes or text",
            found=str(kind),
        )
    if pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    return column.cast(pa.large_binary())
