"""SQL text: conditions, new values and table rules as Polars expressions, and back.

| module | owns |
|---|---|
| `condition` | conditions and new values of callers |
| `translation` | sqlglot's syntax tree as an expression, with Spark's types |
| `values` | literals, types and casts |
| `functions` | functions |
| `sql_text` | an expression as SQL text, for commitInfo |
"""
