"""The V2 manifest's record of each sidecar: action counts, digest and path filter.

The record is in the sidecar action's ``tags`` under ``lakelog.fingerprint``. It has a checksum of
the sidecar's path filters (`lakelog.dialects.delta.path_filters`), for which Parquet has none; as
they depend on every path, it also binds the record to the content. The facts of a parsed footer are
recorded with its checksum, so that hundreds of footers need not be parsed again. A sidecar without
a record of this version is never reused.

Source: Delta protocol, Sidecar File Information; Checkpoint Metadata.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.delta.checkpoint_schema import spark_schema
from lakelog.dialects.delta.path_filters import (
    CAN_READ,
    CHECKSUM_DIGITS,
    FILTERED,
    PathFilter,
    Span,
    filter_spans,
    find_columns,
    read_filter,
)
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import CheckpointPlan, SidecarFile
from lakelog.dialects.parquet_files import open_parquet
from lakelog.errors import InvalidInputError, LakelogError, MalformedLogError, NotFoundError
from lakelog.model import contract
from lakelog.model.actions import FILE_ACTIONS, PATH_TEXT
from lakelog.storage import LogStore
from lakelog.storage.ranged import RangedFile

_REMOVED_AT = "remove.deletionTimestamp"
_TRAILER_BYTES = 8
"""Length of the trailer: the footer's length and Parquet's magic number."""


@dataclass(frozen=True)
class FooterRecord:
    """Identity of a sidecar's footer (`checksum`: prefix of SHA-256), and facts from it."""

    length: int
    checksum: str
    last_deletion_ms: int | None
    spans: tuple[Span, ...] | None

    @staticmethod
    def of(body: Mapping[str, Any]) -> FooterRecord:
        """The record from JSON."""
        found = FooterRecord(**body)
        spans = found.spans
        if spans is not None:
            spans = tuple((offset, length) for offset, length in spans)
        places = [found.length, *(number for span in spans or () for number in span)]
        if {type(number) for number in (*places, found.last_deletion_ms or 0)} != {int}:
            raise TypeError("invalid footer record")
        if min(places) < 0 or type(found.checksum) is not str:
            raise ValueError("invalid footer record")
        return replace(found, spans=spans)


@dataclass(frozen=True)
class Inspection:
    """Facts from footer and filters, None if unknown; `last_deletion_ms` is an upper bound."""

    size_bytes: int
    adds: int | None
    removes: int | None
    rows: int
    last_deletion_ms: int | None
    filter: PathFilter | None
    footer: FooterRecord
    schema: pa.Schema | None = field(default=None, compare=False)


def inspect_sidecar(store: LogStore, path: str, size_bytes: int | None = None) -> Inspection:
    """Read a sidecar's footer and filters. Memory: these, about twenty bits per path."""
    with _opened(store, path, size_bytes) as source:
        file = open_parquet(source)
        groups = find_columns(file.metadata, (*FILTERED, _REMOVED_AT))
        adds, _ = count_values(groups, "add.path")
        removes, _ = count_values(groups, "remove.path")
        _, last = count_values(groups, _REMOVED_AT)
        spans = filter_spans(groups)
        paths = read_filter(source, spans) if spans is not None else None
        size = source.seek(0, os.SEEK_END)
        source.seek(size - _TRAILER_BYTES)
        length = int.from_bytes(source.read(4), "little") + _TRAILER_BYTES
        record = FooterRecord(length, _checksum(source, size, length), last, spans)
        rows, schema = file.metadata.num_rows, file.schema_arrow
        return Inspection(size, adds, removes, rows, last, paths, record, schema)


