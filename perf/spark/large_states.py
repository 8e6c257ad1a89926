"""Tables of many files without data, generated once and cached (as in `perf.tables`): a checkpoint
in parts of half a million rows, and commits above it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import polars as pl

from perf import columns, tables
from perf.generate import (
    CHECKPOINT_VERSION,
    _adds,
    _commit_info,
    _head,
    _write_checkpoint,
    _write_commit,
    _write_hint,
)

PART_ROWS = 500_000
FACTS = "facts.json"
"""File next to a table's log with the facts of a correct answer."""

_NEW = 900_000_000
_DELETED_MS = 4_000_000_000_000  # in the future: these tombstones do not expire
_RECIPES = (__file__, columns.__file__)

Facts = dict[str, int]
"""``version``, live ``files``, their ``bytes``, and the number of characters of their paths and
statistics.
"""


def ensure(files: int, commits: int) -> tuple[Path, Facts]:
    """A Delta table of `files` files in a multi-part checkpoint, each commit above it removes ten
    of them and adds twenty others; and the facts of a correct answer.

    Rows are assigned to parts by number, as in `perf.generate.multipart_checkpoint`. Statistics
    are JSON text only.
    """
    recipe = hashlib.sha256(b"".join(Path(source).read_bytes() for source in _RECIPES))
    name = f"large_state-{files}-{commits}-{recipe.hexdigest()[:10]}"
    final = tables.cache_directory() / name
    if not final.is_dir():
        partial = final.with_name(f"{name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        facts = _make(partial / "_delta_log", files, commits)
        (partial / FACTS).write_text(json.dumps(facts), encoding="utf-8")
        partial.rename(final)
    found: Facts = json.loads((final / FACTS).read_text("utf-8"))
    return final, found


def parts(table: Path) -> list[str]:
    """The checkpoint's parts, as Spark reads them."""
    return sorted(os.fspath(path) for path in (table / "_delta_log").glob("*.checkpoint.*.parquet"))


def _make(log: Path, files: int, commits: int) -> Facts:
    log.mkdir(parents=True)
    count = max(2, -(-files // PART_ROWS))
    facts: Facts = {}
    for number in range(count):
        first, end = files * number // count, files * (number + 1) // count
        own = columns.files(first, end - first)
        facts = _counted(facts, own)
        name = f"{CHECKPOINT_VERSION:020d}.checkpoint.{number + 1:010d}.{count:010d}.parquet"
        _write_checkpoint(log / name, [*([] if number else [_head()]), _adds(own)])
    _write_hint(log, size=files + 2, parts=count)
    _write_commit(log, CHECKPOINT_VERSION, _commit_info(CHECKPOINT_VERSION, "WRITE"))
    new, removed = columns.files(_NEW, 20 * commits), columns.files(0, min(10 * commits, files))
    adds = columns.add_lines(new).to_list()
    removes = columns.remove_lines(removed, pl.lit(_DELETED_MS)).to_list()
    for k in range(commits):
        lines = [*removes[10 * k : 10 * k + 10], *adds[20 * k : 20 * k + 20]]
        version = CHECKPOINT_VERSION + 1 + k
        _write_commit(log, version, _commit_info(version, "MERGE") + "\n".join(lines) + "\n")
    facts = _counted(_counted(facts, new), removed, -1)
    return facts | {"version": CHECKPOINT_VERSION + commits}


def _counted(facts: Facts, files: pl.DataFrame, sign: int = 1) -> Facts:
    own = {
        "files": files.height,
        "bytes": int(files["size"].sum()),
        "paths": int(files["path"].str.len_bytes().sum()),
        "statistics": int(files["stats"].str.len_bytes().sum()),
    }
    return {name: facts.get(name, 0) + sign * value for name, value in own.items()}
