"""Numbers that are kept as JSON text, exactly as they are in the text.

orjson makes doubles of fractions and of integers beyond 64 bits, which may lose digits. Only a
value that contains a double is parsed again, more slowly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson

_LONG = 1 << 63
_LONG_DIGITS = 20  # of the longest 64-bit integer, with its sign


def has_double(value: Any) -> bool:
    """Whether a parsed value contains a double, which may have lost digits of its JSON text."""
    if isinstance(value, dict):
        return any(map(has_double, value.values()))
    return any(map(has_double, value)) if isinstance(value, list) else isinstance(value, float)


def exact_object(text: bytes | str) -> Any:
    """A valid JSON object whose numbers `orjson.dumps` writes as they are in the text."""
    return json.loads(text, parse_float=orjson.Fragment, parse_int=_integer)


def _integer(text: str) -> Any:
    value = int(text) if len(text) <= _LONG_DIGITS else _LONG  # Python refuses very long ones
    return value if -_LONG <= value < _LONG else orjson.Fragment(text)


def json_text(value: Any, exact: Callable[[], Any]) -> str:
    """Compact JSON text of a parsed value; `exact` parses it again with `exact_object`."""
    return orjson.dumps(exact() if has_double(value) else value).decode()
