"""The Delta dialect: listing by the pointer, decoding commits and compactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lakelog.dialects.delta import DIALECT
from lakelog.dialects.log_content import CommitFile
from lakelog.errors import InvalidActionError, MalformedLogError
from lakelog.model import actions
from tests.handmade import Handmade, add, info, metadata, protocol, remove, vector


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    log = Handmade(tmp_path / "t").start(add("a%20b"))
    for version in range(1, 12):
        log.commit(version, info(), add(f"f{version}"))
    log.checkpoint(5, protocol(), metadata())
    return log


def commits_listed(made: Handmade, **how: Any) -> list[int]:
    listing = DIALECT.list_log(made.context().store, **how)
    return [c.version for c in listing.commits]


def test_listing_starts_at_the_checkpoint_of_the_pointer(made: Handmade) -> None:
    assert commits_listed(made) == list(range(12))
    made.write("_last_checkpoint", b'{"version":5}')
    assert commits_listed(made) == list(range(5, 12))
    assert commits_listed(made, hint=False) == list(range(12))
    assert commits_listed(made, hint=False, start=9) == [9, 10, 11]


@pytest.mark.parametrize("version", [3, 6, 99])
def test_pointer_to_a_missing_checkpoint_finds_another_or_lists_everything(
    made: Handmade, version: int
) -> None:
    made.write("_last_checkpoint", b'{"version":%d}' % version)
    listed = commits_listed(made)
    assert listed == (list(range(3, 12)) if version == 3 else list(range(12)))


def test_commits_decode_to_rows_with_decoded_paths_and_identities(made: Handmade) -> None:
    made.commit(12, add("v%20w", **vector("x")), remove("c%2Bd"), {"cdc": {"path": "e%20f"}})
    log = made.context()
    decoded = DIALECT.decode(log.store, log.list_all().commits)
    paths = decoded.files.filter(pl.col("version").is_in([0, 12]))
    assert actions.conform(paths, ["version", "position", "path", "dvId"]).rows() == [
        (0, 3, "a b", None),
        (12, 0, "v w", "ux@1"),
        (12, 1, "c+d", None),
    ]
    assert decoded.other["path"].to_list() == ["e f"]
    assert [i.version for i in decoded.commit_infos] == list(range(12))


def test_decoding_without_files_reads_only_meta_actions_and_commit_info(made: Handmade) -> None:
    log = made.context()
    decoded = DIALECT.decode(log.store, log.list_all().commits, files=False)
    assert decoded.files.height == decoded.other.height == 0
    assert decoded.meta["actionType"].to_list() == ["protocol", "metaData"]
    assert len(decoded.commit_infos) == 12


@pytest.mark.parametrize("place", [0, 2, 12])
def test_commit_deleted_between_listing_and_reading_is_named(made: Handmade, place: int) -> None:
    commits = list(made.context().list_all().commits)
    commits.insert(place, CommitFile(99, "_delta_log/missing.json", 1, 1))
    with pytest.raises(MalformedLogError, match="deleted while") as refused:
        DIALECT.decode(made.context().store, commits)
    assert (refused.value.path, refused.value.version) == ("_delta_log/missing.json", 99)


def test_rows_of_a_compaction_have_no_position(made: Handmade) -> None:
    made.compaction(1, 2, add("f1"), add("f2%20x"))
    log = made.context()
    (compaction,) = log.list_all().compactions
    decoded = DIALECT.decode_compaction(log.store, compaction)
    assert decoded.files["path"].to_list() == ["f1", "f2 x"]
    assert "version" not in decoded.files.columns


def test_deletion_vector_without_its_storage_is_refused(made: Handmade) -> None:
    made.commit(12, add("a", deletionVector={"pathOrInlineDv": "x"}))
    log = made.context()
    with pytest.raises(InvalidActionError, match="deletion vector") as refused:
        DIALECT.decode(log.store, log.list_all().commits)
    assert refused.value.version == 12


def test_delta_log_has_no_default_protocol_and_no_times_in_checkpoints(made: Handmade) -> None:
    log = made.context()
    assert DIALECT.default_protocol is None
    assert DIALECT.state_time(log.store, log.list_all().checkpoints[0]) is None
