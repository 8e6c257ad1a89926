"""The columnar decoder equals the line-by-line one, and delegates undecidable input to it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects import arrow_json, ndjson
from lakelog.dialects import commit_chunks as chunks_module
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import Actions
from lakelog.dialects.ndjson import decode_lines
from lakelog.dialects.strict_decoder import Blob, decode_exact
from lakelog.errors import InvalidActionError, LakelogError, MalformedLogError
from lakelog.model import actions
from tests.budget import share_of

DELTA = Wire.of("delta")
ADD = b'{"add":{"path":"a","size":1}}'
INFO = b'{"commitInfo":{"operation":"WRITE"}}'


def blob(*lines: bytes, version: int | None = 0) -> Blob:
    return Blob(version, f"{version}.json", b"\n".join(lines))


def rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows of a narrow frame with every column; checks that its dtypes are the contract's. The
    decoders may omit different all-null columns.
    """
    full = actions.schema()
    wrong = {c: t for c, t in frame.schema.items() if t not in (full[c], pl.Null)}
    assert wrong == {}
    return actions.conform(frame).to_dicts()


def plain(decoded: Actions) -> tuple[object, ...]:
    frames = (decoded.files, decoded.meta, decoded.other)
    return (*map(rows, frames), decoded.commit_infos)


def outcome(decode: Callable[[], Actions]) -> tuple[object, ...] | str:
    try:
        return plain(decode())
    except (MalformedLogError, InvalidActionError):
        return "refused"


@pytest.fixture(autouse=True, scope="module")
def _few_lines_are_decoded_by_columns() -> Iterator[None]:
    """Use the columnar decoder for few lines too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ndjson, "_FEW_BYTES", 0)
        yield


@pytest.fixture
def delegated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per chunk that was delegated to the line-by-line decoder."""
    seen: list[int] = []

    def spy(blobs: Sequence[Blob], wire: Wire, *, files: bool = True) -> Actions:
        seen.append(len(blobs))
        return decode_exact(blobs, wire, files=files)

    monkeypatch.setattr(ndjson, "decode_exact", spy)
    return seen


# --- generated logs ------------------------------------------------------------------------------

KEYS = [
    "p",
    "q",
    "path",
    "size",
    "null",
    "",
    'k"ey',
    "a\\b",
    "a/b",
    "é",
    "\u2028",
    "😀",
    "k.1",
    "\t",
]
TEXTS = st.sampled_from(
    [
        "",
        "x",
        "null",
        "2020-01-01 00:00:00",
        "2020-01-01T00:00:00Z",
        '"',
        "\\",
        "\n",
        "\u2028",
        "😀",
        "{",
        '":null',
        "1",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, -1, 2**63, 1e300, 0.1]) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2)
    ),
    max_leaves=4,
)
MAPS = st.dictionaries(st.sampled_from(KEYS), st.none() | TEXTS, max_size=3) | st.dictionaries(
    st.sampled_from(["p", "q"]), st.none() | TEXTS, max_size=2
)
LONGS = st.sampled_from([0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
INTS = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31)])
BOOLS = st.booleans()
LISTS = st.lists(st.none() | TEXTS, max_size=2)
VECTOR = st.fixed_dictionaries(
    {"storageType": TEXTS},
    optional={"pathOrInlineDv": TEXTS, "offset": st.none() | INTS, "cardinality": LONGS, "x": JSON},
)
FILE = {
    "partitionValues": st.none() | MAPS,
    "tags": st.none() | MAPS,
    "dataChange": BOOLS,
    "stats": st.none() | TEXTS,
    "deletionVector": st.none() | VECTOR,
    "baseRowId": st.none() | LONGS,
    "unknown": JSON,
    "né": JSON,
}
BODIES: dict[str, st.SearchStrategy[Any]] = {
    "add": st.fixed_dictionaries({"path": TEXTS, "size": LONGS}, optional=FILE),
    "remove": st.fixed_dictionaries(
        {"path": TEXTS}, optional={**FILE, "size": LONGS, "deletionTimestamp": LONGS}
    ),
    "cdc": st.fixed_dictionaries({"path": TEXTS}, optional={"tags": MAPS, "size": LONGS}),
    "metaData": st.fixed_dictionaries(
        {},
        optional={
            "id": TEXTS,
            "format": st.fixed_dictionaries({}, optional={"provider": TEXTS, "options": MAPS}),
            "partitionColumns": LISTS,
            "configuration": MAPS,
            "unknown": JSON,
        },
    ),
    "protocol": st.fixed_dictionaries(
        {"minReaderVersion": INTS}, optional={"readerFeatures": LISTS}
    ),
    "txn": st.fixed_dictionaries({"appId": TEXTS, "version": LONGS}),
    "domainMetadata": st.fixed_dictionaries({"domain": TEXTS}, optional={"removed": BOOLS}),
    "skip": st.fixed_dictionaries({"path": TEXTS}, optional={"reason": TEXTS, "size": LONGS}),
    "commitInfo": st.dictionaries(st.sampled_from([*KEYS, "operation"]), JSON, max_size=3),
    "newAction": JSON,
    "né": JSON,
}
INDEXTABLES_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "minValues": MAPS,
        "splitTags": LISTS,
        "timeRangeStart": TEXTS | LONGS,
        "numMergeOps": INTS,
        "hasFooterOffsets": BOOLS,
    },
)


