"""Log segment, replay, snapshot and history.

| module | owns |
|---|---|
| `context` | `Log`: store, dialect, listings and commit times of one table |
| `segment`, `opening` | the files that make a version; a state loaded from them |
| `base_checkpoint` | the checkpoint that a state is built on, its counts, and its damage |
| `repeated_files` | files that a checkpoint both adds and removes |
| `replay`, `state` | reconciliation; one version's state, read lazily |
| `snapshot`, `files` | `LogSnapshot`; live files as lazy frames |
| `cache` | the states that a table handle keeps |
| `properties` | table properties that readers need |
| `history`, `diff`, `blame` | commits; differences of two versions; the history of one file |
| `version_checksum` | the ``.crc`` of a version, compared with replay |
| `checksum_conflicts` | whether the state or the checksum is damaged, if they differ |
| `file_order` | file actions sorted by partition values, statistics and path |
| `export` | the state as Parquet |
"""
