"""Reads Avro states: a state manifest that references shared manifests of file entries, and
tombstones.

A state is a commit of the v0.5.4 writer, or accompanies a JSON commit of the Rust writer. Live
files are the entries of all manifests whose path is not a tombstone.

**Protocol and metadata.** A state may cache the metadata. Otherwise metadata is the last metaData
of the JSON commits at or below the state's version: a writer that cached it once carries it into
every later state. If these commits were truncated, it is that of the last lower state that caches
it; a writer that found none caches metadata with an empty schema. The protocol is the last one of
those commits, with both versions raised to the state's ``protocolVersion``. Skips are read from the
same commits, and from skip-only commits after the last other commit, whose numbers are independent
of the states'.

**One history.** The reference's writer starts its first state without the files of JSON commits,
and numbers it 1. Such a state and the commits are two histories; the state and every later one are
rejected.

**Version of a file.** ``addedAtVersion`` is unreliable (the Scala writer writes 0 on append and the
state's version on compaction), so ``version`` is null, and the field is kept in ``extra``.

**Counts.** Each manifest must have the recorded number of entries. ``numFiles`` must be the number
of live entries, or of entries minus tombstones, as writers count. ``totalBytes`` may exceed the
size of the live files, because writers subtract only on compaction, but must not be less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl

from lakelog.dialects.indextables.avro import Container, read_state_record
from lakelog.dialects.indextables.commits import (
    compose_meta,
    decode_blobs,
    decode_commits,
    holds_type,
    last_by_path,
    meta_at_or_below,
    missing_file,
    one_protocol,
    project,
    wire,
)
from lakelog.dialects.indextables.docmapping import (
    REGISTRY_PREFIX,
    registry_of,
    resolve_references,
)
from lakelog.dialects.indextables.listing import (
    LOG_FOLDER,
    commits_apart,
    list_commits,
    pointer_body,
    read_pointer,
    state_manifest_path,
    state_versions,
)
from lakelog.dialects.indextables.protocol import MAX_READER_VERSION
from lakelog.dialects.json_layout import Leaf
from lakelog.dialects.log_content import CHECKPOINT_META, Checkpoint, CheckpointReader
from lakelog.dialects.ndjson import Blob
from lakelog.errors import (
    CorruptionError,
    InvalidActionError,
    MalformedLogError,
    NotFoundError,
    UnsupportedError,
    UnsupportedFeatureError,
)
from lakelog.lazy import cached_property
from lakelog.model import actions
from lakelog.model.reconcile import last_wins
from lakelog.storage import LogStore

_FIRST_STATE = 1  # number of a state that depends on no other
_MAX_FORMAT_VERSION = 1
"""Newest supported format version of a state file."""

_SHARED = ("manifests/", "state-v")
_REQUIRED = ("path", "size", "modificationTime")
_ALWAYS_READ = ("path", "size")


@dataclass(frozen=True, slots=True)
class StateManifest:
    """``state-v%020d/_manifest.avro``, checked; `metadata` is the metaData as a JSON line."""

    path: str
    version: int
    created_ms: int
    manifests: tuple[tuple[str, int], ...]
    tombstones: frozenset[str]
    file_count: int
    total_bytes: int
    registry: Mapping[str, str]
    protocol_version: int
    metadata: bytes | None

    @classmethod
    def parse(cls, data: bytes, path: str, version: int) -> StateManifest:
        """Parse and check one state manifest."""
        record = _Record(read_state_record(data, path, version), path, version)
        format_version = record.integer("formatVersion")
        if format_version > _MAX_FORMAT_VERSION:
            raise UnsupportedFeatureError(
                "the Avro state has a newer format",
                path=path,
                version=version,
                expected=f"formatVersion up to {_MAX_FORMAT_VERSION}",
                found=f"formatVersion {format_version}",
                hint="upgrade lakelog",
            )
        protocol_version = record.integer("protocolVersion", 4)
        if protocol_version > MAX_READER_VERSION:
            raise UnsupportedFeatureError(
                "the table needs a newer reader",
                path=path,
                version=version,
                expected=f"protocolVersion up to {MAX_READER_VERSION}",
                found=f"protocolVersion {protocol_version}",
                hint="upgrade lakelog",
            )
        state_version = record.integer("stateVersion")
        if state_version != version:
            raise CorruptionError(
                "the state manifest belongs to another version",
                path=path,
                version=version,
                expected=version,
                found=state_version,
            )
        return cls(
            path=path,
            version=version,
            created_ms=record.integer("createdAt"),
            manifests=tuple(
                (_resolve(item.text("path"), path), item.integer("numEntries"))
                for item in record.items("manifests")
            ),
            tombstones=frozenset(record.texts("tombstones")),
            file_count=record.integer("numFiles"),
            total_bytes=record.integer("totalBytes"),
            registry=registry_of(record.text_map("schemaRegistry")),
            protocol_version=protocol_version,
            metadata=_metadata_line(record.optional_text("metadata"), path, version),
        )


class AvroStateReader(CheckpointReader):
    """Reads one Avro state.

    Memory: one manifest decompressed, and 8,192 of its entries as Python objects; the wanted
    columns of all manifests are held until the counts agree.
    """

    def __init__(self, store: LogStore, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._store = store

    @cached_property
    def _state(self) -> StateManifest:
        (path,) = self.checkpoint.paths
        version = self.checkpoint.version
        try:
            data = self._store.read(path)
        except NotFoundError as cause:
            raise missing_file("the state has no manifest", path, version, cause) from cause
        return StateManifest.parse(data, path, version)

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """Protocol, metaData and skips, by the rules in the module docstring."""
        state = self._state
        self._require_one_history()
        cached = _cached_metadata(state)
        is_cached = _has_schema(cached)

        def below() -> pl.DataFrame:
            found = meta_at_or_below(self._store, state.version, of_state=True)
            if is_cached or holds_type(found, "metaData"):
                return found
            return actions.concat([cached, found, self._metadata_below()])

        own = cached if is_cached else actions.concat([])
        meta = compose_meta(own, kinds, below, one_protocol(state.protocol_version))
        return _raised(meta, state.protocol_version)

    def references(self) -> pl.DataFrame:
        """See `CheckpointReader`; the state's registry is apart from its metaData."""
        registered = {REGISTRY_PREFIX + key: text for key, text in self._state.registry.items()}
        schema = {name: actions.schema()[name] for name in ("actionType", "configuration")}
        return pl.DataFrame({"actionType": ["metaData"], "configuration": [registered]}, schema)

    def _metadata_below(self) -> pl.DataFrame:
        """The metaData that the last lower state caches, or no row."""
        store, version = self._store, self._state.version
        for lower in reversed([v for v in state_versions(store) if v < version]):
            path = state_manifest_path(lower)
            if store.stat(path) is not None:
                cached = _cached_metadata(StateManifest.parse(store.read(path), path, lower))
                if _has_schema(cached):
                    return cached
        return actions.concat([])

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """Live files, a batch per manifest; tombstones have no time, so they have expired."""
        if "add" not in kinds:
            return
        state = self._state
        self._require_one_history()
        entries = self._read_entries(columns)
        _check_counts(state, entries)
        tombstones = pl.Series(sorted(state.tombstones), dtype=pl.String).implode()
        live = [frame.filter(~pl.col("path").is_in(tombstones)) for frame in entries]
        for frame in last_by_path(live):
            rows = frame
            if "docMappingJson" in columns:
                rows = resolve_references(rows, state.registry)
            yield from project([rows], columns, kinds)

    def created_ms(self) -> int:
        """Time in ms since the Unix epoch: the commit time of a version without a commit."""
        return self._state.created_ms

    def files_read(self) -> tuple[str, ...]:
        """The state manifest, its manifests, then the commits that it covers."""
        below = (commit.path for commit in list_commits(self._store, end=self._state.version))
        return (self._state.path, *(path for path, _ in self._state.manifests), *below)

    def _require_one_history(self) -> None:
        """Raise if the first state of the table omitted files of its JSON commits."""
        self._require_not_replaced()
        if (forgotten := self._forgotten) is not None:
            raise UnsupportedError(
                "the log contains two histories: its Avro states do not include the JSON commits",
                path=state_manifest_path(_FIRST_STATE),
                version=self.checkpoint.version,
                expected="a first state that contains the files of the commits up to its version",
                found=forgotten,
                hint="decide which history is valid, and move the files of the other one "
                "out of the log; set spark.indextables.state.format to json in every "
                "IndexTables session that writes a table of JSON commits",
            )

    def _require_not_replaced(self) -> None:
        """Raise if a JSON checkpoint of a lower version was written from the state: IndexTables
        then returned to JSON commits, which it numbers from the checkpoint's version on.
        """
        pointer = pointer_body(read_pointer(self._store) or b"")
        version, created = pointer.get("version"), pointer.get("createdTime")
        if (
            pointer.get("format") in {None, "json", "json-multipart"}
            and type(version) is int
            and type(created) is int
            and version < self.checkpoint.version
            and created > self._state.created_ms
        ):
            raise UnsupportedError(
                "the log contains two histories: a JSON checkpoint of a lower version "
                "was written after this Avro state",
                path=self.checkpoint.paths[0],
                version=self.checkpoint.version,
                expected=f"no Avro state above version {version}, which _last_checkpoint names",
                found=f"state-v{self.checkpoint.version:020d}",
                hint="if IndexTables was set back to JSON commits, move the folders state-v* out "
                "of the log",
            )

    @cached_property
    def _forgotten(self) -> str | None:
        """A file that the first state lacks, or another sign of two histories."""
        store = self._store
        commits = list_commits(store) if self.checkpoint.version >= _FIRST_STATE else []
        first = [c for c in commits if c.version <= _FIRST_STATE]
        if not first:
            return None
        later = len(commits) - len(first)
        continues = later > 0 and len(commits_apart(store, commits[len(first) :])) < later
        files = decode_commits(store, first).files
        if not files.height and not continues:
            return None
        covered, path = (state_manifest_path(v) for v in (_FIRST_STATE - 1, _FIRST_STATE))
        if store.stat(path) is None:
            return None
        if (begun := store.stat(covered) is not None) and files.height:
            files = files.filter(pl.col("version") == _FIRST_STATE)  # version 0 was checkpointed
        state = self
        if self.checkpoint.version != _FIRST_STATE:
            state = AvroStateReader(store, Checkpoint(_FIRST_STATE, "avro-state", 0, (path,)))
        tombstones = state._state.tombstones
        entries: set[str] = {p for f in state._read_entries(("path",)) for p in f["path"].to_list()}
        live: set[str] = set()
        if files.height:
            live = set(actions.of_type(last_wins(files, ("path",)), "add")["path"].to_list())
        if lost := live - entries - tombstones:
            return min(lost)
        whole = not begun and [c.version for c in first] == [0, _FIRST_STATE]
        if continues and whole and live != entries - tombstones:
            return f"{len(entries - tombstones)} files in the first state, {len(live)} in commits"
        return None

    def _read_entries(self, columns: Sequence[str]) -> list[pl.DataFrame]:
        state = self._state
        frames: list[pl.DataFrame] = []
        contents = iter(self._store.read_many([path for path, _ in state.manifests]))
        for path, count in state.manifests:
            try:
                data = next(contents)
            except NotFoundError as cause:
                raise missing_file(
                    f"state-v{state.version:020d} names a manifest that was not found",
                    path,
                    state.version,
                    cause,
                ) from cause
            container = Container(data, path, state.version)
            if container.records != count:
                raise CorruptionError(
                    "the number of entries in a manifest differs from the state",
                    path=path,
                    version=state.version,
                    expected=f"{count} entries",
                    found=f"{container.records} entries",
                )
            frames.append(_decode_entries(container, path, state.version, columns))
        return frames


