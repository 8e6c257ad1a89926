"""The command line of `lakelog.Table`, `lakelog.WriteAheadLog` and pipelines.

Modules that help imports are light: Polars, rich and the engine are imported when a command runs.

| module | owns |
|---|---|
| `app` | the group; exit codes, error messages, notes |
| `table` | commands that read a table: info, files, history, actions, changes, diff, ... |
| `table_writing` | compact, restore, delete, convert, clone |
| `log_files` | checkpoint, verify, repair, compact-log, checksum, replicate |
| `retention` | cleanup, vacuum, simulate, undo |
| `wal`, `spark` | commands for write-ahead logs; pipelines on Spark |
| `demo` | ``lakelog demo`` |
| `options` | shared options and parameter types |
| `output`, `rendering` | selection of rows and format; text tables, JSON, CSV, Parquet, Arrow |
| `text` | single values as text |
| `watch`, `metered_store` | progress bars; a store that counts its reads |
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    try:
        from lakelog.cli.app import main as run
    except KeyboardInterrupt:  # click converts those that follow
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    run(arguments)


__all__ = ["main"]
