"""Shared by both raw decoders: the location of the bytes, and the names of answers.

A raw decode only converts the bytes to columns, without open, replay and checks. It gets the
partition columns and the statistics schema as arguments; a reader has to find them. JSON is read as
whole files, joined, and parsed at once. Partition values are a struct, because that is the
fastest form in both libraries.
"""

from __future__ import annotations

import os
from pathlib import Path

from perf.cases.base import Answer

LEAVES = ("path", "partitionValues", "size", "modificationTime")


def checkpoints(path: Path) -> list[str]:
    """The checkpoint's files, in name order."""
    log = f"{path}/_delta_log/"
    return [log + name for name in sorted(os.listdir(log)) if ".checkpoint" in name]


def commits(path: Path) -> bytes:
    """The bytes of every commit that is not covered by the checkpoint, in order, joined."""
    log = f"{path}/_delta_log/"
    names = sorted(os.listdir(log))
    covered = max((n[:20] for n in names if ".checkpoint" in n), default="")
    texts = []
    for name in names:
        if name.endswith(".json") and name[:20] > covered:
            with open(log + name, "rb", buffering=0) as stream:
                texts.append(stream.read())
    return b"".join(texts)


def protocol_answer(protocol: dict[str, int], metadata: dict[str, object]) -> Answer:
    """Protocol and metaData rows as an answer that can be compared with lakelog's."""
    configuration = metadata["configuration"]
    partitions = metadata["partitionColumns"]
    assert isinstance(configuration, list)
    assert isinstance(partitions, list)
    return {
        "reader": protocol["minReaderVersion"],
        "writer": protocol["minWriterVersion"],
        "id": str(metadata["id"]),
        "partitions": ",".join(partitions),
        "configuration": str(sorted(configuration)),
    }
