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


def test_every_line_has_one_action_that_the_reference_knows() -> None:
    for commit in (COMMIT, content({"txnId": "t"}, [], [ADD])):
        for line in DIALECT.encode(commit).splitlines():
            assert len(set(REFERENCE) & json.loads(line).keys()) == 1


def test_paths_are_written_as_they_are() -> None:
    assert [row["path"] for row in decode(DIALECT, DIALECT.encode(COMMIT)).files.to_dicts()] == [
        "p=a%20b/x é",
        "q",
    ]


def test_the_first_line_is_decoded_with_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def hand_over(*_: object, **__: object) -> None:
        pytest.fail("the chunk went to the decoder of lines")

    monkeypatch.setattr(ndjson, "_FEW_BYTES", 0)
    monkeypatch.setattr(ndjson, "decode_exact", hand_over)
    found = decode(DIALECT, DIALECT.encode(COMMIT))
    assert found.files["position"].to_list() == [0, 1]
    assert [(info.position, info.body) for info in found.commit_infos] == [(0, {"txnId": "t"})]


def test_a_key_twice_on_the_first_line_is_refused() -> None:
    body = b'{"path":"a","size":1}'
    line = b'{"commitInfo":{},"add":' + body + b',"add":' + body + b"}\n"
    with pytest.raises(MalformedLogError, match="twice"):
        decode(DIALECT, line)


def test_damage_below_the_first_line_is_located(tmp_path: Path) -> None:
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
def test_a_torn_first_line_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedLogError):
        decode(DIALECT, body)


def test_compression_is_what_the_properties_ask_for() -> None:
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
def test_without_compression_a_commit_is_plain(configuration: dict[str, str]) -> None:
    properties = {PREFIX + name: value for name, value in configuration.items()}
    assert DIALECT.encode(COMMIT, configuration=properties) == DIALECT.encode(COMMIT)


def test_a_commit_that_would_be_refused_on_reading_is_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = DIALECT.encode(COMMIT)
    properties = {PREFIX + "enabled": "true"}
    for room, compressed in ((len(plain), True), (len(plain) - 1, False)):
        monkeypatch.setattr(framing, "MAX_DECOMPRESSED_BYTES", room)
        encoded = DIALECT.encode(COMMIT, configuration=properties)
        assert (encoded != plain) is compressed
        assert decode(DIALECT, encoded).files.equals(decode(DIALECT, plain).files)


@pytest.mark.parametrize("wrong", [{"codec": "lz4"}, {"gzip.level": "10"}])
def test_a_compression_that_does_not_exist_is_refused(wrong: dict[str, str]) -> None:
    properties = {PREFIX + name: value for name, value in wrong.items()}
    with pytest.raises(InvalidPropertyError):
        DIALECT.encode(COMMIT, configuration=properties)
