"""The change feed: rows that commits inserted, deleted or updated.

A commit with change data files has its changes in them, and in nothing else. The changes of any
other commit are derived: rows of added files are inserts, rows of removed files are deletes, and
where one commit removes and adds the same path, the deletion vectors decide. Rows that only the new
vector names are deletes, rows that only the old one names are inserts. Actions without
``dataChange`` change no row. An update of a table without ``delta.enableChangeDataFeed`` is
therefore a delete and an insert, and a row that was copied to another file is both too.

Version, time and kind of a change are constant per file and are read as partition values, so that
conditions on them skip files, and many files of many commits are read in one pass.

Rows are read with the schema of the last version. The schemas before it in the range must be
readable with it: the same types or narrower ones, and columns that kept their names in files. A
column that partitions the table in one of two schemas does so in the other, or is not in it.

Source: Delta protocol, Add CDC File; Change Data Files; Reader Requirements for AddCDCFile;
Deletion Vectors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl
import pyarrow as pa

from lakelog.data.deletion_vectors import Vector
from lakelog.data.files import FILE_COLUMNS, MAPPING_MODE, ReadPlan
from lakelog.data.read import read_files
from lakelog.data.scan import lazy_rows
from lakelog.data.write_plan import CHANGE_TYPE
from lakelog.dialects.log_content import Actions, CommitFile, LogListing
from lakelog.errors import (
    InvalidInputError,
    NotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakelog.input_validation import require_int
from lakelog.lazy import cached_property
from lakelog.log.context import Log, Timestamp, commit_times, iso_text, to_ms, version_at
from lakelog.log.files import FilesQuery, find_files
from lakelog.log.history import (
    as_time,
    by_size,
    commits_between,
    decoded_commits,
    empty_range,
    lazy_actions,
    times_of,
)
from lakelog.log.opening import with_stable_listing
from lakelog.log.snapshot import LogSnapshot, latest_stamped_from
from lakelog.model import actions, contract
from lakelog.model.metadata import Metadata, honoured_mapping, moved_column
from lakelog.sql.condition import condition
from lakelog.transaction.runtime import Runtime

COMMIT_VERSION, COMMIT_TIMESTAMP = "_commit_version", "_commit_timestamp"
"""Columns with the version and time of the commit that made a change."""

_INSERT, _DELETE = "insert", "delete"
_CONSTANT = (COMMIT_VERSION, COMMIT_TIMESTAMP)
_OWN_FIELDS = tuple(
    contract.Field(name, contract.Primitive(type_), False, {contract.PHYSICAL_NAME: name})
    for name, type_ in (
        (CHANGE_TYPE, "string"),
        (COMMIT_VERSION, "long"),
        (COMMIT_TIMESTAMP, "timestamp"),
    )
)
_OF_FILES = ("schema_string", "partition_columns", "column_mapping_mode")
"""The parts of metadata that decide the columns of files."""
_MAP = pl.Map(pl.String(), pl.String())
_OTHER_VECTOR = "\x00dv"
_OTHER = tuple(pl.col(_OTHER_VECTOR + name).alias(name) for name in actions.DV_COLUMNS)
_ACTION_COLUMNS = ("version", "actionType", *FILE_COLUMNS, "dataChange", "dvId")

_SINCE, _ABSENT, _OF_ADD = "\x00since", "\x00absent", "\x00add"

_Absent = dict[int, list[str]]
"""For each version with metadata, the partition columns that its files do not have, in order."""

Open = Callable[[int | None], LogSnapshot]


def changes(
    log: Log,
    open_version: Open,
    start: int | Timestamp,
    end: int | Timestamp | None,
    where: pl.Expr | str | None = None,
) -> pl.LazyFrame:
    """The changes of a range of commits; see `lakelog.table.Table.changes`."""
    first, last = change_range(log, open_version, start, end)
    snapshot = open_version(last)
    if last is None and first > snapshot.version:
        raise empty_range(first, snapshot.version, log.table)
    feed = _Feed(log, open_version, first, snapshot)
    schema = feed.plan.schema
    predicate = condition(where, schema, log.clock() * 1000)
    return lazy_rows(schema, feed.read, predicate, "lakelog changes", log.table)


def change_range(
    log: Log, open_version: Open, start: int | Timestamp, end: int | Timestamp | None
) -> tuple[int, int | None]:
    """The first and the last version of a range; None is the latest. Of two times without a commit
    in between, the first version is after the last.
    """
    first = _version(log, open_version, start, is_start=True)
    if end is None:
        return first, None
    last = _version(log, open_version, end, is_start=False)
    are_times = not isinstance(start, int) and not isinstance(end, int)
    if first > last and not (are_times and to_ms(start) <= to_ms(end)):
        raise empty_range(first, last, log.table)
    return first, last


def change_schema(snapshot: LogSnapshot) -> contract.Struct:
    """The columns of the changes up to a version."""
    log = snapshot.read_state(lambda state: state.log)
    return _Feed(log, lambda _: snapshot, 0, snapshot).plan.schema


def insert_columns(version: int, at_ms: int | None) -> dict[str, pa.Scalar]:
    """The values of a change's own columns for rows that are all inserts of one version."""
    values = (_INSERT, version, None if at_ms is None else at_ms * 1000)
    return {
        field.name: pa.scalar(value, contract.to_arrow(field.type))
        for field, value in zip(_OWN_FIELDS, values, strict=True)
    }