@st.composite
def valid_actions(draw: st.DrawFn) -> dict[str, Any]:
    wrapper = draw(st.sampled_from(["add", "add", "remove", *BODIES]))
    body = draw(BODIES[wrapper])
    if wrapper == "add" and draw(st.integers(0, 3)) == 0:
        body = {**body, **draw(INDEXTABLES_FIELDS)}
    return {wrapper: body}


@st.composite
def odd_actions(draw: st.DrawFn) -> dict[str, Any]:
    """Several actions on a line, null actions, and values of wrong types."""
    line: dict[str, Any] = {}
    for action in draw(st.lists(valid_actions(), min_size=1, max_size=3)):
        line |= action
    match draw(st.integers(0, 5)):
        case 0:
            line[draw(st.sampled_from([*BODIES]))] = None
        case 1:
            line[draw(st.sampled_from([*BODIES]))] = draw(JSON)
        case 2:
            body = next(iter(line.values()))
            if isinstance(body, dict) and body:
                body[draw(st.sampled_from(sorted(body)))] = draw(JSON | st.just(2**64))
    return line


def encoded(action: Any, compact: bool, ascii_only: bool) -> bytes:
    separators = (",", ":") if compact else (" ,\t", " : ")
    return json.dumps(action, separators=separators, ensure_ascii=ascii_only).encode()


