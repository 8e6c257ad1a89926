"""Readers of the two historic write-ahead log formats (specifications 002 and 003), and upgrades.

| module | owns |
|---|---|
| `detect`, `read` | the format of a log; reading it in place |
| `log` | records and warnings of a historic log |
| `spec002`, `continuity` | the format of specification 002; its sequence numbers across files |
| `spec003`, `spec003_offsets` | the format of specification 003; record offsets |
| `spans` | integers and byte strings at many offsets, as columns |
| `upgrade` | conversion to the current format, in place |
"""
