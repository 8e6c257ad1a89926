"""Document mappings: hashes, and the references by which files share them.

A file refers to its mapping by a hash (``docMappingRef``); the texts are stored once, in
``metaData.configuration["docMappingSchema.<hash>"]`` or in the schema registry of an Avro state
(under the bare hash, or with the same prefix). A registry is content-addressed, so the commit of an
entry is irrelevant.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import orjson
import polars as pl

from lakelog.model import actions

REGISTRY_PREFIX = "docMappingSchema."
"""Prefix of a registry entry among the table's properties: a document mapping by its hash."""

_HASH_CHARACTERS = 16
# Below the interpreter's limit, so that the result never depends on the depth of the caller.
_MAX_DEPTH = 200
_REF = "docMappingRef"
_TEXT = "docMappingJson"
_FOOTERS = "hasFooterOffsets"
_ORIGIN = r'"addedAt(?:Version|Timestamp)":-?\d+'


def doc_mapping_hash(text: str) -> str:
    """The registry key of a document mapping.

    Keys are sorted at every depth, arrays whose elements are all objects with a ``name`` are
    sorted by it, and the compact JSON is hashed: SHA-256, URL-safe base64, the first 16
    characters (96 bits). Text that is not JSON is hashed unchanged, as by the writers, and so is
    text that is nested more than 200 levels deep.

    >>> doc_mapping_hash('[{"name": "b"}, {"name": "a"}]') == doc_mapping_hash(
    ...     '[{"name":"a"},{"name":"b"}]'
    ... )
    True
    """
    try:
        canonical = orjson.dumps(_canonical(orjson.loads(text)))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        canonical = text.encode()
    digest = hashlib.sha256(canonical).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")[:_HASH_CHARACTERS]


def _canonical(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        return {key: _canonical(value[key], depth + 1) for key in sorted(value)}
    if isinstance(value, list):
        items = [_canonical(item, depth + 1) for item in value]
        if items and all(isinstance(item, dict) and "name" in item for item in items):
            items.sort(key=lambda item: str(item["name"]))
        return items
    return value


def normalised(text: str) -> str:
    """A canonical form of a document mapping; text that is not JSON is unchanged. Fields of the
    type ``object`` without ``field_mappings`` are omitted: IndexTables' readers drop them, and its
    checkpoints contain the mappings as read.

    >>> normalised('[{"type": "text", "name": "a"}, {"name": "o", "type": "object"}]')
    '[{"name":"a","type":"text"}]'
    """
    try:
        parsed = json.loads(text)
        if isinstance(parsed, list):
            parsed = [field for field in parsed if not _is_empty_object(field)]
        canonical = _canonical(parsed)
    except (ValueError, RecursionError):
        return text
    return json.dumps(canonical, separators=(",", ":"), ensure_ascii=False)


def _is_empty_object(field: Any) -> bool:
    if not isinstance(field, dict) or field.get("type") != "object":
        return False
    return bool(field.get("field_mappings", []) == [])


def same_files(files: pl.DataFrame) -> list[pl.Series]:
    """Columns of adds in a canonical form; a reference counts only if it has no mapping, and the
    version and time of the commit, which only Avro states repeat in each file, do not count.
    """
    made: list[pl.Series] = []
    if _TEXT in files.columns:
        texts = files[_TEXT]
        known = texts.unique().drop_nulls().to_list()
        spelled = [normalised(text) for text in known]
        made.append(texts.replace(known, spelled) if known else texts)
        if _REF in files.columns:
            made.append(files[_REF].set(texts.is_not_null(), None))
    made.append(actions.conform(files, (_FOOTERS,)).to_series().fill_null(value=False))
    if "extra" in files.columns:
        extra = files["extra"].str.replace_all(f"{_ORIGIN},|,?{_ORIGIN}", "")
        made.append(extra.set(extra == "{}", None))
    return made


def without_registry(meta: pl.DataFrame) -> pl.DataFrame:
    """Non-file actions, without the registry in the table's properties."""
    if "configuration" not in meta.columns:
        return meta
    properties = [
        None if each is None else {k: v for k, v in each.items() if not _is_entry(k)}
        for each in meta["configuration"].to_list()
    ]
    column = pl.Series("configuration", properties, dtype=meta.schema["configuration"])
    return meta.with_columns(column)


def _is_entry(key: str) -> bool:
    return key.startswith(REGISTRY_PREFIX)


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
        registry |= registry_of({k: text for k, text in properties.items() if _is_entry(k)})
    return registry


def lost_mapping(before: Mapping[str, str | None], after: Mapping[str, str | None]) -> str | None:
    """A registry entry of `before` whose mapping `after` lacks under any hash, or None."""
    kept = {normalised(text) for key, text in after.items() if _is_entry(key) and text is not None}
    lost = (
        key
        for key, text in before.items()
        if _is_entry(key) and key not in after and text is not None and normalised(text) not in kept
    )
    return next(lost, None)


def resolve_references(files: pl.DataFrame, registry: Mapping[str, str]) -> pl.DataFrame:
    """Fill ``docMappingJson``; null if unregistered, because only readers of rows need it."""
    if _REF not in files.columns or not registry:
        return files
    resolved = _registered(registry)
    if _TEXT in files.columns:
        resolved = pl.coalesce(pl.col(_TEXT), resolved)
    return files.with_columns(resolved.alias(_TEXT))


def without_registered(files: pl.DataFrame, registry: Mapping[str, str]) -> pl.DataFrame:
    """Remove ``docMappingJson`` where ``docMappingRef`` resolves to it."""
    if _REF not in files.columns or _TEXT not in files.columns or not registry:
        return files
    is_registered = _registered(registry) == pl.col(_TEXT)
    return files.with_columns(pl.when(is_registered).then(None).otherwise(_TEXT).alias(_TEXT))


def _registered(registry: Mapping[str, str]) -> pl.Expr:
    """The mapping that a row's reference resolves to."""
    return pl.col(_REF).replace_strict(
        list(registry), list(registry.values()), default=None, return_dtype=pl.String
    )
