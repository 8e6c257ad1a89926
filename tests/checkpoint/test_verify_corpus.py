"""Checkpoints that other engines wrote, proved: their logs are real, and so is what is wrong."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path

import pytest

import lakelog
from lakelog.checkpoint.verify import verify_one
from lakelog.errors import LakelogError, LakelogWarning

CORPUS = Path(os.environ.get("LAKELOG_CORPUS", "../shared/corpus")).resolve() / "delta"

WRONG = {"kernel-rs__parquet_row_group_skipping"}
"""Written over by hand: the checkpoint tells of another table than its commits."""


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus is not here")
def test_checkpoints_of_other_engines_are_proved_or_the_reason_is_known() -> None:
    verdicts: Counter[str] = Counter()
    wrong: set[str] = set()
    for folder in sorted(CORPUS.rglob("_delta_log")):
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
            if report.verdict == "wrong":
                wrong.add(folder.parent.name)
    assert wrong == WRONG
    assert verdicts["proved"] > 50
