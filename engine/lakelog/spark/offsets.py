"""`Offset`: how far a stream has read a table, as its checkpoint keeps it.

The files of a version come first, where the stream began with what the table held; then the files
that each commit added. An offset stands between two files: those before it have been read.

The JSON form belongs to checkpoints that outlive a release, so fields are only ever added:

=====================  ============================================================================
field                  meaning
=====================  ============================================================================
``sourceVersion``      1; a stream refuses a number that it does not know
``tableId``            ``id`` of the table's metadata: another table at the same place is refused
``version``            the version that is being read
``index``              how many of its files have been read
``isInitialSnapshot``  whether ``index`` counts the files that the version holds, else those that
                       its commit added
=====================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakelog.errors import InvalidInputError

SOURCE_VERSION = 1


@dataclass(frozen=True)
class Offset:
    """A place between two files of a table's life; see the module.

    >>> Offset("t", 3, 0) < Offset("t", 3, 2) < Offset("t", 4, 0)
    True
    >>> Offset("t", 3, 9, is_initial=True) < Offset("t", 4, 0)
    True
    >>> Offset.of(Offset("t", 3, 9).as_json()) == Offset("t", 3, 9)
    True
    """

    table_id: str
    version: int
    index: int
    is_initial: bool = False

    def __lt__(self, other: Offset) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, bool, int]:
        return self.version, not self.is_initial, self.index

    def next_version(self) -> Offset:
        """After all files of the version."""
        return Offset(self.table_id, self.version + 1, 0)

    def as_json(self) -> dict[str, Any]:
        """As the checkpoint keeps it."""
        return {
            "sourceVersion": SOURCE_VERSION,
            "tableId": self.table_id,
            "version": self.version,
            "index": self.index,
            "isInitialSnapshot": self.is_initial,
        }

    @staticmethod
    def of(json: Mapping[str, Any]) -> Offset:
        """From a checkpoint.

        Raises:
            InvalidInputError: It is not one of this source's, or of a later lakelog's.
        """
        if json.get("sourceVersion") != SOURCE_VERSION:
            raise InvalidInputError(
                "the stream's checkpoint holds an offset that this source does not know",
                expected=f"sourceVersion {SOURCE_VERSION}",
                found=dict(json),
                hint="go on with the source, and the lakelog, that wrote the checkpoint",
            )
        return Offset(
            str(json["tableId"]),
            int(json["version"]),
            int(json["index"]),
            bool(json["isInitialSnapshot"]),
        )
