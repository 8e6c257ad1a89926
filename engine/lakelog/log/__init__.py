"""Log segment, replay, snapshot and history.

| module | owns |
|---|---|
| `context` | `Log`: store, dialect, listings and commit times of one table |
| `segment`, `opening` | which files make a version; from them to a state |
| `base` | the checkpoint below it, and what damage to it becomes |
| `settle` | files that a checkpoint both adds and removes |
| `replay`, `state` | action tables in, state out; read as far as it is asked for |
| `snapshot`, `files`, `source` | `Snapshot`; its files; queries that reach the reader |
| `cache`, `projections`, `tally` | what a handle remembers; columns asked for twice; counts |
| `metadata`, `properties` | `Protocol` and `Metadata`; properties that reading needs |
| `history`, `diff`, `blame` | the commits; what changed between two; one file's life |
| `checksum`, `histograms` | a version checksum beside what replay finds |
| `witness` | which of the two is damaged where they differ |
| `timestamps` | points in time as callers give them |
| `order` | file actions sorted by partition values, statistics and path |
| `export`, `display` | the state as Parquet; how tables and snapshots show themselves |
"""
