"""The sidecars of a V2 checkpoint: the manifest's record of each, whether it still matches, and
which of their files later commits change.

Source: Delta protocol, V2 Spec; Sidecar File Information.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import polars as pl

from lakelog.checkpoint.sidecar_reuse import Sidecar
from lakelog.dialects.delta.names import SIDECAR_FOLDER
from lakelog.dialects.delta.path_filters import Hashes, PathFilter, hash_paths
from lakelog.dialects.delta.paths import decode_path
from lakelog.dialects.delta.sidecar_fingerprints import (
    Fingerprint,
    check_inspection,
    total_of_tags,
)
from lakelog.dialects.delta.sidecar_inspection import inspect_sidecar, recognise_sidecar
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import Checkpoint, CheckpointReader, SidecarFile
from lakelog.errors import MalformedLogError
from lakelog.log.context import Log
from lakelog.log.replay import exclude
from lakelog.model import actions

_MOST_PROBES = 1 << 16
"""More keys than that hit nearly every filter, and are looked up among the paths at once."""
_READERS = 16
_QUICK_S = 0.004


@dataclass(frozen=True)
class SidecarManifest:
    """A V2 manifest's sidecars.

    Attributes:
        files: Them, in order.
        total: Digest of all of their rows, as it is recorded; None where it is not.
    """

    files: tuple[SidecarFile, ...]
    total: Digest | None


def read_manifest(reader: CheckpointReader) -> SidecarManifest:
    """The sidecars that a manifest names; errors as `CheckpointReader.read_meta`."""
    meta = reader.read_meta(("sidecar", "checkpointMetadata"))
    meta = actions.conform(meta, ("actionType", "path", "size", "modificationTime", "tags"))
    files: list[SidecarFile] = []
    total: Digest | None = None
    for kind, path, size, modified, tags in meta.iter_rows():
        if kind == "checkpointMetadata":
            total = total_of_tags(tags)
        elif path is not None:
            name = decode_path(path).rsplit("/", 1)[-1]
            files.append(
                SidecarFile(f"{SIDECAR_FOLDER}/{name}", size or 0, modified or 0, tags or {})
            )
    return SidecarManifest(tuple(files), total)


def known_sidecars(
    manifest: SidecarManifest, checkpoint: Checkpoint, shape: str
) -> list[tuple[SidecarFile, Fingerprint]] | str:
    """The sidecars with their fingerprints, or why none of them can be kept."""
    if not manifest.files:
        return "the previous checkpoint has no sidecars"
    known: list[tuple[SidecarFile, Fingerprint]] = []
    for file in manifest.files:
        fingerprint = Fingerprint.of_tags(file.tags)
        if fingerprint is None:
            return f"no record of {file.path} was found"
        if fingerprint.shape != shape:
            return "the table's columns, or the format of their statistics, have changed"
        known.append((file, fingerprint))
    if manifest.total is None:
        return "the previous checkpoint does not record the content of its sidecars"
    total = sum((fingerprint.digest for _, fingerprint in known), Digest())
    if total != manifest.total:
        raise MalformedLogError(
            "the sidecars of the manifest differ from those that were written with it",
            path=checkpoint.paths[0],
            version=checkpoint.version,
            expected=counts_of(manifest.total),
            found=counts_of(total),
            hint="restore the file, or remove the checkpoint's files if its commits exist",
        )
    return known


def look_into(
    log: Log,
    known: Sequence[tuple[SidecarFile, Fingerprint]],
    keys: pl.DataFrame,
    minimum_ms: int,
) -> list[Sidecar]:
    """What later commits do to each sidecar, which is checked against its fingerprint.

    Memory: the keys of a few sidecars' batches.
    """
    few = 0 < keys.height <= _MOST_PROBES
    hashes = hash_paths(keys["path"]) if few else None

    def look(pair: tuple[SidecarFile, Fingerprint]) -> Sidecar:
        file, recorded = pair
        found = None
        if recorded.footer is not None:
            held = (recorded.adds, recorded.removes)
            found = recognise_sidecar(log.store, file.path, file.size_bytes, held, recorded.footer)
        if found is None:
            found = inspect_sidecar(log.store, file.path)
        check_inspection(found, file, recorded)
        # Filters that nothing is recorded of are as good as none.
        paths = found.filter if recorded.filters else None
        suspects = _suspects(paths, keys, hashes)
        superseded = 0
        if suspects.height:
            for frame in read_sidecar(log, file, actions.KEY):
                superseded += frame.height - exclude(frame, suspects).height
        last = found.last_deletion_ms
        expired = recorded.removes if last is not None and last <= minimum_ms else 0
        counts = (recorded.adds, recorded.removes, recorded.digest)
        return Sidecar(file, *counts, superseded, expired)

    return at_once(look, known)


def _suspects(paths: PathFilter | None, keys: pl.DataFrame, hashes: Hashes | None) -> pl.DataFrame:
    """Those of `keys` that a sidecar may hold."""
    if hashes is None or paths is None:
        return keys
    hits = paths.may_hold(hashes)
    return keys.filter(pl.Series(hits)) if hits.any() else keys.clear()


def read_sidecar(
    log: Log,
    file: SidecarFile,
    columns: Sequence[str],
    kinds: Sequence[str] = actions.FILE_ACTIONS,
) -> Iterator[pl.DataFrame]:
    """The rows of one sidecar alone, which is read as a checkpoint of one part; as
    `CheckpointReader.iter_files`.
    """
    alone = Checkpoint(0, "multipart", 1, (file.path,), (file.size_bytes,))
    return log.dialect.open_checkpoint(log.store, alone).iter_files(columns, kinds)


_T = TypeVar("_T")
_R = TypeVar("_R")


def at_once(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Apply `function` to each item, in order; several at a time where one takes long."""
    start = time.perf_counter()
    found = [function(item) for item in items[:1]]
    rest = items[1:]
    if time.perf_counter() - start < _QUICK_S:
        # Threads cost more than files that are in the page cache.
        return [*found, *map(function, rest)]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="lakelog-sidecar") as pool:
        return [*found, *pool.map(function, rest)]


def counts_of(held: Digest) -> str:
    """What a digest says, short enough for a message."""
    parts = [f"{held.counts[kind]} {kind} of {held.sums[kind]:032x}" for kind in held.counts]
    return ", ".join(sorted(parts)) or "nothing"