def _decode_entries(
    container: Container, path: str, version: int, columns: Sequence[str]
) -> pl.DataFrame:
    """Entries of one manifest as ``add`` rows."""
    fields = _entry_fields()
    wanted = {*columns, *_ALWAYS_READ}
    if "docMappingJson" in wanted:
        wanted.add("docMappingRef")
    chosen = {name: leaf for name, leaf in fields.items() if leaf.column in wanted}
    # Unknown fields can be kept only by reading all fields.
    batches = container.batches(None if "extra" in wanted else chosen.keys())
    frames = [_frame_of(batch, chosen, wanted, path, version) for batch in batches]
    if not frames:
        return actions.empty(("actionType", *_ALWAYS_READ))
    return pl.concat(frames) if len(frames) > 1 else frames[0]


def _frame_of(
    records: Sequence[dict[str, Any]],
    chosen: Mapping[str, Leaf],
    wanted: set[str],
    path: str,
    version: int,
) -> pl.DataFrame:
    schema = actions.schema()
    # fastavro returns one dict per record, so rows are iterated in Python only here; each column is
    # then built at once.
    present = records[0].keys()
    series = []
    for name, leaf in chosen.items():
        if name not in present:
            continue
        values = [record[name] for record in records]
        if leaf.lenient:
            values = [v if v is None or isinstance(v, str) else _json(v) for v in values]
        dtype = schema[leaf.column]
        try:
            # Polars makes numbers of booleans, but not of texts.
            if dtype.is_integer() and bool in set(map(type, values)):
                values = [str(v) if isinstance(v, bool) else v for v in values]
            column = pl.Series(leaf.column, values, dtype=dtype, strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as cause:
            raise InvalidActionError(
                "a field of the manifest's entries has the wrong type",
                path=path,
                version=version,
                expected=f"{name}: {dtype}",
                found=str(cause)[:120],
            ) from cause
        series.append(column)
    if "extra" in wanted:
        fields = _entry_fields()
        series.append(pl.Series("extra", [_extra(r, fields) for r in records], dtype=pl.String))
    frame = pl.DataFrame(series, height=len(records)).with_columns(
        pl.lit("add", dtype=pl.String).alias("actionType")
    )
    _require(frame, wanted, path, version)
    return frame


def _entry_fields() -> dict[str, Leaf]:
    return {names[0]: leaf for names, leaf in wire().wrappers["add"].leaves() if len(names) == 1}


def _extra(record: dict[str, Any], fields: Mapping[str, Leaf]) -> str | None:
    unknown = {k: v for k, v in record.items() if k not in fields and v is not None}
    return _json(unknown) if unknown else None


def _json(value: Any) -> str:
    """JSON text of an Avro value; bytes are texts of U+0000 to U+00FF, as in Avro's own JSON."""

    def other(value: Any) -> str:
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)

    return orjson.dumps(value, default=other).decode()