def follow(
    log: Log,
    open_version: Open,
    runtime: Runtime,
    start: int | Timestamp | None,
    interval_s: float,
    stop: Callable[[], bool] | None,
) -> Iterator[tuple[int, pl.LazyFrame]]:
    """Each new version and its changes; see `lakelog.table.Table.follow`."""
    version = (
        log.latest_version() + 1
        if start is None
        else _version(log, open_version, start, is_start=True)
    )
    while True:
        for each in range(version, log.latest_version() + 1):
            yield each, changes(log, open_version, each, each)
            version = each + 1
        if stop is not None and stop():
            return
        runtime.sleep(interval_s)


def _version(log: Log, open_version: Open, at: int | Timestamp, *, is_start: bool) -> int:
    """The first version committed at or after a time, or the last at or before it."""
    if isinstance(at, int):
        return require_int("start" if is_start else "end", at, 0)

    def metadata() -> Metadata:
        return open_version(None).metadata

    at_ms = to_ms(at, round_up=is_start)
    if not is_start:
        return version_at(log, at_ms, metadata)
    try:
        version = version_at(log, at_ms - 1, metadata) + 1
    except VersionNotFoundError:
        listing = log.list_all()
        version = listing.commits[0].version if listing.commits else 0
    latest = log.latest_version()
    if version > latest:
        raise InvalidInputError(
            "no commit was made at or after start",
            path=log.table,
            version=latest,
            expected="a time at or before the last commit",
            found=iso_text(at_ms),
        )
    return version


