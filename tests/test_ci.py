"""CI skips nothing in silence: the rule of conftest.py, tried on small test files."""

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
