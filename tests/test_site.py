"""The documentation site builds without a warning, and is complete: commands, API, errors, formats.

It loads nothing from the network.
"""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

import lakelog
from lakelog import errors
from lakelog.cli.app import app


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    folder = tmp_path_factory.mktemp("documentation")
    outcome = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=repository,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return folder


def text_of(*pages: Path) -> str:
    """The pages without tags, with single spaces."""
    markup = " ".join(page.read_text("utf-8") for page in pages)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def test_every_public_name_is_in_the_api_reference(site: Path) -> None:
    anchors = "".join(page.read_text("utf-8") for page in (site / "api").rglob("index.html"))
    for name in lakelog.__all__:
        if name != "__version__":
            # The errors are documented in the module that defines them.
            homes = [f'id="lakelog.{name}"', f'id="lakelog.errors.{name}"']
            assert any(home in anchors for home in homes), name
    for name in lakelog.plot.__all__:
        assert f'id="lakelog.plot.{name}"' in anchors, name
        assert f"{name}(table" in text_of(site / "figures/index.html"), name


@pytest.mark.parametrize("kind", ["Table", "Snapshot", "Transaction", "Ingestor", "WriteAheadLog"])
def test_every_public_method_is_in_the_api_reference(kind: str, site: Path) -> None:
    anchors = "".join(page.read_text("utf-8") for page in (site / "api").rglob("index.html"))
    for name, member in vars(getattr(lakelog, kind)).items():
        if not name.startswith("_") and callable(member):
            assert re.search(rf'id="lakelog\.{kind}\.{name}"', anchors), name


def test_lists_of_methods_have_whole_sentences(site: Path) -> None:
    sentence = "None if the handle was opened with upkeep=False or the store is read-only."
    page = text_of(site / "api/table/index.html")
    assert page.count(sentence) == 2, "in the list of methods, and in the text"


def test_api_reference_shows_no_unrendered_markup(site: Path) -> None:
    text = text_of(*(site / "api").rglob("index.html"))
    for markup in ("=====", ":func:", ":class:", ".. note"):  # of reStructuredText
        assert markup not in text


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def test_every_command_and_option_is_in_the_reference_of_the_command_line(site: Path) -> None:
    text = text_of(site / "cli" / "index.html")
    for name, command in commands(app, "lakelog"):
        assert f"Usage: {name} [OPTIONS]" in text, name
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[0] in text, f"{name} {parameter.opts[0]}"


def test_every_kind_of_error_has_a_cause_and_a_remedy(repository: Path) -> None:
    page = (repository / "docs" / "errors.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([^|]{8,}) \| ([^|]{8,}) \|$", page, re.MULTILINE)
    classes = {
        (value.kind, value.__name__)
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, lakelog.LakelogError)
    }
    bases = {("error", "LakelogError"), ("checkpoint", "CheckpointError")}
    assert {(kind, name) for kind, name, _, _ in rows} == classes - bases
    assert len(rows) == len(classes - bases)


def test_the_errors_of_a_section_belong_to_its_group(repository: Path) -> None:
    page = (repository / "docs" / "errors.md").read_text("utf-8")
    for section in page.split("\n## ")[1:]:
        names = re.findall(r"^\| `\w+` \| `(\w+)` \|", section, re.MULTILINE)
        group = getattr(errors, names[0])
        assert all(issubclass(getattr(errors, name), group) for name in names), names[0]


class Loads(HTMLParser):
    """Collects the addresses that a page loads when it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        linked = tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}
        address = values.get("href") if linked else values.get("src")
        self.found.add(address or "")


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text("utf-8"))
        external = [each for each in loads.found if each.startswith(("http:", "https:", "//"))]
        assert external == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text("utf-8"))


def test_every_format_is_a_page_and_links_between_pages_work(site: Path, repository: Path) -> None:
    for page in (repository / "schemas").glob("*.md"):
        assert (site / "schemas" / page.stem / "index.html").exists(), page
    assert (site / "schemas" / "actions.json").read_bytes() == (
        repository / "schemas" / "actions.json"
    ).read_bytes()
    # A link that GitHub follows out of docs/, and one into it.
    assert 'href="../schemas/checkpoint/"' in (site / "correctness/index.html").read_text("utf-8")
    assert 'href="../architecture/"' in (site / "CONTRIBUTING/index.html").read_text("utf-8")
