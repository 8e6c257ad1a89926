"""The three framings, and rejected content."""

from __future__ import annotations

import gzip

import pytest

from lakelog.dialects.indextables import framing
from lakelog.dialects.indextables.framing import unframe
from lakelog.errors import MalformedLogError
from tests.dialects.indextables.writing import frame_bytes

_TEXT = b'{"protocol":{"minReaderVersion":2,"minWriterVersion":2}}\n'


def test_several_gzip_members_are_one_file() -> None:
    assert unframe(gzip.compress(b"a\n") + gzip.compress(b"b\n"), "f") == b"a\nb\n"


@pytest.mark.parametrize("form", ["scala", "rust"])
def test_every_truncation_of_a_gzip_file_is_refused(form: str) -> None:
    whole = frame_bytes(_TEXT, form)
    for length in range(3 if form == "scala" else 2, len(whole)):
        with pytest.raises(MalformedLogError) as caught:
            unframe(whole[:length], "commit", 3)
        assert (caught.value.path, caught.value.version) == ("commit", 3)


def test_bytes_after_the_gzip_stream_are_refused() -> None:
    with pytest.raises(MalformedLogError):
        unframe(gzip.compress(_TEXT) + b"trailing", "f")


@pytest.mark.parametrize(
    "data", [b"\x01", b"\x01\x02" + gzip.compress(_TEXT)], ids=["alone", "before-gzip"]
)
def test_unknown_codec_is_refused_with_its_number(data: bytes) -> None:
    with pytest.raises(MalformedLogError) as caught:
        unframe(data, "f")
    assert caught.value.found in {"end of file", "02"}


def test_decompression_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert framing.MAX_DECOMPRESSED_BYTES == 512 * 1024 * 1024
    monkeypatch.setattr(framing, "MAX_DECOMPRESSED_BYTES", 1000)
    assert unframe(gzip.compress(b" " * 1000), "f") == b" " * 1000
    with pytest.raises(MalformedLogError, match="more bytes than a log file may have"):
        unframe(gzip.compress(b" " * 1001), "f")
    with pytest.raises(MalformedLogError, match="more bytes than a log file may have"):
        unframe(gzip.compress(b" " * 600) + gzip.compress(b" " * 600), "f")
