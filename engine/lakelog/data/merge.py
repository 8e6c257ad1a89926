"""`Merge`: inserts, updates and deletes rows by comparing the table with other rows, in one commit.

The keys of the source are in memory; `data.merge_source` holds its rows. Files of the target that
cannot hold one of the keys are not opened; the others are read in batches, and each batch is joined
with the keys. Matched source rows are remembered, and the others are inserted at the end.

In clauses, the structs ``source`` and ``target`` hide columns of these names.

Source: Delta Lake, MERGE INTO (MergeIntoCommand). Delta protocol, Deletion Vectors; Add CDC File.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from lakelog.arrow_arrays import as_int64
from lakelog.data.conform import Incoming, unknown_column
from lakelog.data.files import ReadPlan
from lakelog.data.merge_condition import (
    SOURCE,
    TARGET,
    MergeCondition,
    key_name,
    require_known,
    values_of,
    without_side,
)
from lakelog.data.merge_source import MergeSource
from lakelog.data.rewrite import Change, Outcome, Rewriter, Rewritten, UpdatedColumns
from lakelog.data.row_commit import RowCommit, WriteOptions, WriteReport
from lakelog.data.row_rules import RowRules
from lakelog.data.targets import holds, touched_rows
from lakelog.data.update import GIVE_FIELDS, Assignments
from lakelog.display import path_text
from lakelog.errors import InvalidInputError, naming_table
from lakelog.input_validation import as_names
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import contract
from lakelog.model.column_names import spelled
from lakelog.model.contract import column_named, field_named, field_of
from lakelog.skipping.prune import referenced_columns
from lakelog.skipping.statistics import stats_from_json
from lakelog.sql.condition import condition, parts_of
from lakelog.sql.sql_text import quoted, sql_text
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.transaction import LogTransaction

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["update", "delete", "insert"]

_T, _S = "\0target row", "\0source row"
_GIVE_FIELDS = (
    'give all fields, or pass schema_mode="merge": fields of structs keep their values in the '
    "table, those of array elements and map values are null"
)
_MOST_LISTED = 64  # keys that a condition lists; of more keys it has the bounds


@dataclass(frozen=True)
class _Clause:
    """A change of rows for which its predicate, and no earlier clause's, is true."""

    kind: Kind
    predicate: pl.Expr | str | None
    values: Mapping[str, Any] | None
    skipped: Sequence[str] = ()

    def columns(self, source: Sequence[str]) -> list[str]:
        """Columns of the source that the clause assigns, as values, to those of the same name."""
        given = self.skipped if self.values is None else self.values
        named = {name.lower() for name in spelled(given, source)}
        return [name for name in source if (name.lower() in named) != (self.values is None)]

    def taken(self, source: Sequence[str]) -> list[str]:
        """Columns of the source that the clause assigns without naming them."""
        return self.columns(source) if self.values is None else []


