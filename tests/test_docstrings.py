"""Every example in a docstring runs, and prints the result that it shows."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import lakelog

MODULES = sorted(
    {"lakelog"}
    | {
        module.name
        for module in pkgutil.walk_packages(lakelog.__path__, "lakelog.")
        if not module.name.endswith("__main__")
    }
)


def test_the_examples_of_every_module_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: dict[str, int] = {}
    attempted = 0
    for name in MODULES:
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        for each in doctest.DocTestFinder().find(importlib.import_module(name), name):
            if each.examples:
                runner.run(each)
        attempted += runner.tries
        failed[name] = runner.failures
    assert attempted
    assert {name: count for name, count in failed.items() if count} == {}


def test_public_names_are_sorted_and_exist() -> None:
    assert lakelog.__all__ == sorted(lakelog.__all__)
    for name in lakelog.__all__:
        assert getattr(lakelog, name).__doc__, name


def test_public_documentation_does_not_refer_to_internal_modules() -> None:
    documented: dict[str, str | None] = {}
    for name in lakelog.__all__:
        value = getattr(lakelog, name)
        documented[name] = inspect.getdoc(value)
        if inspect.isclass(value):
            public = (m for m in inspect.getmembers(value) if not m[0].startswith("_"))
            for member, inner in public:
                documented[f"{name}.{member}"] = inspect.getdoc(inner)
    internal = re.compile(r"`lakelog\.(?!model\.contract\b)(?:[a-z_]+\.[a-z_]+\b|maintenance\b)")
    found = {name: text for name, text in documented.items() if internal.search(text or "")}
    assert len(documented) > 500
    assert sorted(found) == []
