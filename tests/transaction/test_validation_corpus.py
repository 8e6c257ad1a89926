"""Commits that other engines wrote, checked by the rules for lakelog's commits.

A rule that rejects ordinary commits of Delta on Spark would be wrong. Each exception has a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import LakelogError, UnsupportedError
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction.validation import check_files, check_metadata
from lakelog.transaction.write_support import check_writable
from tests.budget import IS_WHOLE, seed_of
from tests.conftest import find_corpus, missing_corpus_reason

EXPECTED_ERRORS = {
    "invalid_metadata": {  # made by hand, without a schema
        "connectors-golden__delete-re-add-same-file-different-transactions",
        "connectors-golden__deltalog-getChanges",
        "delta-golden__canonicalized-paths-normal-a",
        "delta-golden__canonicalized-paths-normal-b",
        "delta-golden__corrupted-last-checkpoint",
        "delta-golden__deltalog-state-reconstruction-from-checkpoint-missing-protocol",
    },
    "partition_mismatch": {  # made by hand: partition values of a table without partitions
        "connectors-golden__deltalog-getChanges",
        "delta-golden__deltalog-getChanges",
    },
    "invalid_path": {  # absolute paths, which lakelog does not add
        "delta-golden__canonicalized-paths-normal-a",
        "delta-golden__canonicalized-paths-normal-b",
        "kernel-rs-golden__canonicalized-paths-normal-b",
    },
    "invalid_property": {  # a template whose placeholders were never filled
        f"trino__deltalake-write_stats_as_json_partition_column_mapping_{mode}"
        for mode in ("id", "name", "none")
    },
    "invalid_transaction": {"trino__databricks73-pruning-no_stats"},  # stats are "null"
    # A generated column that the protocol does not support, left there by an old writer.
    "invalid_protocol": {"delta-spark__dbr_8_0_non_generated_columns"},
    "schema_evolution": {
        "delta-spark__delta-0.1.0",  # the schema is overwritten, with all files
        "trino__deltalake-type_widening_unsupported",  # widened to a type called "unsupported"
    },
}
"""Kind of the error to the tables that have it, with the reason."""


def violations(table: Path) -> Iterator[tuple[int, str]]:
    """Versions that violate the rules, with the kind of the error."""
    actions = lakelog.open(str(table)).actions().collect()
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    for version in actions["version"].unique().sort():
        rows = actions.filter(pl.col("version") == version)
        old_protocol, old_metadata = protocol, metadata
        for row in rows.filter(pl.col("actionType") == "protocol").to_dicts():
            protocol = Protocol.from_row(row)
        for row in rows.filter(pl.col("actionType") == "metaData").to_dicts():
            metadata = Metadata.from_row(row)
        if protocol is None or metadata is None:
            continue
        files = rows.filter(pl.col("actionType").is_in(["add", "remove", "cdc"]))
        configured = TableConfiguration(DELTA, protocol, metadata)
        rules = [partial(check_files, files, configured)]
        if protocol != old_protocol:
            rules.append(partial(DELTA.protocol_rules.check_change, old_protocol, protocol))
        if metadata != old_metadata:
            rules.append(partial(check_metadata, configured, old_metadata))
        for rule in rules:
            try:
                check_writable(configured, table.name)
                rule()
            except UnsupportedError:
                continue  # names a feature that the table has or enables
            except LakelogError as error:
                yield version, error.kind


@pytest.mark.corpus
@pytest.mark.filterwarnings("ignore::lakelog.errors.LakelogWarning")
def test_commits_of_other_engines_are_valid() -> None:
    root = find_corpus()
    if root is None:
        pytest.skip(missing_corpus_reason())
    found: dict[str, set[str]] = {}
    tables = 0
    folders = [t for t in sorted((root / "delta").iterdir()) if t.is_dir() and t.name[0] != "_"]
    if not IS_WHOLE:
        folders = [table for table in folders if seed_of(table.name) % 3 == 0]
    for table in folders:
        try:
            for _, kind in violations(table):
                found.setdefault(kind, set()).add(table.name)
        except LakelogError:
            continue  # damaged on purpose
        tables += 1
    names = {table.name for table in folders}
    expected = {kind: tables & names for kind, tables in EXPECTED_ERRORS.items()}
    assert found == {kind: tables for kind, tables in expected.items() if tables}
    assert tables > (200 if IS_WHOLE else 40)