def _require(frame: pl.DataFrame, wanted: set[str], path: str, version: int) -> None:
    for column in _REQUIRED:
        if column in wanted and (column not in frame.columns or frame[column].null_count()):
            raise InvalidActionError(
                "an entry of the manifest lacks a required field",
                path=path,
                version=version,
                expected=column,
            )


def _check_counts(state: StateManifest, entries: Sequence[pl.DataFrame]) -> None:
    total = sum(frame.height for frame in entries)
    both = pl.concat([frame.select("path", "size") for frame in entries]) if entries else None
    dead = 0
    live_bytes = 0
    if both is not None:
        zeroed = both["path"].filter(both["path"].str.contains("\0", literal=True))
        if len(zeroed):  # as a block of zeros leaves it; Avro has no checksum
            raise CorruptionError(
                "the path of a file in the state contains the character NUL",
                path=state.path,
                version=state.version,
                found=zeroed[0],
                hint="a manifest of the state is damaged: restore it from a copy",
            )
        tombstones = pl.Series(sorted(state.tombstones), dtype=pl.String).implode()
        removed_files = both.filter(pl.col("path").is_in(tombstones))
        dead = removed_files.height
        live_bytes = int(both["size"].sum()) - int(removed_files["size"].sum())
        if removed_files["path"].n_unique() != dead:
            # The path may have been added again after its removal, or twice before; no file records
            # the order.
            twice = removed_files.filter(pl.col("path").is_duplicated())["path"][0]
            raise CorruptionError(
                "a removed path has two entries, so whether it is live is unknown",
                path=state.path,
                version=state.version,
                found=twice,
            )
    if state.file_count not in {total - dead, total - len(state.tombstones)}:
        raise CorruptionError(
            "the number of files in the state differs from its count",
            path=state.path,
            version=state.version,
            expected=f"{state.file_count} files",
            found=f"{total - dead} files",
        )
    if state.total_bytes < live_bytes:
        raise CorruptionError(
            "the number of bytes in the state exceeds its count",
            path=state.path,
            version=state.version,
            expected=f"{state.total_bytes} bytes",
            found=f"{live_bytes} bytes",
        )


