"""Only the errors that `lakelog.errors` documents escape from public functions, whatever arguments
they get.

``LAKELOG_SEED`` repeats a run; ``LAKELOG_EXAMPLES`` is the number of values of each parameter.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.errors import ArgumentTypeError, InvalidInputError, VersionNotFoundError
from tests import odd_calls

SEED = int(os.environ.get("LAKELOG_SEED") or random.SystemRandom().randrange(1 << 32))
VALUES = int(os.environ.get("LAKELOG_EXAMPLES", "2"))


def test_only_documented_errors_escape_from_public_functions(tmp_path: Path) -> None:
    print(f"LAKELOG_SEED={SEED} LAKELOG_EXAMPLES={VALUES}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.odd_calls", str(SEED), str(VALUES), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    made = (tmp_path / "calls").read_text("ascii").splitlines()
    escaped = [json.loads(line) for line in (tmp_path / "escaped").read_text("ascii").splitlines()]
    assert not escaped, "\n".join(" | ".join(each) for each in escaped)
    assert done.returncode == 0, f"ended in {made[-1:]}: {done.stderr[-2000:]}"
    usable = {line.removesuffix(": usable") for line in made if line.endswith(": usable")}
    assert usable == {
        f"{scope}.{name}" for scope in odd_calls.SCOPES for name in odd_calls.functions_of(scope)
    }


def test_every_public_class_and_parameter_is_covered() -> None:
    assert odd_calls.unlisted() == []


def test_type_error_has_the_argument_the_expected_type_and_the_value(
    tmp_path: Path,
) -> None:
    table = lakelog.create(tmp_path / "table", {"n": pl.Int64})
    with pytest.raises(ArgumentTypeError, match="version must be an int or None, got '5'"):
        table.snapshot("5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="version must be an int or None, got True"):
        table.verify(True)
    with pytest.raises(InvalidInputError, match="version must be an int >= 0, got -1"):
        table.snapshot().update(-1)
    with pytest.raises(TypeError, match="features must be a sequence of str, got 'n'"):
        table.alter.upgrade("n")
    with pytest.raises(TypeError, match=r"consumers must be a mapping \(str to int\)"):
        table.simulate_retention(consumers={"reader": "x"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"storage_options must be .* got a value of type str"):
        lakelog.open(tmp_path / "table", "secret")  # type: ignore[arg-type]


def test_numbers_and_arrays_of_other_libraries_are_accepted(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy")
    table = lakelog.create(tmp_path, {"n": pl.Int64, "p": pl.String}, np.array(["p"]))
    assert table.snapshot(np.int64(0)).metadata.partition_columns == ("p",)
    assert table.snapshot(max_staleness=np.float32(1)).version == 0
    assert table.history(np.int32(1)).height == 1
    assert table.vacuum(keep_versions={0}).files.height == 0


def test_long_range_of_versions_needs_no_memory(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64})
    with pytest.raises(VersionNotFoundError) as caught:
        table.compact_log(0, 1 << 62)
    assert caught.value.version == 1


def test_size_limit_must_be_a_positive_int(tmp_path: Path) -> None:
    for given in (float("nan"), 1.5, 0, True, "1"):
        with pytest.raises(InvalidInputError, match="memtable_bytes must be an int >= 1, got"):
            lakelog.KeyedStore(tmp_path / "keyed", memtable_bytes=given)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="segment_bytes must be an int >= 1, got"):
            lakelog.WriteAheadLog(tmp_path / "wal", segment_bytes=given)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
