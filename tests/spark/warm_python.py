"""A Python for Spark's workers, each a fork of one process that has imported their modules.

Spark starts a hundred workers, and PyArrow, pandas and Polars take each of them two seconds.
lakelog is not imported in advance: a worker imports it from the place where Spark has put it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IMPORTED_BY_ALL = (
    "fsspec numpy orjson pandas polars pyarrow.json pyarrow.parquet pyspark.daemon pyspark.worker"
    " pyspark.sql.conversion pyspark.sql.datasource pyspark.sql.pandas.types"
    " pyspark.sql.worker.plan_data_source_read pyspark.sql.worker.write_into_data_source"
).split()

STARTED_AS = "WARM_PYTHON_STARTED_AS"
"""Variable of a worker's environment: the process that Spark has started as the worker."""

# Sends its arguments, environment and streams to the server, and exits with the code that it gets
# back, or is killed.
PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    here = dict(os.environ, {started_as}=str(os.getpid()))
    order = [sys.argv[1:], here, os.getcwd()]
    socket.send_fds(server, [json.dumps(order).encode() + b"\\n"], [0, 1, 2])
    code = server.recv(1)
os._exit(code[0] if code else 1)
"""


@contextmanager
def warm_python(folder: Path) -> Iterator[Path]:
    """An executable that replaces the Python of the tests, for ``PYSPARK_PYTHON``."""
    address = os.fspath(folder / "socket")
    program = folder / "python"
    text = PROGRAM.format(python=sys.executable, address=address, started_as=STARTED_AS)
    program.write_text(text)
    program.chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        [sys.executable, __file__, address],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield program


def serve(address: str) -> None:
    """Fork once per request until standard input ends: when the starting process ends."""
    sys.path.pop(0)  # of this file
    for name in IMPORTED_BY_ALL:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    threading.Thread(target=end_with_input, daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            client = listening.accept()[0]
            if os.fork() == 0:
                listening.close()
                be_a_worker(client)
            client.close()


def end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def be_a_worker(client: socket.socket) -> None:
    """Run as the client's worker until that ends or the client is killed."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        text, streams, _, _ = socket.recv_fds(client, 1 << 16, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        while not text.endswith(b"\n"):
            text += client.recv(1 << 16)
        threading.Thread(target=end_with, args=(client,), daemon=True).start()
        run(*json.loads(text))
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        client.send(bytes([code & 255]))
        os._exit(code & 255)


def end_with(client: socket.socket) -> None:
    """End this worker when the process that Spark has started ends."""
    client.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def run(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Run like ``python`` with these arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder, *filter(None, given)]
    option, name, *rest = arguments
    sys.argv = [option, *rest]
    if option == "-c":
        exec(name, {"__name__": "__main__"})
    else:
        assert option == "-m"
        runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1])
