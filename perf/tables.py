"""The benchmark's tables on disk: generated once, cached, regenerated if their recipe changes.

``python -m perf.tables NAME SCALE`` generates one table in a separate process, so that its memory
does not count for the process that measures.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent
_RECIPE = ("columns.py", "generate.py", "rows/generate.py")


@dataclass(frozen=True, slots=True)
class Table:
    """A generated table: its folder, and the facts that a correct answer matches."""

    path: Path
    facts: dict[str, int]

    @property
    def next_commit(self) -> Path:
        """A file with the text of the next commit."""
        return self.path.with_name("next_commit.json")


def cache_directory() -> Path:
    """The cache folder: LAKELOG_BENCH_DIR, or ``perf/.cache``."""
    return Path(os.environ.get("LAKELOG_BENCH_DIR") or _HERE / ".cache")


def ensure(name: str, scale: float) -> Table:
    """The table `name` at `scale`, generated unless the cache has it with the same recipe.

    Raises:
        subprocess.CalledProcessError: The generator failed; its output has been shown.
    """
    folder = _folder(name, scale)
    if not (folder / "facts.json").is_file():
        command = [sys.executable, "-m", "perf.tables", name, repr(scale)]
        subprocess.run(command, check=True, cwd=_HERE.parent)
    facts = json.loads((folder / "facts.json").read_text("utf-8"))
    return Table(folder / "table", facts)


def _folder(name: str, scale: float) -> Path:
    recipe = b"".join((_HERE / part).read_bytes() for part in _RECIPE)
    return cache_directory() / f"{name}-{scale:g}-{hashlib.sha256(recipe).hexdigest()[:10]}"


def _make(name: str, scale: float) -> None:
    """Write to a temporary folder and rename it, so that no incomplete table is measured."""
    from perf.generate import commit_text, generate

    final = _folder(name, scale)
    for stale in final.parent.glob(f"{name}-{scale:g}-*"):
        shutil.rmtree(stale)
    partial = final.with_name(f"{final.name}.{os.getpid()}.partial")
    facts = generate(name, partial / "table", scale)
    (partial / "next_commit.json").write_text(
        commit_text(facts["last_version"] + 1), encoding="utf-8"
    )
    (partial / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    partial.rename(final)


if __name__ == "__main__":
    _make(sys.argv[1], float(sys.argv[2]))
