"""The canonical form for a pointer's checksum."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta.last_checkpoint import canonical
from tests.budget import share_of


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=share_of(200), deadline=None)
def test_texts_are_percent_encoded_like_uris(key: str, value: str) -> None:
    encoded = [quote(text, safe="-._~") for text in (key, value)]
    assert canonical({key: value}) == f'"{encoded[0]}"="{encoded[1]}"'
