"""The benchmark's tables on disk: made once, kept in a folder, remade when their recipe changes.

Run as ``python -m perf.tables NAME SCALE`` to make one table in a process of its own, so that
the memory of making it is not held by the process that measures.
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
_RECIPE = ("columns.py", "generate.py")


@dataclass(frozen=True, slots=True)
class Table:
    """A table ready to be read: its folder, and what a right answer says about it."""

    path: Path
    facts: dict[str, int]

    @property
    def next_commit(self) -> Path:
        """A file with the text of the commit that would come next."""
        return self.path.with_name("next_commit.json")


def cache_directory() -> Path:
    """Where tables are kept: LAKELOG_BENCH_DIR, else ``perf/.cache``."""
    return Path(os.environ.get("LAKELOG_BENCH_DIR") or _HERE / ".cache")


def ensure(name: str, scale: float) -> Table:
    """The table `name` at `scale`, made now unless this very recipe has made it before.

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
    """Write beside the final place and rename, so that a half-made table is never measured."""
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
