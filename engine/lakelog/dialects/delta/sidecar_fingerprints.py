"""The V2 manifest's record of each sidecar: action counts, digest and path filter, so that a later
checkpoint can keep the sidecar without reading its rows.

The record is in the sidecar action's ``tags`` under ``lakelog.fingerprint``. Whether a path may
be in a sidecar is for the sidecar's own filters to say (`lakelog.dialects.delta.path_filters`); the
record has a checksum of their bytes, which Parquet keeps none of. As they depend on every path, it
also binds the record to the file's content.

A sidecar without a fingerprint, or one of another format version, was written by another process,
and nothing is known of it.

Source: Delta protocol, Sidecar File Information; Checkpoint Metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson
import polars as pl
import pyarrow as pa

from lakelog.dialects.delta.checkpoint_schema import spark_schema
from lakelog.dialects.delta.path_filters import CAN_READ
from lakelog.dialects.delta.sidecar_inspection import FooterRecord, Inspection, inspect_sidecar
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import CheckpointPlan, SidecarFile
from lakelog.errors import InvalidInputError, MalformedLogError
from lakelog.model import contract
from lakelog.model.actions import FILE_ACTIONS, PATH_TEXT
from lakelog.storage import LogStore

FINGERPRINT_TAG = "lakelog.fingerprint"
"""Key of a fingerprint among the tags of a sidecar action."""

TOTAL_TAG = "lakelog.digest"
"""Key, among the tags of the checkpointMetadata action, of the digest of all file actions."""

FORMAT = 1
"""Version of the record, of `encode_paths`' spelling, and of what a digest is taken over."""


@dataclass(frozen=True)
class Fingerprint:
    """What the manifest records of one sidecar.

    Attributes:
        adds: Live files in it.
        removes: Tombstones in it.
        digest: Digest of its rows, over what counts in a checkpoint of that shape.
        shape: What it looks like; see `shape_of`.
        filters: Checksum of its path filters; empty where it has none, or none that could be
            read: then no reader relies on them.
        footer: How to know its footer again; None where it was not recorded.
    """

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
        """The fingerprint among the tags of a sidecar action; None where there is none that this
        version understands, or can compare.
        """
        text = (tags or {}).get(FINGERPRINT_TAG)
        try:
            body = orjson.loads(text or "")
            if body.pop("format") != FORMAT:
                return None
            body["digest"] = Digest.of_text(body["digest"])
            if "footer" in body:
                body["footer"] = FooterRecord.of(body["footer"])
            found = Fingerprint(**body)
        except (ValueError, TypeError, AttributeError, KeyError):  # InvalidInputError among them
            return None
        counted = tuple(found.digest.counts.get(kind, 0) for kind in FILE_ACTIONS)
        types = [type(value) for value in (found.adds, found.removes, found.shape, found.filters)]
        sound = types == [int, int, str, str] and (found.adds, found.removes) == counted
        return found if sound else None


def shape_of(plan: CheckpointPlan, columns: Sequence[pa.Field]) -> str:
    """What a plan's sidecars look like, as a short text.

    Sidecars of one checkpoint are read with one schema, so those of another shape are not kept: a
    column's type has changed, or other columns have statistics now. Nor are those whose typed
    statistics mean something else: a column has another name.
    """
    decisive: list[object] = [spark_schema(pa.schema(columns))]
    if plan.stats_as_struct:
        decisive += [contract.to_json(plan.schema), list(plan.partition_columns), plan.mapping]
    text = json.dumps(decisive, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class SidecarRecord:
    """Takes the fingerprint of one sidecar while it is written."""

    def __init__(self, shape: str, digest_of: Callable[[pl.DataFrame], Digest]) -> None:
        self._digest_of = digest_of
        self._shape = shape
        self._findable = True
        self.digest = Digest()

    def add(self, files: pl.DataFrame) -> None:
        """Count file actions of one kind that go into the sidecar; paths decoded."""
        self.digest += self._digest_of(files)
        self._findable &= PATH_TEXT not in files.columns or not files[PATH_TEXT].drop_nulls().len()

    def tags(self, store: LogStore, file: SidecarFile) -> dict[str, str]:
        """The tags for the sidecar's action, once it is written; errors as `take_fingerprint`.

        None where a path has another writer's text: the filters, which hold the texts, would not
        find it.
        """
        if not self._findable:
            return {}
        return take_fingerprint(store, file, self.digest, self._shape).to_tags()


def total_tags(sidecars: Iterable[Mapping[str, str | None]]) -> dict[str, str]:
    """The tags for the checkpointMetadata action: what all sidecars of a manifest hold together."""
    total = Digest()
    for tags in sidecars:
        fingerprint = Fingerprint.of_tags(tags)
        if fingerprint is None:
            return {}
        total += fingerprint.digest
    return {TOTAL_TAG: total.to_text()}


def total_of_tags(tags: Mapping[str, str | None] | None) -> Digest | None:
    """The digest among the tags of a checkpointMetadata action; None where there is none that
    this version can compare.
    """
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
    for what, expected, actual in pairs:
        if expected != actual:
            raise MalformedLogError(
                f"a sidecar differs from its manifest: {what}",
                path=file.path,
                expected=expected,
                found=actual,
                hint="restore the file, or remove the checkpoint's files if its commits exist",
            )
