"""Rules that the linter cannot check: short files, no unfinished work, plain English."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

COMFORTABLE_LINES = 800
LONGER_FOR_A_REASON = {
    "engine/lakelog/table.py": "the docstrings of one class, which are the reference of the API"
}
"""Modules with one concern in more lines than that, and the reason not to split them."""

UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError\(\))")
BANNER = re.compile(r"^ *# ?[-=*]{3}", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp)/\w")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((REPOSITORY / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_modules_are_short_and_finished_and_have_a_docstring() -> None:
    found: dict[str, list[str]] = {}
    for path in sources("engine"):
        text = path.read_text("utf-8")
        problems = {
            f"longer than {COMFORTABLE_LINES} lines, without a reason in this test": (
                text.count("\n") > COMFORTABLE_LINES and relative(path) not in LONGER_FOR_A_REASON
            ),
            "section banners": BANNER.search(text) is not None,
            "unfinished": UNFINISHED.search(text) is not None,
            "no docstring": not text.startswith('"""'),
        }
        if any(problems.values()):
            found[relative(path)] = [name for name, is_there in problems.items() if is_there]
    assert found == {}


BY_NAME = re.compile(
    r"dialect\.name *(?:==|!=)|(?:==|!=) *[\"'](?:delta|indextables)[\"']|"
    r"[\"'](?:delta|indextables)[\"'] *(?:==|!=|:)"
)
"""A comparison with the name of a dialect, or a table with an entry for each dialect."""


def test_only_dialects_compare_dialect_names() -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in sources("engine/lakelog")
        for number, line in enumerate(path.read_text("utf-8").split("\n"), 1)
        if not relative(path).startswith("engine/lakelog/dialects/") and BY_NAME.search(line)
    ]
    assert found == [], "declare the difference in lakelog.dialects.base.Dialect"


WORD = re.compile(r"[A-Za-z_]\w*")


