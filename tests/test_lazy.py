"""A package's names load their modules when they are asked for, and no sooner."""

from __future__ import annotations

import ast
import inspect
import sys
from types import ModuleType

import pytest

import lakelog
import lakelog.wal
from lakelog import lazy


def test_a_name_is_what_its_module_says(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("package")
    monkeypatch.setitem(sys.modules, "package", package)
    found = lazy.names_of("package", {"dumps": "json"})
    assert not hasattr(package, "dumps")
    assert found("dumps") is package.dumps is __import__("json").dumps


def test_a_name_that_is_not_there_is_told_as_python_tells_it() -> None:
    with pytest.raises(AttributeError, match=r"^module 'lakelog\.wal' has no attribute 'Walrus'$"):
        lakelog.wal.Walrus  # noqa: B018 - it is the asking


@pytest.mark.parametrize("package", [lakelog, lakelog.wal], ids=lambda package: package.__name__)
def test_type_checkers_are_told_the_same_modules(package: ModuleType) -> None:
    told: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(package)).body:
        if isinstance(node, ast.If):
            for line in node.body:
                assert isinstance(line, ast.ImportFrom), "TYPE_CHECKING imports"
                told |= {alias.name: line.module or "" for alias in line.names}
    assert told
    for name, module in told.items():
        assert getattr(package, name) is getattr(sys.modules[module], name)
        assert name in package.__all__
    assert all(hasattr(package, name) for name in package.__all__)
