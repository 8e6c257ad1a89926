"""The command line: ``lakelog demo|info|files|history|actions|diff|blame|replay``, and
``checkpoint|verify|repair|cleanup|vacuum|compact|undo``.

A face over `lakelog.Table` and nothing more. This package and `lakelog.cli.app` import nothing
heavy, so that help is instant; the commands' work lies in modules that load when one runs.
"""

from lakelog.cli.app import main

__all__ = ["main"]
