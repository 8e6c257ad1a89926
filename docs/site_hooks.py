"""MkDocs hooks: pages outside of docs/ are part of the site, and links between files work in it.

The formats (``schemas/``) are part of the package, and a few pages belong to the root of the
repository, so they stay there. A link to a file that is not part of the site leads to the
repository.
"""

from __future__ import annotations

import os
import posixpath
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
SOURCE = f"{PROJECT['urls']['Source']}/blob/main"
OUTSIDE = [
    *sorted((REPOSITORY / "schemas").iterdir()),
    *(REPOSITORY / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of docs/."""
    for path in OUTSIDE:
        if path.exists():
            name = path.relative_to(REPOSITORY).as_posix()
            files.append(File.generated(config, name, abs_src_path=os.fspath(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page, which are relative to its file, to the pages of the site."""
    docs = posixpath.basename(config.docs_dir)
    name = page.file.src_uri
    here = name if page.file.generated_by else f"{docs}/{name}"

    def leads_to(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[1]))
        if not (REPOSITORY / target).exists():
            return link[1]  # --strict reports it
        for found in (target, f"{target}/README.md"):
            inside = found.removeprefix(f"{docs}/")
            if files.get_file_from_path(inside) is not None:
                return posixpath.relpath(inside, posixpath.dirname(name) or ".")
        return f"{SOURCE}/{target}"

    return LINK.sub(leads_to, markdown)
