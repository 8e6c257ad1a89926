"""The health of a table: what should be done, and the figures of its history.

| module | owns |
|---|---|
| `findings` | the rules and their thresholds, as a pure function of `TableFacts`; `HealthReport` |
| `survey` | reads the facts of a table |
| `activity` | figures of commits, partitions and schema, aggregated for display |
"""