def test_names_used_by_one_module_are_private() -> None:
    used = Counter(
        word
        for path in sources("engine", "tests", "perf")
        for word in set(WORD.findall(path.read_text("utf-8")))
    )
    pages = (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*/*.md"), REPOSITORY / "pyproject.toml")
    used.update(word for page in pages for word in set(WORD.findall(page.read_text("utf-8"))))
    found: list[str] = []
    for path in sources("engine"):
        for node in ast.parse(path.read_text("utf-8")).body:
            match node:
                case ast.FunctionDef(name=name, decorator_list=[]):
                    names = [name]
                case ast.Assign(targets=targets):
                    # A class or a type alias may be what a public function returns.
                    names = [t.id for t in targets if isinstance(t, ast.Name) and t.id.isupper()]
                case _:
                    names = []
            alone = [name for name in names if not name.startswith("_") and used[name] == 1]
            found += [f"{relative(path)}: {name}" for name in alone]
    assert found == []


def test_no_file_contains_a_path_of_one_machine() -> None:
    others = [REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "Makefile")]
    found = [
        f"{relative(path)}: {match[0]}"
        for path in [*sources("engine", "tests", "perf"), *others]
        for match in MACHINE_PATH.finditer(path.read_text("utf-8"))
        if path != Path(__file__)
    ]
    assert found == []


def test_lint_and_type_suppressions_name_their_rule() -> None:
    bare = re.compile(r"#\s*(?:noqa(?!:)|type:\s*ignore(?!\[))")
    found = [
        relative(path)
        for path in sources("engine", "tests", "perf")
        if bare.search(path.read_text("utf-8")) and path != Path(__file__)
    ]
    assert found == []


BANNED = {
    "whoever, nobody, somebody": "the reader, another process, no caller",
    "(is|are|was|were|be|been) told": "is reported, raises, logs, returns",
    "tells": "shows, reports, records",
    "(?<!there )is no (?!longer|more|such|other)[a-z]+": "is not a valid X",
    "there is no such": "X not found, unknown X",
    "stands": "is, is stored, exists",
    "lies": "is",
    "goes on": "continues",
    "rests? on": "depends on",
    "looks? again, a look": "list again, retry, read",
    "mends?, mended, mending": "repair",
    "sound, unsound": "valid, invalid",
    "anew": "again",
    "beside": "next to",
    "as far as": "where, up to",
    "amounts? to": "add up to, result in",
    "lest": "so that not",
    "keeps to, heeds?, is believed": "obeys, applies, is used",
    "(row|rows|bytes) a (file|commit|row)(?=[.;:)]|$)": "per file",
    "knows? nothing": "is independent of",
    "anybody, everybody": "any process, every reader",
    "quickest": "fastest",
    "to be had, at hand": "available",
    "left alone, let go": "is skipped, is closed",
    "taken for, takes? .{1,20} for granted": "is treated as, assumes",
    "makes? sense": "is valid",
    "may go": "can be deleted",
    "any more": "no longer",
    "gets? its name": "is renamed",
    "gone for good": "is deleted",
    "looked through": "is read, is checked",
}
"""Patterns that readers stumble over, and what to write instead."""

PLAIN = re.compile("|".join(rf"\b(?:{each})\b" for each in ", ".join(BANNED).split(", ")))
"""In lower case: a search that ignores case takes several times as long."""
CODE = re.compile(r"``[^`]*``|`[^`]*`")


def english(source: str, nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The lines of a module's docstrings, comments and texts."""
    inside = {id(part) for n in nodes if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
            yield node.lineno, "".join(parts)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            for number, line in enumerate(node.value.split("\n")):
                yield node.lineno + number, line
    for number, line in enumerate(source.split("\n"), 1):
        if "#" in line:
            yield number, line.partition("#")[2]


ODD_IN_NAMES = {
    "told, tells, says, said, say": "reported, returned, recorded",
    "who, whoever, whom, nobody, somebody, anybody, everybody": "the reader, writer or process",
    "mine": "ours, lakelog_rows",
    "gone, goes, comes, came, went, stands, lies": "missing, removed, is stored",
    "mend, mends, mended": "repair",
    "sound, unsound": "valid, invalid",
    "anew, beside, doomed, heed, heeds, lest": "again, next_to, discarded, obey",
    "let_go, lets_go, left_alone, taken_for": "release, skipped, treated_as",
    "by_turns, looks?_again, as_ever, all_the_same": "in_turn, retries, unchanged",
}
"""Words that names of functions, classes, arguments and variables do not have."""

ODD_NAME = re.compile(rf"(?:^|_)(?:{'|'.join(', '.join(ODD_IN_NAMES).split(', '))})(?=_|$)")


def names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The names that a module defines, in lower case with underscores."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                yield node.lineno, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
            case ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name.lower()


def odd_texts(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The patterns in these lines, without code in backticks."""
    for number, line in lines:
        plain = CODE.sub("", line) if "`" in line else line
        if match := PLAIN.search(plain.lower()):
            yield number, match[0]


def test_texts_and_names_use_the_terms_of_the_field() -> None:
    found: list[str] = []
    for path in sources("engine", "tests", "perf"):
        source = path.read_text("utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        odd = [each for each in names(nodes) if ODD_NAME.search(each[1])]
        if path != Path(__file__):
            odd += odd_texts(english(source, nodes))
        found += [f"{relative(path)}:{number}: {text}" for number, text in odd]
    pages = [REPOSITORY / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
    for folder, kind in (("schemas", "md"), ("docs", "md"), ("notebooks", "ipynb")):
        pages += sorted((REPOSITORY / folder).rglob(f"*.{kind}"))
    for page in pages:
        lines = enumerate(page.read_text("utf-8").split("\n"), 1)
        found += [f"{relative(page)}:{number}: {text}" for number, text in odd_texts(lines)]
    assert found == [], (BANNED, ODD_IN_NAMES)