def recognise_sidecar(
    store: LogStore,
    path: str,
    size_bytes: int,
    counts: tuple[int, int],
    recorded: FooterRecord,
) -> Inspection | None:
    """As `inspect_sidecar`, from a recorded footer in fewer round trips; None if it differs."""
    with _opened(store, path, size_bytes) as source:
        size = source.seek(0, os.SEEK_END)
        if size != size_bytes or size < recorded.length:
            return None
        if isinstance(source, RangedFile):
            spans = [(start, start + length) for start, length in recorded.spans or ()]
            source.prefetch([*spans, (size - recorded.length, size)])
        if _checksum(source, size, recorded.length) != recorded.checksum:
            return None
        paths = read_filter(source, recorded.spans) if recorded.spans is not None else None
        return Inspection(size, *counts, sum(counts), recorded.last_deletion_ms, paths, recorded)


def read_sidecar_schema(store: LogStore, path: str) -> pa.Schema:
    """A sidecar's Arrow schema; errors as `inspect_sidecar`."""
    with _opened(store, path, None) as source:
        return open_parquet(source).schema_arrow


def _checksum(source: BinaryIO, size: int, length: int) -> str:
    source.seek(size - length)
    return hashlib.sha256(source.read(length)).hexdigest()[:CHECKSUM_DIGITS]


@contextmanager
def _opened(store: LogStore, path: str, size_bytes: int | None) -> Iterator[BinaryIO]:
    try:
        with store.open(path, size_bytes) as source:
            yield source
    except NotFoundError as cause:
        raise MalformedLogError("a sidecar of the checkpoint was not found", path=path) from cause
    except LakelogError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError) as cause:
        raise MalformedLogError(
            f"a sidecar cannot be read: {str(cause).splitlines()[0][:200]}",
            path=path,
            expected="whole Parquet",
        ) from cause


def count_values(
    groups: Iterable[Mapping[str, pq.ColumnChunkMetaData]], path: str
) -> tuple[int | None, int | None]:
    """Number of values and maximum of a column by the footer; 0 values without the column."""
    values = 0
    greatest: int | None = None
    bounded = True
    for columns in groups:
        if path not in columns:
            continue
        statistics = columns[path].statistics
        if statistics is None or not statistics.has_null_count:
            return None, None
        present = columns[path].num_values - statistics.null_count
        values += present
        if not present or not path.endswith("Timestamp"):
            continue
        if not statistics.has_min_max:
            bounded = False
            continue
        greatest = max(statistics.max, statistics.max if greatest is None else greatest)
    return values, greatest if bounded else None


FINGERPRINT_TAG = "lakelog.fingerprint"
"""Key of a fingerprint among the tags of a sidecar action."""

TOTAL_TAG = "lakelog.digest"
"""Key, among the tags of the checkpointMetadata action, for the digest of all file actions."""

FORMAT = 1
"""Version of the record, including the encoding of `encode_paths` and the digested columns."""


@dataclass(frozen=True)
class Fingerprint:
    """The manifest's record of a sidecar; `filters` is empty if its path filters are unusable."""

    adds: int
    removes: int
    digest: Digest
    shape: str
    filters: str = ""
    footer: FooterRecord | None = None

    def to_tags(self) -> dict[str, str]:
        """The tags of the sidecar action."""
        body = {"format": FORMAT, **vars(self), "digest": self.digest.to_text()}
        if self.footer is None:
            del body["footer"]
        return {FINGERPRINT_TAG: orjson.dumps(body).decode()}

    @staticmethod
    def of_tags(tags: Mapping[str, str | None] | None) -> Fingerprint | None:
        """The fingerprint in a sidecar's tags; None without one that this version can compare."""
        text = (tags or {}).get(FINGERPRINT_TAG)
        try:
            body = orjson.loads(text or "")
            if body.pop("format") != FORMAT:
                return None
            body["digest"] = Digest.of_text(body["digest"])
            if "footer" in body:
                body["footer"] = FooterRecord.of(body["footer"])
            found = Fingerprint(**body)
        except (ValueError, TypeError, AttributeError, KeyError):  # includes InvalidInputError
            return None
        counted = tuple(found.digest.counts.get(kind, 0) for kind in FILE_ACTIONS)
        types = [type(value) for value in (found.adds, found.removes, found.shape, found.filters)]
        is_valid = types == [int, int, str, str] and (found.adds, found.removes) == counted
        return found if is_valid else None


