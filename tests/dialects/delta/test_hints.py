"""The canonical form for a pointer's checksum."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta.last_checkpoint import canonical
from tests.budget import share_of


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=share_of(200), deadline=None)
def test_texts_are_quoted_as_uris_are(key: str, value: str) -> None:
    spelled = [quote(text, safe="-._~") for text in (key, value)]
    assert canonical({key: value}) == f'"{spelled[0]}"="{spelled[1]}"'
