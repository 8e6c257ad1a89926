"""Transactions: actions buffered, validated, checked for conflicts, and committed.

A transaction runs through these modules, in order:

| module | owns |
|---|---|
| `transaction`, `create` | the transaction; table creation |
| `action_input` | actions given as keywords or as a table (`schema_conversion`) |
| `metadata_changes` | new metadata and protocol, their rows; column mapping |
| `action_buffer` | the actions that the transaction will write; skipped files |
| `pending_commit` | the buffered actions and reads, frozen for the commit |
| `validation` | all checks before a write; see below |
| `conflicts` | conflict detection (`conflict_fast_path`: for small commits) |
| `commit_content` | the actions of one commit (`row_tracking`, `operations`) |
| `commit_loop` | the retry loop: conflicts, content, write, unknown outcomes |
| `small_commit` | a shorter path for a few plain file actions |

Checks, all pure: `write_support` (table features), `file_rules`, `schema_evolution`.

Shared: `log_tail` (the end of the log, cached), `runtime` (clock and randomness).
"""