class Merge:
    """A merge that is described clause by clause; `execute` runs it. Made by `Table.merge` and
    `Transaction.merge`.

    The first clause of its kind whose predicate is true decides over a row. In predicates and
    values, ``source`` and ``target`` are struct columns with a row of each: ``source.x`` in SQL
    text, ``pl.col("source").struct.field("x")`` in Polars. A plain name is a column of the target
    in clauses of target rows, and a column of the source in those of inserted rows. In clauses of
    matched rows, it is also a column that only the source has, and in SQL text a name that both
    sides have is refused. Values are given as in `Table.update`, also for ``target.x``.
    """

    def __init__(
        self,
        log: Log,
        runtime: Runtime,
        begin: Callable[..., LogTransaction] | LogTransaction,
        source: Any,
        on: str | Sequence[str] | Mapping[str, str],
        options: WriteOptions,
        memory_limit: int | None = None,
        part: Callable[[Callable[[], WriteReport]], WriteReport] | None = None,
    ) -> None:
        if options.schema_mode not in {None, "merge"}:
            raise InvalidInputError(
                "a merge adds columns, and does not replace them",
                expected="schema_mode='merge' or None",
                found=options.schema_mode,
            )
        self._log, self._runtime, self._begin, self._part = log, runtime, begin, part
        self._source, self._on, self._options = source, on, options
        self._memory_limit = memory_limit
        self._matched: list[_Clause] = []
        self._not_matched: list[_Clause] = []
        self._by_source: list[_Clause] = []
        self._is_over = False

    def when_matched_update(
        self, updates: Mapping[str, Any], predicate: pl.Expr | str | None = None
    ) -> Self:
        """Update target rows that a source row matches. `updates` has new values by column, or by
        the path of a field of a struct, as `Table.update`.
        """
        self._matched.append(_Clause("update", predicate, updates))
        return self

    def when_matched_update_all(
        self, predicate: pl.Expr | str | None = None, except_cols: str | Sequence[str] = ()
    ) -> Self:
        """Update target rows that a source row matches, with all columns of the source but
        `except_cols`; other columns keep their values, and so do fields of structs that the source
        lacks if `schema_mode` is ``merge``; else they are an error.
        """
        self._matched.append(_Clause("update", predicate, None, as_names(except_cols)))
        return self

    def when_matched_delete(self, predicate: pl.Expr | str | None = None) -> Self:
        """Delete target rows that a source row matches."""
        self._matched.append(_Clause("delete", predicate, {}))
        return self

    def when_not_matched_insert(
        self, updates: Mapping[str, Any], predicate: pl.Expr | str | None = None
    ) -> Self:
        """Insert a row for each source row that matches no target row; columns without a value
        are null or have their default.
        """
        self._not_matched.append(_Clause("insert", predicate, updates))
        return self

    def when_not_matched_insert_all(
        self, predicate: pl.Expr | str | None = None, except_cols: str | Sequence[str] = ()
    ) -> Self:
        """Insert the source rows that match no target row, without the columns `except_cols`."""
        self._not_matched.append(_Clause("insert", predicate, None, as_names(except_cols)))
        return self

    def when_not_matched_by_source_update(
        self, updates: Mapping[str, Any], predicate: pl.Expr | str | None = None
    ) -> Self:
        """Update target rows that no source row matches."""
        self._by_source.append(_Clause("update", predicate, updates))
        return self

    def when_not_matched_by_source_delete(self, predicate: pl.Expr | str | None = None) -> Self:
        """Delete target rows that no source row matches."""
        self._by_source.append(_Clause("delete", predicate, {}))
        return self

    def execute(self) -> WriteReport:
        """Run the merge in one commit, or as a part of the commit of its transaction.

        Returns:
            The version, and the rows inserted (`num_rows`), updated, deleted and copied. Where no
            row changes, nothing is committed, except for new columns and `app_version`. In a
            transaction the version is None.

        Raises:
            InvalidInputError: No clause was given, or the merge ran before; a clause names an
                unknown column, or a value does not fit; two source rows match and change one
                target row.
            UnsupportedFeatureError: As `Table.update`.
            InvalidTransactionError: The table is append-only, and a clause changes rows.
            ConflictError: Another commit changed rows that the merge read.
            CommitOutcomeUnknown: As `Table.append`.
            UnavailableError: As `Table.append`.
        """
        with naming_table(self._log.table):
            return self._run() if self._part is None else self._part(self._run)

    def _run(self) -> WriteReport:
        if self._is_over or not self._clauses:
            raise InvalidInputError(
                "a merge runs once, and needs at least one clause",
                hint="call a method when_... of a new Table.merge(...) before execute",
            )
        self._is_over = True
        commit = RowCommit(self._log, self._runtime, self._begin, self._options, "MERGE")
        if commit.tx.duplicate:
            return WriteReport(None, duplicate=True)
        ReadPlan.of(commit.snapshot, ())  # raises for a table without rows
        incoming = Incoming.of(self._source)
        names = commit.snapshot.schema.names
        on = MergeCondition.of(self._on, commit.snapshot.schema, incoming.schema)
        for clauses in (self._matched, self._not_matched, self._by_source):
            clauses[:] = [replace(c, values=without_side(c.values, names)) for c in clauses]
        skipped = chain.from_iterable(each.skipped for each in self._clauses)
        require_known(skipped, names, incoming.schema.names)
        assigned = self._assigned(incoming.schema)
        if self._options.schema_mode == "merge":
            commit.set_metadata(commit.with_columns(assigned))
        elif new := [f for f in assigned if commit.snapshot.schema.field(f.name) is None]:
            raise unknown_column(new[0], commit.snapshot.schema)
        taken = {name for each in self._clauses for name in each.taken(incoming.schema.names)}
        schema = commit.snapshot.schema
        source = MergeSource.of(incoming, schema, on.columns, taken, self._memory_limit)
        commit.parameters |= {
            "predicate": on.parameter,
            **_clause_parameters("matchedPredicates", self._matched),
            **_clause_parameters("notMatchedPredicates", self._not_matched),
            **_clause_parameters("notMatchedBySourcePredicates", self._by_source),
        }
        change = _Merging(
            commit.snapshot,
            source,
            on,
            self._matched,
            self._not_matched,
            self._by_source,
            known={name.lower() for name in names},
            keeps_fields=self._options.schema_mode == "merge",
        )
        rewriter = Rewriter(commit, change, self._memory_limit)
        with commit.guarded():
            files = change.holding(commit.candidates(change.where))
            if self._matched or self._by_source:
                rewriter.change(files)
            elif files.height:
                plan = ReadPlan.of(commit.snapshot, change.columns)
                for _ in touched_rows(plan, files, change, self._log.store):
                    pass  # only marks matching source rows
            for rows in change.inserted():
                rewriter.insert(rows)
            done = rewriter.finish()
        commit.metrics |= _metrics(done, source.height)
        return commit.commit(done.report())

    @property
    def _clauses(self) -> list[_Clause]:
        return [*self._matched, *self._not_matched, *self._by_source]

    def _assigned(self, source: pa.Schema) -> pa.Schema:
        """The columns of the source that clauses assign to columns of the same name."""
        names = {name for each in self._clauses for name in each.columns(source.names)}
        return pa.schema([field for field in source if field.name in names])


