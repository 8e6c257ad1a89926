"""What the tests of damage begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wal.damage import whole_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A whole log."""
    return whole_log(tmp_path)
