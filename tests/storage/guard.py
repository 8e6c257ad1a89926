"""Runs a command that must not outlive the tests: ``guard.py COMMAND...``.

It keeps its standard input open and ends the command when that closes, which happens however the
tests end, SIGKILL included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main() -> int:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def terminate_at_end_of_input() -> None:
        while os.read(sys.stdin.fileno(), 1024):
            pass
        child.terminate()
        try:
            child.wait(3)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=terminate_at_end_of_input, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
