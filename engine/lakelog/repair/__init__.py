"""Mending a log: what is broken, what can be made again from what is left, and what cannot.

| module | owns |
|---|---|
| `look` | what is wrong, and whether it can be mended |
| `mend` | what is made again from what is left, and what is left alone |
"""