@dataclass(frozen=True)
class _Feed:
    """One call of `changes`: the range, and the version whose schema the rows have."""

    log: Log
    open_version: Open
    start: int
    snapshot: LogSnapshot

    @cached_property
    def plan(self) -> ReadPlan:
        """How the rows of derived changes are read."""
        plan = ReadPlan.of(self.snapshot, ())
        for own in _OWN_FIELDS:
            if (taken := plan.schema.field(own.name)) is not None:
                raise UnsupportedFeatureError(
                    "the table has a column with the name of a column of its change feed",
                    path=self.log.table,
                    version=self.snapshot.version,
                    expected=f"no column {own.name!r}",
                    found=taken.name,
                    hint="rename the column",
                )
        # Earlier schemas may have allowed nulls.
        fields = (contract.nullable(field, keeps=None) for field in plan.schema.fields)
        schema = contract.Struct((*fields, *_OWN_FIELDS))
        return replace(
            plan,
            schema_json=json.dumps(contract.to_json(schema)),
            partition_columns=(*plan.partition_columns, *_CONSTANT, CHANGE_TYPE),
        )

    def read(
        self, columns: Sequence[str], where: pl.Expr | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The changes, chunk by chunk of commits."""
        if self.start > self.snapshot.version:
            return
        derived = self.plan.select(columns)
        kinds = tuple(n for n in derived.partition_columns if n != CHANGE_TYPE)
        stored = replace(derived, partition_columns=kinds)
        store = self.log.store
        for chunk in self._chunks(where):
            files = self._chosen(chunk, where)
            is_stored = files["actionType"] == "cdc"
            for plan, kind in ((derived, ~is_stored), (stored, is_stored)):
                some = files.filter(kind)
                if not some.height:
                    continue
                only = Vector.of(some.select("path", *_OTHER))
                try:
                    yield from read_files(
                        plan, some, predicate=where, store=store, batch_rows=batch_rows, only=only
                    )
                except NotFoundError as missing:
                    raise self._vacuumed(missing, some) from missing

    def _vacuumed(self, missing: NotFoundError, files: pl.DataFrame) -> NotFoundError:
        version = files.filter(pl.col("path") == missing.path)["version"].min()
        return NotFoundError(
            missing.message if version is None else "a file of the change feed was not found",
            path=missing.path,
            version=self.snapshot.version if version is None else int(str(version)),
            expected="the data files, change data files and deletion vectors of all versions read",
            hint="the file was deleted, probably by a vacuum: read later versions",
        )

    def _chunks(self, where: pl.Expr | None) -> Iterator[pl.DataFrame]:
        """The files with changes, of about 64 MB of commits at a time."""

        def begin(
            listing: LogListing,
        ) -> tuple[pl.DataFrame, list[list[CommitFile]], LogListing, _Absent]:
            end = self.snapshot.version
            selected = self._selected(
                commits_between(self.log, listing, self.start, end, whole=True), where
            )
            absent: _Absent = {}
            if selected:
                first = selected[0].version
                absent[first - 1] = self._absent_partitions(self._before(first))
            chunks = list(by_size(selected))
            files = self._changes_of(chunks[0] if chunks else [], listing, absent)
            return files, chunks[1:], listing, absent

        files, rest, listing, absent = with_stable_listing(self.log, begin)
        yield files
        for chunk in rest:
            yield self._changes_of(chunk, listing, absent)

    def _are_last(self, version: int) -> bool:
        """Whether the last protocol and metadata are older than a commit."""
        rows = self.snapshot.read_state(
            lambda state: [state.meta_of(kind) for kind in ("protocol", "metaData")]
        )
        written = [actions.conform(row, ("version",)).item() for row in rows]
        return None not in written and max(written) < version

    def _before(self, first: int) -> Metadata | None:
        """The metadata that the first commit was made on, if readable and possibly different."""
        if not first or self._are_last(first):
            return None
        try:
            return self.open_version(first - 1).metadata
        except VersionNotFoundError:
            return None

    def _selected(
        self, commits: Sequence[CommitFile], where: pl.Expr | None
    ) -> Sequence[CommitFile]:
        """The commits whose version the condition allows, and those in between if one of them may
        change protocol or schema.
        """
        if where is None or COMMIT_VERSION not in where.meta.root_names():
            return commits
        versions = [c.version for c in commits]
        frame = pl.DataFrame(
            {"partitionValues": [{COMMIT_VERSION: str(version)} for version in versions]},
            schema={"partitionValues": _MAP},
        )
        keep = self._query(where, (COMMIT_VERSION,)).condition().may_match(frame)
        rows = keep.arg_true().to_list()
        if not rows or self._are_last(versions[rows[0]]):
            return [commits[row] for row in rows]
        return commits[rows[0] : rows[-1] + 1]

    def _changes_of(
        self, commits: Sequence[CommitFile], listing: LogListing, absent: _Absent
    ) -> pl.DataFrame:
        """The files with changes of commits; their metadata adds to `absent`."""
        decoded = decoded_commits(self.log, self.snapshot, commits) if commits else Actions()
        self.log.check_protocols(actions.of_type(decoded.meta, "protocol"))
        for row in actions.of_type(decoded.meta, "metaData").iter_rows(named=True):
            absent[row["version"]] = self._absent_partitions(Metadata.from_row(row))
        files = _changed_files(decoded)
        at = times_of(
            commit_times(listing.commits),
            decoded.commit_infos,
            lambda: latest_stamped_from(self.snapshot, listing),
        ).with_columns(as_time("timestamp"))
        files = files.join(at, on="version", how="left", maintain_order="left")
        physical = self._physical(self.snapshot.metadata)
        partitions = [name for name, (_, is_partition) in physical.items() if is_partition]
        if partitions:
            files = self._with_values_of_adds(files, commits)
        return _with_constants(_with_null_partitions(files, partitions, absent))

    def _with_values_of_adds(
        self, files: pl.DataFrame, commits: Sequence[CommitFile]
    ) -> pl.DataFrame:
        """The files, removes without partition values with those of the add of the path: they are
        optional in a remove (Delta protocol, Add File and Remove File).
        """
        is_bare = (pl.col("actionType") == "remove") & pl.col("partitionValues").is_null()
        bare = files.filter(is_bare)
        if not bare.height:
            return files
        first, columns = commits[0].version, ("path", "partitionValues")
        is_add = (pl.col("actionType") == "add") & pl.col("path").is_in(bare["path"].implode())
        known = lazy_actions(self.log, first, commits[-1].version).filter(is_add)
        adds = known.select(columns).collect()
        earlier = bare.filter(~pl.col("path").is_in(adds["path"].implode()))
        if earlier.height and first:
            try:
                before = self.open_version(first - 1)
            except VersionNotFoundError as cause:
                raise UnsupportedFeatureError(
                    "the partition values of a removed file are only in versions that were deleted",
                    path=earlier["path"][0],
                    version=earlier["version"][0],
                    hint="read later versions",
                ) from cause
            paths = earlier["path"].unique().to_list()
            adds = pl.concat([adds, find_files(before, paths, columns)])
        values = adds.unique("path", keep="last").rename({"partitionValues": _OF_ADD})
        return (
            files.join(values, on="path", how="left", maintain_order="left")
            .with_columns(
                pl.when(is_bare).then(_OF_ADD).otherwise("partitionValues").alias("partitionValues")
            )
            .drop(_OF_ADD)
        )

    def _chosen(self, files: pl.DataFrame, where: pl.Expr | None) -> pl.DataFrame:
        """The files that may hold a matching change."""
        if where is None or not files.height:
            return files
        of_data = self.plan.partition_columns[: -len(_CONSTANT) - 1]
        derived = (files["actionType"] != "cdc").arg_true()
        query = self._query(where, (*of_data, *_CONSTANT))
        keep = query.condition().may_match(files)
        # The kind of change of a derived file is known too.
        exact = self._query(where, (*of_data, *_CONSTANT, CHANGE_TYPE)).condition()
        keep = keep.scatter(derived, exact.may_match(files.gather(derived)))
        return files.filter(keep)

    def _query(self, where: pl.Expr, partition_columns: Sequence[str]) -> FilesQuery:
        own = self.snapshot.metadata
        # The log has physical names in every mode, and the fields of the feed have no ids.
        names = {} if self.plan.mapping == "none" else {MAPPING_MODE: "name"}
        metadata = replace(
            own,
            schema_string=self.plan.schema_json,
            partition_columns=tuple(partition_columns),
            configuration={**own.configuration, **names},
        )
        protocol = self.snapshot.protocol
        return FilesQuery(self.log.dialect, lambda: protocol, lambda: metadata, where)

    def _absent_partitions(self, earlier: Metadata | None) -> list[str]:
        """The partition columns that an earlier schema does not have, by their physical names.

        Refuses a schema of the range whose files cannot be read with the last one.
        """
        end = self.snapshot.metadata
        if earlier is None or all(getattr(earlier, n) == getattr(end, n) for n in _OF_FILES):
            return []
        if (difference := self._unreadable_column(earlier)) is not None:
            raise self._refusal(*difference)
        before, after = self._physical(earlier), self._physical(end)
        return [name for name, (_, is_part) in after.items() if is_part and name not in before]

    def _physical(self, metadata: Metadata) -> dict[str, tuple[contract.Field, bool]]:
        """Top-level columns by their names in data files, and whether they partition the table."""
        mapping = honoured_mapping(self.snapshot.protocol, metadata)
        return {
            contract.physical_name(f, mapping): (f, f.name in metadata.partition_columns)
            for f in metadata.schema.fields
        }

    def _unreadable_column(self, earlier: Metadata) -> tuple[str, str, str] | None:
        """A column that the last schema cannot read from files of an earlier one, with what it can
        read and what the files have.
        """
        end = self.snapshot.metadata
        if (moved := moved_column(earlier, end)) is not None:
            return moved, "one name in all files of the range", "another name in earlier files"
        before = self._physical(earlier)
        kind = ("a data column", "a partition column")
        for name, (field, is_partition) in self._physical(end).items():
            old, was_partition = before.get(name, (field, is_partition))
            if was_partition != is_partition or not _is_readable(old.type, field.type):
                expected = f"{contract.type_text(field.type)}, {kind[is_partition]}"
                return (
                    field.name,
                    expected,
                    f"{contract.type_text(old.type)}, {kind[was_partition]}",
                )
        return None

    def _refusal(self, column: str, expected: str, found: str) -> UnsupportedFeatureError:
        changed = self._changed_at()
        ranges = [(self.start, changed - 1), (changed + 1, self.snapshot.version)]
        readable = [f"{first} to {last}" for first, last in ranges if first <= last]
        hint = f"leave out version {changed}: read the versions {' and '.join(readable)} separately"
        if not readable:
            hint = (
                f"leave out version {changed}: start at the next version; a loop over follow "
                "continues with it if it catches this error"
            )
        return UnsupportedFeatureError(
            "the schema changed in the range, and one schema cannot read all of its files",
            path=self.log.table,
            version=changed,
            column=column,
            expected=expected,
            found=found,
            hint=hint,
        )

    def _changed_at(self) -> int:
        """The last commit of the range with a schema that cannot read files before it."""
        changed = self.snapshot.version
        is_metadata = pl.col("actionType") == "metaData"
        rows = lazy_actions(self.log, self.start, changed).filter(is_metadata).collect()
        for row in reversed(rows.rows(named=True)):
            if self._unreadable_column(Metadata.from_row(row)) is not None:
                break
            changed = row["version"]
        return changed


def _changed_files(decoded: Actions) -> pl.DataFrame:
    """The files of the changes of commits, one row each: ``actionType`` is ``cdc`` for change data
    files; else ``_change_type`` has the kind of all changes, and the columns of the other vector
    are null, or name the only rows that changed.
    """
    other = actions.of_type(decoded.other, "cdc")
    dtypes = actions.schema()
    stored = actions.conform(other, _ACTION_COLUMNS).with_columns(
        pl.lit(None, pl.String).alias(CHANGE_TYPE),
        *(pl.lit(None, dtypes[name]).alias(_OTHER_VECTOR + name) for name in actions.DV_COLUMNS),
    )
    files = actions.conform(decoded.files, _ACTION_COLUMNS).filter(
        pl.col("dataChange").fill_null(value=True)
    )
    if stored.height:
        files = files.filter(~pl.col("version").is_in(stored["version"].unique().implode()))
    adds, removes = (files.filter(pl.col("actionType") == kind) for kind in ("add", "remove"))
    key = ["version", "path"]
    pairs = adds.select(*key).join(removes.select(*key), on=key, how="semi")
    found = [
        adds.join(pairs, on=key, how="anti").with_columns(pl.lit(_INSERT).alias(CHANGE_TYPE)),
        removes.join(pairs, on=key, how="anti").with_columns(pl.lit(_DELETE).alias(CHANGE_TYPE)),
    ]
    if pairs.height:
        found += _vector_changes(adds, removes, key)
    # Applied in this order, the changes of a commit give the rows after it.
    inserted_last = (pl.col(CHANGE_TYPE) == _INSERT).fill_null(value=False)
    files = pl.concat([stored, *found], how="diagonal")
    return files.sort("version", inserted_last, maintain_order=True)


def _vector_changes(
    adds: pl.DataFrame, removes: pl.DataFrame, key: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Files that commits add and remove: rows of one vector that are not in the other, with the
    statistics of the side on which they are visible.
    """
    for near, theirs, kind in ((adds, removes, _INSERT), (removes, adds, _DELETE)):
        others = theirs.select(
            *key,
            pl.col("dvId").alias("otherId"),
            pl.col("partitionValues").alias("otherValues"),
            *(pl.col(name).alias(_OTHER_VECTOR + name) for name in actions.DV_COLUMNS),
        )
        both = near.join(others, on=key, how="inner", maintain_order="left")
        # Without a vector on the other side, all of its rows were visible there.
        changed = both.filter(pl.col("otherId").is_not_null(), pl.col("otherId").ne_missing("dvId"))
        yield changed.with_columns(
            pl.col("partitionValues").fill_null(pl.col("otherValues")),
            pl.lit(kind).alias(CHANGE_TYPE),
        ).drop("otherId", "otherValues")


def _with_null_partitions(
    files: pl.DataFrame, names: Sequence[str], absent: _Absent
) -> pl.DataFrame:
    """The files with all partition values: null for columns that were added after the file, and
    because Spark leaves null values out of a remove.
    """
    is_remove = pl.col("actionType") == "remove"
    schema = pl.Schema({_SINCE: pl.Int64(), _ABSENT: pl.List(pl.String())})
    eras = pl.DataFrame(list(absent.items()), schema=schema, orient="row")
    # A commit removes files of the schema before it; the files are in this order too.
    since = (pl.col("version") - is_remove.cast(pl.Int64)).alias(_SINCE)
    files = files.with_columns(since).join_asof(eras, on=_SINCE)
    values = pl.col("partitionValues")
    missing = []
    for name in names:
        has = values.map.keys().list.contains(name)
        is_absent = pl.col(_ABSENT).list.contains(name)
        null = pl.struct(pl.lit(name).alias("key"), pl.lit(None, pl.String).alias("value"))
        is_null = (is_remove & ~has) | (is_absent & ~has.fill_null(value=False))
        missing.append(pl.when(is_null).then(pl.concat_list(null)).otherwise([]))
    entries = pl.concat_list(values.map.entries().fill_null([]), *missing)
    return files.with_columns(entries.cast(_MAP).alias("partitionValues")).drop(_SINCE, _ABSENT)


def _with_constants(files: pl.DataFrame) -> pl.DataFrame:
    """Version, time and kind of change among the partition values."""
    text = {
        COMMIT_VERSION: pl.col("version").cast(pl.String),
        COMMIT_TIMESTAMP: pl.col("timestamp").dt.to_string("%Y-%m-%dT%H:%M:%S%.3fZ"),
        CHANGE_TYPE: pl.col(CHANGE_TYPE),
    }
    entries = pl.concat_list(
        pl.col("partitionValues").map.entries().fill_null([]),
        *(pl.struct(pl.lit(k).alias("key"), v.alias("value")) for k, v in text.items()),
    )
    return files.with_columns(entries.cast(_MAP).alias("partitionValues"))


def _is_readable(old: contract.DataType, new: contract.DataType) -> bool:
    """Whether values of an old type can be read as a new one."""
    match old, new:
        case contract.Struct(fields), contract.Struct(now):
            known = {contract.physical_name(f, "name"): f.type for f in fields}
            return all(
                _is_readable(known.get(contract.physical_name(f, "name"), f.type), f.type)
                for f in now
            )
        case contract.Array(element, _), contract.Array(wider, _):
            return _is_readable(element, wider)
        case contract.Map(key, value, _), contract.Map(wider_key, wider_value, _):
            return _is_readable(key, wider_key) and _is_readable(value, wider_value)
    return old in (new, contract.VOID) or contract.is_widening(old, new)