ENCODED = st.builds(encoded, valid_actions(), st.booleans(), st.booleans())
ENCODED_ODD = st.builds(encoded, odd_actions(), st.booleans(), st.booleans())
BLANKS = st.sampled_from([b"", b" ", b"\t\r", b"{}"])
DAMAGED = st.sampled_from(
    [
        b"null",
        b"[]",
        b"1",
        b'""',
        b"{",
        b'{"add":',
        b'{"add":null}',
        b'{"add":1}',
        b'{"add":{}}',
        b'{"add":{"path":"a","size":1}} {"add":{"path":"b","size":1}}',
        b'{"add":{"path":"a","size":1}}{"add":{"path":"b","size":1}}',
        b'{"add":{"path":"a","path":"b","size":1}}',
        b'{"add":{"path":"a","size":1},"add":{"path":"b","size":1}}',
        b'{"add":{"path":"a","size":1,"tags":{"k":"1","k":"2"}}}',
        b'{"add":{"path":"a","size":1,"x":{"k":1,"k":2}}}',
        b'{"add":{"path":"a","size":1,"tags":{"k":"1","\\u006b":"2"}}}',
        b'{"\\u0061dd":{"path":"a","size":1}}',
        b'{"commitInfo":{"a":1,"a":2}}',
        b'{"commitInfo":{},"add":{"path":"a","size":1}}',
        b'{"commitInfo":7}',
        b'{"commitInfo":null}',
        b'{"commitInfo":',
        b'{"newAction":{"x":1,"x":2}}',
        b'{"add":{"path":"\\ud800","size":1}}',
        b'{"add":{"path":"a","size":1,"x":"\\udc00"}}',
        b'{"add":{"path":"\\ud83d\\ude00","size":1}}',
        b'{"add":{"path":"a\\u0000","size":1}}',
        b'{"add":{"path":"a\0","size":1}}',
        b'{"add":{"path":"\xff","size":1}}',
        b'{"add":{"path":"a","size":1}}\xff',
        b'{"add":{"path":"\xed\xa0\x80","size":1}}',
        b'\xef\xbb\xbf{"add":{"path":"a","size":1}}',
        b'{"add":{"path":"a\tb","size":1}}',
        b'{"add":{"path":"a","size":01}}',
        b'{"add":{"path":"a","size":1.0}}',
        b'{"add":{"path":"a","size":1e2}}',
        b'{"add":{"path":"a","size":-0}}',
        b'{"add":{"path":"a","size":NaN}}',
        b'{"add":{"path":"a","size":1,"x":NaN}}',
        b'{"add":{"path":"a","size":1,"x":Infinity}}',
        b'{"add":{"path":"a","size":1,"x":1e999}}',
        b'{"add":{"path":"a","size":1,"x":123456789012345678901234567890}}',
        b'{"add":{"path":"a","size":9223372036854775808}}',
        b'{"add":{"path":"a","size":1,"dataChange":"true"}}',
        b'{"add":{"path":1,"size":1}}',
        b'{"add":{"path":"a","size":"1"}}',
        b'{"add":{"path":"a","size":1,"deletionVector":"u"}}',
        b'{"add":{"path":"a","size":1,"deletionVector":{"storageType":null}}}',
        b'{"add":{"path":"a","size":1,"partitionValues":[]}}',
        b'{"add":{"path":"a","size":1,"stats":{"numRecords":3}}}',
        b'{"add":{"path":"a","size":1,},}',
        b"{'add':{'path':'a','size':1}}",
        b'{"add":{"path":"a","size":1}}//x',
        b'{"add":/**/{"path":"a","size":1}}',
    ]
)


@st.composite
def blobs(draw: st.DrawFn, lines: st.SearchStrategy[bytes]) -> list[Blob]:
    out = []
    for version in range(draw(st.integers(1, 4))):
        body = draw(st.lists(lines, min_size=0 if version else 1, max_size=5))
        end = draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"]))
        data = end.join(body) + (end if draw(st.booleans()) else b"")
        out.append(Blob(version, f"{version}.json", data))
    return out


CHUNKS = st.sampled_from([8 << 20, 300, 60, 1])
WIRES = st.sampled_from(["delta", "indextables"])


def assert_decoders_agree(log: list[Blob], wire: str, chunk_bytes: int) -> None:
    # Only files of several megabytes are cut, and a piece is not known to be a whole file.
    log = [b._replace(whole=chunk_bytes > 1000) for b in log]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_module, "CHUNK_BYTES", chunk_bytes)
        fast = outcome(lambda: decode_lines(log, Wire.of(wire)))
    assert fast == outcome(lambda: decode_exact(log, Wire.of(wire)))


@settings(max_examples=share_of(150))
@given(log=blobs(ENCODED), wire=WIRES, chunk_bytes=CHUNKS)
def test_both_decoders_give_equal_frames_for_valid_logs(
    log: list[Blob], wire: str, chunk_bytes: int
) -> None:
    assert_decoders_agree(log, wire, chunk_bytes)


@settings(max_examples=share_of(150))
@given(log=blobs(st.one_of(ENCODED, ENCODED, ENCODED_ODD, BLANKS)), wire=WIRES, chunk_bytes=CHUNKS)
def test_both_decoders_agree_on_odd_lines(log: list[Blob], wire: str, chunk_bytes: int) -> None:
    assert_decoders_agree(log, wire, chunk_bytes)


