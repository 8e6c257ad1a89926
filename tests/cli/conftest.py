"""One demonstration table for all tests of the command line, and an in-process call of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakelog.cli import main
from lakelog.demo import make_table

COMMITS = 60


@dataclass(frozen=True)
class Outcome:
    """The result of a call."""

    code: int
    raw: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.raw.decode()


Call = Callable[..., Outcome]


def wait_for(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Wait until standard error contains a text; return its content so far."""
    shown = ""
    until = time.monotonic() + 120
    while text not in shown:
        assert time.monotonic() < until, shown
        time.sleep(0.01)
        shown += capsys.readouterr().err
    return shown


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of 60 commits, which tests only read."""
    return make_table(tmp_path_factory.mktemp("cli") / "orders", commits=COMMITS)


@pytest.fixture
def lakelog(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the command line; by default, no stream is a terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*words: str | Path | int) -> Outcome:
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as exited:
            main([str(word) for word in words])
        output, errors = capsysbinary.readouterr()
        code = exited.value.code
        assert isinstance(code, int)
        return Outcome(code, output, errors.decode())

    return call