def _raised(meta: pl.DataFrame, version: int) -> pl.DataFrame:
    """Rows of a state with the protocol's versions raised to at least `version`."""
    if not holds_type(meta, "protocol"):
        return meta
    return meta.with_columns(
        pl.when(pl.col("actionType") == "protocol")
        .then(pl.max_horizontal(column, pl.lit(version, dtype=meta[column].dtype)))
        .otherwise(column)
        .alias(column)
        for column in ("minReaderVersion", "minWriterVersion")
        if column in meta.columns
    )


def _resolve(path: str, state: str) -> str:
    """A manifest's path, relative to the log folder if shared, else to the state's folder."""
    if ".." in path.split("/"):
        raise CorruptionError(
            "the state names a manifest outside the log folder",
            path=state,
            expected="a path without '..'",
            found=path[:200],
            hint="restore the state manifest; reading stopped here",
        )
    if path.startswith(_SHARED):
        return f"{LOG_FOLDER}/{path}"
    return f"{state.rpartition('/')[0]}/{path}"


def _cached_metadata(state: StateManifest) -> pl.DataFrame:
    """The metaData that a state caches, or no row."""
    if state.metadata is None:
        return actions.concat([])
    blob = Blob(None, state.path, state.metadata)
    return decode_blobs([blob], files=False).meta.drop("version", "position", strict=False)


