"""How a log is spelled: one subpackage a dialect, and the NDJSON codec that both share.

| module | owns |
|---|---|
| `delta`, `indextables` | the two dialects |
| `base` | what every one of them hands upward |
| `wire` | where each column stands in a dialect's JSON, from the contract |
| `commits`, `chunks`, `ndjson` | commits read, chunked, and decoded many in one parse |
| `arrow_json`, `arrow_maps` | Arrow's JSON reader, and maps through it |
| `unproven` | what is raised where it is in doubt |
| `exact`, `commit_info` | one line at a time, every rule checked; commitInfo |
| `spelling`, `encode` | what must hold of rows before they are spelled; rows to NDJSON |
| `digest` | how many actions there are, and a hash over them in any order |
| `marks` | what tells a whole file of lines from one that was cut |
| `pointers` | what a pointer says of a checkpoint that stands |
| `parquet_bounds` | how much a Parquet file may hold for its length |
| `arrow_texts`, `garbage` | texts to Arrow without a copy; the collector held still |
"""
