"""Small versions of the benchmarks: each test session creates and deletes their tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _small_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKELOG_BENCH_DIR", str(tmp_path_factory.mktemp("bench")))
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield
