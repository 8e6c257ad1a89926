"""Readers of the two historic write-ahead log formats (specifications 002 and 003), and upgrades.

| module | owns |
|---|---|
| `log` | records, as columns, and findings of a historic log |
| `reader` | detection of the format; both formats, record by record |
| `upgrade` | conversion to the current format, in place |
"""
