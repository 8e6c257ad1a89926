"""Queries tables in a child process with little memory, so that an abort is detected.

Run as a program it reads JSON from its standard input: the bytes that it may map beyond its current
mappings, a query, and the tables. It prints one JSON line per table with its outcome.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import polars as pl

import lakelog
from lakelog.errors import LakelogError

_MEBIBYTE = 1 << 20


def outcomes(
    roots: Mapping[str, Path], question: str = "state", mebibytes: int = 1024
) -> dict[str, str]:
    """The answers of a process with that much memory about each table.

    Returns:
        By the tables' names: a number, the name of a `LakelogError`, or ``raw`` and the name of
        another exception. Tables after the one that ended the process are missing.
    """
    asked = {name: str(root) for name, root in roots.items()}
    done = subprocess.run(
        [sys.executable, "-m", "tests.limited"],
        input=json.dumps([mebibytes, question, asked]),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
        # Arrow's other pools reserve as much as the limit lets them, so that Polars has none left.
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    if missing := [name for name in asked if name not in found]:
        found[missing[0]] = f"ended by {done.returncode}: {done.stderr[-300:]}"
    return found


def _ask(question: str, root: str) -> int:
    table = lakelog.open(root)
    snapshot = table.snapshot()
    match question:
        case "rows":
            return int(snapshot.scan().collect().height)
        case "count":
            return int(snapshot.scan().select(pl.len()).collect().item())
        case "where":
            return int(snapshot.files(where=pl.col("id") > 1).collect().height)
    _ = snapshot.metadata, snapshot.protocol
    return int(snapshot.files().collect().height)


def _outcome(question: str, root: str) -> str:
    try:
        return str(_ask(question, root))
    except LakelogError as error:
        return type(error).__name__
    except BaseException as error:  # noqa: BLE001 - what escapes is the outcome
        return f"raw {type(error).__name__}: {error}"


def _limit(more_bytes: int) -> None:
    pl.LazyFrame({"a": [1]}).select(pl.col("a").sum()).collect()  # starts its threads
    counters = Path("/proc/self/statm")
    if not counters.exists():  # not Linux: only aborts are seen
        return
    pages = int(counters.read_text("ascii").split()[5])
    most = pages * resource.getpagesize() + more_bytes
    # Data, and not address space, of which allocators reserve far more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _main() -> None:
    mebibytes, question, roots = json.load(sys.stdin)
    _limit(mebibytes * _MEBIBYTE)
    for name, root in roots.items():
        print(json.dumps([name, _outcome(question, root)]), flush=True)


if __name__ == "__main__":
    _main()
