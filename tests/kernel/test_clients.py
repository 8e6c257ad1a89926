"""`lakelog compat` describes the Java Delta Kernel correctly."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conformance.test_clients import RULES, assert_reported, succeeds, table_with
from tests.kernel.engine import Kernel


@pytest.mark.reference
def test_kernel_opens_exactly_the_tables_that_compat_lists(kernel: Kernel, tmp_path: Path) -> None:
    more = tmp_path / "more.parquet"
    pq.write_table(pa.table({"id": [3]}), more)
    for feature in sorted(RULES.features):
        path = table_with(feature, tmp_path / feature)
        reads = succeeds(lambda path=path: kernel.rows(path))  # type: ignore[misc]
        writes = succeeds(lambda path=path: kernel.append(path, more))  # type: ignore[misc]
        assert_reported("Java Delta Kernel", path, reads=reads, writes=writes)
