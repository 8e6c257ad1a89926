"""Readers of the two historic write-ahead log formats (specifications 002 and 003), and upgrades.

| module | owns |
|---|---|
| `read` | the format of a log; reading it in place |
| `log` | records, as columns, and warnings of a historic log |
| `spec002` | the format of specification 002; its sequence numbers across files |
| `spec003` | the format of specification 003; record offsets |
| `upgrade` | conversion to the current format, in place |
"""
