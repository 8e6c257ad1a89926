"""Chunks contain every file once, in order; lines parsed together equal lines parsed one by one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects import commit_chunks
from lakelog.dialects.strict_decoder import Blob, Line, parse_object, parse_objects
from lakelog.errors import LakelogError
from lakelog.model.contract import MAX_DEPTH

KEYS = st.sampled_from(["commitInfo", "a", "b", "é", '"', "["])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(KEYS, inner, max_size=2)),
    max_leaves=4,
)


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


LINES = st.one_of(
    st.dictionaries(KEYS, VALUES, max_size=3).map(encoded),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [
            *(b"", b"{", b'{"a":1', b'"b":2}', b'{"a":1},{"b":2}', b"1", b"12", b" {}", b"{}\r"),
            *(b'{"a":1,"a":1}', b'{"a":{"b":1,"b":2}}', b'{"a":1.0e1}', b'{"a":"\\u0041"}'),
            b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}",
            b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
            b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH,
            b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        ]
    ),
)


@given(st.lists(LINES, min_size=1, max_size=4))
def test_lines_parsed_together_equal_lines_parsed_one_by_one(texts: list[bytes]) -> None:
    together = parse_objects(texts)
    if together is None:
        return
    assert together == [parse_object(Line(text, "p", 1, 0, 0)) for text in texts]


def test_usual_lines_are_parsed_together() -> None:
    usual = [encoded({"commitInfo": {"operation": "é", "n": n, "m": {"a": "b"}}}) for n in range(3)]
    assert parse_objects(usual) is not None
    assert parse_objects([]) == []


def test_lines_are_not_parsed_together_if_one_is_invalid() -> None:
    for text in (b'{"a":1,"a":1}', b'{"a":' * 201 + b"1" + b"}" * 201, b"[]", b"{"):
        try:
            parse_object(Line(text, "p", 1, 0, 0))
        except LakelogError:
            assert parse_objects([b"{}", text]) is None
        else:
            raise AssertionError(text)


def test_chunk_sizes_double_up_to_a_limit_and_keep_every_file_in_order() -> None:
    data = b"{}\n" * (1 << 17)
    blobs = [Blob(number, f"{number}", data) for number in range(60)]
    cut = list(commit_chunks.chunked(blobs))
    assert [blob for chunk in cut for blob in chunk] == blobs
    sizes = [sum(len(blob.data) for blob in chunk) / (1 << 20) for chunk in cut]
    limits = [1, 2, 4, 8, 8]
    assert all(limit - 0.5 < size <= limit for size, limit in zip(sizes, limits, strict=False))
    assert list(commit_chunks.chunked([])) == []
