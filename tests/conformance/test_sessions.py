"""Random sessions of lakelog and deltalake on one table, partitioned by values of every Unicode
class: after each step, new handles of both return the rows of a plain model, and the same files.
``LAKELOG_SEED`` repeats a run; ``LAKELOG_SESSIONS`` is the number of sessions.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

import lakelog
from lakelog.dialects.delta import DIALECT
from lakelog.errors import LakelogWarning
from lakelog.log.context import Log
from lakelog.storage import open_store

pytestmark = [pytest.mark.reference, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("LAKELOG_SEED") or random.SystemRandom().randrange(1 << 32))
SESSIONS = int(os.environ.get("LAKELOG_SESSIONS", "3"))
STEPS = 14
LATER_MS = 4_000_000_000_000  # when all that is replaced has expired

CLASSES = (
    "abcXYZ019",
    "é\u00fc\u00f1",  # composed
    "e\u0301n\u0303",  # the same letters, decomposed
    "雪\u3042\ud55c",
    "😀\U0001f469\u200d\U0001f4bb\U00010348",  # beyond the basic plane, joined
    "\u05d0\u0627\u202e",  # right to left, and a direction mark
    "\x01\t\n\r\x1f\x7f\x85",
    "%2F%%41%C3%A9",
    # Without the tilde: deltalake does not find its own files with one in `optimize`.
    "/\\.:=+&?#;,@!$'\"()*[]{}<>|^`-_",
    " \u00a0\u2028\u3000",
    "\ue000\U000f0000",  # private use
    "\u0378\U0001fffe\ufdd0",  # unassigned, and not a character
    "\ufeff\u200b",
)

Row = tuple[int, str | None]


class Session:
    """One table, the model of its rows, and the steps that change both."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = str(root)
        self.rng = rng
        self.rows: list[Row] = []
        self.steps: list[str] = []
        self.values: list[str | None] = [None, *(self._text() for _ in range(5))]
        # Two Unicode forms of one text are two partitions.
        self.values += ["\u00e9", "e\u0301"]
        self._next = 0
        properties = {
            "spark.indextables.checkpoint.enabled": "false",
            "delta.logRetentionDuration": "interval 0 seconds",  # of deltalake's cleanup
        }
        schema = {"id": pl.Int64, "p": pl.String}
        lakelog.create(root, schema, ["p"], configuration=properties, upkeep=False)

    def _text(self) -> str:
        letters = [self.rng.choice(self.rng.choice(CLASSES)) for _ in range(self.rng.randint(1, 4))]
        return "".join(letters)

    def _new_rows(self, values: list[str | None]) -> pl.DataFrame:
        found = [(self._next + n, self.rng.choice(values)) for n in range(self.rng.randint(1, 5))]
        self._next += len(found)
        return pl.DataFrame(found, schema={"id": pl.Int64, "p": pl.String}, orient="row")

    def step(self) -> None:
        action: Callable[[bool], None] = self.rng.choice(
            (
                self.append,
                self.append,
                self.overwrite_partition,
                self.delete_partition,
                self.overwrite,
                self.optimize,
                self.checkpoint,
                self.cleanup,
            )
        )
        ours = self.rng.random() < 0.5
        self.steps.append(f"{action.__name__} by {'lakelog' if ours else 'deltalake'}")
        action(ours)

    def append(self, ours: bool) -> None:
        rows = self._new_rows(self.values)
        if ours:
            self._table().append(rows)
        else:
            write_deltalake(self.root, rows, mode="append")
        self.rows += rows.rows()

    def overwrite_partition(self, ours: bool) -> None:
        value = self.rng.choice(self.values)
        self._replace(value, self._new_rows([value]), ours)

    def delete_partition(self, ours: bool) -> None:
        value = self.rng.choice(self.values)
        self._replace(value, self._new_rows([value]).clear(), ours)

    def _replace(self, value: str | None, rows: pl.DataFrame, ours: bool) -> None:
        self.steps[-1] += f" of {value!r}"
        quoted = "" if value is None else value.replace("'", "''")
        sql = "p is null" if value is None else f"p = '{quoted}'"
        if ours:
            where = pl.col("p").is_null() if value is None else pl.col("p") == value
            self._table().overwrite(rows, where=where)
        elif rows.height:
            write_deltalake(self.root, rows, mode="overwrite", predicate=sql)
        else:
            DeltaTable(self.root).delete(sql)
        self.rows = [row for row in self.rows if row[1] != value] + rows.rows()

    def overwrite(self, ours: bool) -> None:
        rows = self._new_rows(self.values)
        if ours:
            self._table().overwrite(rows)
        else:
            write_deltalake(self.root, rows, mode="overwrite")
        self.rows = rows.rows()

    def optimize(self, ours: bool) -> None:
        DeltaTable(self.root).optimize.compact()

    def checkpoint(self, ours: bool) -> None:
        if ours:
            self._table().checkpoint()
        else:
            DeltaTable(self.root).create_checkpoint()

    def cleanup(self, ours: bool) -> None:
        self.checkpoint(ours)
        if ours:
            later = Log(open_store(self.root), DIALECT, clock=lambda: LATER_MS)
            lakelog.Table(later).cleanup(plan=False)
        else:
            DeltaTable(self.root).cleanup_metadata()

    def _table(self) -> lakelog.Table:
        return lakelog.open(self.root, upkeep=False)

    def check(self) -> None:
        expected = sorted(self.rows, key=repr)
        snapshot = self._table().snapshot()
        peer = DeltaTable(self.root)
        assert sorted(snapshot.scan().collect().rows(), key=repr) == expected
        theirs = pl.DataFrame(peer.to_pyarrow_table()).select("id", "p")
        assert sorted(theirs.rows(), key=repr) == expected
        files = snapshot.files().select("path", "size").collect()
        actions = pl.DataFrame(peer.get_add_actions(flatten=True))
        assert sorted(files.rows()) == sorted(
            (unquote(path), size) for path, size in actions.select("path", "size_bytes").rows()
        )
        assert snapshot.version == peer.version()


@pytest.mark.parametrize("number", range(SESSIONS))
def test_lakelog_and_deltalake_return_the_rows_of_the_model_after_every_step(
    number: int, tmp_path: Path
) -> None:
    print(f"LAKELOG_SEED={SEED}")
    session = Session(tmp_path / "t", random.Random(f"{SEED} {number}"))
    for _ in range(STEPS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LakelogWarning)
            session.step()
            try:
                session.check()
            except Exception as error:
                raise AssertionError(
                    f"LAKELOG_SEED={SEED}, session {number}, after {session.steps}"
                ) from error
