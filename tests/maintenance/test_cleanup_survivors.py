"""Files that cleanup must keep: those that damaged, forged, torn and shared files depend on."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lakelog import LakelogWarning, UnsafeRetentionError
from tests.maintenance.logs import CUTOFF, MadeLog, aged, clean, content, contents, fresh, plan


def test_orphan_part_is_not_used_as_a_checkpoint(tmp_path: Path) -> None:
    made = aged(tmp_path, at=())
    made.checkpoint(25, 35, "multipart", parts=3, pointer=False)
    parts = sorted(made.folder.glob("*.checkpoint.*"))
    parts[1].unlink()
    before = contents(made.table(), range(40))
    assert clean(made.table()).files.height == 0
    assert contents(fresh(made), range(40)) == before


def test_orphan_part_above_retained_commits_is_kept_with_them(tmp_path: Path) -> None:
    made = aged(tmp_path, at=(10,))
    for orphan in (25, 15, 8):
        written = made.checkpoint(orphan, 35, "multipart", parts=2, pointer=False)
        written[0].unlink()
    before = contents(made.table(), range(10, 40))
    report = clean(made.table())
    assert report.checkpoint == f"_delta_log/{10:020d}.checkpoint.parquet"
    assert [p for p in report.files["path"] if "checkpoint" in p] == [
        f"_delta_log/{8:020d}.checkpoint.0000000002.0000000002.parquet"
    ]
    assert contents(fresh(made), range(10, 40)) == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "pointer",
    [b"", b'{"version":', b'{"version":17,"size":3}', b'{"version":999,"size":3}', b"[]", None],
    ids=["empty", "torn", "dangling", "beyond", "not an object", "missing"],
)
def test_pointer_does_not_affect_which_files_are_deleted(
    tmp_path: Path, pointer: bytes | None
) -> None:
    made = aged(tmp_path)
    made.file("_last_checkpoint").unlink()
    if pointer is not None:
        made.put("_last_checkpoint", pointer, 30)
    before = contents(made.table(), range(CUTOFF, 40))
    assert clean(made.table()).verdict == "proved"
    assert contents(fresh(made), range(CUTOFF, 40)) == before


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
@pytest.mark.parametrize("cut", [0.2, 0.6, 0.99])
def test_truncated_checkpoint_keeps_all_commits_below_it(tmp_path: Path, cut: float) -> None:
    made = aged(tmp_path, at=())
    (path,) = made.checkpoint(20, 40)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    made.age(path, 40)
    found = plan(made.table())
    assert (found.gate, found.files.height) == ("checkpoint-broken", 0)
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="nothing was cleaned up"):
        found.apply()
    assert made.names() == before
    with pytest.warns(LakelogWarning, match="was ignored"):
        assert len(content(made.table())) > 40


def test_empty_checkpoint_file_is_not_a_checkpoint(tmp_path: Path) -> None:
    made = aged(tmp_path, at=())
    made.put(f"{20:020d}.checkpoint.parquet", b"", 40)
    assert plan(made.table()).gate == "no-cut-off-checkpoint"


@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json"])
def test_checkpoint_with_a_missing_file_is_refused(tmp_path: Path, layout: str) -> None:
    made = aged(tmp_path, layout, at=())
    made.checkpoint(20, 40, layout, without="g3.parquet")
    assert plan(made.table()).gate is None  # it can be read
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="wrong") as refused:
        made.table().cleanup(plan=False)
    assert refused.value.version == 20
    assert made.names() == before


def test_wrong_one_of_two_checkpoints_of_a_version_is_refused(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(20,))
    made.checkpoint(20, 40, "classic", without="g3.parquet")
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="wrong"):
        made.table().cleanup(plan=False)
    assert made.names() == before


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
def test_missing_sidecar_keeps_all_commits(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=())
    _, sidecar, _ = made.checkpoint(20, 40, "v2-json")
    sidecar.unlink()
    found = plan(made.table())
    assert found.gate == "checkpoint-broken"
    assert "sidecar" in found.why
    with pytest.raises(UnsafeRetentionError):
        found.apply()
    with pytest.warns(LakelogWarning, match="was ignored"):
        content(made.table())


def test_sidecars_shared_with_retained_checkpoints_are_kept(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(10,))
    old = sorted((made.folder / "_sidecars").iterdir())
    manifest, *_ = made.checkpoint(20, 40, "v2-json")
    # The new manifest names one of the old sidecars in place of a copy of it.
    lines = manifest.read_text().splitlines()
    named = [i for i, line in enumerate(lines) if '"sidecar"' in line]
    shared = old[0]
    extra = made.parquet(f"_sidecars/{uuid.uuid4()}.parquet", _rest(made, shared), 40)
    lines = [line for i, line in enumerate(lines) if i not in named]
    for path in (shared, extra):
        size = path.stat().st_size
        body = {"path": path.name, "sizeInBytes": size, "modificationTime": 1}
        lines.append(json.dumps({"sidecar": body}))
    manifest.write_text("\n".join(lines) + "\n")
    made.age(manifest, 40)
    before = contents(made.table(), range(20, 40))
    report = clean(made.table())
    deleted = {Path(p).name for p in report.files.filter(pl.col("kind") == "sidecar")["path"]}
    assert shared.name not in deleted
    assert old[1].name in deleted
    assert contents(fresh(made), range(20, 40)) == before


def _rest(made: MadeLog, shared: Path) -> list[dict[str, Any]]:
    """File actions of version 20 that are not in a sidecar.

    Actions of the sidecar whose files are no longer live are removed from it, so that it can be
    shared.
    """
    import pyarrow.parquet as pq

    now = {
        body["path"]: (kind, body)
        for action in made.state(20)
        for kind, body in action.items()
        if kind in {"add", "remove"}
    }
    kept: list[dict[str, Any]] = [
        {kind: now.pop(row[kind]["path"])[1]}
        for row in pq.read_table(shared).to_pylist()
        for kind in ("add", "remove")
        if row.get(kind) and now.get(row[kind]["path"], ("",))[0] == kind
    ]
    shared.unlink()
    made.parquet(f"_sidecars/{shared.name}", kept, 50)
    return [{kind: body} for kind, body in now.values()]


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
def test_unreadable_manifest_prevents_the_deletion_of_sidecars(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(10, 20))
    made.put(f"{30:020d}.checkpoint.{uuid.uuid4()}.json", b"{torn", 30)
    stray = made.put(f"_sidecars/{uuid.uuid4()}.parquet", b"x", 50)
    found = plan(made.table(), keep=True)
    assert set(found.files.filter(pl.col("kind") == "sidecar")["gate"]) == {"manifest-unreadable"}
    clean(made.table())
    assert stray.exists()


def test_manifest_written_during_cleanup_protects_its_sidecars(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(10, 20))
    found = plan(made.table())
    stale = [p for p in found.files["path"] if "_sidecars/" in p]
    assert len(stale) == 2

    def write_checkpoint(stage: str, done: int, total: int | None) -> None:
        if stage == "delete" and done and not list(made.folder.glob(f"{39:020d}.checkpoint.*")):
            names = [
                json.dumps({"sidecar": {"path": Path(p).name, "sizeInBytes": 1}}) for p in stale
            ]
            top = [{"checkpointMetadata": {"version": 39}}, *made.state(39)[:2]]
            text = "\n".join([*map(json.dumps, top), *names])
            made.put(f"{39:020d}.checkpoint.{uuid.uuid4()}.json", text.encode(), 0)

    report = found.apply(progress=write_checkpoint)
    assert not report.files.filter(pl.col("kind") == "sidecar").height
    assert all((made.root / path).exists() for path in stale)


def test_clock_that_jumps_back_never_deletes_more(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "table")
    made.commits([60, 59, 900, 899, 20, 19, 18])
    for version in (1, 3, 5):
        made.checkpoint(version, 15)
    found = plan(made.table())
    assert (found.oldest_promised, found.checkpoint_version) == (1, 1)


def test_commit_with_a_forged_time_keeps_all_later_commits(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "table")
    made.commits([60, 59, -365, 58, 57, 56])
    for version in (1, 4):
        made.checkpoint(version, 50)
    assert plan(made.table()).oldest_promised == 1


def test_cleanup_of_a_log_with_a_gap_is_refused(tmp_path: Path) -> None:
    made = aged(tmp_path)
    made.checkpoint(38, 22)
    made.file(f"{24:020d}.json").unlink()
    found = plan(made.table())
    assert found.gate == "missing-commits"
    with pytest.raises(UnsafeRetentionError):
        found.apply()
