"""The schema changes that are allowed while existing files stay in the table.

Files are read with the current schema. A new schema may extend the old one (columns that are null
in old files, nullability, recorded wider types), but must be valid for old files. If every file is
replaced in the same commit, only ids and physical names of columns are checked.

Source: Delta protocol, Consistency Between Table Metadata and Data Files; Column Mapping; Type
Widening; Default Columns; Identity Columns. Delta Lake, SchemaUtils.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import CorruptionError, SchemaEvolutionError
from lakelog.model import contract
from lakelog.model.contract import (
    TYPE_CHANGES,
    Array,
    DataType,
    Field,
    Map,
    Struct,
)
from lakelog.model.metadata import Metadata, is_on

_FROZEN = {
    "delta.generationExpression": "a generation expression",
    "delta.invariants": "an invariant",
    "delta.identity.start": "the start of an identity column",
    "delta.identity.step": "the step of an identity column",
    "delta.identity.allowExplicitInsert": "the rule of an identity column",
}
"""Field metadata that constrain rows, which lakelog cannot check."""

_NOT_WITH_A_NEW_COLUMN = {**_FROZEN, contract.CURRENT_DEFAULT: "a default"}


def check_evolution(
    old: Metadata, configured: TableConfiguration, *, replaced: bool = False
) -> None:
    """Raise for a schema or partitioning with which old files cannot be read. Allowed: new nullable
    columns, nullability, metadata, order, a type for a void column; with column mapping, renaming
    and dropping; with Type Widening, wider types that the field's metadata record.
    """
    try:
        before = old.schema
    except CorruptionError:
        return  # no files can be read with the old schema, so nothing is lost
    new = configured.metadata
    modes = replace(configured, metadata=old).column_mapping, configured.column_mapping
    if modes[0] != modes[1] and modes != ("none", "name") and not replaced:
        raise SchemaEvolutionError(
            "invalid change of the column mapping mode of a table with files",
            path="delta.columnMapping.mode",
            expected="from none to name, or no change",
            found=f"from {modes[0]} to {modes[1]}",
        )
    rules = _Rules(
        mapped="none" not in modes,
        newly_mapped=modes == ("none", "name"),
        widening=configured.supports("typeWidening", "typeWidening-preview")
        and is_on(new.configuration, "delta.enableTypeWidening"),
        iceberg=configured.supports("icebergCompatV1", "icebergCompatV2"),
        greatest_id=old.max_column_id,
        replaced=replaced,
    )
    rules.check_struct(before, new.schema, ())
    if not replaced:
        _check_partitioning(old, new, rules)


@dataclass(frozen=True)
class _Rules:
    """The rules of this table, and a traversal of both schemas."""

    mapped: bool
    newly_mapped: bool
    widening: bool
    iceberg: bool
    greatest_id: int
    replaced: bool

    def check_struct(self, old: Struct, new: Struct, path: tuple[str, ...]) -> None:
        before = {self._key(f): f for f in old.fields}
        left = dict(before)
        for field in new.fields:
            here = (*path, field.name)
            match = left.pop(self._key(field), None)
            if match is not None:
                self._check_field(match, field, here)
            else:
                self._check_new(field, here)
        if left and not self.mapped and not self.replaced:
            dropped = next(iter(left.values()))
            lower = dropped.name.lower()
            same = next((f.name for f in new.fields if f.name.lower() == lower), None)
            raise SchemaEvolutionError(
                "the column was removed, and existing files contain it under its name"
                if same is None
                else (
                    "the column's name changed only in letter case, and existing files "
                    "contain the old name"
                ),
                column=".".join((*path, dropped.name)),
                expected=dropped.name,
                found=same,
                hint="renaming and dropping columns needs column mapping",
            )

    def _key(self, field: Field) -> object:
        return field.metadata.get(contract.COLUMN_ID, field.name) if self.mapped else field.name

    def _check_new(self, field: Field, path: tuple[str, ...]) -> None:
        if self.mapped:
            number = field.metadata.get(contract.COLUMN_ID)
            if isinstance(number, int) and number <= self.greatest_id:
                _refuse(
                    "a new column reuses a column id of the table",
                    path,
                    f"{contract.COLUMN_ID} above {self.greatest_id}",
                    number,
                )
        if self.replaced:
            return
        if not field.nullable:
            _refuse(
                "a new column must be nullable, because it is null in existing files",
                path,
                "nullable true",
                "nullable false",
            )
        for key, what in _NOT_WITH_A_NEW_COLUMN.items():
            if key in field.metadata:
                _refuse(
                    f"a column cannot be added with {what} to a table with files", path, None, key
                )

    def _check_field(self, old: Field, new: Field, path: tuple[str, ...]) -> None:
        if self.mapped:
            names = contract.physical_name(old, "name"), contract.physical_name(new, "name")
            if names[0] != names[1]:
                _refuse("the physical name of a column must not change", path, names[0], names[1])
        physical = new.metadata.get(contract.PHYSICAL_NAME, old.name)
        if self.newly_mapped and not self.replaced and physical != old.name:
            _refuse(
                (
                    "existing files contain the column under its old name, which becomes "
                    "its physical name"
                ),
                path,
                old.name,
                physical,
            )
        if self.replaced:
            # Ids of nested columns must be kept, types need not.
            if isinstance(old.type, Struct) and isinstance(new.type, Struct):
                self.check_struct(old.type, new.type, path)
            return
        if old.nullable and not new.nullable:
            _refuse(
                "the column becomes NOT NULL, and existing files may contain nulls",
                path,
                "nullable true",
                "nullable false",
            )
        for key, what in _FROZEN.items():
            if old.metadata.get(key) != new.metadata.get(key) and key in new.metadata:
                _refuse(
                    (
                        f"{what} is added or changed, and lakelog cannot check existing "
                        "rows against it"
                    ),
                    path,
                    old.metadata.get(key),
                    new.metadata[key],
                )
        changes = self._check_type(old.type, new.type, path, ())
        self._check_record(old, new, changes, path)

    def _check_type(
        self, old: DataType, new: DataType, path: tuple[str, ...], below: tuple[str, ...]
    ) -> list[tuple[str, DataType, DataType]]:
        """Check one type; return the changes to record in the field, as (field path, from, to)."""
        if old in (new, contract.VOID):
            return []
        match old, new:
            case Struct(), Struct():
                # Nested fields record their own changes.
                self.check_struct(old, new, (*path, *below))
                return []
            case Array(element, nulls), Array(wider, more_nulls):
                self._check_nulls(nulls, more_nulls, (*path, *below, "element"))
                return self._check_type(element, wider, path, (*below, "element"))
            case Map(key, value, nulls), Map(wider_key, wider_value, more_nulls):
                self._check_nulls(nulls, more_nulls, (*path, *below, "value"))
                return [
                    *self._check_type(key, wider_key, path, (*below, "key")),
                    *self._check_type(value, wider_value, path, (*below, "value")),
                ]
        if self.widening and contract.is_widening(old, new, iceberg=self.iceberg):
            return [(".".join(below), old, new)]
        raise SchemaEvolutionError(
            "the column's type changes, and existing files contain the old type",
            column=".".join((*path, *below)),
            expected=contract.type_text(old),
            found=contract.type_text(new),
            hint="enable delta.enableTypeWidening, as Table.alter.widen_column(…, enable=True) does"
            if contract.is_widening(old, new) and not self.widening
            else None,
        )

    def _check_nulls(self, old: bool, new: bool, path: tuple[str, ...]) -> None:
        if old and not new:
            _refuse(
                "nulls are no longer allowed, and existing files may contain them",
                path,
                True,
                False,
            )

    def _check_record(
        self,
        old: Field,
        new: Field,
        changes: list[tuple[str, DataType, DataType]],
        path: tuple[str, ...],
    ) -> None:
        """Check that the new field keeps the recorded type changes, and adds the new ones."""
        before, after = _record(old), _record(new)
        if after[: len(before)] != before:
            _refuse(f"the record {TYPE_CHANGES} loses entries", path, before, after)
        added = [_normal(entry) for entry in after[len(before) :]]
        expected = [
            {
                "fromType": contract.to_json(was),
                "toType": contract.to_json(now),
                **({"fieldPath": where} if where else {}),
            }
            for where, was, now in changes
        ]
        if any(entry not in added for entry in expected) or len(added) < len(expected):
            _refuse(f"the type change is not recorded in {TYPE_CHANGES}", path, expected, after)


def _refuse(message: str, path: tuple[str, ...], expected: object, found: object) -> None:
    raise SchemaEvolutionError(message, column=".".join(path), expected=expected, found=found)


def _record(field: Field) -> list[Any]:
    record = field.metadata.get(TYPE_CHANGES)
    return list(record) if isinstance(record, list) else []


def _normal(entry: Any) -> Any:
    """An entry of the record for comparison: its types as the contract writes them."""
    if not isinstance(entry, dict):
        return entry
    kept = {k: entry[k] for k in ("fromType", "toType", "fieldPath") if entry.get(k)}
    for key in ("fromType", "toType"):
        if isinstance(kept.get(key), str):
            kept[key] = kept[key].replace(" ", "")
    return kept


def _check_partitioning(old: Metadata, new: Metadata, rules: _Rules) -> None:
    def names(metadata: Metadata) -> list[str]:
        fields = [metadata.schema.field(c) for c in metadata.partition_columns]
        return [
            c if f is None else contract.physical_name(f, "name" if rules.mapped else "none")
            for c, f in zip(metadata.partition_columns, fields, strict=True)
        ]

    before, after = names(old), names(new)
    if before != after:
        raise SchemaEvolutionError(
            "the partition columns change, and existing files lack the new ones",
            path="partitionColumns",
            expected=list(old.partition_columns),
            found=list(new.partition_columns),
            hint="remove every file of the table in the same transaction",
        )
