"""The manifest reads as it was written, and is refused if one of its bytes changes."""

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
def test_a_manifest_is_read_as_it_was_written(generation: int, key: bytes) -> None:
    told = StoreManifest(generation, 9, ((manifest.data_name(1), facts(1, 5, key)),))
    assert manifest.decode(told.encode(), "m") == told


def test_it_is_json_whose_first_field_checks_the_rest() -> None:
    data = example().encode()
    told = json.loads(data)
    assert list(told)[:3] == ["crc32c", "format", "version"]
    assert [file["name"] for file in told["files"]] == [n for n, _ in example().files]
    zeros = data.replace(told["crc32c"].encode(), b"00000000", 1)
    assert f"{google_crc32c.value(zeros):08x}" == told["crc32c"]


def test_every_flipped_bit_and_every_cut_is_found_out() -> None:
    data = example().encode()
    for offset in range(len(data)):
        for bit in range(8):
            damaged = data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :]
            with pytest.raises(CorruptionError) as caught:
                manifest.decode(damaged, "m")
            assert caught.value.path == "m"
        with pytest.raises(CorruptionError):
            manifest.decode(data[:offset], "m")


def test_a_later_format_is_refused_as_such() -> None:
    data = example().encode().replace(b'"version":1', b'"version":2')
    zeros = manifest._ZEROS + data[len(manifest._ZEROS) :]
    data = zeros.replace(b"00000000", b"%08x" % google_crc32c.value(zeros), 1)
    with pytest.raises(UnsupportedError, match="later version"):
        manifest.decode(data, "m")


def test_files_out_of_order_are_refused() -> None:
    first, second = example().files
    with pytest.raises(CorruptionError, match=f"{first[0]} after {second[0]}"):
        manifest.decode(StoreManifest(1, 9, (second, first)).encode(), "m")
    with pytest.raises(CorruptionError, match="after flushedSeqNum"):
        manifest.decode(StoreManifest(1, 8, (first, second)).encode(), "m")
