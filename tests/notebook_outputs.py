"""Executes the notebooks and stores their outputs: ``make notebooks``.

The outputs are stored, so that a notebook can be read on a web page. Text that differs in every run
is replaced: temporary folders, UUIDs. A cell whose output differs otherwise (sizes, times, random
names) has the tag ``varies``, and its text is not compared by the test.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

REPOSITORY = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
VARIES = "varies"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TEXTS = ("text/plain", "text/html")


class ThisInterpreter(KernelManager):
    """Starts kernels with this interpreter, whatever kernels are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def execute(path: Path, work: Path) -> Any:
    """The notebook with the outputs of a run in an empty folder, stripped of what varies."""
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs = []
    with warnings.catch_warnings():
        # The kernel's own plumbing warns about event loops; warnings of a notebook are in its
        # outputs.
        warnings.simplefilter("ignore")
        NotebookClient(
            notebook,
            timeout=240,
            kernel_manager_class=ThisInterpreter,
            resources={"metadata": {"path": os.fspath(work)}},
        ).execute()
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            _strip(output)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def code_cells(notebook: Any) -> list[Any]:
    """The code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell: Any) -> list[str]:
    """The outputs of a cell as text; a plot is the text ``image/png``. Parts of one stream are
    joined, because the kernel sends a part every 0.2 s.
    """
    found: list[str] = []
    stream = None
    for output in cell.outputs:
        data = output.get("data", {})
        before, stream = stream, output.get("name")
        if "image/png" in data:
            found.append("image/png")
        elif stream is not None and stream == before:
            found[-1] += output["text"]
        else:
            found.append(output.get("text", data.get("text/plain", "")))
    return found


def _strip(output: Any) -> None:
    if "text" in output:
        output["text"] = _without_variation(output["text"])
    data = output.get("data", {})
    for kind in _TEXTS:
        if kind in data:
            data[kind] = _without_variation(data[kind])
    if "image/png" in data:
        data["text/plain"] = "<Figure>"


def _without_variation(text: str) -> str:
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+", "example", text)
    return _UUID.sub("00000000-0000-0000-0000-000000000000", text)


def main() -> None:
    """Execute the named notebooks, or all, and store them with their outputs."""
    chosen = [path for path in NOTEBOOKS if not sys.argv[1:] or path.stem in sys.argv[1:]]
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    os.environ["JUPYTER_PLATFORM_DIRS"] = "1"
    for path in chosen:
        with tempfile.TemporaryDirectory() as work:
            notebook = execute(path, Path(work))
        for cell in code_cells(notebook):
            # The start of a JVM; the test lets no other message pass.
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        nbformat.write(notebook, path)
        print(path.name)


if __name__ == "__main__":
    main()
