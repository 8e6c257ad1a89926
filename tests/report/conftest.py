"""A headless Chromium that opens a page without a network."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=10000",
    "--enable-logging=stderr",
    "--dump-dom",
)


@dataclass(frozen=True)
class Shown:
    """A page after its scripts have run: its DOM as text, and the messages of its console."""

    dom: str
    console: list[str]


def _program() -> str | None:
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program; installed as root, if it is missing."""
    if _program() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with open(f"{tempfile.gettempdir()}/lakelog-tests-apt.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait
            for words in (["update", "-q"], ["install", "-y", "-q", "chromium"]):
                if _program() is None:
                    command = ["apt-get", *words]
                    subprocess.run(command, check=False, capture_output=True, timeout=600)
    found = _program()
    if found is None:
        pytest.skip("no Chromium: install it to test that the report is drawn")
    return found


@pytest.fixture
def browse(chromium: str, tmp_path: Path) -> Callable[..., Shown]:
    """Open a file in the browser."""

    def browse(page: Path, *flags: str) -> Shown:
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [chromium, *FLAGS, profile, *flags, page.as_uri()]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180)
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        return Shown(done.stdout, console)

    return browse
