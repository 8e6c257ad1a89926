"""The table of features: complete, and consistent with the reader's checks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.features import Feature, has_field_key
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.model.metadata import Protocol, honoured_mapping, mapping_mode
from tests.transaction.builders import column, mapped, table

RULES = DELTA.protocol_rules
INDEXTABLES_RULES = INDEXTABLES.protocol_rules


@pytest.mark.parametrize(
    "feature", [*RULES.features.values(), *INDEXTABLES_RULES.features.values()]
)
def test_feature_depends_on_known_features_and_has_a_note(feature: Feature) -> None:
    assert RULES.features.keys() >= {*feature.requires, *feature.replaces}
    assert feature.note
    assert re.fullmatch(r"[A-Za-z0-9_-]+", feature.name)


def test_feature_listed_with_an_old_version_is_supported() -> None:
    assert TableConfiguration(DELTA, Protocol(1, 2, None, ("rowTracking",)), table()).supports(
        "rowTracking"
    )


def test_indextables_version_has_the_features_of_lower_versions() -> None:
    second = INDEXTABLES_RULES.supported(Protocol(2, 2))
    assert "footerOffsets" in second
    assert "schemaDeduplication" not in second
    assert second < INDEXTABLES_RULES.supported(Protocol(3, 3))
    assert "avroState" in INDEXTABLES_RULES.supported(Protocol(4, 4))


def test_required_features_are_found_transitively() -> None:
    needed = RULES.with_required(["icebergCompatV3", "fromTheFuture"])
    assert needed >= {"rowTracking", "domainMetadata", "columnMapping", "fromTheFuture"}


def test_mapping_mode_that_the_protocol_does_not_support_is_none() -> None:
    metadata = table(properties={"delta.columnMapping.mode": "name"})
    assert mapping_mode(Protocol(1, 2), metadata) == "none"
    assert mapping_mode(Protocol(2, 5), metadata) == "name"


def test_mapped_columns_of_one_metadata_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    name = "lakelog.model.metadata._require_mapped"
    monkeypatch.setattr(name, lambda _schema, mode: calls.append(mode))
    metadata = table(mapped("id", 1), properties={"delta.columnMapping.mode": "name"})
    for _ in range(3):
        assert honoured_mapping(Protocol(2, 5), metadata) == "name"
    assert calls == ["name"]


@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([2, 4, 5, 6, 7]),
    st.sampled_from([None, (), ("columnMapping",)]),
    st.sampled_from([None, (), ("columnMapping",), ("appendOnly",)]),
)
def test_writers_and_readers_apply_the_same_mapping_mode(
    reader: int, writer: int, readers: tuple[str, ...] | None, writers: tuple[str, ...] | None
) -> None:
    metadata = table(mapped("id", 1), properties={"delta.columnMapping.mode": "name"})
    protocol = Protocol(reader, writer, readers, writers)
    assert mapping_mode(protocol, metadata) == honoured_mapping(protocol, metadata)


def test_field_key_is_found_in_nested_metadata_and_not_in_names() -> None:
    inner = column("x", meta={"delta.invariants": "{}"})
    nested = column("s", {"type": "array", "elementType": {"type": "struct", "fields": [inner]},
                          "containsNull": True})  # fmt: skip
    assert has_field_key(table(nested), "delta.invariants")
    assert not has_field_key(table(column("delta.invariants")), "delta.invariants")
