"""Fixtures of the tests of damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wal.damage import whole_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An undamaged log."""
    return whole_log(tmp_path)
