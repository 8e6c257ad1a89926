"""Content of a commit: the fields that depend on its version are set again for each attempt."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog import CorruptionError, InvalidTransactionError
from lakelog.dialects import delta
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol
from lakelog.skipping.statistics import num_records
from lakelog.transaction.action_input import rows_frame, stage_one
from lakelog.transaction.commit_content import CommitBase, Description, build_content
from lakelog.transaction.metadata_changes import metadata_row, with_file_defaults
from lakelog.transaction.pending_commit import WRITE_SERIALIZABLE, PendingCommit, Reads
from lakelog.transaction.row_tracking import assign, water_mark
from tests.transaction.tables import NOW_MS

PLAIN = Protocol(1, 2)
TRACKING = Protocol(1, 7, None, ("domainMetadata", "rowTracking"))
TIMED = Protocol(1, 7, None, ("inCommitTimestamp",))
TIMES_ON = {"delta.enableInCommitTimestamps": "true"}


def metadata(**configuration: str) -> Metadata:
    text = '{"type":"struct","fields":[]}'
    return Metadata("id", None, None, "parquet", {}, text, (), configuration, None)


def add(path: str, records: int | None = None, **fields: Any) -> dict[str, Any]:
    if records is not None:
        fields["stats"] = {"numRecords": records}
    return stage_one("delta", "add", {"path": path, "size": 1, **fields})


def pending(
    files: list[dict[str, Any]],
    meta: list[dict[str, Any]] | None = None,
    protocol: Protocol = PLAIN,
    before: Metadata | None = None,
) -> PendingCommit:
    return PendingCommit(
        Reads(),
        with_file_defaults(rows_frame(files), NOW_MS) if files else actions.concat([]),
        rows_frame(meta) if meta else actions.concat([]),
        WRITE_SERIALIZABLE,
        TableConfiguration(DELTA, protocol, metadata() if before is None else before),
    )


DESCRIPTION = Description(
    "WRITE",
    {"mode": "Append", "partitionBy": ["a"], "n": 1, "none": None},
    {"numFiles": 2},
    "txn-1",
    "lakelog/x",
    blind_append=True,
    read_version=6,
    isolation=WRITE_SERIALIZABLE,
)


def base(version: int = 6, **more: Any) -> CommitBase:
    return CommitBase(version, PLAIN, metadata(), **more)


def test_enablement_of_in_commit_timestamps_is_recorded_again_for_each_attempt() -> None:
    row = {"actionType": "metaData", **metadata_row(metadata(**TIMES_ON))}
    enabling = pending([], [row], protocol=TIMED)
    for version, modified in ((6, NOW_MS + 9), (8, NOW_MS - 9)):
        content = build_content(enabling, DESCRIPTION, base(version, modified_ms=modified), NOW_MS)
        at = max(NOW_MS, modified + 1)
        assert content.info["inCommitTimestamp"] == at
        assert content.meta["configuration"].to_list() == [
            TIMES_ON
            | {
                "delta.inCommitTimestampEnablementVersion": str(version + 1),
                "delta.inCommitTimestampEnablementTimestamp": str(at),
            }
        ]


def mark_rows(mark: int | str) -> pl.DataFrame:
    text = mark if isinstance(mark, str) else f'{{"rowIdHighWaterMark":{mark}}}'
    return rows_frame(
        [
            {
                "actionType": "domainMetadata",
                "domain": "delta.rowTracking",
                "domainConfiguration": text,
            }
        ]
    )


def test_row_ids_start_above_the_high_water_mark_and_are_assigned_again_for_each_attempt() -> None:
    tracked = pending([add("a", 3), add("b", 0), add("c", 2)], protocol=TRACKING)
    for version, mark in ((6, -1), (9, 99)):
        meta = mark_rows(mark) if mark >= 0 else actions.concat([])
        content = build_content(tracked, DESCRIPTION, base(version, meta=meta), NOW_MS)
        start = mark + 1
        assert content.files["baseRowId"].to_list() == [start, start + 3, start + 3]
        assert content.files["defaultRowCommitVersion"].to_list() == [version + 1] * 3
        assert water_mark(content.meta) == start + 4
        assert content.info["tags"] == {"delta.rowTracking.preserved": "true"}


def test_given_row_ids_are_kept_and_new_ones_start_above_them() -> None:
    kept = add("a", 5, baseRowId=200, defaultRowCommitVersion=2)
    files = with_file_defaults(rows_frame([kept, add("b", 2)]), NOW_MS)
    assigned = assign(files, 7, 99)
    assert assigned.files["baseRowId"].to_list() == [200, 205]
    assert assigned.files["defaultRowCommitVersion"].to_list() == [2, 7]
    assert assigned.water_mark == 206


def test_row_ids_are_not_assigned_without_adds_or_while_tracking_is_suspended() -> None:
    removed = stage_one("delta", "remove", {"path": "a"})
    content = build_content(pending([removed], protocol=TRACKING), DESCRIPTION, base(), NOW_MS)
    assert "baseRowId" not in content.files.columns
    assert content.meta.height == 0
    assert content.info["tags"] == {"delta.rowTracking.preserved": "false"}
    declared = replace(DESCRIPTION, row_ids_kept=frozenset("a"))
    content = build_content(pending([removed], protocol=TRACKING), declared, base(), NOW_MS)
    assert content.info["tags"] == {"delta.rowTracking.preserved": "true"}
    suspended = metadata(**{"delta.rowTrackingSuspended": "true"})
    still = pending([add("a", 1)], protocol=TRACKING, before=suspended)
    assert "baseRowId" not in build_content(still, DESCRIPTION, base(), NOW_MS).files.columns


def test_row_tracking_without_num_records_raises() -> None:
    with pytest.raises(InvalidTransactionError) as error:
        build_content(pending([add("a")], protocol=TRACKING), DESCRIPTION, base(), NOW_MS)
    assert error.value.path == "a"


@pytest.mark.parametrize("text", ["", "{}", "x", '{"rowIdHighWaterMark":"1"}'])
def test_invalid_high_water_mark_raises_corruption_error(text: str) -> None:
    with pytest.raises(CorruptionError):
        water_mark(mark_rows(text))


@given(st.lists(st.none() | st.integers(0, 1 << 40), max_size=80), st.booleans())
def test_num_records_is_read_at_any_position_in_the_statistics(
    counts: list[int | None], first: bool
) -> None:
    other = '"minValues":{"numRecords":7}'
    texts = [
        None
        if count is None
        else (
            f'{{"numRecords":{count},{other}}}' if first else f'{{{other}, "numRecords":{count}}}'
        )
        for count in counts
    ]
    small, many = (
        pl.Series(texts, dtype=pl.String),
        pl.Series([*texts, *[None] * 65], dtype=pl.String),
    )
    assert num_records(small).to_list() == counts
    assert num_records(many).to_list() == [*counts, *[None] * 65]


def test_actions_are_written_in_the_order_of_the_protocol() -> None:
    rows: list[dict[str, Any]] = [
        {"actionType": "txn", "appId": "a", "txnVersion": 1},
        {"actionType": "domainMetadata", "domain": "d"},
        {"actionType": "metaData", **metadata_row(metadata())},
        {"actionType": "protocol", "minReaderVersion": 1, "minWriterVersion": 2},
    ]
    content = build_content(pending([], rows), DESCRIPTION, base(), NOW_MS)
    lines = [json.loads(line) for line in delta.DIALECT.encode(content).splitlines()]
    kinds = [kind for line in lines for kind in line]
    assert kinds == ["commitInfo", "protocol", "metaData", "domainMetadata", "txn"]
