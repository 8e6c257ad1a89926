"""Statistics, partition values and predicates, for file skipping.

| module | owns |
|---|---|
| `values` | casts of text to the types of the table's schema; partition values |
| `json_texts` | many JSON texts in one parse; texts of one template by regex |
| `statistics` | statistics: typed, as maps of text, as JSON text |
| `indexed_columns` | the columns that have statistics, by the table's properties |
| `prune`, `intervals` | selection of files that may match a predicate; interval arithmetic |
"""
