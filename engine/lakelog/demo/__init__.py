"""A realistic Delta table to try things on, written without any other engine.

>>> from lakelog.demo import make_table
>>> make_table("a-table", commits=40)
'a-table'

| module | owns |
|---|---|
| `generate` | the log, as bytes, from a seed |
| `calendar`, `files` | which commit does what, and when; files from birth to removal |
| `checkpoint` | its classic checkpoint |
"""

from lakelog.demo.generate import DemoLog, append_commit, build_log, make_table, next_commit

__all__ = ["DemoLog", "append_commit", "build_log", "make_table", "next_commit"]
