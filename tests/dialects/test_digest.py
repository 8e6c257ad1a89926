"""Digests: equal for the same actions in any layout, different for any change."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.digest import Difference, Digest, algorithm, digest, kept_columns, row_hashes
from lakelog.errors import InvalidInputError
from lakelog.model import actions
from tests.budget import share_of

ADD: dict[str, Any] = {
    "actionType": "add",
    "path": "a.parquet",
    "partitionValues": {"p": "1", "q": None},
    "size": 10,
    "modificationTime": 1_000,
    "stats": '{"numRecords":1}',
    "tags": {"t": "x"},
    "dvStorageType": "u",
    "dvPathOrInline": "ab^-aqEH.-t@S}K{vb[*k^",
    "dvOffset": 4,
    "dvSizeInBytes": 40,
    "dvCardinality": 6,
    "baseRowId": 7,
    "defaultRowCommitVersion": 3,
    "clusteringProvider": "liquid",
    "splitTags": ["one", "two"],
    "hasFooterOffsets": True,
}


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    schema = actions.schema()
    names = dict.fromkeys(name for row in rows for name in row)
    return pl.DataFrame(
        [pl.Series(n, [row.get(n) for row in rows], dtype=schema[n]) for n in names]
    )


_texts = st.none() | st.sampled_from(["", "a", "b", "é", "\0", "a" * 300])
_maps = st.none() | st.dictionaries(st.sampled_from(["", "a", "b"]), _texts, max_size=3)
_rows = st.fixed_dictionaries(
    {
        "actionType": st.sampled_from(["add", "remove"]),
        "path": st.sampled_from(["a", "b", "c"]),
        "size": st.none() | st.integers(-2, 2),
        "dvOffset": st.none() | st.integers(0, 2),
        "partitionValues": _maps,
        "splitTags": st.none() | st.lists(_texts, max_size=3),
        "extendedFileMetadata": st.none() | st.booleans(),
    }
)


def _canonical(row: dict[str, Any]) -> str:
    known = {k: v for k, v in row.items() if v is not None}
    if row["actionType"] == "add" and not row["partitionValues"]:
        known.pop("partitionValues", None)  # the contract treats {} as absent
    if row["partitionValues"]:
        known["partitionValues"] = dict(sorted(row["partitionValues"].items()))
    return repr(sorted(known.items()))


@settings(max_examples=share_of(150), deadline=None)
@given(st.lists(_rows, max_size=5), st.lists(_rows, max_size=5))
def test_digests_are_equal_exactly_for_equal_multisets(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    same = sorted(map(_canonical, one)) == sorted(map(_canonical, other))
    assert (digest(frame(*one)) == digest(frame(*other))) is same


@settings(max_examples=share_of(60), deadline=None)
@given(st.lists(_rows, min_size=1, max_size=8), st.randoms(use_true_random=False), st.data())
def test_digest_ignores_row_order_batches_map_order_and_null_columns(
    rows: list[dict[str, Any]], rng: Any, data: st.DataObject
) -> None:
    whole = digest(frame(*rows))
    shuffled = [
        {
            k: dict(rng.sample(list(v.items()), len(v))) if isinstance(v, dict) else v
            for k, v in row.items()
        }
        for row in rng.sample(rows, len(rows))
    ]
    cut = data.draw(st.integers(0, len(rows)))
    parts = Digest()
    for part in (shuffled[:cut], shuffled[cut:]):
        if part:
            narrow = frame(*part)
            narrow = narrow.select(s.name for s in narrow if s.null_count() < s.len())
            parts += digest(narrow)
    assert parts == whole
    wide = actions.conform(frame(*rows))
    assert digest(wide) == whole
    assert whole.total == len(rows)


@pytest.mark.parametrize("column", sorted(set(ADD) - {"actionType"}))
def test_change_of_any_field_changes_the_digest(column: str) -> None:
    value = ADD[column]
    match value:
        case bool():
            others: list[Any] = [not value, None]
        case int():
            others = [value + 1, -value, None]
        case str():
            others = [value + " ", value.upper() + "!", "", None]
        case list():
            others = [value[::-1], value[:1], [*value, None], [], None]
        case _:
            others = [{**value, "new": None}, {"other": "1"}, dict.fromkeys(value, "y")]
    found = digest(frame(ADD))
    for other in others:
        assert digest(frame({**ADD, column: other})) != found, other


def test_swapped_values_change_the_digest() -> None:
    one = frame({"actionType": "add", "path": "a", "size": 1}, {**ADD, "path": "b", "size": 2})
    swapped = one.with_columns(size=pl.col("size").reverse())
    assert digest(one) != digest(swapped)
    assert digest(frame({**ADD, "baseRowId": 3, "defaultRowCommitVersion": 7})) != digest(
        frame(ADD)
    )


def test_swapped_keys_or_values_of_maps_change_the_digest() -> None:
    one = frame({**ADD, "tags": {"a": "1", "b": "2"}})
    assert digest(one) != digest(frame({**ADD, "tags": {"a": "2", "b": "1"}}))
    assert digest(one) != digest(frame({**ADD, "tags": {"1": "a", "2": "b"}}))


def test_empty_map_equals_null_only_where_the_contract_defines_it() -> None:
    assert digest(frame({**ADD, "partitionValues": {}})) == digest(
        frame({**ADD, "partitionValues": None})
    )
    assert digest(frame({**ADD, "tags": {}})) != digest(frame({**ADD, "tags": None}))


def test_default_values_of_the_contract_equal_absent_fields() -> None:
    bare = {"actionType": "metaData", "metadataId": "m"}
    full = {
        **bare,
        "formatProvider": "parquet",
        "formatOptions": {},
        "partitionColumns": [],
        "configuration": {},
    }
    assert digest(frame(bare)) == digest(frame(full))
    assert digest(frame(bare)) != digest(frame({**full, "formatProvider": "orc"}))


def test_origin_of_an_action_is_ignored_unless_requested() -> None:
    here = frame({**ADD, "version": 1, "position": 2, "timestamp": 3, "dataChange": True})
    assert digest(here) == digest(frame(ADD))
    assert digest(here, ["path", "version"]) != digest(frame({**ADD, "version": 2}), ["path"])
    assert digest(here, ["path", "dataChange"]) == digest(here, ["path"])


def test_statistics_and_tags_of_a_remove_are_ignored() -> None:
    remove = {"actionType": "remove", "path": "a", "deletionTimestamp": 5}
    found = digest(frame({**remove, "stats": "{}", "tags": {"a": "b"}}))
    assert found == digest(frame(remove))
    assert not {"stats", "tags"} & kept_columns("remove")


def test_columns_may_be_given_by_action_type() -> None:
    rows = frame(ADD, {"actionType": "remove", "path": "a", "size": 5})
    columns = {"add": ["path", "size"], "remove": ["path"]}
    changed = rows.with_columns(
        size=pl.when(pl.col("actionType") == "remove").then(6).otherwise("size")
    )
    assert digest(rows, columns) == digest(changed, columns)
    assert digest(rows) != digest(changed)


def test_typed_columns_are_compared_by_their_bits() -> None:
    def typed(value: float, day: int) -> Digest:
        struct = pl.DataFrame({"x": [value], "d": pl.Series([day]).cast(pl.Date)}).to_struct("min")
        rows = pl.DataFrame([pl.Series("actionType", ["add"]), struct])
        return digest(rows, ["min"])

    assert typed(0.0, 1) != typed(-0.0, 1)
    assert typed(1.0, 1) != typed(1.0, 2)
    assert typed(1.0, 1) == typed(1.0, 1)


def test_decimals_binaries_and_lists_of_structs_can_be_hashed() -> None:
    rows = pl.DataFrame(
        {
            "actionType": ["add"],
            "a": pl.Series(["1.50"]).cast(pl.Decimal(38, 2)),
            "b": [b"x"],
            "c": [[{"k": 1.0, "v": [1, None]}]],
        }
    )
    changed = rows.with_columns(c=pl.Series([[{"k": 1.0, "v": [None, 1]}]]))
    assert digest(rows, ["a", "b", "c"]) != digest(changed, ["a", "b", "c"])
    assert digest(rows, ["a", "b"]) == digest(changed, ["a", "b"])


def test_sums_and_differences_of_digests_match_their_rows() -> None:
    rows = [{**ADD, "path": str(n)} for n in range(5)]
    left, right = digest(frame(*rows[:2])), digest(frame(*rows[2:]))
    whole = digest(frame(*rows))
    assert left + right == whole
    assert whole - left == right
    assert whole - whole == Digest()
    assert whole.only(["remove"]) == Digest()
    assert whole.only(["add"]) == whole


def test_differences_name_the_type_and_both_counts() -> None:
    rows = frame(ADD, {**ADD, "path": "b"}, {"actionType": "remove", "path": "c"})
    expected = digest(rows)
    assert expected.differences(digest(rows[:2])) == [Difference("remove", 1, 0)]
    changed = digest(rows.with_columns(path=pl.lit("x")))
    assert expected.differences(changed) == [Difference("add", 2, 2), Difference("remove", 1, 1)]
    assert expected.differences(expected) == []


def test_digest_is_read_back_from_its_text() -> None:
    found = digest(frame(ADD, {"actionType": "remove", "path": "c"}))
    assert Digest.of_text(found.to_text()) == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"algorithm":1,"add":3}', '{"add":[1,"x"]}'])
def test_text_that_is_not_a_digest_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Digest.of_text(text)


def test_digest_of_another_algorithm_is_refused() -> None:
    text = digest(frame(ADD)).to_text().replace(algorithm(), "lakelog-0-0000000000000000")
    with pytest.raises(InvalidInputError, match="another algorithm"):
        Digest.of_text(text)


def test_digests_are_the_same_in_another_process() -> None:
    code = (
        "import polars as pl\n"
        "from lakelog.dialects.digest import digest\n"
        "rows = pl.DataFrame({'actionType': ['add'], 'path': ['p'], 'size': [1]})\n"
        "print(digest(rows).to_text())"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = frame({"actionType": "add", "path": "p", "size": 1})
    assert Digest.of_text(made.stdout) == digest(rows)


def test_row_hashes_sum_to_the_digest() -> None:
    rows = frame(ADD, {**ADD, "path": "b"})
    lanes = row_hashes(rows, "add")
    high, low = (sum(lanes[name].to_list()) % (1 << 64) for name in ("high", "low"))
    assert digest(rows).sums["add"] == high << 64 | low
