"""Creates the tables of `real/` with IndexTables' own writer, and records its results.

Run by hand, from the repository's root, with LAKELOG_INDEXTABLES_BUILD set (see `reference`)::

    python -m tests.dialects.indextables.make_real_tables

Each folder then holds a table and ``expected.json``: ``real``, the reference's answer for the
latest version; ``files``, the live files by version that lakelog has to give; ``refused``,
versions that it has to refuse.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lakelog
from tests.dialects.indextables.reference import (
    JSON,
    SCHEMA,
    SHARED,
    VARIABLE,
    Reference,
    add,
    remove,
)

HERE = Path(__file__).parent / "real"
Expected = dict[str, Any]

_SPACED = '[ {"name": "a", "type": "text"}, {"name": "o", "type": "object"} ]'


def states_and_skips(real: Reference, table: str) -> Expected:
    """Commits by states, with independently numbered skips."""
    real("init", table, schema=SCHEMA)
    for number in range(1, 4):
        real("add", table, adds=[add(f"f{number}")])
        real.skip(table, f"s{number}")
    real("merge", table, removes=[remove("f1"), remove("f2")], adds=[add("m1")])
    real.skip(table, "s3")
    real.skip(table, "s4")
    files = {0: [], 1: ["f1"], 2: ["f1", "f2"], 3: ["f1", "f2", "f3"], 4: ["f3", "m1"]}
    return {"files": files, "skips": ["s1", "s2", "s3", "s4"]}


def late_state(real: Reference, table: str) -> Expected:
    """A checkpoint of a table with states gets the number of its last JSON commit, 0."""
    real("init", table, schema=SCHEMA)
    for number in range(1, 3):
        real("add", table, adds=[add(f"f{number}")])
    real("checkpoint", table)
    return {"files": {0: [], 1: ["f1"], 2: ["f1", "f2"]}}


def json_commits(real: Reference, table: str) -> Expected:
    """JSON commits, a JSON checkpoint of them, and commits above it."""
    real("init", table, JSON, schema=SCHEMA)
    real("add", table, JSON, adds=[add("f1", docMappingJson=_SPACED), add("f2")])
    real("removeFile", table, JSON, path="f2")
    real("checkpoint", table, JSON)
    real("add", table, JSON, adds=[add("f3", docMappingJson=_SPACED)])
    return {"files": {0: [], 1: ["f1", "f2"], 2: ["f1"], 3: ["f1", "f3"]}}


def states_above_commits(real: Reference, table: str) -> Expected:
    """lakelog creates a table; the reference checkpoints it by a state, and commits by states."""
    _lakelog(table, "f1", "f2")
    real("checkpoint", table)
    real("add", table, adds=[add("f3")])
    return {"files": {0: [], 1: ["f1"], 2: ["f1", "f2"], 3: ["f1", "f2", "f3"]}}


def forgotten_commits(real: Reference, table: str) -> Expected:
    """lakelog creates a table; the reference's first state omits its files."""
    _lakelog(table, "f1", "f2")
    real("add", table, adds=[add("f3")])
    return {"files": {0: []}, "refused": [1, 2]}


def raised_protocol(real: Reference, table: str) -> Expected:
    """lakelog creates a table; a JSON checkpoint of the reference raises its protocol."""
    created = _lakelog(table, "f1")
    with created.transaction() as tx:
        tx.add(**add("f2", docMappingJson=_SPACED))
    real("checkpoint", table, JSON)
    return {"files": {0: [], 1: ["f1"], 2: ["f1", "f2"]}}


def alternating_writers(real: Reference, table: str) -> Expected:
    """Both writers commit JSON alternately."""
    created = _lakelog(table, "f1")
    real("add", table, SHARED, adds=[add("f2")])
    with created.transaction() as tx:
        tx.add(**add("f3"))
    real("removeFile", table, SHARED, path="f1")
    files = {0: [], 1: ["f1"], 2: ["f1", "f2"], 3: ["f1", "f2", "f3"], 4: ["f2", "f3"]}
    return {"files": files}


def _lakelog(table: str, *paths: str) -> lakelog.Table:
    created = lakelog.create(table, SCHEMA, format="indextables", upkeep=False)
    for path in paths:
        with created.transaction() as tx:
            tx.add(**add(path))
    return created


TABLES: tuple[Callable[[Reference, str], Expected], ...] = (
    states_and_skips,
    late_state,
    json_commits,
    states_above_commits,
    forgotten_commits,
    raised_protocol,
    alternating_writers,
)


def main() -> None:
    """Create every table again."""
    real = Reference(Path(os.environ[VARIABLE]), sys.stderr.buffer)
    for make in TABLES:
        table = HERE / make.__name__
        shutil.rmtree(table, ignore_errors=True)
        table.mkdir(parents=True)
        expected = make(real, str(table))
        expected["real"] = real("state", table)
        text = json.dumps(expected, indent=1, sort_keys=True) + "\n"
        (table / "expected.json").write_text(text, encoding="utf-8")
    real.close()


if __name__ == "__main__":
    main()
