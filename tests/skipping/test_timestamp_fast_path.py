"""Timestamps in the usual format: the fast path returns the values of the general parser."""

from __future__ import annotations

import polars as pl
import pytest

from lakelog.model import contract
from lakelog.skipping import values
from tests.budget import rng_of, share_of

TIMESTAMP = contract.Primitive("timestamp")
USUAL = "2024-01-31T10:20:30.456Z"
ODD = [
    "2024-02-30T10:20:30.456Z",
    "2024-01-31 10:20:30.456Z",
    "2024-01-31T24:00:00.000Z",
    "2024-01-31T10:20:60.456Z",
    "0000-01-31T10:20:30.456Z",
    "0001-01-01T00:00:00.000Z",
    "9999-12-31T23:59:59.999Z",
    "1582-10-10T10:20:30.456Z",
    "2024-01-31T10:20:30.4+01",
    "2024-01-31T10:20:30+0130",
    "2024-01-31T10:20:30.4567",
    "2024-01-31t10:20:30.456Z",
    "2024-01-31T10:20:30.456z",
    "+2024-01-31T10:20:30.45Z",
    "-2024-01-31T10:20:30.45Z",
    "2024-01-31T10:20:30,456Z",
    "2024-01-31T10:20:30.456é",
]


def assert_fast_path_equals_parser(
    texts: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    column = pl.Series("t", texts, dtype=pl.String)
    fast = values.parse_text(column, TIMESTAMP)
    with monkeypatch.context() as patch:
        patch.setattr(values, "_usual_times", lambda _: None)
        general = values.parse_text(column, TIMESTAMP)
    assert (fast.name, fast.dtype) == (general.name, general.dtype)
    assert fast.cast(pl.Int64).to_list() == general.cast(pl.Int64).to_list(), texts


@pytest.mark.parametrize("text", ODD)
def test_unusual_text_is_read_like_the_general_parser_reads_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_fast_path_equals_parser([text], monkeypatch)
    assert_fast_path_equals_parser([USUAL, text, None], monkeypatch)


def test_column_of_usual_timestamps_uses_the_fast_path() -> None:
    assert values._usual_times(pl.Series([USUAL, None, USUAL])) is not None
    assert values._usual_times(pl.Series([None], dtype=pl.String)) is None


@pytest.mark.parametrize("seed", range(8))
def test_randomly_changed_text_is_read_like_the_general_parser_reads_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = rng_of(f"{seed}")
    for _ in range(share_of(100, 3)):
        text = list(USUAL)
        for _ in range(rng.randint(1, 3)):
            text[rng.randrange(len(text))] = rng.choice("0123456789-:TZ. +z")
        assert_fast_path_equals_parser(["".join(text)], monkeypatch)
