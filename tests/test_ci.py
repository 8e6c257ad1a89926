"""The rules of conftest.py, tested on small test files.

CI skips no test silently, and a run executes a sample of the cases of some tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = 'pytest.skip("corpus not found: anywhere")'
REFUSED = 'pytest.skip("no time today")'


def run_pytest(
    folder: Path,
    repository: Path,
    *tests: str,
    options: tuple[str, ...] = (),
    environment: dict[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run generated tests, given as arguments and body, under the repository's own conftest.py."""
    (folder / "conftest.py").write_text((repository / "tests" / "conftest.py").read_text("utf-8"))
    text = "".join(f"def test_{number}{test}\n" for number, test in enumerate(tests))
    (folder / "test_it.py").write_text(f"import pytest\n{text}")
    clean = {k: v for k, v in os.environ.items() if k not in {"CI", "LAKELOG_CORPUS"}}
    clean = {k: v for k, v in clean.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "-q"]
    return subprocess.run(
        [*command, *options, "."],
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("tests", "environment"),
    [
        (["(): pass", f"(): {ALLOWED}"], {"CI": "true"}),
        ([f"(): {REFUSED}"], {}),
    ],
)
def test_allowed_skips_fail_no_run(
    tmp_path: Path, repository: Path, tests: list[str], environment: dict[str, str]
) -> None:
    outcome = run_pytest(tmp_path, repository, *tests, environment=environment)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "counts as failed" not in outcome.stdout


def test_missing_named_corpus_is_an_error_and_not_a_skip(tmp_path: Path, repository: Path) -> None:
    environment = {"LAKELOG_CORPUS": str(tmp_path / "absent")}
    outcome = run_pytest(tmp_path, repository, "(): 0", "(corpus): 0", environment=environment)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "1 passed, 1 error" in outcome.stdout
    assert "LAKELOG_CORPUS is not a folder" in outcome.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_any_other_skip_of_a_test_or_a_module_fails_ci(
    tmp_path: Path, repository: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "test_other.py").write_text(
        'import pytest\n\npytest.skip("no time today", allow_module_level=True)\n'
    )
    outcome = run_pytest(
        tmp_path, repository, f"(): {REFUSED}", options=options, environment={"CI": "true"}
    )
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    reported = outcome.stdout.partition("counts as failed")[2]
    for name in ("test_it.py::test_0", "test_other.py"):
        assert f"{name}: no time today" in reported


SAMPLED = """
import pytest

@pytest.mark.sampled(4, keep=("kind",))
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_cases(kind, number):
    pass

@pytest.mark.sampled(2, of="class")
class TestStore:
    def test_one(self): pass
    def test_two(self): pass
    def test_three(self): pass
"""


def collected(folder: Path, repository: Path, sample: str, *arguments: str) -> list[str]:
    outcome = run_pytest(
        folder,
        repository,
        options=("--collect-only", *arguments),
        environment={"LAKELOG_SAMPLE": sample},
    )
    return [line for line in outcome.stdout.splitlines() if line.startswith("test_sampled.py::")]


def test_run_executes_a_share_of_sampled_cases_and_soak_all_of_them(
    tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "test_sampled.py").write_text(SAMPLED)
    first, again, other = (collected(tmp_path, repository, s) for s in ("1", "1", "2"))
    assert first == again
    assert first != other
    for found in (first, other):
        cases = [line for line in found if "test_cases" in line]
        assert [sum(f"[{kind}-" in line for line in cases) for kind in "ab"] == [2, 2]
        assert len(found) - len(cases) == 2
    assert len(collected(tmp_path, repository, "all")) == 16 + 3
    named = "test_sampled.py::test_cases[a-0]"
    assert collected(tmp_path, repository, "1", named)[0] == named
