"""Reads JSON checkpoints: one object, NDJSON, or parts named by a manifest.

==================  ====================================================================
form                content
==================  ====================================================================
one object          ``{"protocol": {}, "metaData": {}, "add": [{}, ...]}`` (spec 001, 3.2.2)
lines               the lines of a commit (the form that the writers use)
manifest            ``{"version", "checkpointId", "parts": [...], "createdTime", "format"}``,
                    each part holding lines
==================  ====================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import orjson
import polars as pl

from lakelog.dialects.exact_json import exact_object, has_double
from lakelog.dialects.indextables.commits import (
    compose_meta,
    decode_blobs,
    last_by_path,
    meta_at_or_below,
    missing_file,
    one_protocol,
    project,
    wire,
)
from lakelog.dialects.indextables.docmapping import registry_of_meta, resolve_references
from lakelog.dialects.indextables.framing import unframe
from lakelog.dialects.indextables.listing import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    list_commits,
    part_names,
    read_pointer,
    recorded_counts,
)
from lakelog.dialects.log_content import CHECKPOINT_META, Actions, Checkpoint, CheckpointReader
from lakelog.dialects.ndjson import Blob
from lakelog.dialects.strict_decoder import Line, parse_object
from lakelog.dialects.truncation_marks import is_marked, unmark
from lakelog.errors import (
    CorruptionError,
    LakelogError,
    MalformedLogError,
    NotFoundError,
    UnsupportedError,
)
from lakelog.model import actions
from lakelog.storage import LogStore


class JsonCheckpointReader(CheckpointReader):
    """Reads JSON checkpoints of all forms; the last action of a repeated path wins."""

    def __init__(self, store: LogStore, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._store = store
        self._is_marked = False  # whether the file decoded last has marks

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """Non-file actions; those that other writers omit come from the commits below."""
        own = []
        for part in self._parts(files=False):
            own.append(part.meta)
            if self._is_marked and not part.meta.height:
                break  # they precede the first file action
        return compose_meta(
            _without_origin(actions.concat(own)),
            kinds,
            lambda: meta_at_or_below(self._store, self.checkpoint.version),
            one_protocol(),
            skips_complete=self._is_marked,
        )

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions, one batch per part. Memory: the wanted columns of all parts."""
        # The mapping is found by the reference.
        needed = [*columns, "docMappingRef"]
        registry: dict[str, str] = {}
        frames: list[pl.DataFrame] = []
        held = adds = 0
        for part in self._parts(files=True):
            registry |= registry_of_meta(part.meta)
            rows = _without_origin(part.files)
            held += part.meta.height + rows.height
            adds += actions.of_type(rows, "add").height
            if rows.height:
                frames.extend(project([rows], needed, actions.FILE_ACTIONS))
        if not self._is_marked:
            self._require_recorded(held, adds)
        for frame in last_by_path(frames):
            rows = resolve_references(frame, registry) if "docMappingJson" in columns else frame
            yield from project([rows], columns, kinds)

    def files_read(self) -> tuple[str, ...]:
        """The files, manifest first; if skips are missing, also the covered commits."""
        first = self.checkpoint.paths[0]
        data = self._load(first)
        paths = self._part_paths(_single_object(data, first))
        if is_marked(self._load(paths[0]) if paths else data):
            return (first, *paths)
        below = (commit.path for commit in list_commits(self._store, end=self.checkpoint.version))
        return (first, *paths, *below)

    def _require_recorded(self, held: int, adds: int) -> None:
        """Raise for a checkpoint truncated at a line end, which is below both counts in the
        pointer; the reference implementation counts repeated files, so one count is not sufficient.
        """
        version = self.checkpoint.version
        recorded = self.checkpoint.recorded
        if recorded is None:
            with suppress(LakelogError):  # a hint
                pointer = read_pointer(self._store)
                recorded = None if pointer is None else recorded_counts(pointer, version)
        if recorded is None or recorded.actions is None or recorded.adds is None:
            return
        if held < recorded.actions and adds < recorded.adds:
            raise CorruptionError(
                f"the checkpoint has fewer actions than {LAST_CHECKPOINT} records",
                path=self.checkpoint.paths[0],
                version=version,
                expected=f"{recorded.actions} actions, {recorded.adds} of them files",
                found=f"{held} actions, {adds} of them files",
                hint=(
                    "a file of the checkpoint is truncated: restore it, or replay the "
                    "commits without it"
                ),
            )

    def _load(self, path: str) -> bytes:
        return unframe(self._store.read(path), path, self.checkpoint.version)

    def _parts(self, *, files: bool) -> Iterator[Actions]:
        first = self.checkpoint.paths[0]
        data = self._load(first)
        body = _single_object(data, first)
        paths = self._part_paths(body)
        if not paths:
            yield self._decode(first, data, body, files=files)
        for path in paths:
            try:
                part = self._load(path)
            except NotFoundError as cause:
                raise missing_file(
                    "a part of the checkpoint was not found", path, self.checkpoint.version, cause
                ) from cause
            yield self._decode(path, part, _single_object(part, path), files=files)

    def _decode(
        self, path: str, data: bytes, body: dict[str, Any] | None, *, files: bool
    ) -> Actions:
        version = self.checkpoint.version
        name = f"{version:020d}.checkpoint"
        if path != self.checkpoint.paths[0]:
            name = path.rpartition("/")[2].removesuffix(".json")
        blobs = unmark(data, path, name, version)
        self._is_marked = blobs is not None
        if blobs is None:
            lines = data if body is None else _as_lines(body, data, path)
            blobs = (Blob(version, path, lines),)
        return decode_blobs(blobs, files=files)

    def _part_paths(self, body: dict[str, Any] | None) -> tuple[str, ...]:
        if body is None or "parts" not in body or wire().wrappers.keys() & body.keys():
            return ()
        path = self.checkpoint.paths[0]
        names = part_names(body)
        version = body.get("version")
        if names is None or version != self.checkpoint.version or len(set(names)) != len(names):
            raise CorruptionError(
                "the manifest of a multi-part checkpoint is inconsistent",
                path=path,
                version=self.checkpoint.version,
                expected=f"version {self.checkpoint.version} and the names of its parts, each once",
                found=f"version {version}, parts {body.get('parts')!r:.200}",
            )
        if body.get("format") not in {None, "json"}:
            raise UnsupportedError(
                "the parts of the checkpoint have a format that lakelog does not support",
                path=path,
                version=self.checkpoint.version,
                expected="json",
                found=body["format"],
            )
        return tuple(f"{LOG_FOLDER}/{name}" for name in names)


