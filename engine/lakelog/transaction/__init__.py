"""Transactions: actions buffered, validated, checked for conflicts, and committed.

A transaction runs through these modules, in order:

| module | owns |
|---|---|
| `transaction`, `create` | the public `Transaction`; table creation |
| `action_input` | actions given as keywords or as a table (`map_columns`, `schema_conversion`) |
| `metadata_changes` | new metadata and protocol (`column_mapping` assigns ids and names) |
| `action_buffer` | everything that the transaction is going to write |
| `pending_commit` | the buffered actions and reads, frozen for the commit |
| `validation` | all checks before a write; see below |
| `conflicts` | conflict detection (`concurrent_metadata`, `conflict_fast_path`) |
| `commit_content` | the actions of one commit (`row_tracking`, `skipped_files`, `operations`) |
| `commit_loop` | the retry loop: conflicts, content, write, unknown outcomes |
| `small_commit` | a shorter path for a few plain file actions |

Checks, all pure: `write_support` (table features), `features` and `protocol_upgrade` (protocols),
`consistency` (metadata and files), `file_rules`, `schema_evolution`, `table_properties`.

Shared: `log_tail` (the end of the log, cached; `commit_effects` updates it), `metadata_rows`
(protocol and metadata as rows), `runtime` (clock and randomness).
"""
