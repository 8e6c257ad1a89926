"""A realistic Delta table to try things on, written without any other engine.

>>> from lakelog.demo import make_table
>>> make_table("a-table", commits=40)
'a-table'

| module | owns |
|---|---|
| `generate` | the log and its classic checkpoint, as bytes, from a seed |
| `schedule` | which commit does what, and when; files with their lifetimes |
"""

from lakelog.demo.generate import DemoLog, append_commit, build_log, make_table, next_commit

__all__ = ["DemoLog", "append_commit", "build_log", "make_table", "next_commit"]
