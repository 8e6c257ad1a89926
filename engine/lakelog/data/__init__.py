"""Rows: reads and writes the data files of a table.

Runs on one machine and does not import Spark; Spark's executors use it.

| module | owns |
|---|---|
| `files`, `file_opening` | the read plan of a version; data files opened |
| `read`, `columns`, `casts` | rows of data files, converted to the table's schema |
| `legacy_calendar` | dates and times of Spark's Julian calendar |
| `recorded_statistics` | the log's record of a file, compared with the file |
| `deletion_vectors`, `row_group_skipping` | deleted rows; skipped row groups |
| `scan`, `bin_packing` | a lazy frame over the files; files assigned to tasks |
| `write_plan`, `layout`, `physical_schema` | file schema, folders and names |
| `input_rows`, `conform`, `schema_merge` | rows of callers, brought to the table's schema |
| `grouping`, `spill` | rows by partition; rows that wait on local disk |
| `write`, `parquet`, `stats` | data files and their statistics |
| `append`, `overwrite_plan` | appends and overwrites; the files that an overwrite removes |
"""
