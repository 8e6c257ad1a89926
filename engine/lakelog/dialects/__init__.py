"""The log dialects: one subpackage per dialect, and the NDJSON codec that they share.

| module | owns |
|---|---|
| `delta`, `indextables` | the two dialects |
| `base`, `registry` | the `Dialect` interface, and the registered dialects |
| `log_content` | listings, decoded actions, checkpoints, their readers and writers |
| `features`, `protocol_rules` | features, versions and upgrades; `TableConfiguration` |
| `properties` | the table properties of all dialects, and how a dialect declares its own |
| `json_layout` | the position of each column in a dialect's JSON, from the contract |
| `commit_reader`, `commit_chunks` | commits read in parallel, and grouped into chunks |
| `ndjson`, `arrow_json` | the columnar decoder: many commits in one parse |
| `strict_decoder`, `commit_info` | the line-by-line decoder that locates errors; commitInfo |
| `row_validation`, `encode` | rows validated, then encoded as NDJSON |
| `digest` | action counts and an order-independent hash |
| `truncation_marks` | line counts that reveal a file truncated at a line end |
| `checkpoint_sources` | opened files of checkpoints; cached footers and ranges |
| `row_group_records` | what the row groups of a checkpoint contain, recorded with a checksum |
| `parquet_footers` | checks of Parquet footers before use |
| `gc_pause` | pauses the garbage collector |
"""
