"""The contract of the action table, and the action table itself. Independent of logs and storage.

| module | owns |
|---|---|
| `contract` | ``schemas/``: StructType JSON, and its Arrow and Polars types |
| `metadata` | `Protocol`, `Metadata`: the two actions that every state has once |
| `actions` | the flattened action table: columns, dtypes, file identity |
| `expressions` | Polars expressions as JSON trees; columns and fields by their exact names |
| `reconcile` | the last row of each key wins |
"""
