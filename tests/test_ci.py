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
    body: str,
    *,
    arguments: str = "",
    options: tuple[str, ...] = (),
    environment: dict[str, str],
) -> subprocess.CompletedProcess[str]:
    """Run one generated test under the repository's own conftest.py."""
    (folder / "conftest.py").write_text((repository / "tests" / "conftest.py").read_text("utf-8"))
    (folder / "test_it.py").write_text(
        f"import pytest\n\n\ndef test_it({arguments}):\n    {body}\n"
    )
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
    ("body", "environment", "code"),
    [
        ("pass", {"CI": "true"}, 0),
        (ALLOWED, {"CI": "true"}, 0),
        (REFUSED, {"CI": "true"}, 1),
        (REFUSED, {}, 0),
        ("assert False", {"CI": "true"}, 1),
    ],
)
def test_a_skip_fails_ci_unless_its_reason_is_allowed(
    tmp_path: Path, repository: Path, body: str, environment: dict[str, str], code: int
) -> None:
    outcome = run_pytest(tmp_path, repository, body, environment=environment)
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    named = "no time today" in outcome.stdout.partition("counts as failed")[2]
    assert named == (body == REFUSED and bool(environment))


@pytest.mark.parametrize(("arguments", "code"), [("", 0), ("corpus", 1)])
def test_a_named_corpus_that_is_missing_is_an_error_not_a_skip(
    tmp_path: Path, repository: Path, arguments: str, code: int
) -> None:
    outcome = run_pytest(
        tmp_path,
        repository,
        "pass",
        arguments=arguments,
        environment={"LAKELOG_CORPUS": str(tmp_path / "absent")},
    )
    assert outcome.returncode == code, outcome.stdout + outcome.stderr
    assert ("LAKELOG_CORPUS is not a folder" in outcome.stdout) == bool(code)


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_module_that_is_skipped_whole_fails_ci_in_parallel_too(
    tmp_path: Path, repository: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "test_other.py").write_text(
        'import pytest\n\npytest.skip("no time today", allow_module_level=True)\n'
    )
    outcome = run_pytest(tmp_path, repository, "pass", options=options, environment={"CI": "true"})
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "test_other.py: no time today" in outcome.stdout


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
        "pass",
        options=("--collect-only", *arguments),
        environment={"LAKELOG_SAMPLE": sample},
    )
    return [line for line in outcome.stdout.splitlines() if line.startswith("test_sampled.py::")]


def test_a_run_takes_a_share_of_sampled_cases_and_soak_takes_all(
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
