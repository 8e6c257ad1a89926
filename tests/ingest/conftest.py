"""A table, and a directory for its Ingestor."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakelog
from tests.ingest.ingestors import SCHEMA


@pytest.fixture
def table(tmp_path: Path) -> lakelog.Table:
    return lakelog.create(tmp_path / "table", SCHEMA, upkeep=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ingest"
