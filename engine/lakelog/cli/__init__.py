"""The command line: a face over `lakelog.Table`, `lakelog.WriteAheadLog` and pipelines, and nothing
more. Help is instant: a command's work is in a module that loads when it runs.

| module | owns |
|---|---|
| `app` | the commands on tables, their options and help; nothing heavy is imported |
| `commands` | what they do |
| `upkeep`, `retention`, `wal`, `spark` | more commands, likewise |
| `upkeep_work`, `retention_work`, `wal_work`, `spark_work` | what they do |
| `demo` | ``lakelog demo`` |
| `options`, `guard` | what commands share; what happens when one goes wrong |
| `output`, `view`, `reports` | rows for machines, for people; what upkeep reports |
| `watch`, `terminal` | what a command reads, shown; text that is safe to print |
"""

from lakelog.cli.app import main

__all__ = ["main"]
