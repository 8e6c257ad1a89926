"""Verification of checkpoints of other engines: their logs are real, and so are their errors."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import pytest

import lakelog
from lakelog.checkpoint.verify import verify_one
from lakelog.errors import LakelogError, LakelogWarning
from tests.budget import IS_WHOLE, seed_of

OVERWRITTEN = "kernel-rs__parquet_row_group_skipping"
"""A folder that was written over: the checkpoint belongs to another table than the commits."""


@pytest.mark.corpus
def test_checkpoints_of_other_engines_are_proved_or_the_reason_is_known(corpus: Path) -> None:
    verdicts: Counter[str] = Counter()
    reasons: dict[str, str | None] = {}
    folders = sorted((corpus / "delta").rglob("_delta_log"))
    if not IS_WHOLE:
        folders = [f for f in folders if OVERWRITTEN in str(f) or seed_of(f.parent.name) % 3 == 0]
    for folder in folders:
        log = lakelog.open(folder.parent).log
        for checkpoint in log.list_all().checkpoints[-1:]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LakelogWarning)
                try:
                    report = verify_one(log, checkpoint)
                except LakelogError as refused:
                    verdicts[refused.kind] += 1
                    continue
            verdicts[report.verdict] += 1
            reasons[folder.parent.name] = report.reason
    assert not verdicts["wrong"]
    assert verdicts["proved"] > (50 if IS_WHOLE else 10)
    assert "another table" in (reasons[OVERWRITTEN] or "")
