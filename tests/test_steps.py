"""The tool that detects loops over rows detects one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakelog import InvalidInputError
from tests.steps import assert_columnar, steps


def errors(count: int) -> Callable[[], list[InvalidInputError]]:
    return lambda: [InvalidInputError("a row") for _ in range(count)]


def test_only_steps_in_lakelog_are_counted() -> None:
    assert steps(lambda: sum(range(10))) == 0
    assert steps(errors(20)) == 2 * steps(errors(10)) > 0


def test_steps_in_another_folder_named_lakelog_are_not_counted() -> None:
    code = compile("lambda: sum(range(10))", "/src/lakelog/tests/any.py", "eval")
    assert steps(eval(code)) == 0


def test_a_loop_over_rows_is_found() -> None:
    with pytest.raises(AssertionError):
        assert_columnar(errors)
