"""Random mutations of every kind of file: the truth, an error, or a case that no reader can detect.
The truth is the content of the unmutated subject. An error is a `LakelogError` other than an
internal one. Undetectable cases are listed in `UNDETECTABLE`, with the argument. ``LAKELOG_SEED``
repeats a run; ``LAKELOG_MUTATIONS`` is the number of mutations of all subjects.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakelog.errors import LakelogError, LakelogWarning
from tests.faults.mutations import mutate, rename_column
from tests.faults.subjects import SUBJECTS, Content, kind_of, made
from tests.faults.undetectable import Case, argument

pytestmark = pytest.mark.timeout(3600)

SEED = int(os.environ.get("LAKELOG_SEED") or random.SystemRandom().randrange(1 << 32))
MUTATIONS = int(os.environ.get("LAKELOG_MUTATIONS", "120"))


def read(content: Callable[[Path], Content], root: Path) -> tuple[Content | LakelogError, bool]:
    """The content or its error, and whether a warning was issued."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        found: Content | LakelogError
        try:
            found = content(root)
        except LakelogError as refusal:
            found = refusal
    return found, any(issubclass(warning.category, LakelogWarning) for warning in given)


def judge(found: Content | LakelogError, truth: Content) -> str:
    if isinstance(found, LakelogError):
        return "internal error" if found.kind == "internal" else "refused"
    return "truth" if found == truth else "another answer"


@pytest.mark.parametrize("name", SUBJECTS)
def test_mutated_file_gives_the_correct_content_or_is_refused(name: str, tmp_path: Path) -> None:
    subject = SUBJECTS[name]
    rng = random.Random(f"{SEED} {name}")
    print(f"LAKELOG_SEED={SEED}")
    roots = [tmp_path / "whole"]
    shutil.copytree(made(name), roots[0])
    if subject.delete_commits is not None:
        roots.append(shutil.copytree(made(name), tmp_path / "without-commits"))
        subject.delete_commits(roots[1])
    truth = subject.read(roots[0])
    verdicts: Counter[str] = Counter()
    for number in range(-(-MUTATIONS // len(SUBJECTS))):
        root = roots[number % len(roots)]
        files: dict[str, list[Path]] = {}
        for file in sorted(root.rglob("*")):
            kind = kind_of(file.relative_to(root).as_posix())
            if file.is_file() and kind is not None:
                files.setdefault(kind, []).append(file)
        kind = rng.choice(sorted(files))
        path = rng.choice(files[kind])
        data = path.read_bytes()
        mutation = mutate(data, rng)
        path.write_bytes(mutation.data)
        found, warned = read(subject.read, root)
        verdict = judge(found, truth)
        if verdict == "another answer":
            case = Case(name, root, path, kind, data, mutation, truth, found, warned)
            verdict = argument(case) or verdict
        about = f"{path.relative_to(root)} ({kind}) {mutation.operation} {mutation.detail}"
        assert verdict not in {"another answer", "internal error"}, (
            f"LAKELOG_SEED={SEED} LAKELOG_MUTATIONS={MUTATIONS}, {root.name}, {about}:"
            f" {verdict}\nfound {found!r}\ntruth {truth!r}"
        )
        verdicts[verdict] += 1
        path.write_bytes(data)
    print(name, dict(verdicts))


def test_renamed_column_of_a_flattened_checkpoint_is_refused_or_unused(tmp_path: Path) -> None:
    name = "IndexTables flattened"
    subject = SUBJECTS[name]
    root = shutil.copytree(made(name), tmp_path / "t")
    assert subject.delete_commits is not None
    truth = subject.read(root)
    subject.delete_commits(root)
    refused = 0
    for path in root.rglob("*.parquet"):
        data = path.read_bytes()
        for column in pq.read_schema(path).names:
            rename_column(path, column)
            found, _ = read(subject.read, root)
            verdict = judge(found, truth)
            assert verdict in {"truth", "refused"}, f"{path.name}, {column}: {verdict} {found!r}"
            refused += verdict == "refused"
            path.write_bytes(data)
    assert refused
