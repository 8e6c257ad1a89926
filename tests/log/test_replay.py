"""Replay as pure functions: the last action of a logical file wins, however it is layered."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

from lakelog.log.replay import (
    Layers,
    exclude,
    is_expired,
    last_by,
    last_of,
    live_domains,
    reconcile_files,
    reconcile_meta,
    retained_tombstones,
)
from lakelog.model import actions

Key = tuple[str, str | None]


def files(*rows: tuple[str, str, str | None]) -> pl.DataFrame:
    """(actionType, path, dvId) in order."""
    schema = {"actionType": pl.String, "path": pl.String, "dvId": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def meta(*rows: dict[str, Any]) -> pl.DataFrame:
    columns = {c for row in rows for c in row}
    return pl.DataFrame(rows, schema={c: actions.schema()[c] for c in sorted(columns)})


def test_the_last_action_of_a_logical_file_is_kept_in_order() -> None:
    frame = files(("add", "a", None), ("add", "b", None), ("remove", "a", None), ("add", "a", "v"))
    assert reconcile_files(frame).rows() == [
        ("add", "b", None),
        ("remove", "a", None),
        ("add", "a", "v"),
    ]


def test_without_a_column_of_vectors_the_path_is_the_identity() -> None:
    frame = files(("add", "a", None), ("remove", "a", None)).drop("dvId")
    assert reconcile_files(frame).rows() == [("remove", "a")]


@pytest.mark.parametrize("seed", range(20))
def test_layers_give_what_a_dictionary_does(seed: int) -> None:
    rng = random.Random(seed)
    layers = Layers()
    state: dict[Key, str] = {}
    for _ in range(rng.randrange(1, 25)):
        batch = [
            (rng.choice(["add", "remove"]), rng.choice("abcdefgh"), rng.choice([None, None, "v"]))
            for _ in range(rng.choice([0, 1, 2, 20]))
        ]
        frame = files(*batch)
        without_vectors = all(dv is None for _, _, dv in batch) and rng.random() < 0.5
        layers = layers.push(frame.drop("dvId") if without_vectors else frame)
        state |= {(path, dv): kind for kind, path, dv in batch}
    for kind in actions.FILE_ACTIONS:
        live = actions.conform(layers.live(kind), actions.KEY).rows()
        assert len(live) == len(set(live)), f"seed {seed}"
        assert set(live) == {key for key, last in state.items() if last == kind}, f"seed {seed}"
    assert set(layers.keys().rows()) == set(state), f"seed {seed}"


def test_the_number_of_layers_stays_logarithmic() -> None:
    layers = Layers()
    for n in range(500):
        layers = layers.push(files(("add", f"f{n}", None)))
    assert layers.height == 500
    assert len(layers.frames) <= 9


def test_a_push_leaves_the_layers_before_it_as_they_were() -> None:
    before = Layers().push(files(("add", "a", None)))
    after = before.push(files(("remove", "a", None)))
    assert before.live("add").height == 1
    assert after.live("add").height == 0
    assert after.push(files()) is after


@pytest.mark.parametrize("seed", range(20))
def test_exclusion_is_by_path_and_vector_and_keeps_the_order(seed: int) -> None:
    rng = random.Random(seed)
    keys = [(rng.choice("abc"), rng.choice([None, "v", "w"])) for _ in range(rng.randrange(4))]
    rows = [("add", rng.choice("abcd"), rng.choice([None, "v"])) for _ in range(rng.randrange(9))]
    key_frame = pl.DataFrame(keys, schema={"path": pl.String, "dvId": pl.String}, orient="row")
    assert exclude(files(*rows), key_frame).rows() == [
        row for row in rows if row[1:] not in keys
    ], f"seed {seed}"


def test_files_without_a_column_of_vectors_are_excluded_by_null_vectors_only() -> None:
    frame = files(("add", "a", None), ("add", "b", None)).drop("dvId")
    keys = pl.DataFrame({"path": ["a", "b"], "dvId": ["v", None]})
    assert exclude(frame, keys)["path"].to_list() == ["a"]


def test_the_last_row_of_a_type_and_of_a_key() -> None:
    rows = meta(
        {"actionType": "protocol", "minReaderVersion": 1},
        {"actionType": "txn", "appId": "a", "txnVersion": 9},
        {"actionType": "txn", "appId": "b", "txnVersion": 1},
        {"actionType": "txn", "appId": "a", "txnVersion": 3},
        {"actionType": "protocol", "minReaderVersion": 3},
    )
    assert last_of(rows, "protocol")["minReaderVersion"].to_list() == [3]
    assert last_of(rows, "metaData").height == 0
    assert last_by(rows, "txn", "appId").select("appId", "txnVersion").rows() == [
        ("b", 1),
        ("a", 3),
    ]
    assert last_by(rows, "domainMetadata", "domain").height == 0


def domain(name: str, removed: bool | None) -> dict[str, Any]:
    return {"actionType": "domainMetadata", "domain": name, "domainRemoved": removed}


def test_a_domain_lives_until_its_last_row_removes_it() -> None:
    rows = meta(domain("a", None), domain("b", False), domain("a", True), domain("c", None))
    assert live_domains(rows)["domain"].to_list() == ["b", "c"]
    assert live_domains(rows.drop("domainRemoved")).height == 3


def test_a_removed_domain_still_hides_an_older_one_when_parts_are_joined() -> None:
    newer = reconcile_meta([meta(domain("a", True))])
    assert newer.height == 1
    joined = reconcile_meta([meta(domain("a", False)), newer])
    assert live_domains(joined).height == 0


def test_reconciling_twice_changes_nothing() -> None:
    rows = meta(
        domain("a", None),
        {"actionType": "metaData", "metadataId": "1"},
        {"actionType": "txn", "appId": "a", "txnVersion": 9},
        {"actionType": "metaData", "metadataId": "2"},
        domain("a", None),
        {"actionType": "mergeskip", "path": "p", "skipCount": 1},
        {"actionType": "mergeskip", "path": "p", "skipCount": 2},
    )
    once = reconcile_meta([rows])
    assert once["actionType"].to_list() == ["metaData", "domainMetadata", "txn", "mergeskip"]
    assert once["skipCount"].to_list()[-1] == 2
    assert reconcile_meta([once]).equals(once)
    assert reconcile_meta([]).height == 0


@pytest.mark.parametrize(("minimum", "kept"), [(None, 3), (4, 1), (5, 0), (-1, 1)])
def test_transactions_expire_by_their_last_update(minimum: int | None, kept: int) -> None:
    rows = pl.DataFrame({"appId": ["a", "b", "c"], "lastUpdated": [5, None, -1]})
    assert rows.filter(~is_expired(minimum)).height == kept


@pytest.mark.parametrize(("minimum", "kept"), [(None, 3), (-1, 3), (0, 2), (4, 2), (5, 1), (9, 0)])
def test_a_tombstone_is_kept_strictly_after_the_minimum(minimum: int | None, kept: int) -> None:
    rows = pl.DataFrame({"path": ["a", "b", "c"], "deletionTimestamp": [5, None, 9]})
    assert retained_tombstones(rows, minimum).height == kept


def test_tombstones_without_any_time_count_from_zero() -> None:
    rows = pl.DataFrame({"path": ["a"]})
    assert [retained_tombstones(rows, m).height for m in (None, -1, 0)] == [1, 1, 0]
