"""Tables that lakelog writes, read by the Java Delta Kernel: the same state, rows, changes."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakelog
from tests.kernel.compare import assert_same, assert_same_changes
from tests.kernel.engine import Kernel
from tests.kernel.tables import LAYOUTS, TABLES, make

pytestmark = pytest.mark.reference


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", TABLES)
def test_every_version_and_its_changes_are_equal(kernel: Kernel, tmp_path: Path, name: str) -> None:
    table = make(name, tmp_path / "t ü%")
    last = table.version()
    for version in range(last + 1):
        assert_same(kernel, tmp_path / "t ü%", version)
    assert_same_changes(kernel, tmp_path / "t ü%", 0, last)


@pytest.mark.sampled(12, keep=("layout",))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TABLES)
def test_checkpoint_without_earlier_commits_gives_the_same_state(
    kernel: Kernel, tmp_path: Path, name: str, layout: str
) -> None:
    root = tmp_path / "t"
    table = make(name, root)
    if layout.startswith("v2"):
        with table.transaction() as tx:
            tx.set_metadata(configuration={"delta.checkpointPolicy": "v2"})
    version = table.version()
    before = table.snapshot().files().collect()["path"].sort()
    table.checkpoint(layout=layout)
    for commit in (root / "_delta_log").glob("*.json"):
        if "compacted" in commit.name or int(commit.name[:20]) < version:
            commit.unlink()
    state = assert_same(kernel, root)
    assert sorted(path for path, _ in state["files"]) == before.to_list()
    assert lakelog.open(root).snapshot().provenance.checkpoint is not None
    with lakelog.open(root, upkeep=False).transaction() as tx:
        tx.set_txn(appId="after", version=1)
    assert kernel.state(root)["txns"]["after"][0] == 1


def test_the_kernel_reads_the_checksum_that_lakelog_writes(kernel: Kernel, tmp_path: Path) -> None:
    table = make("many kinds of actions", tmp_path / "t")
    table.write_checksum()
    found = kernel.checksum(tmp_path / "t", table.version())
    snapshot = table.snapshot()
    assert found is not None
    assert found["numFiles"] == snapshot.num_files()
    assert found["tableSizeBytes"] == snapshot.total_size()
    assert found["metadata"]["id"] == snapshot.metadata.id
    assert found["protocol"]["minWriterVersion"] == snapshot.protocol.min_writer_version
