"""The format page lists the names that the code writes and reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.delta.properties import DELTA_PROPERTIES
from lakelog.dialects.delta.sidecar_fingerprints import FINGERPRINT_TAG, TOTAL_TAG
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.indextables.flattened_writer import FOOTER_KEY
from lakelog.dialects.properties import (
    CHECKPOINT_FAMILIES,
    INDEXTABLES_PROPERTIES,
    LAKELOG_PROPERTIES,
)

PAGE = (Path(__file__).parents[2] / "schemas/checkpoint.md").read_text("utf-8")
KEYS = [
    key
    for key in (*DELTA_PROPERTIES, *INDEXTABLES_PROPERTIES, *LAKELOG_PROPERTIES)
    if key.lower().startswith(CHECKPOINT_FAMILIES)
]


@pytest.mark.parametrize("layout", [*DELTA.layouts, *INDEXTABLES.layouts])
def test_every_layout_that_is_written_is_described(layout: str) -> None:
    assert f"| `{layout}` |" in PAGE


@pytest.mark.parametrize("key", KEYS)
def test_every_property_of_checkpoints_is_in_the_table(key: str) -> None:
    shortened = key.replace("spark.indextables.checkpoint.", "….")
    assert f"`{key}`" in PAGE or f"`{shortened}`" in PAGE


@pytest.mark.parametrize("key", [FINGERPRINT_TAG, TOTAL_TAG, FOOTER_KEY])
def test_every_key_that_lakelog_adds_to_a_file_is_described(key: str) -> None:
    assert f"`{key}`" in PAGE
