"""Statistics and partition values: typed, as text, and as reasons to leave a file out.

| module | owns |
|---|---|
| `typed`, `values` | statistics, and any text, typed under the table's schema |
| `partitions`, `maps` | partition values; statistics as maps of text |
| `json_texts`, `alike` | many small JSON texts in one parse; alike ones by one expression |
| `text` | statistics back into text |
| `prune`, `intervals` | which files may hold a row; arithmetic of the possible |
| `where` | a SQL condition as an expression |
"""
