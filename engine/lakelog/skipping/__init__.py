"""Statistics, partition values and predicates, for file skipping.

| module | owns |
|---|---|
| `typed`, `values` | statistics and text values, cast to the types of the table's schema |
| `partitions`, `maps` | partition values; statistics as maps of text |
| `json_texts`, `templated_json` | many JSON texts in one parse; texts of one template by regex |
| `text` | typed statistics as JSON text |
| `prune`, `intervals` | the files that may match a predicate; interval arithmetic |
| `sql_predicate` | SQL conditions as Polars expressions |
"""
