"""`Alter`: changes of schema, properties, constraints and protocol, each in one commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.data.files import ReadPlan, require_single
from lakelog.data.read import read_files
from lakelog.data.row_rules import (
    GENERATION,
    IDENTITY_START,
    INVARIANT,
    RowRules,
    check,
)
from lakelog.data.write_plan import clustering_columns, is_clusterable
from lakelog.errors import (
    ConstraintViolationError,
    CorruptionError,
    InvalidInputError,
    InvalidTransactionError,
    SchemaEvolutionError,
    UnsupportedFeatureError,
)
from lakelog.input_validation import checked_methods
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import contract
from lakelog.model.column_names import column_path
from lakelog.model.metadata import CLUSTERING, CONSTRAINT_PROPERTY, Metadata
from lakelog.skipping.indexed_columns import STATISTICS_COLUMNS
from lakelog.transaction import schema_edits
from lakelog.transaction.schema_conversion import SchemaLike, schema_text, struct_of
from lakelog.transaction.schema_evolution import check_evolution
from lakelog.transaction.transaction import LogTransaction

_MAPPING = "delta.columnMapping.mode"
_WIDENING = "delta.enableTypeWidening"
_NTZ = contract.Primitive("timestamp_ntz")


@checked_methods()
class Alter:
    """Changes of one table's schema, properties, constraints and protocol.

    Get one from `Table.alter`. Each method makes one commit and returns its version; None if the
    table needs no change. A concurrent change of the metadata is a conflict.

    Columns are given by name; a field of a struct by the names of the path with dots between them.

    All methods raise:
        InvalidInputError: A column does not exist, or an argument is invalid.
        InvalidTransactionError: The table would become inconsistent; `SchemaEvolutionError` if
            existing files could not be read with the new schema.
        UnsupportedFeatureError: The table needs a writer feature that lakelog does not support.
        ConflictError: A concurrent commit changed the metadata or the protocol.
        CommitOutcomeUnknown: The commit may have succeeded.
        UnavailableError: The store failed; nothing was written.

    Source: Delta protocol, Change Metadata; Protocol Evolution.
    """

    def __init__(self, begin: Callable[..., LogTransaction]) -> None:
        self._begin = begin

    def described(
        self,
        *,
        operation: str | None = None,
        user_name: str | None = None,
        user_metadata: str | None = None,
        commit_info: Mapping[str, Any] | None = None,
    ) -> Alter:
        """The same methods, whose commits have a description: ``commitInfo`` gets the arguments
        that are not None, as in `Table.transaction`.

        Raises:
            InvalidInputError: As `Table.transaction`, when a method is called.

        >>> import lakelog, polars as pl, tempfile
        >>> table = lakelog.create(tempfile.mkdtemp(), {"id": pl.Int64})
        >>> table.alter.described(user_metadata="ticket 1042").set_comment("orders")
        1
        """
        given = {
            "operation": operation,
            "user_name": user_name,
            "user_metadata": user_metadata,
            "commit_info": commit_info,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        begin = self._begin
        return Alter(lambda **more: begin(**more | chosen))

    def add_columns(self, columns: SchemaLike, *, after: str | None = None) -> int | None:
        """Add nullable columns; they are null in existing rows.

        Args:
            columns: Names and types, as `lakelog.create` takes a schema. A field of a struct is
                named by its path: ``address.zip``, and ``lines.element.tax`` or
                ``labels.value.text`` for structs in lists and maps.
            after: The column before them, in the same struct; None adds them at the end.

        Raises:
            SchemaEvolutionError: A column is NOT NULL, or exists.
        """
        fields = struct_of(columns).fields

        def edit(schema: contract.Struct) -> contract.Struct:
            return schema_edits.add_fields(schema, fields, after)

        texts = [{"column": contract.to_json(contract.Struct((f,)))["fields"][0]} for f in fields]
        return self._schema("ADD COLUMNS", {"columns": orjson.dumps(texts).decode()}, edit)

    def rename_column(self, column: str, to: str, *, enable: bool = False) -> int | None:
        """Rename a column. Data files are not rewritten, so this needs column mapping by name.

        Args:
            column: The column.
            to: The new name, without the path of a nested field.
            enable: Enable column mapping first, in a commit of its own; older readers then cannot
                read the table.

        Raises:
            SchemaEvolutionError: Column mapping is off and `enable` is false; or a constraint, a
                generated column or a property refers to the column.
        """

        def edit(schema: contract.Struct) -> contract.Struct:
            return schema_edits.rename_field(schema, column, to)

        self._require_mapping(edit, column, to, enable=enable)
        parameters = {"oldColumnPath": column, "newColumnPath": _renamed(column, to)}
        return self._schema("RENAME COLUMN", parameters, edit, column=column, to=to)

    def drop_column(self, column: str, *, enable: bool = False) -> int | None:
        """Drop a column. Data files keep its values, so this needs column mapping by name.

        Args:
            column: The column; not a partition column, and not one that the table is clustered by.
            enable: As `rename_column`.

        Raises:
            SchemaEvolutionError: As `rename_column`; or it is such a column or the last one.
        """

        def edit(schema: contract.Struct) -> contract.Struct:
            return schema_edits.drop_field(schema, column)

        self._require_mapping(edit, column, None, enable=enable)
        parameters = {"columns": orjson.dumps([column]).decode()}
        return self._schema("DROP COLUMNS", parameters, edit, column=column)

    def widen_column(self, column: str, type: object, *, enable: bool = False) -> int | None:  # noqa: A002 - the word of the field
        """Give a column a wider type. Existing files are read with a cast.

        Args:
            column: The column, or ``tags.element``, ``labels.key`` or ``labels.value`` of one.
            type: A Polars or pyarrow type, or the name of a type such as ``long``.
            enable: Set ``delta.enableTypeWidening``; older readers then cannot read the table.

        Raises:
            SchemaEvolutionError: The type is not wider; type widening is off and `enable` is false;
                it is a generated or identity column; or a constraint or a generated column refers
                to the column.

        Source: Delta protocol, Type Widening.
        """
        wider = _type_of(type)

        def edit(schema: contract.Struct) -> contract.Struct:
            return schema_edits.widen_field(schema, column, wider)

        properties = {_WIDENING: "true"} if enable else {}
        parameters = {
            "column": orjson.dumps({"name": column, "type": contract.to_json(wider)}).decode()
        }
        return self._schema(
            "CHANGE COLUMN", parameters, edit, properties=properties, column=column, to=column
        )

    def set_nullable(self, column: str) -> int | None:
        """Allow nulls in a column. The reverse is not possible, because files may have nulls."""
        parameters = {"column": orjson.dumps({"name": column, "nullable": True}).decode()}
        return self._schema(
            "CHANGE COLUMN", parameters, lambda schema: schema_edits.allow_nulls(schema, column)
        )

    def set_comment(self, comment: str | None, column: str | None = None) -> int | None:
        """Set the comment of a column, or without `column` the description of the table; None
        removes it.
        """
        if column is not None:
            parameters = {"column": orjson.dumps({"name": column, "comment": comment}).decode()}
            return self._schema(
                "CHANGE COLUMN",
                parameters,
                lambda schema: schema_edits.comment_on(schema, column, comment),
            )
        parameters = {"properties": orjson.dumps({"comment": comment}).decode()}
        tx = self._begin(operation="SET TBLPROPERTIES", parameters=parameters)
        tx.set_metadata(description=comment)
        return tx.commit()

    def set_name(self, name: str | None) -> int | None:
        """Set the name of the table in its metadata; None removes it. The location stays."""
        parameters = {"properties": orjson.dumps({"name": name}).decode()}
        tx = self._begin(operation="SET TBLPROPERTIES", parameters=parameters)
        tx.set_metadata(name=name)
        return tx.commit()

    def set_properties(self, properties: Mapping[str, str]) -> int | None:
        """Set table properties. The protocol is upgraded if they need features."""
        tx = self._begin()
        tx.set_metadata(configuration=dict(properties))
        return tx.commit()

    def unset_properties(self, names: Sequence[str]) -> int | None:
        """Remove table properties; properties that are not set are ignored."""
        tx = self._begin()
        tx.set_metadata(configuration=dict.fromkeys(names))
        return tx.commit()

    def add_constraint(self, name: str, expression: str) -> int | None:
        """Add a CHECK constraint, after all existing rows have been checked.

        Args:
            name: The name of the constraint, which the table has in lower case.
            expression: SQL condition over the table's columns, of the subset of Spark SQL that
                lakelog evaluates. A row for which it is false or null violates the constraint.

        Raises:
            ConstraintViolationError: Existing rows violate the constraint; ``found`` has their
                number in a batch, and an example.
            InvalidTransactionError: A constraint with this name exists.
            InvalidInputError: The expression cannot be parsed or evaluated as Spark does.

        Memory: a batch of rows.

        Source: Delta protocol, CHECK Constraints.
        """
        key = f"{CONSTRAINT_PROPERTY}{_plain_name(name)}"
        tx = self._begin(operation="ADD CONSTRAINT", parameters={"name": name, "expr": expression})
        snapshot = tx.snapshot
        if key.lower() in {known.lower() for known in snapshot.metadata.constraints}:
            raise InvalidTransactionError(
                "a constraint with this name exists", path=snapshot.path, found=name
            )
        added = {key: expression}
        if not snapshot.table_configuration.supports("checkConstraints"):
            # Not enforced before; they will be with this one.
            added |= {k: text for k, text in snapshot.metadata.constraints.items() if text}
        rules = RowRules(snapshot.schema, tuple(check(*each) for each in added.items()))
        try:
            rules.require_supported()
        except UnsupportedFeatureError as cause:
            raise InvalidInputError(
                cause.message,
                path=snapshot.path,
                found=expression,
                hint="write an expression of the supported subset of Spark SQL",
            ) from cause
        files = tx.read().collect()
        require_single(files, snapshot.version)
        plan = ReadPlan.of(snapshot, rules.columns)
        store = snapshot.read_state(lambda state: state.log.store)
        try:
            for batch in read_files(plan, files, store=store):
                rules.check(pa.Table.from_batches([batch]))
        except ConstraintViolationError as error:
            error.path, error.version = snapshot.path, snapshot.version
            error.hint = "delete or update these rows first"
            raise
        tx.set_metadata(configuration={key: expression})
        tx.declare_constraints_hold()
        return tx.commit()

    def drop_constraint(self, name: str) -> int | None:
        """Remove a CHECK constraint, by its name in any case.

        Raises:
            InvalidInputError: The table has no constraint with this name.
        """
        tx = self._begin(operation="DROP CONSTRAINT", parameters={"name": name})
        known = tx.snapshot.metadata.constraints
        key = next((k for k in known if k.lower() == f"{CONSTRAINT_PROPERTY}{name}".lower()), None)
        if key is None:
            names = ", ".join(k[len(CONSTRAINT_PROPERTY) :] for k in known)
            message = "constraint not found" if names else "the table has no constraint"
            raise InvalidInputError(message, expected=names or None, found=name)
        tx.set_metadata(configuration={key: None})
        return tx.commit()

    def upgrade(self, features: Sequence[str]) -> int | None:
        """Add table features to the protocol, with those that they require. A feature that the
        protocol has at versions without lists, or in one of two lists, is added where it belongs.

        A feature cannot be removed again; older readers and writers may not support it.

        Raises:
            UnsupportedFeatureError: lakelog does not support a feature.
        """
        tx = self._begin()
        tx.set_protocol(features=features)
        return tx.commit()

    def _schema(
        self,
        operation: str,
        parameters: Mapping[str, Any],
        edit: Callable[[contract.Struct], contract.Struct],
        *,
        properties: Mapping[str, str] | None = None,
        column: str | None = None,
        to: str | None = None,
    ) -> int | None:
        """Commit an edit of the schema: `column` is renamed to `to`, changed (equal) or dropped."""
        tx = self._begin(operation=operation, parameters=parameters)
        metadata = tx.snapshot.metadata
        schema = _edited(tx.snapshot, edit, column, to)
        if column is not None and column == to and not properties:
            # Of a table without files too: the metadata would record a change without the feature.
            new = replace(metadata, schema_string=schema_text(schema))
            check_evolution(metadata, tx.snapshot.table_configuration.changed(metadata=new))
        path = column_path(metadata.schema, column) if column is not None else ()
        partition_by = [
            to if path == (name,) and to else name for name in metadata.partition_columns
        ]
        tx.set_metadata(schema=schema, partition_by=partition_by, configuration=properties)
        return tx.commit()

    def _require_mapping(
        self,
        edit: Callable[[contract.Struct], contract.Struct],
        column: str,
        to: str | None,
        *,
        enable: bool,
    ) -> None:
        """Refuse a table without column mapping, or enable it unless the edit would be refused."""
        tx = self._begin()
        if tx.snapshot.table_configuration.column_mapping != "none":
            return
        _edited(tx.snapshot, edit, column, to)
        if not enable:
            raise SchemaEvolutionError(
                "columns can be renamed and dropped only with column mapping",
                path=tx.snapshot.path,
                column=column,
                expected=f"{_MAPPING}=name",
                found="none",
                hint="pass enable=True to enable it; older readers then cannot read the table",
            )
        tx.set_metadata(configuration={_MAPPING: "name"})
        tx.commit()


def _edited(
    snapshot: LogSnapshot,
    edit: Callable[[contract.Struct], contract.Struct],
    column: str | None,
    to: str | None,
) -> contract.Struct:
    """The edited schema, or the error for an edit that the table does not allow."""
    metadata = snapshot.metadata
    schema = edit(snapshot.schema)
    new = replace(metadata, schema_string=schema_text(schema))
    if column is None:
        _require_evaluated(snapshot, new)
    else:
        _require_unreferenced(snapshot, new, column, to)
    return schema


def _require_evaluated(snapshot: LogSnapshot, new: Metadata) -> None:
    """Refuse new fields that would make a generated column's type differ from its expression's."""
    table = snapshot.table_configuration
    try:
        RowRules.of(table).require_supported()
    except (UnsupportedFeatureError, CorruptionError):  # of another engine
        return
    try:
        RowRules.of(table.changed(metadata=new)).require_supported()
    except UnsupportedFeatureError as cause:
        raise SchemaEvolutionError(
            f"rows could not be written after this change: {cause.message}",
            column=cause.column,
            expected=cause.expected,
            hint="add the fields to the column and to those that it is computed from in one call",
        ) from cause


def widened(snapshot: LogSnapshot, rows: contract.Struct) -> contract.Struct:
    """The table's schema with the wider types of rows if Type Widening is on, except of columns
    that must not change, because something refers to them, and without a further feature (Delta
    Lake, automatic type widening).
    """
    metadata, table = snapshot.metadata, snapshot.table_configuration
    schema = snapshot.schema
    for column, type_ in schema_edits.wider_types(schema, rows):
        if type_ == _NTZ and not table.supports("timestampNtz"):
            continue
        wider = schema_edits.widen_field(schema, column, type_)
        new = replace(metadata, schema_string=schema_text(wider))
        with suppress(SchemaEvolutionError):
            check_evolution(metadata, table.changed(metadata=new))
            _require_unreferenced(snapshot, new, column, column)
            schema = wider
    return schema


def _renamed(column: str, to: str) -> str:
    return ".".join((*column.split(".")[:-1], to))


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"\w+", name):
        raise InvalidInputError(
            "invalid name of a constraint", expected="letters, digits and underscores", found=name
        )
    return name


_OF_SQL = {"int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte"}
"""Names of SQL, which the log does not have."""


def _type_of(type_: object) -> contract.DataType:
    """A type from its name, or from Polars or pyarrow."""
    if isinstance(type_, str):
        found = contract.parse_type(_OF_SQL.get(type_.lower(), type_))
        if contract.is_known(found):
            return found
    if isinstance(type_, pa.DataType):
        return struct_of(pa.schema([("type", type_)])).fields[0].type
    if isinstance(type_, pl.DataType | pl.datatypes.DataTypeClass):
        return struct_of({"type": type_}).fields[0].type
    raise InvalidInputError(
        "invalid type",
        expected="a Polars or pyarrow type, or the name of a type, such as 'long'",
        found=repr(type_),
    )


def _require_unreferenced(
    snapshot: LogSnapshot, new: Metadata, column: str, to: str | None
) -> None:
    """Refuse to rename, change or drop a column that something else in the metadata refers to."""
    metadata = snapshot.metadata
    path = column_path(metadata.schema, column)
    texts = {key: str(text) for key, text in metadata.constraints.items()}
    for at in contract.fields_of(new.schema):
        for key in (GENERATION, INVARIANT):
            texts[f"{key} of {at.text}"] = str(at.field.metadata.get(key) or "")
        computed = {GENERATION, IDENTITY_START}.intersection(at.field.metadata)
        is_itself = at.path == path and to == column
        if computed and (is_itself or (at.path != path and at.path == path[: len(at.path)])):
            raise SchemaEvolutionError(
                "the type of a generated or identity column cannot change",
                column=column,
                expected="a column whose values are given",
                found=sorted(computed),
            )
    names = _struct_names(metadata.schema, path)
    refers = _references(names, or_whole=True)
    found = {where: text for where, text in texts.items() if refers.search(text)}
    listed = metadata.configuration.get(STATISTICS_COLUMNS) or ""
    if to != column and _references(names, or_whole=False).search(listed):
        found[STATISTICS_COLUMNS] = listed
    if to is None and path[0] in metadata.partition_columns:
        found["partitionColumns"] = column
    if to is None and not is_clusterable(new, clustering_columns(snapshot)):
        found[CLUSTERING] = column
    if found:
        raise SchemaEvolutionError(
            "the column is referred to elsewhere in the table's metadata",
            column=column,
            expected="no reference to it",
            found="; ".join(f"{where}: {text}" for where, text in found.items()),
            hint="remove the reference first",
        )


def _struct_names(schema: contract.Struct, path: tuple[str, ...]) -> tuple[str, ...]:
    """The names on a path down to the first list or map, of which SQL takes values in many ways."""
    known = {at.path for at in contract.fields_of(schema)}
    lengths = range(1, len(path) + 1)
    return path[: next((n - 1 for n in lengths if path[:n] not in known), len(path))]


_DOT = r"`?\s*\.\s*`?"


def _references(names: Sequence[str], *, or_whole: bool) -> re.Pattern[str]:
    """What refers to a column by its path, or to a field of it; or to a whole column around it."""
    pattern = ""
    for name in reversed(names):
        forms = {name, name.replace("`", "``"), orjson.dumps(name).decode()[1:-1]}
        whole = f"|(?!{_DOT})" if or_whole else ""
        rest = f"(?:{_DOT}{pattern}{whole})" if pattern else ""
        pattern = rf"(?:{'|'.join(map(re.escape, forms))})(?!\w){rest}"
    return re.compile(rf"(?<!\w){pattern}", re.IGNORECASE)
