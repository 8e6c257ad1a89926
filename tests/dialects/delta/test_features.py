"""Reader versions and features: supported, or rejected by name."""

from __future__ import annotations

import pytest

from lakelog.dialects.delta.protocol import HONOURED, REFUSED, ROW_ONLY, check_readable
from lakelog.errors import CorruptionError, UnsupportedFeatureError


@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_before_features_are_read(version: int) -> None:
    check_readable(version, None, "t")


@pytest.mark.parametrize("feature", sorted(ROW_ONLY | HONOURED))
def test_each_known_feature_is_read(feature: str) -> None:
    check_readable(3, [feature], "t")


def test_empty_feature_list_is_read() -> None:
    check_readable(3, [], "t")


@pytest.mark.parametrize("feature", [*sorted(REFUSED), "fromTheFuture", "", "DeletionVectors"])
def test_each_other_feature_is_refused_by_name(feature: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as refused:
        check_readable(3, ["deletionVectors", feature], "t")
    assert (refused.value.found, refused.value.path) == (feature, "t")
    assert repr(feature) in refused.value.message


def test_refused_feature_is_reported_with_reason_and_hint() -> None:
    with pytest.raises(UnsupportedFeatureError, match="catalog knows which commits") as refused:
        check_readable(3, ["catalogManaged"], "t")
    assert "catalog" in str(refused.value.hint)


@pytest.mark.parametrize("version", [-1, 4, 99])
def test_reader_version_out_of_range_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedFeatureError, match="newer reader") as refused:
        check_readable(version, None, "t")
    assert refused.value.found == version


def test_version_3_without_a_feature_list_raises_corruption_error() -> None:
    with pytest.raises(CorruptionError, match="but no"):
        check_readable(3, None, "t")


def test_no_feature_is_both_read_and_refused() -> None:
    assert not (ROW_ONLY | HONOURED) & set(REFUSED)
    assert not ROW_ONLY & HONOURED