def shape_of(plan: CheckpointPlan, columns: Sequence[pa.Field]) -> str:
    """Short text of a sidecar schema; all sidecars of a checkpoint have one schema."""
    decisive: list[object] = [spark_schema(pa.schema(columns))]
    if plan.stats_as_struct:
        decisive += [contract.to_json(plan.schema), list(plan.partition_columns), plan.mapping]
    text = json.dumps(decisive, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class SidecarRecord:
    """Computes the fingerprint of one sidecar while it is written."""

    def __init__(self, shape: str, digest_of: Callable[[pl.DataFrame], Digest]) -> None:
        self._digest_of = digest_of
        self._shape = shape
        self._findable = True
        self.digest = Digest()

    def add(self, files: pl.DataFrame) -> None:
        """Count file actions of one kind that are written to the sidecar; paths decoded."""
        self.digest += self._digest_of(files)
        self._findable &= PATH_TEXT not in files.columns or not files[PATH_TEXT].drop_nulls().len()

    def tags(self, store: LogStore, file: SidecarFile) -> dict[str, str]:
        """The tags of the sidecar's action; empty if its filters would not find a path's text."""
        if not self._findable:
            return {}
        return take_fingerprint(store, file, self.digest, self._shape).to_tags()


def total_tags(sidecars: Iterable[Mapping[str, str | None]]) -> dict[str, str]:
    """The tags for the checkpointMetadata action: the totals of all sidecars of a manifest."""
    total = Digest()
    for tags in sidecars:
        fingerprint = Fingerprint.of_tags(tags)
        if fingerprint is None:
            return {}
        total += fingerprint.digest
    return {TOTAL_TAG: total.to_text()}


def total_of_tags(tags: Mapping[str, str | None] | None) -> Digest | None:
    """The digest in a checkpointMetadata's tags; None if it cannot be compared."""
    try:
        return Digest.of_text((tags or {}).get(TOTAL_TAG) or "")
    except InvalidInputError:
        return None


def take_fingerprint(
    store: LogStore, file: SidecarFile, written: Digest, shape: str
) -> Fingerprint:
    """The fingerprint of a sidecar that was just written, for its manifest to record."""
    found = inspect_sidecar(store, file.path, file.size_bytes)
    checksum = found.filter.checksum if found.filter is not None else ""
    adds, removes = (written.counts.get(kind, 0) for kind in FILE_ACTIONS)
    fingerprint = Fingerprint(adds, removes, written, shape, checksum, found.footer)
    check_inspection(found, file, fingerprint)
    return fingerprint


def require_listed(file: SidecarFile, size_bytes: int | None) -> None:
    """Check the length of a sidecar by a listing; None if the listing lacks it."""
    if size_bytes is None:
        raise MalformedLogError("a sidecar of the checkpoint was not found", path=file.path)
    _require_same(file, [("bytes", file.size_bytes, size_bytes)])


def check_inspection(found: Inspection, file: SidecarFile, recorded: Fingerprint) -> None:
    """Check that a sidecar is the one that its manifest describes."""
    pairs: list[tuple[str, object, object]] = [
        ("bytes", file.size_bytes, found.size_bytes),
        ("rows", recorded.adds + recorded.removes, found.rows),
        ("adds", recorded.adds, found.adds),
        ("removes", recorded.removes, found.removes),
    ]
    if recorded.filters and CAN_READ:
        checksum = found.filter.checksum if found.filter is not None else None
        pairs.append(("path filters of checksum", recorded.filters, checksum))
    _require_same(file, pairs)


def _require_same(file: SidecarFile, pairs: Iterable[tuple[str, object, object]]) -> None:
    for what, expected, actual in pairs:
        if expected != actual:
            raise MalformedLogError(
                f"a sidecar differs from its manifest: {what}",
                path=file.path,
                expected=expected,
                found=actual,
                hint="restore the file, or remove the checkpoint's files if its commits exist",
            )
