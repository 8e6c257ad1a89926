"""Maintenance: log cleanup, vacuum, retention simulation, and repair of damaged logs.

| module | owns |
|---|---|
| `retention_bounds` | what the retention guarantees, and the files that may be deleted |
| `inventory`, `log_survey` | every file of a log, classified |
| `cleanup_checks` | conditions that must hold before a cleanup |
| `cleanup` | cleanup plans, deletion order, and schedule |
| `quarantine`, `undo` | files moved aside, and restored |
| `vacuum` | data files that no version needs |
| `retention_simulation` | the effect of other retention settings |
| `diagnose`, `repair` | damage found in a log, and its repair |
"""
