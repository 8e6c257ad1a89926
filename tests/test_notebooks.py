"""Every notebook runs without errors from the top, and its stored outputs are those of the run."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.notebook_outputs import NOTEBOOKS, VARIES, code_cells, execute, texts


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.usefixtures("_quick_spark")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_and_reproduces_its_stored_outputs(
    path: Path, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repository / "engine"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    work = tmp_path / "work"
    work.mkdir()
    run = code_cells(execute(path, work))
    printed_errors = [
        output["text"] for cell in run for output in cell.outputs if output.get("name") == "stderr"
    ]
    assert printed_errors == []
    assert any("image/png" in texts(cell) for cell in run), "a notebook shows something"
    stored = code_cells(nbformat.read(path, as_version=4))
    for kept, cell in zip(stored, run, strict=True):
        assert kept.source == cell.source
        if VARIES in cell.metadata.get("tags", ()):
            assert len(texts(kept)) == len(texts(cell)), cell.source
        else:
            assert texts(kept) == texts(cell), f"make notebooks stores new outputs: {cell.source}"
    assert list(work.iterdir()) == [], "a notebook writes to temporary folders only"
