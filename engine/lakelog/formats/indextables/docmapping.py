"""Document mappings: their hash, and the references by which files share them.

A file names its mapping by a hash (``docMappingRef``); the texts stand once, in
``metaData.configuration["docMappingSchema.<hash>"]`` or in the schema registry of an Avro state
(under the bare hash, or with the same prefix). A registry is addressed by content, so it does not
matter which commit brought an entry.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import orjson
import polars as pl

REGISTRY_PREFIX = "docMappingSchema."
"""Prefix of a registry entry among the table's properties."""

_HASH_CHARACTERS = 16
_REF = "docMappingRef"
_TEXT = "docMappingJson"


def doc_mapping_hash(text: str) -> str:
    """The registry key of a document mapping.

    Keys are sorted at every depth, arrays whose elements are all objects with a ``name`` are
    sorted by it, and the compact JSON is hashed: SHA-256, URL-safe base64, the first 16
    characters (96 bits). Text that is not JSON is hashed as it is, as the writers do.

    >>> doc_mapping_hash('[{"name": "b"}, {"name": "a"}]') == doc_mapping_hash(
    ...     '[{"name":"a"},{"name":"b"}]'
    ... )
    True
    """
    try:
        canonical = orjson.dumps(_canonical(orjson.loads(text)))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        canonical = text.encode()
    digest = hashlib.sha256(canonical).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")[:_HASH_CHARACTERS]


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        items = [_canonical(item) for item in value]
        if items and all(isinstance(item, dict) and "name" in item for item in items):
            items.sort(key=lambda item: str(item["name"]))
        return items
    return value


def registry_of(properties: Mapping[str, str | None]) -> dict[str, str]:
    """Hash to mapping text, from an Avro schema registry (bare hashes, or with the prefix)."""
    return {
        key.removeprefix(REGISTRY_PREFIX): text
        for key, text in properties.items()
        if text is not None
    }


def registry_of_meta(meta: pl.DataFrame) -> dict[str, str]:
    """Hash to mapping text, from the ``configuration`` of every metaData row of `meta`."""
    registry: dict[str, str] = {}
    if "configuration" not in meta.columns:
        return registry
    for properties in meta["configuration"].drop_nulls().to_list():
        registry |= registry_of(
            {key: text for key, text in properties.items() if key.startswith(REGISTRY_PREFIX)}
        )
    return registry


def resolve_references(files: pl.DataFrame, registry: Mapping[str, str]) -> pl.DataFrame:
    """Fill ``docMappingJson`` of the rows that have only a ``docMappingRef``.

    A reference that the registry lacks stays, and its text stays null: the mapping only matters
    to who reads the rows.

    Args:
        files: File rows; without a ``docMappingRef`` column they come back as they are.
        registry: Hash to mapping text.
    """
    if _REF not in files.columns or not registry:
        return files
    resolved = pl.col(_REF).replace_strict(
        list(registry), list(registry.values()), default=None, return_dtype=pl.String
    )
    if _TEXT in files.columns:
        resolved = pl.coalesce(pl.col(_TEXT), resolved)
    return files.with_columns(resolved.alias(_TEXT))


def without_registered(files: pl.DataFrame, registry: Mapping[str, str]) -> pl.DataFrame:
    """Take ``docMappingJson`` out of the rows whose ``docMappingRef`` gives it back: what
    `resolve_references` undoes.

    Args:
        files: File rows.
        registry: Hash to mapping text.
    """
    if _REF not in files.columns or _TEXT not in files.columns or not registry:
        return files
    known = pl.col(_REF).replace_strict(
        list(registry), list(registry.values()), default=None, return_dtype=pl.String
    )
    return files.with_columns(
        pl.when(known == pl.col(_TEXT)).then(None).otherwise(_TEXT).alias(_TEXT)
    )
