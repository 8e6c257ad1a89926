"""Checkpoints: planned, written, verified against replay, published, scheduled.

| module | owns |
|---|---|
| `plan` | table properties of checkpoints; layout, parts and columns of the next one |
| `state_source`, `bounded_memory` | a version's rows in bounded memory |
| `job` | plan, write, verify, publish and report, for local and Spark writers |
| `write`, `publish` | parts written by this process; staged files renamed |
| `verify`, `compare`, `evidence` | existing checkpoints compared with a replay |
| `incremental` | V2 checkpoints that keep unchanged sidecars |
| `schedule` | checkpoints written in the background after commits |
| `compaction`, `version_checksum` | log compaction files; ``.crc`` files |
| `replicate` | checkpoints copied to another location |
"""
