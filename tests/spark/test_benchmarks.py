"""The benchmarks of rows on Spark at a small scale, in the session of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perf.spark import sessions
from perf.spark.states import STATE_CASES
from perf.spark.workloads import SPARK_WORKLOADS
from perf.writing import worker

pytestmark = pytest.mark.reference

SCALE = 0.0005


@pytest.fixture(scope="module", autouse=True)
def _small(delta: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKELOG_BENCH_DIR", str(tmp_path_factory.mktemp("bench")))
        patch.setattr(sessions, "start", lambda _: delta)
        yield


ROWS = [workload for workload in SPARK_WORKLOADS if workload.name not in STATE_CASES]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workload", ROWS, ids=lambda w: w.name)
def test_every_contender_returns_the_right_answer(workload: Any) -> None:
    for contender in workload.contenders:
        figures = worker.measure(contender, workload.name, SCALE)
        assert {c.figure for c in workload.comparisons} <= set(figures)
