"""The strategy to transfer a state to Spark is chosen from sizes alone."""

from __future__ import annotations

import pytest

from lakelog.errors import InvalidInputError
from lakelog.spark.strategy import (
    BROADCAST,
    FEW_ROWS,
    HASH,
    MOST_ROWS_OF_DRIVER,
    MOST_TAIL_BYTES,
    PARTITION_ROWS,
    POLARS,
    STRATEGIES,
    Sizes,
    choose,
)

LARGE = Sizes(base_rows=5_000_000, tail_bytes=3_000_000, layout="classic")


@pytest.mark.parametrize(
    ("sizes", "strategy"),
    [
        (Sizes(), POLARS),
        (Sizes(base_rows=FEW_ROWS, layout="classic"), POLARS),
        (Sizes(base_rows=FEW_ROWS + 1, layout="classic"), BROADCAST),
        (LARGE, BROADCAST),
        (Sizes(base_rows=FEW_ROWS + 1, layout="json", obstacle="no Parquet"), POLARS),
        (Sizes(base_rows=MOST_ROWS_OF_DRIVER + 1, layout="json", obstacle="no Parquet"), HASH),
        (Sizes(base_rows=10, tail_bytes=MOST_TAIL_BYTES + 1, layout="classic"), HASH),
        (Sizes(tail_bytes=100_000_000), POLARS),
        (Sizes(tail_bytes=1_000_000_000), HASH),
    ],
)
def test_strategy_depends_on_sizes(sizes: Sizes, strategy: str) -> None:
    choice = choose(sizes)
    assert choice.strategy == strategy
    assert str(choice).startswith(f"{strategy}: ")
    assert len(choice.reason) > 10


def test_reason_has_the_sizes_and_the_obstacle() -> None:
    assert "5,000,000 rows in a checkpoint (classic), some 10,000 above it" in choose(LARGE).reason
    blocked = Sizes(base_rows=2_000_000, layout="json", obstacle="Spark reads no JSON as we do")
    assert "Spark reads no JSON as we do" in choose(blocked).reason


@pytest.mark.parametrize("asked", STRATEGIES)
def test_requested_strategy_is_used(asked: str) -> None:
    assert choose(LARGE, asked).strategy == asked


def test_partitions_grow_with_the_rows() -> None:
    few = choose(Sizes(base_rows=10, layout="classic"), HASH)
    many = choose(Sizes(base_rows=100_000_000, layout="classic"), HASH)
    assert few.partitions == 2
    assert many.partitions == 100_000_000 // PARTITION_ROWS
    assert choose(LARGE).partitions == 0


@pytest.mark.parametrize(
    "sizes", [Sizes(tail_bytes=10), Sizes(base_rows=1, layout="json", obstacle="no Parquet")]
)
def test_unusable_strategy_is_refused(sizes: Sizes) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the checkpoint itself"):
        choose(sizes, BROADCAST)
    with pytest.raises(InvalidInputError, match="unknown replay strategy"):
        choose(sizes, "magic")
