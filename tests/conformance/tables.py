"""The real logs of the corpus, and the facts in their manifests. Everything is queried through
lakelog's public API; the manifest's `definitions` define each fact.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tests.conftest import find_corpus, missing_corpus_reason

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""(table, fact) for which the manifest is wrong, with the protocol's clause."""


@cache
def delta_tables() -> dict[str, dict[str, Any]]:
    """Every Delta table of the manifest by name; empty without a corpus."""
    root = find_corpus()
    if root is None:
        return {}
    tables: dict[str, dict[str, Any]] = json.loads((root / "delta/manifest.json").read_text())[
        "tables"
    ]
    return tables


@cache
def indextables() -> dict[str, dict[str, Any]]:
    """Every IndexTables table by folder, with its own manifest; empty without a corpus."""
    root = find_corpus()
    if root is None:
        return {}
    return {
        path.parent.name: json.loads(path.read_text())
        for path in sorted((root / "indextables").glob("*/manifest.json"))
    }


def each(
    tables: dict[str, Any], when: Callable[[dict[str, Any]], Any] = bool
) -> pytest.MarkDecorator:
    """Parametrise a test by the names of the tables for which `when` is true."""
    names = [name for name, entry in tables.items() if when(entry)]
    if not tables:
        skip = pytest.mark.skip(reason=missing_corpus_reason())
        return pytest.mark.parametrize("name", [pytest.param("corpus", marks=skip)])
    return pytest.mark.parametrize("name", names)


def delta_path(name: str, unpacked: Path | None = None) -> Path:
    """Path of the table; a packed one is unpacked below `unpacked`, once."""
    root = find_corpus()
    assert root is not None
    entry = delta_tables()[name]
    path = root / "delta" / str(entry["dir"])
    if not entry.get("packed"):
        return path
    assert unpacked is not None, f"{name} is packed"
    target = unpacked / name
    if not target.exists():
        with (
            pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream,
            tarfile.open(fileobj=stream, mode="r|") as archive,
        ):
            archive.extractall(target, filter="data")
    (log,) = target.rglob("_delta_log")
    return log.parent


def sha256_of_lines(lines: Iterable[str]) -> str:
    """SHA-256 over the lines sorted by code point and joined by newlines."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def file_facts(files: pl.DataFrame) -> dict[str, Any]:
    """Facts that depend on live files: needs path, dvId and size."""
    keys = (
        f"{path}\t{'-' if dv is None else dv}\t{size}"
        for path, dv, size in files.select("path", "dvId", "size").iter_rows()
    )
    return {
        "num_files": files.height,
        "total_size": files["size"].sum(),
        "active_paths_sha256": sha256_of_lines(files["path"]),
        "active_keys_sha256": sha256_of_lines(keys),
    }


def snapshot_facts(snapshot: Any) -> dict[str, Any]:
    """Every fact of the manifest that a snapshot provides."""
    files = snapshot.files().select("path", "dvId", "size", "dvCardinality").collect()
    metadata, protocol = snapshot.metadata, snapshot.protocol
    lists = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    text = metadata.schema_string
    return {
        **file_facts(files),
        "latest_version": snapshot.version,
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            **{name: sorted(names) for name, names in lists.items() if names is not None},
        },
        "table_id": metadata.id,
        "partition_columns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "schema_string_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        "schema_fields": None if text is None else list(snapshot.schema.names),
        "num_dv_files": files["dvId"].count(),
        "deleted_rows": files["dvCardinality"].sum(),
        "tombstones": snapshot.tombstones().collect().height,
        "txn": dict(
            snapshot.transactions()
            .select("appId", "txnVersion")
            .collect()
            .sort("appId")
            .iter_rows()
        ),
        "domain_metadata": dict(
            snapshot.domains().select("domain", "domainConfiguration").collect().iter_rows()
        ),
    }


def expected_facts(name: str) -> dict[str, Any]:
    """The manifest's facts in the form of `snapshot_facts`."""
    facts = dict(delta_tables()[name]["facts"])
    protocol = dict(facts["protocol"])
    for features in ("readerFeatures", "writerFeatures"):
        if protocol.get(features) is not None:
            protocol[features] = sorted(protocol[features])
    facts["protocol"] = protocol
    return facts


def wrong_facts(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Facts that differ from the manifest, as {fact: (expected, found)}, without known
    exceptions.
    """
    expected = expected_facts(name)
    return {
        fact: (expected[fact], value)
        for fact, value in found.items()
        if fact in expected and expected[fact] != value and (name, fact) not in EXCEPTIONS
    }