@settings(max_examples=share_of(150))
@given(log=blobs(st.one_of(ENCODED, ENCODED, DAMAGED)), wire=WIRES, chunk_bytes=CHUNKS)
def test_both_decoders_agree_on_damage(log: list[Blob], wire: str, chunk_bytes: int) -> None:
    assert_decoders_agree(log, wire, chunk_bytes)


@settings(max_examples=share_of(100))
@given(
    log=blobs(st.one_of(ENCODED, ENCODED, ENCODED, ENCODED_ODD, BLANKS, DAMAGED)),
    wire=WIRES,
    chunk_bytes=CHUNKS,
)
def test_decoding_without_files_leaves_the_other_actions_unchanged(
    log: list[Blob], wire: str, chunk_bytes: int
) -> None:
    layout = Wire.of(wire)
    try:
        whole = decode_exact(log, layout)
    except LakelogError:
        return  # only a valid log can be compared
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks_module, "CHUNK_BYTES", chunk_bytes)
        rest = decode_lines(log, layout, files=False)
    assert rest.files.height == rest.other.height == 0
    assert rows(rest.meta) == rows(whole.meta)
    assert rest.commit_infos == whole.commit_infos


@settings(max_examples=share_of(100))
@given(lines=st.lists(st.one_of(ENCODED, ENCODED, ENCODED_ODD), min_size=1), wire=WIRES)
def test_file_without_a_version_gives_the_same_rows_of_each_type_in_order(
    lines: list[bytes], wire: str
) -> None:
    def by_type(frame: pl.DataFrame) -> list[dict[str, Any]]:
        return sorted(rows(frame), key=lambda row: str(row["actionType"]))

    def decoded(decode: Callable[..., Actions]) -> object:
        try:
            found = decode([blob(*lines, version=None)], Wire.of(wire))
        except LakelogError:
            return "refused"
        bodies = [info.body for info in found.commit_infos]
        return by_type(found.files), by_type(found.meta), by_type(found.other), bodies

    assert decoded(decode_lines) == decoded(decode_exact)


# --- lines that the columnar decoder decodes by itself -------------------------------------------

COLUMNAR = {
    "a usual commit": [
        INFO,
        b'{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"]}}',
        b'{"metaData":{"id":"i","format":{"provider":"parquet","options":{}},"partitionColumns":["p"]}}',
        b'{"add":{"path":"a","size":1,"partitionValues":{"p":"2020-01-01 00:00:00"},"stats":"{}"}}',
        b'{"remove":{"path":"b","deletionTimestamp":5,"deletionVector":{"storageType":"u"}}}',
        b'{"txn":{"appId":"x","version":1}}',
    ],
    "commitInfo last": [ADD, INFO],
    "commitInfo in the middle": [ADD, INFO, ADD],
    "several commitInfos": [INFO, ADD, INFO, INFO, ADD, INFO],
    "commitInfo alone": [INFO],
    "a final newline": [ADD, b""],
    "carriage returns": [INFO + b"\r", ADD + b"\r", ADD + b"\r"],
    "spaces within a line": [ADD, b'{ "add" : { "path" : "a" , "size" : 1 } } '],
    "an unknown field": [b'{"add":{"path":"a","size":1,"x":{"y":[1]}}}', ADD],
    "an unknown action": [b'{"newAction":{"x":1}}', ADD],
    "a map whose key is always present": [b'{"add":{"path":"a","size":1,"tags":{"k":"v"}}}'],
    "a map whose key is sometimes absent": [
        b'{"add":{"path":"a","size":1,"tags":{"k":"v"}}}',
        b'{"add":{"path":"a","size":1,"tags":{"j":"v"}}}',
        b'{"add":{"path":"a","size":1,"tags":{}}}',
        b'{"add":{"path":"a","size":1,"tags":null}}',
    ],
    "a map whose key is null wherever it has no text": [
        b'{"add":{"path":"a","size":1,"tags":{"k":null}}}',
        b'{"add":{"path":"a","size":1,"tags":{"k" : null}}}',
        b'{"add":{"path":"a","size":1,"tags":{"k":"v"}}}',
    ],
    "text beyond ASCII": ['{"add":{"path":"é😀","size":1,"tags":{"ü":"ß"}}}'.encode()],
    "a long schema": [
        json.dumps(
            {
                "metaData": {
                    "id": "i",
                    "schemaString": json.dumps([{"a": {}, "b": [{"c": 1}]}] * 999),
                }
            }
        ).encode()
    ],
}


