"""Supported and rejected protocols."""

from __future__ import annotations

import pytest

from lakelog.dialects.base import Dialect
from lakelog.dialects.indextables import DIALECT
from lakelog.dialects.indextables.protocol import READER_FEATURES
from lakelog.errors import CorruptionError, UnsupportedFeatureError
from lakelog.model.metadata import Protocol

check_readable = DIALECT.protocol_rules.check_readable


def test_protocol_of_a_log_without_one_is_1_1() -> None:
    dialect: Dialect = DIALECT
    assert dialect.default_protocol == (1, 1)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_versions_1_to_4_are_read(version: int) -> None:
    check_readable(Protocol(version, 1), "t")


def test_newer_version_is_refused_by_number() -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_readable(Protocol(5, 1), "s3://bucket/t")
    assert caught.value.found == "minReaderVersion 5"
    assert caught.value.path == "s3://bucket/t"


def test_known_features_are_read() -> None:
    check_readable(Protocol(4, 1, tuple(sorted(READER_FEATURES))), "t")


@pytest.mark.parametrize("feature", ["columnarCommit", "timeCrystals"])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_any_other_feature_is_refused_by_name(feature: str, version: int) -> None:
    protocol = Protocol(version, 1, ("avroState", feature))
    with pytest.raises(UnsupportedFeatureError) as caught:
        check_readable(protocol, "t")
    assert caught.value.found == feature


@pytest.mark.parametrize("version", [None, 0, -1])
def test_protocol_without_a_reader_version_raises_corruption_error(version: int | None) -> None:
    with pytest.raises(CorruptionError):
        check_readable(Protocol.from_row({"minReaderVersion": version}), "t")
