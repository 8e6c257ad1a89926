"""Rows: reads and writes the data files of a table.

Runs on one machine and does not import Spark; Spark's executors use it.

| module | owns |
|---|---|
| `files` | the read plan of a version; files assigned to tasks |
| `file_opening` | data files opened, and compared with the log's record |
| `read`, `scan` | rows of data files, with row groups skipped; a lazy frame over them |
| `columns` | columns of a file, found and cast to the table's schema; Julian calendar |
| `deletion_vectors` | deleted rows of a file |
| `conform` | rows of callers, converted to the table's schema |
| `write_plan`, `layout` | file schema, whether rows may be written; folders and names |
| `write`, `stats` | data files and their statistics |
| `append` | appends and overwrites |
| `targets` | files with rows for which a condition is true |
| `rewrite` | changes of rows: deletion vectors, or copies without them; change data |
| `update` | deletes and updates |
| `merge` | merges: rows compared with other rows by key |
| `row_commit` | transaction and files of one call that writes rows; options and report |
| `change_feed` | rows that commits changed |
| `alter` | changes of schema, properties, constraints and protocol |
| `restore` | an earlier version restored |
| `convert` | a folder of Parquet files made a table |
| `clone` | a shallow clone |
| `compact`, `bin_rewrite` | small files merged, rows sorted; the rewrite of one group of files |
"""
