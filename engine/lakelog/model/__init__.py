"""The contract of the action table, and the action table itself. Knows nothing of logs or storage.

| module | owns |
|---|---|
| `contract` | ``schemas/``: StructType JSON, and its Arrow and Polars types |
| `actions` | the flattened action table: columns, dtypes, file identity |
| `reconcile` | the last row of each key wins |
"""
