"""A log that a test writes by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.handmade import Handmade


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    return Handmade(tmp_path / "t")