def _clause_parameters(name: str, clauses: Sequence[_Clause]) -> dict[str, str]:
    """The clauses in ``operationParameters``; empty if a predicate cannot be written as SQL."""
    found = []
    for clause in clauses:
        text = None if clause.predicate is None else sql_text(clause.predicate)
        if clause.predicate is not None and text is None:
            return {}
        found.append(({} if text is None else {"predicate": text}) | {"actionType": clause.kind})
    return {name: orjson.dumps(found).decode()}


def _metrics(done: Rewritten, source_rows: int) -> dict[str, int]:
    names = {
        "numAddedFiles": "numTargetFilesAdded",
        "numRemovedFiles": "numTargetFilesRemoved",
        "numAddedBytes": "numTargetBytesAdded",
        "numRemovedBytes": "numTargetBytesRemoved",
        "numAddedChangeFiles": "numTargetChangeFilesAdded",
        "numCopiedRows": "numTargetRowsCopied",
        "numDeletionVectorsAdded": "numTargetDeletionVectorsAdded",
        "numDeletionVectorsRemoved": "numTargetDeletionVectorsRemoved",
        "numDeletionVectorsUpdated": "numTargetDeletionVectorsUpdated",
    }
    assert done.deleted is not None  # a merge reads every file that it removes
    return {names[name]: count for name, count in done.metrics().items()} | {
        "numSourceRows": source_rows,
        "numTargetRowsInserted": done.inserted,
        "numTargetRowsUpdated": done.updated,
        "numTargetRowsDeleted": done.deleted,
        "numOutputRows": done.inserted + done.updated + done.copied,
    }


