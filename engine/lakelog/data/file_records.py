"""What the log records of live files, and reading would refuse: found without opening a file.

Partition values and deletion vectors in the log are checked here by the rules of reading.
Row counts are compared when a file is read, because they need its footer.

Source: Delta protocol, Partition Value Serialization; Deletion Vectors; Add File and Remove File.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl

from lakelog.data.deletion_vectors import require_decodable
from lakelog.data.files import ReadPlan, require_single_files
from lakelog.errors import CorruptionError, UnsupportedError
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import actions, contract
from lakelog.model.actions import DV_COLUMNS
from lakelog.skipping.values import typed_partitions

_COLUMNS = ("path", "size", "partitionValues", *DV_COLUMNS)


def refused_records(snapshot: LogSnapshot) -> Iterator[CorruptionError]:
    """The first file of each kind of problem in the log for which reading all rows would raise.

    Memory: size, partition values and deletion vector of each live file; paths if there is one.
    """
    try:
        plan = ReadPlan.of(snapshot, ())
    except UnsupportedError:  # its rows are not read
        return
    checked = ["size", *DV_COLUMNS, *(["partitionValues"] if plan.partition_columns else ())]
    if any(_errors(snapshot, plan, checked)):
        yield from _errors(snapshot, plan, ["path", *checked])


def _errors(
    snapshot: LogSnapshot, plan: ReadPlan, columns: Sequence[str]
) -> Iterator[CorruptionError]:
    known = snapshot.files().collect_schema().names()
    found = snapshot.files().select(name for name in columns if name in known).collect()
    files = actions.conform(found, _COLUMNS)
    checks: tuple[Callable[[], object], ...] = (
        lambda: require_single_files(snapshot),
        lambda: partition_values(files, plan, plan.partition_columns),
        lambda: require_decodable(files, plan.version),
    )
    for check in checks:
        try:
            check()
        except CorruptionError as error:
            yield error


def partition_values(files: pl.DataFrame, plan: ReadPlan, names: Sequence[str]) -> list[pl.Series]:
    """The values of each partition column, one per file; CorruptionError for an invalid one."""
    typed = typed_partitions(files["partitionValues"], plan.schema, names, mapping=plan.mapping)
    for name, known in zip(names, typed.known, strict=True):
        if not known.all():
            row = int((~known).arg_true()[0])
            raise _unknown_value(plan, plan.fields[name], files, row)
    return typed.values.get_columns()


def _unknown_value(
    plan: ReadPlan, field: contract.Field, files: pl.DataFrame, row: int
) -> CorruptionError:
    values = dict(files["partitionValues"][row] or {})
    text = values.get(contract.physical_name(field, plan.mapping))
    return CorruptionError(
        (
            f"a file's partition value of {field.name!r} is missing, or does not have the "
            "column's type"
        ),
        path=files["path"][row],
        version=plan.version,
        expected=contract.type_text(field.type),
        found="no value" if text is None else repr(text),
        hint="repair the log: without the value the file's rows cannot be read",
    )
