"""Files of Delta checkpoints that another program rewrote with fewer rows, at random.

Each is valid Parquet; the records of another file show the difference. With the commits, the answer
is the truth. Without them, it is the truth, an error, or, if a single hint that may itself be wrong
differs from the checkpoint, the content of the checkpoint with a warning. Without any record, no
reader can detect the loss.

``LAKELOG_SEED`` repeats a run; ``LAKELOG_MUTATIONS`` is the number of mutations.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.errors import LakelogError
from tests.faults.subjects import SUBJECTS, Content, made, read_table
from tests.faults.test_mutations import MUTATIONS, SEED, judge, read

LAYOUTS = ("classic", "multipart", "v2-json", "v2-parquet")


def with_tombstones(root: Path) -> Content:
    """State, rows and tombstones."""
    found = read_table(root)
    removed = lakelog.open(root, upkeep=False).snapshot().tombstones().collect()
    found["tombstones"] = sorted(removed["path"])
    return found


def keep_pointer(root: Path) -> None:
    """As Spark writes it."""
    for path in root.glob("_delta_log/*.crc"):
        path.unlink()


def keep_plain_pointer(root: Path) -> None:
    """As deltalake writes it, without a checksum of its own."""
    keep_pointer(root)
    path = root / "_delta_log" / "_last_checkpoint"
    body = json.loads(path.read_bytes())
    body.pop("checksum")
    path.write_text(json.dumps(body))


def keep_checksum(root: Path) -> None:
    (root / "_delta_log" / "_last_checkpoint").unlink()


def keep_all(_: Path) -> None:
    """As lakelog writes it."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("keep", [keep_all, keep_pointer, keep_plain_pointer, keep_checksum])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoint_with_fewer_rows_than_recorded_is_detected(
    layout: str, keep: Callable[[Path], None], tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED} {layout} {keep.__name__}")
    print(f"LAKELOG_SEED={SEED}")
    subject = SUBJECTS[f"Delta {layout}"]
    roots = [shutil.copytree(made(f"Delta {layout}"), tmp_path / name) for name in ("all", "none")]
    assert subject.delete_commits is not None
    subject.delete_commits(roots[1])
    for root in roots:
        keep(root)
    # A checksum records no tombstones; the tags of a manifest count those in sidecars.
    counts_all = keep is not keep_checksum or layout.startswith("v2")
    content = with_tombstones if counts_all else read_table
    truth, _ = read(content, roots[0])
    assert not isinstance(truth, LakelogError)
    verdicts: Counter[str] = Counter()
    for number in range(-(-MUTATIONS // 30)):
        root = roots[number % 2]
        files = [
            *root.glob("_delta_log/*.checkpoint*.parquet"),
            *root.glob("_delta_log/_sidecars/*.parquet"),
        ]
        rows = {path: pq.read_table(path) for path in files}
        path = rng.choice([path for path in sorted(rows) if rows[path].num_rows])
        table, before = rows[path], path.read_bytes()
        if rng.random() < 0.5:
            start = rng.randrange(table.num_rows)
            dropped = set(range(start, start + rng.choice((1, 2, 8))))
        else:
            dropped = set(rng.sample(range(table.num_rows), rng.randint(1, table.num_rows)))
        kept = [row for row in range(table.num_rows) if row not in dropped]
        less = table.take(pa.array(kept, pa.int64()))
        pq.write_table(less, path, row_group_size=rng.choice((1, 3, 1000)))
        found, warned = read(content, root)
        verdict = judge(found, truth)
        about = f"LAKELOG_SEED={SEED}, {root.name}, {path.name} without {sorted(dropped)}: {found}"
        assert verdict != "internal error", about
        if root is roots[0]:
            # A checkpoint without protocol or metadata is refused even with all commits.
            is_known = isinstance(found, LakelogError) and found.kind == "missing_action"
            assert verdict == "truth" or is_known, about
        elif verdict == "another answer":
            assert warned, about
            assert not isinstance(found, LakelogError)
            assert keep is not keep_all or found["files"] == truth["files"], about
        verdicts[f"{root.name}: {verdict}"] += 1
        path.write_bytes(before)
    print(layout, keep.__name__, dict(verdicts))
