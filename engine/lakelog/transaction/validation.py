"""All checks of a transaction, before it is written and after each concurrent commit.

`check_metadata` validates a metaData action, also against the previous one; `check_files` validates
file actions against the metadata. Both raise before anything is written. Rules of table features
for whole commits are in `lakelog.transaction.write_support`.

Source: Delta protocol, Change Metadata; Schema Serialization Format; Column Mapping; Row Tracking.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable

import polars as pl

from lakelog.dialects.properties import changed
from lakelog.dialects.protocol_rules import ProtocolRules, TableConfiguration
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    InvalidMetadataError,
    InvalidProtocolError,
    InvalidTransactionError,
    LakelogWarning,
    UnsupportedFeatureError,
)
from lakelog.model import actions, contract
from lakelog.model.column_names import close_names
from lakelog.model.contract import fields_of, is_nested, leaf_types
from lakelog.model.metadata import MAX_COLUMN_ID, Metadata, is_on
from lakelog.skipping.indexed_columns import STATISTICS_COLUMNS, require_statistics_columns
from lakelog.skipping.statistics import num_records
from lakelog.transaction import row_tracking, write_support
from lakelog.transaction.commit_content import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION, after
from lakelog.transaction.file_rules import check_files
from lakelog.transaction.pending_commit import PendingCommit
from lakelog.transaction.schema_evolution import check_evolution

__all__ = ["check_files", "check_metadata"]

_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
_CHANGE_DATA_COLUMNS = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
_MAX_ID = (1 << 31) - 1
_UNORDERED = frozenset({"void", "variant"})
_PARQUET_LEVELS = 99
"""Levels of a column that Arrow reads, without the schema itself."""


def check_metadata(
    configured: TableConfiguration,
    old: Metadata | None,
    *,
    replaced: bool = False,
    restored: bool = False,
    constraints_hold: bool = False,
) -> None:
    """Raise for invalid metadata, or a change that is not allowed; warn of properties without
    effect. Whether every file has row ids is not checked, because it depends on the table's state.
    Metadata that are `restored`, or copied from another table, may have properties, names and types
    that other writers allowed.
    """
    new, dialect = configured.metadata, configured.dialect
    before = {} if old is None else old.configuration
    properties = changed(new.configuration, before)
    if not restored:
        dialect.properties.check(properties)
        dialect.properties.check_together(properties, new.configuration)
    for note in dialect.properties.without_effect(properties):
        warnings.warn(note, LakelogWarning, stacklevel=2)
    _check_identity(new, old, dialect.provider)
    schema = _schema(new)
    fields = dict(fields_of(schema)) if restored else _fields_before(old)
    any_name = configured.column_mapping != "none" or not dialect.names_parquet_columns
    _check_names(schema, fields, any_name=any_name)
    _check_partition_columns(new, schema)
    listed = properties.get(STATISTICS_COLUMNS)
    if listed is not None and not restored:  # a clone may have an old list
        require_statistics_columns(schema, new.partition_columns, listed)
    settled = replaced or restored or constraints_hold
    if not restored:  # a copy ignores what its source ignored
        _check_features(configured, old)
    _check_rules_of_features(configured, old, schema, constraints_hold=settled)
    _check_types(schema, fields)
    if old is not None and not restored:  # restored files had this schema
        check_evolution(old, configured, replaced=replaced)
        _check_enablement(new, old)


def _check_identity(new: Metadata, old: Metadata | None, provider: str) -> None:
    if not new.id:
        raise InvalidMetadataError("the metadata has no table id", expected="metaData.id")
    if old is not None and old.id is not None and new.id != old.id:
        raise InvalidMetadataError("the table id must not change", expected=old.id, found=new.id)
    if new.format_provider != provider and (
        old is None or new.format_provider != old.format_provider
    ):
        raise InvalidMetadataError(
            "the format provider does not match the dialect",
            path="format.provider",
            expected=provider,
            found=new.format_provider,
        )


def _schema(metadata: Metadata) -> contract.Struct:
    hint = "pass the schema as Spark StructType JSON"
    if metadata.schema_string is None:  # readers take it as one without columns
        raise InvalidMetadataError("the metadata has no schema", path="schemaString", hint=hint)
    try:
        return metadata.schema
    except CorruptionError as cause:
        if isinstance(cause.__cause__, InvalidInputError):
            raise InvalidMetadataError(
                cause.message,
                path="schemaString",
                expected=cause.expected,
                found=cause.found,
                hint=hint,
            ) from cause
        raise InvalidMetadataError(
            "two columns have the same name",
            column=str(cause.found),
            expected=cause.expected,
            hint="rename one of them",
        ) from cause


def _fields_before(old: Metadata | None) -> dict[tuple[str, ...], contract.Field]:
    if old is None:
        return {}
    try:
        return dict(fields_of(old.schema))
    except CorruptionError:
        return {}


def _structs(schema: contract.Struct) -> Iterable[tuple[str, contract.Struct]]:
    """Every struct of a schema, with its path."""
    yield "", schema
    for at in fields_of(schema):
        nested, path = at.field.type, at.text
        while isinstance(nested, contract.Array):
            nested, path = nested.element, f"{path}.element"
        if isinstance(nested, contract.Struct):
            yield path, nested
        elif isinstance(nested, contract.Map):
            for part, type_ in (("key", nested.key), ("value", nested.value)):
                if isinstance(type_, contract.Struct):
                    yield f"{path}.{part}", type_


def _check_names(
    schema: contract.Struct,
    before: dict[tuple[str, ...], contract.Field],
    *,
    any_name: bool,
) -> None:
    for path, struct in _structs(schema):
        counts = Counter(name.lower() for name in struct.names)
        for name in struct.names:
            if counts[name.lower()] > 1:
                raise InvalidMetadataError(
                    "two columns have the same name (case-insensitive)",
                    column=f"{path}.{name}".lstrip("."),
                    expected="names that are unique (case-insensitive)",
                    found=[n for n in struct.names if n.lower() == name.lower()],
                )
    for at in fields_of(schema):
        if not at.field.name:
            raise InvalidMetadataError("a column has no name", column=at.text)
        if at.path in before:
            continue
        if "\0" in at.field.name:
            raise InvalidMetadataError(
                "a column's name contains a NUL character",
                column=repr(at.text),
                expected="names without NUL characters",
            )
        if not any_name and _FORBIDDEN.search(at.field.name):
            raise InvalidMetadataError(
                "a column's name contains a character that Parquet does not allow",
                column=at.text,
                expected="none of ' ,;{}()\\n\\t='",
                found=at.field.name,
                hint="column mapping (delta.columnMapping.mode name) allows any name",
            )


def _check_types(schema: contract.Struct, before: dict[tuple[str, ...], contract.Field]) -> None:
    for field in schema.fields:
        old = before.get((field.name,))
        is_new = old is None or old.type != field.type
        if is_new and (levels := _parquet_levels(field.type)) > _PARQUET_LEVELS:
            raise InvalidMetadataError(
                "the column is nested too deeply: its files could not be read",
                column=field.name,
                expected=f"at most {_PARQUET_LEVELS} levels, of which a list or a map has two",
                found=levels,
            )
    for at in fields_of(schema):
        if at.path in before and before[at.path].type == at.field.type:
            continue
        for leaf in leaf_types(at.field.type):
            if not contract.is_known(leaf):
                raise InvalidMetadataError(
                    "the column's type is not a type of the format",
                    column=at.text,
                    expected="a type of the Delta protocol, Primitive Types",
                    found=contract.type_text(leaf),
                )


def _parquet_levels(type_: contract.DataType) -> int:
    """The levels of a column in Parquet."""
    match type_:
        case contract.Struct(fields):
            return 1 + max((_parquet_levels(field.type) for field in fields), default=0)
        case contract.Array(element):
            return 2 + _parquet_levels(element)
        case contract.Map(key, value):
            return 2 + max(_parquet_levels(key), _parquet_levels(value))
    return 1


def _check_partition_columns(metadata: Metadata, schema: contract.Struct) -> None:
    columns = metadata.partition_columns
    exact = {f.name: f for f in schema.fields}
    for column in columns:
        if column not in exact:
            alike = schema.field(column)
            raise InvalidMetadataError(
                "a partition column is not in the schema",
                path="partitionColumns",
                expected=list(schema.names) if alike is None else alike.name,
                found=column,
                hint=close_names(column, schema.names),
            )
        if sum(c.lower() == column.lower() for c in columns) > 1:
            raise InvalidMetadataError(
                "a partition column occurs twice", path="partitionColumns", found=column
            )
        type_ = exact[column].type
        if is_nested(type_) or (
            isinstance(type_, contract.Primitive)
            and (type_.name in _UNORDERED or not contract.is_known(type_))
        ):
            raise InvalidMetadataError(
                "a table cannot be partitioned by a column of this type",
                path="partitionColumns",
                expected="a type that can be a partition column",
                found=f"{column}: {contract.to_json(type_)}",
            )
    if columns and len(columns) == len(schema.fields):
        raise InvalidMetadataError(
            "all columns are partition columns, so files would have no columns",
            path="partitionColumns",
            expected="at least one data column",
            found=list(columns),
        )


def _check_rules_of_features(
    configured: TableConfiguration,
    old: Metadata | None,
    schema: contract.Struct,
    *,
    constraints_hold: bool,
) -> None:
    new = configured.metadata
    if configured.column_mapping != "none":
        _check_mapping(new, old, schema)
    if configured.supports("clustering") and new.partition_columns:
        raise InvalidMetadataError(
            "a clustered table must not have partition columns",
            path="partitionColumns",
            expected=[],
            found=list(new.partition_columns),
        )
    if configured.is_active("changeDataFeed"):
        for name in schema.names:
            if name.lower() in _CHANGE_DATA_COLUMNS:
                raise InvalidMetadataError(
                    "a column has a name that is reserved by the change data feed",
                    column=name,
                    expected=f"none of {', '.join(sorted(_CHANGE_DATA_COLUMNS))}",
                    found=name,
                )
    if configured.supports("rowTracking") and is_on(new.configuration, row_tracking.ENABLED):
        _check_row_id_columns(new, old, schema)
    if old is None or constraints_hold or not configured.supports("checkConstraints"):
        return
    for key in changed(new.constraints, old.constraints):
        raise UnsupportedFeatureError(
            "a CHECK constraint is added or takes effect, and lakelog cannot check rows against it",
            path=key,
            found="checkConstraints",
            hint="use Table.alter.add_constraint, which checks them; one that the protocol did not "
            "enforce is dropped first",
        )


def _check_enablement(new: Metadata, old: Metadata) -> None:
    """Raise if the first in-commit timestamp is recorded otherwise while they stay enabled; the
    commit that enables them records it.
    """
    if new.stamped_from is None or old.stamped_from is None:
        return
    for key in (ENABLEMENT_VERSION, ENABLEMENT_TIMESTAMP):
        if (found := new.configuration.get(key)) != (known := old.configuration.get(key)):
            raise InvalidMetadataError(
                "the record of the first in-commit timestamp must not change while they are on",
                path=key,
                expected=known,
                found=found,
                hint="set delta.enableInCommitTimestamps to false, and to true in a later commit: "
                "that commit records it",
            )


def _check_features(configured: TableConfiguration, old: Metadata | None) -> None:
    rules, supported = configured.rules, configured.rules.supported(configured.protocol)
    # Features that were already enabled against the protocol are ignored here.
    there = supported | (frozenset() if old is None else _features_before(rules, old))
    known = rules.features
    for name in sorted(rules.needed(configured.metadata) - there):
        if name in known and there.intersection(known[name].replaces):
            continue
        raise InvalidProtocolError(
            f"the metadata enables {name!r}, which the protocol does not support",
            expected=name,
            found=sorted(supported),
            hint="upgrade the protocol in the same transaction",
        )


def _features_before(rules: ProtocolRules, old: Metadata) -> frozenset[str]:
    try:
        return rules.needed(old)
    except CorruptionError:
        return frozenset()


def _check_mapping(new: Metadata, old: Metadata | None, schema: contract.Struct) -> None:
    ids: dict[int, str] = {}
    for at in fields_of(schema):
        number = at.field.metadata.get(contract.COLUMN_ID)
        name = at.field.metadata.get(contract.PHYSICAL_NAME)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MAX_ID:
            raise InvalidMetadataError(
                "a column of a mapped table has no id",
                column=at.text,
                expected=contract.COLUMN_ID,
                found=number,
            )
        if not isinstance(name, str) or not name:
            raise InvalidMetadataError(
                "a column of a mapped table has no physical name",
                column=at.text,
                expected=contract.PHYSICAL_NAME,
                found=name,
            )
        if number in ids:
            raise InvalidMetadataError(
                "two columns have the same id",
                column=at.text,
                expected="unique ids",
                found=f"{number}, as {ids[number]}",
            )
        ids[number] = at.text
    known = {contract.physical_name(field, "name") for field in _fields_before(old).values()}
    for path, struct in _structs(schema):
        names = [contract.physical_name(f, "name") for f in struct.fields]
        for name, count in Counter(map(str.lower, names)).items():
            same = {each for each in names if count > 1 and each.lower() == name}
            # Another writer may have given names that differ in case; they cannot be changed.
            if count > 1 and not (len(same) == count and same <= known):
                raise InvalidMetadataError(
                    "two columns have the same physical name",
                    column=path or None,
                    expected="unique physical names, in any case",
                    found=name,
                )
    least = max([*ids, 0 if old is None else old.max_column_id])
    if not (recorded := new.configuration.get(MAX_COLUMN_ID)) or new.max_column_id < least:
        raise InvalidMetadataError(
            f"{MAX_COLUMN_ID} is missing, or decreases",
            path=MAX_COLUMN_ID,
            expected=f"at least {least}",
            found=recorded,
        )


def _check_row_id_columns(new: Metadata, old: Metadata | None, schema: contract.Struct) -> None:
    was_on = old is not None and is_on(old.configuration, row_tracking.ENABLED)
    physical = {contract.physical_name(at.field, "name").lower() for at in fields_of(schema)}
    logical = {at.field.name.lower() for at in fields_of(schema)}
    names = [new.configuration.get(key) for key in row_tracking.MATERIALIZED]
    for key, name in zip(row_tracking.MATERIALIZED, names, strict=True):
        if not name:
            raise InvalidMetadataError(
                "row tracking is on, and the column that stores row ids has no name",
                path=key,
                expected="a name that is not in the schema",
            )
        if name.lower() in physical | logical or names.count(name) > 1:
            raise InvalidMetadataError(
                "the column that stores row ids has the name of another column",
                path=key,
                expected="a name that is not in the schema",
                found=name,
            )
        if was_on and old is not None and old.configuration.get(key) not in {None, name}:
            raise InvalidMetadataError(
                "the name of the column that stores row ids must not change",
                path=key,
                expected=old.configuration.get(key),
                found=name,
            )


def check(
    pending: PendingCommit,
    table: str,
    *,
    replaced: bool,
    rows_replaced: bool = False,
    restored: bool = False,
    clusters: bool = False,
    constraints_hold: bool = False,
    checked: pl.Series | None = None,
    live_files: Callable[[], pl.LazyFrame],
) -> None:
    """Raise for a transaction that is inconsistent, or that lakelog cannot validate."""
    before, table_after = pending.table, after(pending)
    is_same = table_after.protocol == before.protocol
    write_support.check_writable(before, table, lists=is_same)
    if not is_same:
        before.rules.check_change(before.protocol, table_after.protocol)
    old = before.metadata_before(table_after)
    is_clustered = table_after.supports("clustering") and not before.supports("clustering")
    if table_after.metadata != old or is_clustered:
        check_metadata(
            table_after,
            old,
            replaced=replaced,
            restored=restored,
            constraints_hold=constraints_hold,
        )
        _check_row_tracking(pending, table_after, old, table, live_files)
    if table_after != before:
        write_support.check_writable(table_after, table)
    if pending.files.height:
        check_files(pending.files, table_after, external=restored)
        if table_after.supports("rowTracking") and not restored:
            _check_row_ids(pending.files, table, live_files)
    write_support.check_actions(
        table_after,
        pending.files,
        pending.meta,
        table,
        before=before,
        rows_replaced=rows_replaced,
        restored=restored,
        clusters=clusters,
        checked=checked,
    )


def _check_row_tracking(
    pending: PendingCommit,
    table_after: TableConfiguration,
    old: Metadata,
    table: str,
    live_files: Callable[[], pl.LazyFrame],
) -> None:
    """Raise if row tracking is enabled and a file has no row ids."""
    if not table_after.is_active("rowTracking") or is_on(old.configuration, row_tracking.ENABLED):
        return
    files = live_files().select(*actions.KEY, "baseRowId").collect()
    bare = files.filter(files["baseRowId"].is_null())
    if bare.height and pending.files.height:
        touched = actions.conform(pending.files, actions.KEY)
        bare = bare.join(touched, on=actions.KEY, how="anti", nulls_equal=True)
    if not bare.height:
        return
    hint = "add the files again for row ids: tx.add(tx.read().collect(), dataChange=False)"
    if not pending.table.supports("rowTracking"):
        hint = "set_protocol(features=['rowTracking']) first; then " + hint
        if is_on(pending.metadata.configuration, row_tracking.ENABLED):  # ignored so far
            hint = f"set {row_tracking.ENABLED} to false, which has no effect yet; {hint}"
    raise InvalidTransactionError(
        "row tracking can be enabled only if every file has row ids",
        path=table,
        expected="baseRowId in every file",
        found=bare["path"][0],
        hint=hint,
    )


def _check_row_ids(files: pl.DataFrame, table: str, live_files: Callable[[], pl.LazyFrame]) -> None:
    """Raise if a file is added with the base row id of another one (Delta protocol, Writer
    Requirements for Row Tracking: no duplicate row ids in any version).
    """
    columns = ("path", "baseRowId", "stats")
    given = actions.conform(files, (*columns, "actionType"))
    removed = given["path"].filter(given["actionType"] == "remove").implode()
    added = given.filter((given["actionType"] == "add") & given["baseRowId"].is_not_null())
    # A file that is also removed is added again, with other statistics or another vector.
    if added["path"].is_in(removed).all():
        return
    same = pl.col("baseRowId").is_in(added["baseRowId"].implode()) & ~pl.col("path").is_in(removed)
    known = live_files().select(columns).filter(same).collect()
    both = pl.concat([added.select(columns), known])
    # Files without rows have no row ids.
    both = both.filter(num_records(both["stats"]).fill_null(1) > 0)
    both = both.select("path", "baseRowId").unique(maintain_order=True)
    twice = both.filter(both["baseRowId"].is_duplicated())
    if twice.height:
        raise InvalidTransactionError(
            "a file is added with the row ids of another file",
            path=table,
            expected="another baseRowId for each file",
            found=twice.row(0, named=True),
            hint="leave out baseRowId and defaultRowCommitVersion: they are assigned on commit",
        )


def changes_columns(before: Metadata, metadata: Metadata) -> bool:
    """Whether a change of the metadata affects how files are read."""
    return (
        before.schema_string != metadata.schema_string
        or before.partition_columns != metadata.partition_columns
    )


def removes_all(files: pl.DataFrame, live: pl.LazyFrame) -> bool:
    """Whether `files` removes every live file."""
    # The IndexTables dialect has no deletion vectors.
    names = [name for name in actions.KEY if name in live.collect_schema()]
    keys = actions.conform(live.select(names).collect(), actions.KEY)
    removes = files.filter(files["actionType"] == "remove") if files.height else files
    if keys.height > removes.height:
        return False
    wanted = actions.conform(removes, actions.KEY)
    return not keys.join(wanted, on=actions.KEY, how="anti", nulls_equal=True).height
