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

from lakelog.cli.app import main

__all__ = ["main"]
