"""The manifest of a keyed store: it is read back as written, and damage raises an error."""

from __future__ import annotations

import json

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.errors import CorruptionError, UnsupportedError
from lakelog.keyed import manifest
from lakelog.keyed.manifest import StoreManifest
from lakelog.keyed.sorted_file import FileFacts


def facts(low: int, high: int, key: bytes = b"k") -> FileFacts:
    return FileFacts(3, 1, 400, key, key + b"\xff", low, high, 0xDEADBEEF)


def example() -> StoreManifest:
    files = (manifest.data_name(1), facts(1, 5)), (manifest.data_name(4), facts(7, 9))
    return StoreManifest(12, 9, files)


@given(st.integers(0, 2**60), st.binary())
def test_manifest_is_read_as_it_was_written(generation: int, key: bytes) -> None:
    written = StoreManifest(generation, 9, ((manifest.data_name(1), facts(1, 5, key)),))
    assert manifest.decode(written.encode(), "m") == written


def test_first_field_of_the_json_is_the_checksum_of_the_rest() -> None:
    data = example().encode()
    document = json.loads(data)
    assert list(document)[:3] == ["crc32c", "format", "version"]
    assert [file["name"] for file in document["files"]] == [n for n, _ in example().files]
    zeros = data.replace(document["crc32c"].encode(), b"00000000", 1)
    assert f"{google_crc32c.value(zeros):08x}" == document["crc32c"]


def test_flipped_bit_or_truncation_raises_corruption_error() -> None:
    data = example().encode()
    for offset in range(len(data)):
        for bit in range(8):
            damaged = data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :]
            with pytest.raises(CorruptionError) as caught:
                manifest.decode(damaged, "m")
            assert caught.value.path == "m"
        with pytest.raises(CorruptionError):
            manifest.decode(data[:offset], "m")


def test_later_format_version_raises_unsupported_error() -> None:
    data = example().encode().replace(b'"version":1', b'"version":2')
    zeros = manifest._ZEROS + data[len(manifest._ZEROS) :]
    data = zeros.replace(b"00000000", b"%08x" % google_crc32c.value(zeros), 1)
    with pytest.raises(UnsupportedError, match="later version"):
        manifest.decode(data, "m")


def test_files_out_of_order_raise_corruption_error() -> None:
    first, second = example().files
    with pytest.raises(CorruptionError, match=f"{first[0]} after {second[0]}"):
        manifest.decode(StoreManifest(1, 9, (second, first)).encode(), "m")
    with pytest.raises(CorruptionError, match="after flushedSeqNum"):
        manifest.decode(StoreManifest(1, 8, (first, second)).encode(), "m")
