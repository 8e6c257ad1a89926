"""Delta's log: names, paths, features, commits and checkpoints."""

from lakelog.formats.delta.dialect import DIALECT

__all__ = ["DIALECT"]
