"""The effect of each property equals its description in `schemas/properties.md`."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog import LakelogWarning
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.dialects.indextables.framing import checkpoint_level, commit_level
from lakelog.dialects.properties import INDEXTABLES_PROPERTIES
from lakelog.dialects.registry import named
from lakelog.errors import InvalidPropertyError
from lakelog.log.properties import read_limits
from lakelog.transaction.action_buffer import cooldown_ms
from lakelog.transaction.commit_loop import Retry

PAGE = Path(__file__).parents[2] / "schemas" / "properties.md"
PREFIX = "spark.indextables."
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| (\w+) \| (\w+) \|", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text("utf-8"))
CASES = [
    pytest.param(PREFIX + key, value, format, effect, id=f"{format}-{key}")
    for key, value, on_delta, on_indextables in ROWS
    for format, effect in (("delta", on_delta), ("indextables", on_indextables))
]
SPECIFIED = """
checkpoint.enabled checkpoint.interval checkpoint.parallelism checkpoint.read.timeoutSeconds
checkpointRetention.duration cleanup.enabled cleanup.failurePolicy logRetention.duration
transaction.useOptimized checkpoint.compression checkpoint.maxFileSize checkpoint.retention
""".split()
GZIP = {PREFIX + "transaction.compression.enabled": "true"}
DEFAULTS = {
    # A codec and a level count only where compression is on, a level where it differs.
    PREFIX + "transaction.compression.codec": GZIP,
    PREFIX + "transaction.compression.gzip.level": GZIP,
}


def effects(configuration: dict[str, str], format: str) -> tuple[object, ...]:
    """Everything that lakelog derives from the properties of this family."""
    return (
        CheckpointOptions.of(configuration, named(format)),
        read_limits(configuration),
        Retry.of(configuration),
        *(
            (
                commit_level(configuration),
                checkpoint_level(configuration),
                cooldown_ms(configuration),
            )
            if format == "indextables"
            else ()
        ),
    )


@pytest.mark.parametrize(("key", "value", "format", "effect"), CASES)
def test_property_has_the_effect_that_the_page_states(
    key: str, value: str, format: str, effect: str
) -> None:
    configuration = {key: value}

    def create() -> lakelog.Table:
        where = f"memory://{key}-{format}"
        schema = {"id": pl.Int64}
        return lakelog.create(
            where, schema, format=format, configuration=configuration, upkeep=False
        )

    if effect == "refused":
        with pytest.raises(InvalidPropertyError) as refused:
            create()
        assert refused.value.path == key
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LakelogWarning)
        table = create()
    assert table.snapshot().metadata.configuration[key] == value
    named = [w for w in caught if issubclass(w.category, LakelogWarning) and key in str(w.message)]
    assert len(named) == (effect == "warned")
    assert all("has no effect: " in str(w.message) for w in named)
    others = DEFAULTS.get(key, {})
    changes = effects({**others, key: value}, format) != effects(others, format)
    assert changes == (effect == "works" or key == PREFIX + "checkpoint.format")
    upper = {**others, PREFIX + key.removeprefix(PREFIX).upper(): value}
    assert effects(upper, format) == effects({**others, key: value}, format)


def test_page_lists_every_known_property_and_those_of_the_specifications() -> None:
    listed = {PREFIX + key for key, _, *effects in ROWS if "refused" not in effects}
    assert listed == set(INDEXTABLES_PROPERTIES)
    assert listed >= {PREFIX + key for key in SPECIFIED}


def test_value_equal_to_the_behaviour_of_lakelog_gives_no_warning(tmp_path: Path) -> None:
    same = ("transaction.useOptimized", "protocol.checkEnabled", "skippedFiles.trackingEnabled")
    table = lakelog.create(
        tmp_path / "t", {"id": pl.Int64}, configuration={PREFIX + key: "TRUE" for key in same}
    )
    assert table.snapshot().version == 0


def test_unchanged_property_gives_no_second_warning(tmp_path: Path) -> None:
    key = PREFIX + "transaction.maxRetries"
    with pytest.warns(LakelogWarning, match=re.escape(key)):
        table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, configuration={key: "4"})
    with table.transaction() as tx:
        tx.set_metadata(configuration={key: "4", "owner": "us"})
    assert table.snapshot().metadata.configuration["owner"] == "us"
