"""A third dialect, as small as possible: NDJSON commits, and checkpoints of the same lines. It is
not shipped. It shows that a dialect needs nothing outside its own folder.
"""
