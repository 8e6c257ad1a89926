"""Every real table of the corpus, at every version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakelog.dialects.indextables import DIALECT, doc_mapping_hash
from lakelog.dialects.indextables.avro_state import StateManifest
from lakelog.storage import LogStore, open_store
from tests.conftest import find_corpus, missing_corpus_reason
from tests.dialects.indextables.writing import read_files

pytestmark = pytest.mark.corpus

_LATE_STATES = {"13_after_purge", "15_drop_then_purge", "17_truncated_log"}


def _tables() -> list[str]:
    root = find_corpus()
    return sorted(p.name for p in (root / "indextables").iterdir()) if root else []


_NO_CORPUS = pytest.param("", marks=pytest.mark.skip(missing_corpus_reason()))
_PARAMS: list[Any] = [*_tables()] or [_NO_CORPUS]


@pytest.fixture(params=_PARAMS)
def table(request: pytest.FixtureRequest, corpus: Path) -> tuple[LogStore, Any, str]:
    root = corpus / "indextables" / request.param
    return open_store(str(root)), json.loads((root / "manifest.json").read_text()), request.param


def test_listing_finds_every_version_with_and_without_the_hint(
    table: tuple[LogStore, Any, str],
) -> None:
    store, manifest, name = table
    for hint in (True, False):
        listing = DIALECT.list_log(store, hint=hint)
        versions = {commit.version for commit in listing.commits}
        versions |= {checkpoint.version for checkpoint in listing.checkpoints}
        assert max(versions) == manifest["expected"]["latestVersion"]
    assert versions == set(range(manifest["expected"]["latestVersion"] + 1))
    assert [c.version for c in listing.commits] == [0]
    assert bool(listing.notes) == (name in _LATE_STATES)


def test_version_0_is_read_from_its_commit_and_never_from_a_late_state(
    table: tuple[LogStore, Any, str],
) -> None:
    store, manifest, _ = table
    listing = DIALECT.list_log(store, hint=False)
    assert all(checkpoint.version > 0 for checkpoint in listing.checkpoints)
    first = DIALECT.decode(store, listing.commits)
    assert first.files.is_empty()
    assert first.meta["actionType"].to_list() == ["protocol", "metaData"]
    assert first.meta["metadataId"].to_list() == [None, manifest["expected"]["tableId"]]


def test_registry_keys_are_the_hashes_of_their_mappings(table: tuple[LogStore, Any, str]) -> None:
    store, manifest, _ = table
    for checkpoint in DIALECT.list_log(store, hint=False).checkpoints:
        (path,) = checkpoint.paths
        state = StateManifest.parse(store.read(path), path, checkpoint.version)
        expected = manifest["states"][f"state-v{checkpoint.version:020d}"]
        assert sorted(state.registry) == sorted(expected["schemaRegistryKeys"])
        for key, text in state.registry.items():
            assert doc_mapping_hash(text) == key


def test_every_file_gets_its_document_mapping(table: tuple[LogStore, Any, str]) -> None:
    store, _, _ = table
    for checkpoint in DIALECT.list_log(store, hint=False).checkpoints:
        reader = DIALECT.open_checkpoint(store, checkpoint)
        files = read_files(reader, ["path", "docMappingJson", "docMappingRef"])
        for text, ref in files.select("docMappingJson", "docMappingRef").unique().iter_rows():
            assert doc_mapping_hash(text) == ref


def test_files_read_are_the_state_its_manifests_and_commit_0(
    table: tuple[LogStore, Any, str],
) -> None:
    store, manifest, _ = table
    for checkpoint in DIALECT.list_log(store, hint=False).checkpoints:
        expected = manifest["states"][f"state-v{checkpoint.version:020d}"]
        assert DIALECT.open_checkpoint(store, checkpoint).files_read() == (
            *checkpoint.paths,
            *(f"_transaction_log/{path}" for path in expected["manifests"]),
            f"_transaction_log/{0:020d}.json",
        )
