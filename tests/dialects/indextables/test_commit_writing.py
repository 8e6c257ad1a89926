"""Commits for the reference's readers: commitInfo next to an action, framings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lakelog.dialects import ndjson
from lakelog.dialects.indextables import DIALECT, framing
from lakelog.errors import InvalidPropertyError, MalformedLogError
from tests.dialects.commit_rows import content, decode
from tests.dialects.indextables.writing import Log

PREFIX = "spark.indextables.transaction.compression."
ADD = {"actionType": "add", "path": "p=a%20b/x é", "size": 1}
COMMIT = content({"txnId": "t"}, [], [ADD, ADD | {"path": "q"}])
# The order in which the reference looks for the one action of a line.
REFERENCE = ("protocol", "metaData", "add", "remove", "mergeskip")


def test_every_line_has_exactly_one_action_of_the_reference() -> None:
    for commit in (COMMIT, content({"txnId": "t"}, [], [ADD])):
        for line in DIALECT.encode(commit).splitlines():
            assert len(set(REFERENCE) & json.loads(line).keys()) == 1


def test_first_line_does_not_need_the_line_by_line_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_if_called(*_: object, **__: object) -> None:
        pytest.fail("the chunk was passed to the line-by-line decoder")

    monkeypatch.setattr(ndjson, "_FEW_BYTES", 0)
    monkeypatch.setattr(ndjson, "decode_exact", fail_if_called)
    found = decode(DIALECT, DIALECT.encode(COMMIT))
    assert found.files["position"].to_list() == [0, 1]
    assert [(info.position, info.body) for info in found.commit_infos] == [(0, {"txnId": "t"})]


def test_duplicate_key_on_the_first_line_is_refused() -> None:
    body = b'{"path":"a","size":1}'
    line = b'{"commitInfo":{},"add":' + body + b',"add":' + body + b"}\n"
    with pytest.raises(MalformedLogError, match="twice"):
        decode(DIALECT, line)


def test_error_below_the_first_line_has_its_position(tmp_path: Path) -> None:
    log = Log(tmp_path / "t")
    encoded = DIALECT.encode(COMMIT)
    log.write(f"{5:020}.json", encoded[:-3])
    commits = DIALECT.list_log(log.store, hint=False).commits
    with pytest.raises(MalformedLogError) as caught:
        DIALECT.decode(log.store, commits)
    first = encoded.index(b"\n") + 1
    assert (caught.value.version, caught.value.line) == (5, 2)
    assert caught.value.byte_offset is not None
    assert caught.value.byte_offset >= first


@pytest.mark.parametrize("body", [b'{"commitInfo":null,"add":null}\n', b'{"commitInfo":{"a":1'])
def test_torn_first_line_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedLogError):
        decode(DIALECT, body)


def test_commit_is_compressed_according_to_the_properties() -> None:
    plain = DIALECT.encode(COMMIT)
    assert plain.startswith(b'{"commitInfo"')
    encoded = DIALECT.encode(
        COMMIT, configuration={PREFIX + "enabled": "true", PREFIX + "gzip.level": "9"}
    )
    assert encoded[:4] == b"\x01\x01\x1f\x8b"
    assert gzip.decompress(encoded[2:]) == plain
    assert decode(DIALECT, encoded).files.equals(decode(DIALECT, plain).files)


@pytest.mark.parametrize(
    "configuration", [{}, {"enabled": "false"}, {"enabled": "true", "codec": "none"}]
)
def test_commit_without_compression_is_plain(configuration: dict[str, str]) -> None:
    properties = {PREFIX + name: value for name, value in configuration.items()}
    assert DIALECT.encode(COMMIT, configuration=properties) == DIALECT.encode(COMMIT)


def test_commit_above_the_decompression_limit_is_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = DIALECT.encode(COMMIT)
    properties = {PREFIX + "enabled": "true"}
    for limit, compressed in ((len(plain), True), (len(plain) - 1, False)):
        monkeypatch.setattr(framing, "MAX_DECOMPRESSED_BYTES", limit)
        encoded = DIALECT.encode(COMMIT, configuration=properties)
        assert (encoded != plain) is compressed
        assert decode(DIALECT, encoded).files.equals(decode(DIALECT, plain).files)


@pytest.mark.parametrize("wrong", [{"codec": "lz4"}, {"gzip.level": "10"}])
def test_unknown_compression_is_refused(wrong: dict[str, str]) -> None:
    properties = {PREFIX + name: value for name, value in wrong.items()}
    with pytest.raises(InvalidPropertyError):
        DIALECT.encode(COMMIT, configuration=properties)