class _Effect:
    """A checked clause; `taken` are columns that it assigns to target columns of the same name.
    SQL text may not have the names `ambiguous` without their side.
    """

    def __init__(
        self,
        clause: _Clause,
        sides: _Sides,
        seen: contract.Struct,
        ambiguous: Collection[str] = (),
    ) -> None:
        self.kind = clause.kind
        self.where = condition(clause.predicate, seen, sides.rules.now_us)
        if self.where is not None:
            referenced_columns(self.where, seen)
        self.taken = clause.taken(sides.source.names)
        self.assigned: Assignments | None = None
        if clause.kind != "delete":
            values, hint = sides.values(clause)
            old = None if clause.kind == "insert" else sides.old
            self.assigned = Assignments(values, sides.rules, seen, hint, old)
        if ambiguous:
            _require_sides((clause.predicate, *(clause.values or {}).values()), ambiguous)

    @property
    def roots(self) -> list[str]:
        """Columns of its predicate."""
        return [] if self.where is None else self.where.meta.root_names()


@dataclass(frozen=True)
class _Sides:
    """The rules of the table, and the schema of the source; `keeps_fields`: an update with all
    columns of the source keeps fields of structs that the source lacks.
    """

    rules: RowRules
    source: contract.Struct
    keeps_fields: bool

    def values(self, clause: _Clause) -> tuple[Mapping[str, Any], str | None]:
        """The values that a clause assigns, and what to do if one lacks fields of a struct (None:
        they may be null).
        """
        is_insert = clause.kind == "insert"
        if clause.values is not None:
            return clause.values, None if is_insert else GIVE_FIELDS
        keeps = self.keeps_fields and not is_insert
        own = {n: field_named(pl.col(SOURCE), n) for n in clause.columns(self.source.names)}
        values = {path_text((n,)): self._completed(n, v) if keeps else v for n, v in own.items()}
        return values, None if is_insert or keeps else _GIVE_FIELDS

    def _completed(self, name: str, value: pl.Expr) -> pl.Expr:
        """A source column's value, with the table's values of struct fields that it lacks."""
        ours, theirs = self.rules.schema.field(name), self.source.field(name)
        if ours is None or theirs is None:
            return value
        return _completed(value, theirs.type, self.old(ours.name), ours.type)

    def old(self, name: str) -> pl.Expr:
        """The table's value of a column."""
        is_hidden = name in {SOURCE, TARGET}
        return field_named(pl.col(TARGET), name) if is_hidden else column_named(name)


def _require_sides(given: Iterable[Any], ambiguous: Collection[str]) -> None:
    """Refuse SQL text with a name that both sides have, as Delta on Spark does."""
    for text in given:
        parts = parts_of(text) if isinstance(text, str) else ()
        for first, *_ in chain.from_iterable(part.columns for part in parts):
            if first.lower() in ambiguous:
                name = first if first.isidentifier() else quoted(first)
                raise InvalidInputError(
                    f"the name {first!r} is ambiguous: target and source have this column",
                    column=first,
                    found=text,
                    hint=f"write {SOURCE}.{name} or {TARGET}.{name}",
                )


def _completed(
    new: pl.Expr, given: contract.DataType, old: pl.Expr, type_: contract.DataType
) -> pl.Expr:
    """A new value with the old values of struct fields that its type lacks; null if both are
    (Delta Lake, UpdateExpressionsSupport).
    """
    if not (isinstance(given, contract.Struct) and isinstance(type_, contract.Struct)):
        return new
    if not _lacks_fields(given, type_):
        return new
    fields = []
    for field in type_.fields:
        was, own = field_named(old, field.name), given.field(field.name)
        value = was
        if own is not None:
            value = _completed(field_named(new, own.name), own.type, was, field.type)
        fields.append(value.alias(field.name))
    return pl.when(new.is_not_null() | old.is_not_null()).then(pl.struct(fields))


