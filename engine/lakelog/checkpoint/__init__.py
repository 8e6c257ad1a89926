"""Checkpoints: planned, written, proved against replay, published, scheduled, repaired.

| module | owns |
|---|---|
| `options`, `memory` | what properties say; how much memory there is |
| `plan` | what a checkpoint is to look like, decided before the first byte |
| `source`, `spill`, `pipeline` | a version's rows in bounded memory; rows on disk; side by side |
| `write`, `staging`, `publish` | written, read back and compared; only then seen |
| `report` | what became of it |
| `verify`, `compare` | one that exists, proved; where two collections differ |
| `incremental`, `reuse`, `sidecars` | V2 checkpoints that keep sidecars, and which |
| `schedule` | checkpoints that follow commits by themselves |
| `compaction`, `checksum` | log compaction files; version checksums |
| `replicate` | the same bytes at another place |
"""
