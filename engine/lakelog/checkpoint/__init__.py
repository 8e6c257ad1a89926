"""Checkpoints: planned, written, verified against replay, published, scheduled.

| module | owns |
|---|---|
| `options`, `memory_budget` | table properties of checkpoints; memory limits |
| `plan` | layout, parts and columns, decided before the first byte is written |
| `state_source`, `spill`, `prefetch` | a version's rows in bounded memory |
| `write`, `staging`, `publish` | staged files, verified, then published |
| `report` | `CheckpointReport` |
| `verify`, `compare` | existing checkpoints compared with a replay |
| `incremental`, `sidecar_reuse`, `sidecars` | V2 checkpoints that keep unchanged sidecars |
| `schedule` | checkpoints written in the background after commits |
| `compaction`, `version_checksum` | log compaction files; ``.crc`` files |
| `replicate` | checkpoints copied to another location |
"""