def _lacks_fields(given: contract.DataType, type_: contract.DataType) -> bool:
    """Whether a struct, or one of its structs, lacks fields of another type."""
    if not (isinstance(given, contract.Struct) and isinstance(type_, contract.Struct)):
        return False
    pairs = ((given.field(field.name), field) for field in type_.fields)
    return any(own is None or _lacks_fields(own.type, field.type) for own, field in pairs)


class _Merging(Change):
    """The merge as a change of target rows."""

    updates = True

    def __init__(
        self,
        snapshot: LogSnapshot,
        source: MergeSource,
        on: MergeCondition,
        matched: Sequence[_Clause],
        not_matched: Sequence[_Clause],
        by_source: Sequence[_Clause],
        *,
        known: Collection[str],
        keeps_fields: bool,
    ) -> None:
        self._snapshot, self._source, self._on = snapshot, source, on
        schema = snapshot.schema
        rules = RowRules.of(snapshot.table_configuration)
        self._pairs = on.of_pairs(schema, source.schema, rules.now_us)
        sides = _Sides(rules, source.schema, keeps_fields)
        target_row = _with_column(schema, contract.Field(TARGET, schema))
        # A column that the merge adds to the target is the source's in clauses.
        alone = [f for f in source.schema.fields if f.name.lower() not in {*known, SOURCE, TARGET}]
        self._of_source_alone = [field.name for field in alone]
        pair = target_row
        for field in (*alone, contract.Field(SOURCE, source.schema)):
            pair = _with_column(pair, field)
        source_row = _with_column(source.schema, contract.Field(SOURCE, source.schema))
        of_source = {name.lower() for name in source.schema.names} - {SOURCE, TARGET}
        of_both = of_source.intersection(known)
        self._matched = [_Effect(each, sides, pair, of_both) for each in matched]
        self._by_source = [_Effect(each, sides, target_row) for each in by_source]
        self._inserts = [_Effect(each, sides, source_row) for each in not_matched]
        effects = [*self._matched, *self._by_source]
        self.updates = any(each.kind == "update" for each in effects)
        self.writes = self.updates or bool(self._inserts)
        for each in effects:
            if each.assigned is not None:
                rules.require_updatable(each.assigned.names)
        self._is_only_delete = [(c.kind, c.predicate is None) for c in matched] == [
            ("delete", True)
        ]
        roots = {root for each in effects for root in each.roots} | {key[0] for key in on.keys}
        roots |= self._pairs.columns if self._pairs is not None else set()
        sees_all = TARGET in roots
        self.columns = [name for name in schema.names if sees_all or name in roots]
        assigned = [each.assigned for each in effects if each.assigned is not None]
        updates = [each.columns for each in assigned]
        read = {*self.columns, *(name for each in updates for name in each.read)}
        self._index = on.keys_of(source.frames, schema).with_row_index(_S).drop_nulls()
        if updates and len(updates) == len(effects):
            names = frozenset(name for each in updates for name in each.assigned)
            self.updated = UpdatedColumns(
                names - self._same_keys(effects) or names,
                frozenset(schema.names if TARGET in read else read),
            )
        if assigned and TARGET not in read:
            every = (each.overwritten for each in assigned)
            self.overwritten = frozenset.intersection(*every).difference(self.columns)
        ordered = (key for key in on.keys if _is_ordered(self._index[key_name(key)].dtype))
        self._first = next(ordered, None)
        if self._first is not None:
            self._index = self._index.sort(column_named(key_name(self._first)))
        self._found = np.zeros(source.height, bool)
        super().__init__(self._condition())

    def _same_keys(self, effects: Sequence[_Effect]) -> frozenset[str]:
        """Keys always assigned the equal key of the source; not floats: 0.0 equals -0.0."""
        return frozenset(
            name
            for name, theirs in self._on.columns.items()
            if name.lower() == theirs.lower()
            and not (self._index[name].dtype.is_float() or self._index[name].dtype.is_nested())
            and all(
                theirs in each.taken
                for each in effects
                if each.assigned is not None and name in each.assigned.columns.assigned
            )
        )

    def _condition(self) -> pl.Expr | None:
        """A condition of all target rows that may change or match a source row; None: any may."""
        parts = []
        if self._matched or self._inserts:
            parts.append(self._pair_condition())
        parts += [each.where for each in self._by_source]
        if any(part is None or TARGET in part.meta.root_names() for part in parts):
            return None
        return reduce(lambda a, b: a | b, [part for part in parts if part is not None])

    def _pair_condition(self) -> pl.Expr | None:
        """A condition that every matching target row satisfies; None if there is none."""
        found = self._key_condition()
        of_target = None if self._pairs is None else self._pairs.of_target
        if found is None or of_target is None:
            return of_target if found is None else found
        return found & of_target

    def _key_condition(self) -> pl.Expr | None:
        """A condition that every key of the source satisfies; None if there is none."""
        if not self._index.height:
            return pl.lit(value=False)
        found = None
        for key in self._on.keys:
            values = self._index[key_name(key)].alias("").unique()
            column = reduce(field_named, key[1:], column_named(key[0]))
            if not _is_ordered(values.dtype):
                continue
            if values.len() <= _MOST_LISTED:
                part = column.is_in(values.implode())
            else:
                low, high = (pl.lit(v, values.dtype) for v in (values.min(), values.max()))
                part = column.is_between(low, high)
            found = part if found is None else found & part
        return found

    def holding(self, files: pl.DataFrame) -> pl.DataFrame:
        """The files whose bounds include a key; all if rows without a source row change."""
        if self._by_source or not files.height:
            return files
        snapshot = self._snapshot
        mapping = snapshot.table_configuration.column_mapping
        for key in self._on.keys:
            keys, name = self._index[key_name(key)].alias(""), key[0]
            if name in snapshot.metadata.partition_columns or not (
                keys.dtype.is_integer() or keys.dtype == pl.Date
            ):
                continue
            stats = stats_from_json(
                files["stats"], snapshot.schema, columns=[name], mapping=mapping
            )
            low, high = (reduce(field_of, key, stats[bound]) for bound in ("min", "max"))
            unknown = low.is_null() | high.is_null()
            sorted_ = keys.unique().sort()
            first = sorted_.search_sorted(low, "left")
            may = unknown | (first < sorted_.search_sorted(high, "right"))
            files = files.filter(may)
        return files

    def touches(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Which rows change; records the source rows that match one."""
        return self._decide(rows)[0] >= 0

    def outcomes(self, rows: pa.Table) -> Iterator[Outcome]:
        """The outcomes of changing rows, by clause."""
        chosen, partners = self._decide(rows)
        for number, effect in enumerate([*self._matched, *self._by_source]):
            positions = np.flatnonzero(chosen == number)
            if not len(positions):
                continue
            hit = rows.take(as_int64(positions))
            if effect.assigned is None:
                yield Outcome(positions, hit)
                continue
            of = partners[positions] if number < len(self._matched) else None
            seen = self._seen(pl.DataFrame(hit), of)
            yield Outcome(positions, hit, effect.assigned.apply(hit, seen))

    def inserted(self) -> Iterator[pa.Table]:
        """The rows to insert for source rows that match none."""
        if not self._inserts:
            return
        left = np.flatnonzero(~self._found)
        at_once = self._source.insert_rows
        for start in range(0, len(left), at_once):
            rows = self._source.gather(left[start : start + at_once])
            frame = rows.with_columns(rows.to_struct(SOURCE))
            chosen = _choose(self._inserts, frame.height, lambda: frame)  # noqa: B023
            for number, effect in enumerate(self._inserts):
                part = frame.filter(pl.Series(chosen == number))
                if part.height and effect.assigned is not None:
                    yield effect.assigned.values(part)

    def _decide(self, rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each row the number of the clause that changes it, or -1, and its source row."""
        target = pl.DataFrame(rows.select(self.columns))
        names = {key_name(key): values_of(target, key) for key in self._on.keys}
        compared = pl.DataFrame({n: v.cast(self._index[n].dtype) for n, v in names.items()})
        is_float = any(dtype.is_float() for dtype in compared.dtypes)
        # Polars does not join NaN on a single sorted column, such as one of a single row.
        on = [*map(column_named, names), *([pl.lit(0)] if is_float else [])]
        pairs = compared.with_row_index(_T).join(self._index_within(target), on=on)
        ours, theirs = pairs[_T].to_numpy(), pairs[_S].to_numpy()
        if self._pairs is not None and len(ours):
            matches = holds(self._seen(target[ours], theirs), self._pairs.where).to_numpy()
            ours, theirs = ours[matches], theirs[matches]
        self._found[theirs] = True
        chosen = np.full(target.height, -1)
        partners = np.full(target.height, -1)
        if self._matched and len(ours):
            clauses = _choose(self._matched, len(ours), lambda: self._seen(target[ours], theirs))
            hit = clauses >= 0
            self._require_single(target, ours[hit])
            chosen[ours[hit]], partners[ours[hit]] = clauses[hit], theirs[hit]
        if self._by_source:
            alone = np.ones(target.height, bool)
            alone[ours] = False
            clauses = _choose(
                self._by_source,
                int(alone.sum()),
                lambda: self._seen(target.filter(pl.Series(alone))),
            )
            clauses[clauses >= 0] += len(self._matched)
            chosen[alone] = clauses
        return chosen, partners

    def _index_within(self, target: pl.DataFrame) -> pl.DataFrame:
        """The keys of the source between the bounds of those of the target."""
        if self._first is None:
            return self._index
        found, ours = self._index[key_name(self._first)], values_of(target, self._first)
        low, high = ours.min(), ours.max()
        if low is None:
            return self._index.clear()
        return self._index[bisect_left(found, low) : bisect_right(found, high)]

    def _seen(
        self, target: pl.DataFrame, partners: NDArray[np.int64] | None = None
    ) -> pl.DataFrame:
        """The columns that clauses see."""
        seen = target.with_columns(target.to_struct(TARGET))
        if partners is not None:
            rows = self._source.gather(partners)
            more = (rows.to_struct(SOURCE), *(rows[name] for name in self._of_source_alone))
            # Not by expressions, in which a name such as * is a pattern.
            seen = pl.DataFrame({each.name: each for each in (*seen.get_columns(), *more)})
        return seen

    def _require_single(self, target: pl.DataFrame, hit: NDArray[np.int64]) -> None:
        """Refuse two source rows that change one target row."""
        if self._is_only_delete or len(hit) < 2:
            return
        rows, counts = np.unique(hit, return_counts=True)
        if counts.max() > 1:
            row = int(rows[counts.argmax()])
            raise InvalidInputError(
                "several rows of the merge's source match and change one row of the table",
                expected="at most one",
                found={
                    "rows": int(counts.max()),
                    **{path_text(key): values_of(target, key)[row] for key in self._on.keys},
                },
                hint="make the keys of the source unique, or exclude rows by a predicate",
            )


def _is_ordered(dtype: pl.DataType) -> bool:
    """Whether keys of a type are compared with bounds."""
    return dtype.is_integer() or dtype in (pl.Date, pl.String, pl.Boolean)


def _with_column(schema: contract.Struct, field: contract.Field) -> contract.Struct:
    """A schema with one more column, which hides one of its name."""
    return contract.Struct((*(f for f in schema.fields if f.name != field.name), field))


def _choose(
    effects: Sequence[_Effect], count: int, seen: Callable[[], pl.DataFrame]
) -> NDArray[np.int64]:
    """For each row, the number of the first clause whose predicate is true, or -1."""
    chosen = np.full(count, -1)
    frame: pl.DataFrame | None = None
    for number, effect in enumerate(effects):
        mask = chosen < 0
        if effect.where is not None:
            frame = seen() if frame is None else frame
            mask &= holds(frame, effect.where).to_numpy()
        chosen[mask] = number
    return chosen