def _has_schema(metadata: pl.DataFrame) -> bool:
    return bool((actions.conform(metadata, ("schemaString",)).to_series() != "").any())


def _metadata_line(text: str | None, path: str, version: int) -> bytes | None:
    """The cached metadata as a wrapped line; some writers cache it without the wrapper."""
    if text is None or not text.strip():
        return None
    try:
        parsed = orjson.loads(text)
        if isinstance(parsed, dict) and "metaData" not in parsed:
            parsed = {"metaData": parsed}
        if parsed is None or parsed == {"metaData": None}:
            return None
        return orjson.dumps(parsed)
    except (orjson.JSONDecodeError, TypeError) as cause:  # TypeError: nested too deeply
        raise MalformedLogError(
            "the metadata that the state caches is not valid JSON",
            path=path,
            version=version,
            found=str(cause)[:80],
        ) from cause


class _Record:
    """One Avro record, whose fields are validated on access."""

    def __init__(self, fields: Mapping[str, Any], path: str, version: int) -> None:
        self._fields = fields
        self._path = path
        self._version = version

    def _bad(self, name: str, expected: str) -> MalformedLogError:
        return MalformedLogError(
            "the state manifest lacks a field, or it has the wrong type",
            path=self._path,
            version=self._version,
            expected=f"{name}: {expected}",
            found=repr(self._fields.get(name))[:80],
        )

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._fields.get(name, default)
        if type(value) is not int:
            raise self._bad(name, "integer")
        return value

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise self._bad(name, "string")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._fields.get(name) is None else self.text(name)

    def texts(self, name: str) -> list[str]:
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._bad(name, "array of strings")
        return value

    def text_map(self, name: str) -> dict[str, str]:
        value = self._fields.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._bad(name, "map of strings")
        return value

    def items(self, name: str) -> list[_Record]:
        value = self._fields.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._bad(name, "array of records")
        return [_Record(item, self._path, self._version) for item in value]
