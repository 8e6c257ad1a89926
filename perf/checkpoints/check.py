"""Reads a table back after a run: both readers must find the same live files as before."""

from __future__ import annotations

import lakelog
from perf import answers
from perf.answers import Answer
from perf.writing import check
from perf.writing.base import Job

_LEFT_OUT = ("version", "gaps", "stats")


def given(job: Job, commits: int) -> list[tuple[str, Answer]]:  # noqa: ARG001 - as every checker
    """See `perf.writing.workloads.WriteWorkload`."""
    return read_back(job)


def read_back(job: Job) -> list[tuple[str, Answer]]:
    """The results of both readers, restricted to values that are equal for all contenders."""
    if lakelog.open(job.path).snapshot().metadata.partition_columns:
        readers = [check.by_lakelog, check.by_deltalake]
        return [(read.__name__, _common(read(job.path))) for read in readers]
    # Ten million files: deltalake needs a kilobyte per file.
    wanted: Answer = {name: job.facts[name] for name in ("files", "bytes")}
    files = lakelog.open(job.path).snapshot().files()
    found = answers.of_files(files.select("path", "size").collect())
    return [("the generator", wanted), ("by_lakelog", found)]


def _common(answer: Answer) -> Answer:
    return {name: value for name, value in answer.items() if name not in _LEFT_OUT}
