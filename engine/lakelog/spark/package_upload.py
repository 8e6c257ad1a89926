"""Uploads the lakelog package to executors.

The package, with its contract, is sent as one zip file from which Python imports directly. Its
dependencies (Polars, pyarrow, orjson, fsspec) contain machine code, which cannot be imported from a
zip file: they have to be installed on executors, or sent as an environment.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import marshal
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import lakelog
from lakelog.model import contract
from lakelog.version import __version__

_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED_HASH = (1).to_bytes(4, "little") + bytes(8)
_shipped: weakref.WeakSet[Any] = weakref.WeakSet()


def ship(spark: Any) -> None:
    """Send lakelog to the executors of a session, and to a Connect server's own Python.

    The package is sent once per session; a repeated call does nothing. Executors then use this
    version of lakelog, even if another one is installed there. If the driver received lakelog as a
    zip file (``--py-files``), nothing is sent: its executors received the file too.

    Args:
        spark: A session, classic or Connect, of any master.
    """
    if spark in _shipped or isinstance(lakelog.__loader__, zipimporter):
        return
    archive = os.fspath(package_archive())
    if is_connect(spark):
        spark.addArtifacts(archive, pyfile=True)
    else:
        context = spark.sparkContext
        # Sessions share a context, which accepts a file once.
        if os.path.basename(archive) not in context._python_includes:  # noqa: SLF001 - no other list
            context.addPyFile(archive)
    _shipped.add(spark)


def is_connect(spark: Any) -> bool:
    """Whether a session is a Spark Connect session, which has no JVM in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@cache
def package_archive() -> Path:
    """A zip file of the package, created once per process and deleted at exit. Its name has a
    digest of the content; it includes byte code for executors of this Python version.
    """
    folder = Path(tempfile.mkdtemp(prefix="lakelog-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    digest = hashlib.sha256()
    with zipfile.ZipFile(
        folder / "lakelog.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as zip_:
        for name, content in sorted(_members()):
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
            zip_.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    final = folder / f"lakelog-{__version__}-{digest.hexdigest()[:12]}.zip"
    return (folder / "lakelog.zip").rename(final)


def _members() -> Iterator[tuple[str, bytes]]:
    """Archive name and content of every file that executors import or load."""
    import lakelog
    import pyspark_lakelog

    for package in (lakelog, pyspark_lakelog):
        root = Path(next(iter(package.__path__)))
        for source in root.rglob("*.py"):
            name = f"{package.__name__}/{source.relative_to(root).as_posix()}"
            yield name, source.read_bytes()
            yield f"{name}c", _byte_code(source)
    for schema in contract.schema_directory().iterdir():
        if schema.name.endswith(".json"):
            yield f"lakelog/{contract.SHIPPED}/{schema.name}", schema.read_bytes()


def _byte_code(source: Path) -> bytes:
    """The byte code of a module, marked so that Python does not check the source file."""
    code = SourceFileLoader("shipped", os.fspath(source)).get_code("shipped")
    assert code is not None, "an imported module has code"
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + marshal.dumps(code)
