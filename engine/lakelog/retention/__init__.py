"""What may go: log cleanup, vacuum of data files, and what a retention would cost.

| module | owns |
|---|---|
| `horizon` | what is promised, and which files may therefore go |
| `inventory`, `survey` | every file of a log; each of them judged |
| `proof` | what has to be true before a cleanup |
| `cleanup`, `removal`, `hourly` | the plan and its apply; in which order; by itself |
| `quarantine` | files moved aside, and back |
| `vacuum` | data files that no version needs |
| `simulate` | what another retention would leave, free and break |
"""
