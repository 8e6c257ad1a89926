"""Rows: reading and writing the data files that a table's log names.

Everything here runs on one machine and knows nothing of Spark, whose executors use it.

| module | owns |
|---|---|
| `files`, `sources` | how the rows of a version look; data files, opened |
| `read`, `columns`, `casts`, `calendar` | rows; their columns, made the table's |
| `recorded` | what the log records of a file, compared with the file |
| `vectors`, `groups` | deletion vectors decoded; row groups left out |
| `scan`, `pack` | a lazy frame of it; files shared out among tasks |
| `write_plan`, `layout`, `physical` | how the files of a write look; where rows go |
| `incoming`, `conform`, `merge` | what callers hand over, and the table's schema |
| `grouping`, `spill` | rows by partition; those that wait for their file |
| `write`, `parquet`, `stats` | files, and their statistics |
| `append`, `replace` | rows into a table in one commit; what an overwrite takes away |
"""
