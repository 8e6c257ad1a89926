"""The contract of the action table, and the action table itself. Independent of logs and storage.

| module | owns |
|---|---|
| `contract` | ``schemas/``: StructType JSON, its Arrow and Polars types, columns by exact name |
| `metadata` | `Protocol`, `Metadata`: the two actions that every state has once |
| `actions` | the flattened action table: columns, dtypes, file identity |
| `reconcile` | the last row of each key wins |
"""
