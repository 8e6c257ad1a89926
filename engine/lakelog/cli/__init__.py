"""The command line of `lakelog.Table`, `lakelog.WriteAheadLog` and pipelines.

The modules with the implementations are imported when a command runs, so that help is fast.

| module | owns |
|---|---|
| `app` | definitions of the commands on tables: options and help; imports nothing heavy |
| `commands` | implementations of these commands |
| `upkeep`, `retention`, `wal`, `spark` | definitions of the other commands |
| `upkeep_work`, `retention_work`, `wal_work`, `spark_work` | implementations of these |
| `demo` | ``lakelog demo`` |
| `options`, `guard` | shared options and parameter types; error handling and exit codes |
| `output`, `view`, `reports` | machine-readable output; text tables; reports of maintenance |
| `watch`, `terminal` | progress bars; escaping of text for the terminal |
"""

from lakelog.cli.app import main

__all__ = ["main"]