@pytest.mark.parametrize("lines", COLUMNAR.values(), ids=COLUMNAR)
def test_columnar_decoder_decodes_by_itself(lines: list[bytes], delegated: list[int]) -> None:
    log = [blob(*lines)]
    assert plain(decode_lines(log, DELTA)) == plain(decode_exact(log, DELTA))
    assert delegated == []


def deep(levels: int) -> bytes:
    return b'{"add":{"path":"a","size":1,"x":' + b"[" * levels + b"]" * levels + b"}}"


DELEGATED = {
    "a blank first line": [b"", ADD],
    "a blank line": [ADD, b"", ADD],
    "a space before the object": [b" " + ADD],
    "an empty object": [ADD, b"{}"],
    "a null action": [ADD, b'{"add":null}'],
    "two actions on a line": [b'{"txn":{"appId":"x","version":1},"add":{"path":"a","size":1}}'],
    "an add and a remove on a line": [b'{"remove":{"path":"a"},"add":{"path":"a","size":1}}'],
    "an action next to the commitInfo": [b'{"commitInfo":{},"add":{"path":"a","size":1}}'],
    "an unknown field of two types": [
        b'{"add":{"path":"a","size":1,"x":1}}',
        b'{"add":{"path":"a","size":1,"x":"1"}}',
    ],
    "statistics as an object": [b'{"add":{"path":"a","size":1,"stats":{"numRecords":1}}}'],
    "a number in a map": [b'{"add":{"path":"a","size":1,"tags":{"k":1}}}'],
    "a key that is null in one map and absent in another": [
        b'{"add":{"path":"a","size":1,"tags":{"k":null}}}',
        b'{"add":{"path":"a","size":1,"tags":{}}}',
        b'{"add":{"path":"a","size":1,"tags":{"k":"v"}}}',
    ],
    "a key of nulls that is also a field": [
        b'{"add":{"path":"a","size":1,"stats":null,"tags":{"stats":null}}}',
        b'{"add":{"path":"a","size":1,"tags":{"stats":"v"}}}',
    ],
    "a key of nulls that may be encoded in two ways": [
        '{"add":{"path":"a","size":1,"tags":{"é":null}}}'.encode(),
        '{"add":{"path":"a","size":1,"tags":{"é":"v"}}}'.encode(),
    ],
    "a key of nulls next to an escape": [
        b'{"add":{"path":"a","size":1,"tags":{"\\u006b":null}}}',
        b'{"add":{"path":"a","size":1,"tags":{"k":"v"}}}',
    ],
    "a key of nulls that an unknown field has too": [
        b'{"add":{"path":"a","size":1,"tags":{"k":null}}}',
        b'{"add":{"path":"a","size":1,"tags":{},"unknown":[{"k":null}]}}',
    ],
    "a key of nulls that a commitInfo has too": [
        b'{"add":{"path":"a","size":1,"tags":{"k":null}}}',
        b'{"commitInfo":{"k":null}}',
        b'{"add":{"path":"a","size":1,"tags":{}}}',
    ],
    "a key of nulls that an unknown action has too": [
        b'{"add":{"path":"a","size":1,"tags":{"k":null}}}',
        b'{"newAction":{"x":{"k":null}}}',
        b'{"add":{"path":"a","size":1,"tags":{}}}',
    ],
    "more than 64 map keys": [
        json.dumps(
            {"add": {"path": "a", "size": 1, "tags": {str(n): "v" for n in range(65)}}}
        ).encode()
    ],
    "an unknown list that begins with a null": [ADD, b'{"newAction":{"x":[null,true]}}'],
    "an unknown list that is nested to the limit": [deep(197)],
}


