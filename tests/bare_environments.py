"""Installs a wheel into a bare environment of every Python of this machine: ``make dist``.

Pythons are those on PATH and those of pyenv. In each environment, which has the wheel and its
required dependencies only, the library writes and reads a table, and the command reads it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

TINY_TABLE = """
import lakelog, polars as pl
lakelog.write("tiny", pl.DataFrame({"id": [1, 2], "name": ["a", "b"]}))
table = lakelog.open("tiny")
table.delete("id = 1")
table.checkpoint()
assert lakelog.open("tiny").to_polars().rows() == [(2, "b")]
with lakelog.WriteAheadLog("log") as log:
    log.append("PUT", "key", "value")
print("lakelog", lakelog.__version__)
"""


def versions_in_classifiers() -> list[str]:
    """Versions of Python in the classifiers, such as ``3.12``."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    named = (re.fullmatch(r".* :: Python :: (3\.\d+)", text) for text in project["classifiers"])
    return [match[1] for match in named if match]


def pythons(oldest: tuple[int, int] = (3, 11)) -> dict[str, Path]:
    """One interpreter per version, such as ``3.12``, that can make an environment."""
    probe = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    found: dict[str, Path] = {}
    for candidate in _candidates():
        command = [str(candidate), "-I", "-c", probe]
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        version = outcome.stdout.strip()
        if outcome.returncode == 0 and tuple(map(int, version.split("."))) >= oldest:
            found.setdefault(version, candidate)
    return dict(sorted(found.items(), key=lambda item: int(item[0].partition(".")[2])))


def _candidates() -> Iterator[Path]:
    yield Path(sys.executable)
    for folder in map(Path, os.get_exec_path()):
        yield from sorted(
            p for p in folder.glob("python3.*") if re.fullmatch(r"[\d.]+", p.name[6:])
        )
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob("versions/*/bin/python"))


def try_in(python: Path, wheel: Path) -> str:
    """Install the wheel and use it; returns what the program printed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        binaries = environment / ("Scripts" if os.name == "nt" else "bin")
        pip: list[str | Path] = [
            binaries / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
        ]
        _run([python, "-m", "venv", environment], folder)
        _run([*pip, "install", "--quiet", wheel], folder)
        _run([*pip, "check"], folder)
        printed = _run([binaries / "python", "-I", "-W", "error", "-c", TINY_TABLE], folder)
        _run([binaries / "lakelog", "info", "tiny"], folder)
        return printed.strip()


def _run(command: list[str | Path], folder: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = [str(word) for word in command]
    outcome = subprocess.run(
        words, cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    if outcome.returncode:
        raise SystemExit(f"{' '.join(words)}\n{outcome.stdout}{outcome.stderr}")
    return outcome.stdout


def main() -> None:
    """Try the only wheel of ``dist/``."""
    (wheel,) = (REPOSITORY / "dist").glob("*.whl")
    classified = versions_in_classifiers()
    for version, python in pythons().items():
        print(f"Python {version}: {try_in(python, wheel)}", flush=True)
        if version not in classified:
            raise SystemExit(f"it works with Python {version}, which no classifier names")


if __name__ == "__main__":
    main()