def _as_lines(body: dict[str, Any], data: bytes, path: str) -> bytes:
    """NDJSON of a checkpoint of one object."""
    if has_double(body):
        body = exact_object(data)
    lines = []
    known = wire().wrappers.keys() & body.keys()
    for wrapper, value in body.items():
        if known and wrapper not in known:
            lines.append(orjson.dumps({wrapper: value}))
            continue
        for item in value if isinstance(value, list) else [value]:
            if item is not None and not isinstance(item, dict):
                raise MalformedLogError(
                    "the checkpoint is neither NDJSON nor one JSON object of actions",
                    path=path,
                    expected=f"{wrapper}: an object or an array of objects",
                    found=repr(item)[:80],
                )
            if item is not None:
                lines.append(orjson.dumps({wrapper: item}))
    return b"\n".join(lines)


def _single_object(data: bytes, path: str) -> dict[str, Any] | None:
    """The one JSON object of the file, or None if it has lines."""
    first, _, rest = data.partition(b"\n")
    if rest.strip():
        try:
            orjson.loads(first)
        except orjson.JSONDecodeError:
            pass  # one object over several lines, or a damaged line
        else:
            return None
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return None  # the line decoder reports the error
    return parse_object(Line(data, path, None, 0, 0))


def _without_origin(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of a checkpoint, without the commit that wrote them, which it does not record."""
    return frame.drop("version", "position", strict=False)