@pytest.mark.parametrize("lines", DELEGATED.values(), ids=DELEGATED)
def test_line_by_line_decoder_decodes(lines: list[bytes], delegated: list[int]) -> None:
    log = [blob(*lines)]
    assert plain(decode_lines(log, DELTA)) == plain(decode_exact(log, DELTA))
    assert delegated == [1]


REFUSED = {
    "a NUL": [b'{"add":{"path":"a\0","size":1}}'],
    "bytes of NUL after the last line": [ADD, b"\0" * 8],
    "invalid UTF-8": [b'{"add":{"path":"\xff","size":1}}'],
    "an encoded surrogate": [b'{"add":{"path":"\xed\xa0\x80","size":1}}'],
    "an escaped lone surrogate": [b'{"add":{"path":"\\ud800","size":1}}'],
    "a byte order mark": [b"\xef\xbb\xbf" + ADD],
    "a null row": [ADD, b"null"],
    "a null row first": [b"null", ADD],
    "a list": [ADD, b"[]"],
    "two objects on a line": [ADD + ADD],
    "a torn line": [ADD, ADD[:-3]],
    "a key twice": [b'{"add":{"path":"a","path":"b","size":1}}'],
    "a key twice in a map": [b'{"add":{"path":"a","size":1,"tags":{"k":"1","k":"2"}}}'],
    "a key twice in an unknown field": [b'{"add":{"path":"a","size":1,"x":{"k":1,"k":2}}}'],
    "a wrapper twice": [b'{"add":{"path":"a","size":1},"add":{"path":"b","size":1}}'],
    "NaN in a known field": [b'{"add":{"path":"a","size":NaN}}'],
    "NaN in an unknown field": [b'{"add":{"path":"a","size":1,"x":NaN}}'],
    "a number beyond 64 bits": [b'{"add":{"path":"a","size":9223372036854775808}}'],
    "a fraction for an integer": [b'{"add":{"path":"a","size":1.0}}'],
    "a text for a number": [b'{"add":{"path":"a","size":"1"}}'],
    "a number for a text": [b'{"add":{"path":1,"size":1}}'],
    "a list for a map": [b'{"add":{"path":"a","size":1,"tags":[]}}'],
    "a text for an object": [b'{"add":{"path":"a","size":1,"deletionVector":"u"}}'],
    "an action that is not an object": [b'{"add":1}'],
    "an add without a path": [ADD, b'{"add":{"size":1}}'],
    "an add without a size": [ADD, b'{"add":{"path":"a"}}'],
    "a number beyond 32 bits": [b'{"protocol":{"minReaderVersion":2147483648}}'],
    "nesting that is too deep": [deep(199)],
    "nesting beyond any stack": [deep(100_000)],
    "nesting beyond any stack, in a map": [
        b'{"add":{"path":"a","size":1,"tags":{"k":' + b'{"":' * 50_000 + b"1" + b"}" * 50_003
    ],
    "a commitInfo that is not an object": [b'{"commitInfo":7}', ADD],
    "a commitInfo that is not an object, between other lines": [ADD, b'{"commitInfo" : []}', ADD],
    "a commitInfo that is torn": [ADD, b'{"commitInfo":{"a":1}'],
    "a commitInfo with a key twice": [b'{"commitInfo":{"a":1,"a":2}}', ADD],
    "a file of blanks": [b" ", b"\r"],
    "an empty file": [b""],
}


@pytest.mark.parametrize("lines", REFUSED.values(), ids=REFUSED)
def test_damage_is_refused_with_its_position(lines: list[bytes]) -> None:
    with pytest.raises((MalformedLogError, InvalidActionError)) as exact:
        decode_exact([blob(*lines)], DELTA)
    with pytest.raises(type(exact.value)) as fast:
        decode_lines([blob(*lines)], DELTA)
    assert fast.value.as_dict() == exact.value.as_dict()
    assert fast.value.path == "0.json"


