"""Checkpoints of every table of the corpus for which lakelog can write one: the state is unchanged
when read from the new checkpoint, and `deltalake` agrees if it could read the table before.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from deltalake import DeltaTable

import lakelog
from lakelog.errors import InvalidInputError, InvalidPropertyError, LakelogError
from tests.conformance.tables import delta_path, delta_tables, each, indextables, snapshot_facts
from tests.conftest import find_corpus
from tests.model import replay
from tests.model.compare import differences, normal, rows_of

pytestmark = [pytest.mark.corpus, pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")]

DELTA = delta_tables()
INDEXTABLES = indextables()
OTHER_LAYOUTS = ("multipart", "v2-parquet")
"""Layouts in addition to the default one: each table gets one of them, by its name."""
APPLICATIONS_EXPIRE = "delta.setTransactionRetentionDuration"
NO_TEXT = "delta.checkpoint.writeStatsAsJson"


def copied(root: Path, folder: str, target: Path) -> Path:
    """A copy of a table's log."""
    shutil.copytree(root / folder, target / folder, copy_function=shutil.copyfile)
    for each_ in (target, *target.rglob("*/")):
        each_.chmod(0o755)
    return target


def state_of(table: lakelog.Table) -> dict[str, Any]:
    """The part of the latest version that a checkpoint must contain."""
    snapshot = table.snapshot()
    files = snapshot.files()
    configuration = snapshot.metadata.configuration
    # What the table configures its checkpoints to omit.
    omitted = {"tombstones"} | ({"txn"} if APPLICATIONS_EXPIRE in configuration else set())
    keeps_text = configuration.get(NO_TEXT, "true") == "true"
    columns = set(files.collect_schema().names()) - {
        "version",
        "extra",
        "stats",
        "dataChange",
        "tags",
    }
    return {
        **{k: v for k, v in snapshot_facts(snapshot).items() if k not in omitted},
        "rows": [normal(row, columns) for row in rows_of(files)],
        "kept": {
            (row["path"], row.get("dvId")): (
                row.get("tags") or None,
                _plain(row.get("stats")) if keeps_text else None,
            )
            for row in rows_of(files.select("path", "dvId", "stats", "tags"))
        },
    }


def _plain(text: str | None) -> Any:
    return None if text in {None, "null", "{}"} else json.loads(text or "")


def peer_state(path: Path) -> list[tuple[Any, ...]] | None:
    """Version and files according to deltalake; None if it cannot read the table."""
    try:
        peer = DeltaTable(str(path))
        actions = peer.get_add_actions()
        columns = [actions.column(name).to_pylist() for name in ("path", "size_bytes")]
    except BaseException as error:  # its panics are not of type Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return None
    return [(peer.version(),), *sorted(zip(*columns, strict=True))]


def _writable(entry: dict[str, Any]) -> bool:
    return entry["verdict"] == "load" and not entry.get("packed")


@pytest.mark.sampled(10)
@each(DELTA, _writable)
def test_delta_table_is_the_same_when_read_from_a_lakelog_checkpoint(
    name: str, tmp_path: Path
) -> None:
    location = copied(delta_path(name), "_delta_log", tmp_path / "t")
    before, peer_before = state_of(lakelog.open(location)), peer_state(location)
    written = 0
    for layout in ("auto", OTHER_LAYOUTS[crc32(name.encode()) % len(OTHER_LAYOUTS)]):
        table = lakelog.open(location)
        try:
            report = table.checkpoint(layout=layout)
        except InvalidPropertyError:
            assert "%" in str(table.snapshot().metadata.configuration[NO_TEXT])  # it is a template
            return
        except InvalidInputError:
            assert layout != "auto"
            continue
        except LakelogError as refused:
            if refused.kind != "unsupported_feature":
                raise
            return
        written += not report.reused
        assert report.num_adds == before["num_files"]
        _assert_equal(before, lakelog.open(location), layout)
        if peer_before is not None:
            assert peer_state(location) == peer_before, layout
    assert lakelog.open(location).verify().verdict in {"proved", "unprovable"}
    commits = list(replay.list_log(location).commits.values())
    for commit in commits[:-1] if written else ():
        commit.unlink()
    _assert_equal(before, lakelog.open(location), "without the earlier commits")


def _assert_equal(before: dict[str, Any], table: lakelog.Table, what: str) -> None:
    after = state_of(table)
    assert not differences(before["rows"], after.pop("rows"), ("path", "dvId")), what
    assert after == {k: v for k, v in before.items() if k != "rows"}, what


@pytest.mark.sampled(4)
@each(INDEXTABLES)
def test_indextables_table_is_the_same_when_read_from_a_lakelog_checkpoint(
    name: str, tmp_path: Path
) -> None:
    root = find_corpus()
    assert root is not None
    location = copied(root / "indextables" / name, "_transaction_log", tmp_path / "t")
    table = lakelog.open(location)
    before = table.snapshot().files().sort("path").collect()
    for layout in ("json", "flattened"):
        report = table.checkpoint(layout=layout)
        assert report.num_adds == before.height
        again = lakelog.open(location)
        assert again.verify(report.version).verdict in {"proved", "unprovable"}
        rows = again.snapshot().files().sort("path").collect()
        assert not differences(
            [normal(row, set(before.columns) - {"version"}) for row in rows_of(before.lazy())],
            [normal(row, set(before.columns) - {"version"}) for row in rows_of(rows.lazy())],
            ("path",),
        )