# --- chunks --------------------------------------------------------------------------------------


def test_small_files_share_a_chunk_and_a_large_one_is_cut_at_line_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 100)
    small = [blob(ADD, version=n) for n in range(5)]
    large = Blob(5, "5.json", b"\n".join([ADD] * 20) + b"\n" + b"x" * 300 + b"\n" + ADD)
    chunks = list(chunks_module.chunked([*small, large]))
    assert [len(chunk) for chunk in chunks[:1]] == [3]
    pieces = [piece for chunk in chunks for piece in chunk if piece.version == 5]
    assert b"".join(bytes(piece.data) for piece in pieces) == large.data
    assert [piece.whole for piece in pieces] == [False] * len(pieces)
    for piece in pieces:
        before = bytes(large.data)[: piece.offset]
        assert piece.first_line == before.count(b"\n")
        assert before == b"" or before.endswith(b"\n")
        assert len(piece.data) <= 100 or bytes(piece.data).count(b"\n") == 1


def test_large_file_is_decoded_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "WORKERS", 2)
    lines = [json.dumps({"add": {"path": f"{n:0300}", "size": n}}).encode() for n in range(13_000)]
    large = blob(INFO, *lines)
    parts = [len(piece.data) for (piece,) in chunks_module.chunked([large])]
    assert len(parts) == 2
    assert min(parts) > 0.8 * max(parts)
    assert plain(decode_lines([large], DELTA)) == plain(decode_exact([large], DELTA))
    assert len(list(chunks_module.chunked([blob(INFO, *lines[:8_000])]))) == 1


def test_error_in_a_later_piece_has_its_position_in_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [INFO, *[ADD] * 30, b'{"add":{"path":"a","size":"torn"}}', ADD]
    with pytest.raises(InvalidActionError) as exact:
        decode_exact([blob(*lines)], DELTA)
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 100)
    with pytest.raises(InvalidActionError) as cut:
        decode_lines([blob(*lines)], DELTA)
    assert cut.value.as_dict() == exact.value.as_dict()
    assert cut.value.line == 32
    assert cut.value.byte_offset == len(INFO) + 1 + 30 * (len(ADD) + 1)


def test_large_file_of_blanks_is_refused_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 4)
    with pytest.raises(MalformedLogError, match="contains no action"):
        decode_lines([Blob(0, "0.json", b" \n" * 10)], DELTA)


def test_no_file_decodes_to_no_row() -> None:
    assert plain(decode_lines([], DELTA)) == ([], [], [], ())


def test_values_of_keys_added_by_another_thread_meanwhile_are_read_as_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Arrow parses a text as a time if no type is declared, and would change it.
    line = b'{"add":{"path":"a","size":1,"partitionValues":{"p":"2020-01-01T00:00:00"}}}'
    parse = arrow_json.parse
    keys: arrow_json.Keys = {}

    def parse_while_keys_are_added(text: bytes, schema: Any, unexpected: str) -> Any:
        table = parse(text, schema, unexpected)
        keys.update({(): {"add"}, ("add",): {"path", "size", "partitionValues"}})
        keys["add", "partitionValues"] = {"p"}
        return table

    monkeypatch.setattr(arrow_json, "parse", parse_while_keys_are_added)
    table = arrow_json.parse_with_keys(line, DELTA, keys)
    assert table.to_pylist()[0]["add"]["partitionValues"] == {"p": "2020-01-01T00:00:00"}


def test_many_chunks_are_decoded_in_version_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = 20
    rng = random.Random(seed)
    log = [
        blob(
            *(
                json.dumps(
                    {"add": {"path": f"{v}-{n}", "size": n, "tags": {f"k{v % 7}": "v"}}}
                ).encode()
                for n in range(rng.randrange(1, 6))
            ),
            version=v,
        )
        for v in range(200)
    ]
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", 256)
    assert plain(decode_lines(log, DELTA)) == plain(decode_exact(log, DELTA)), f"seed {seed}"
