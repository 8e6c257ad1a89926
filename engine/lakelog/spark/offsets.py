"""`Offset`: the position of a stream in a table.

The files of a version come first, where the stream began with what the table held; then the files
that each commit added. An offset is between two files: those before it have been read.

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
``beganVersion``       ``version`` of the offset that the stream began with
``beganInitial``       its ``isInitialSnapshot``
=====================  ============================================================================

**Where the first batch began** is in every offset, because Spark does not keep it: when that
batch is run again it asks again where to begin, and the table's latest version is another one then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakelog.errors import InvalidInputError

SOURCE_VERSION = 1


@dataclass(frozen=True)
class Offset:
    """A place between two files of a table's life; see the module.

    >>> start = Offset.beginning("t", 3, is_initial=True)
    >>> start < start.past(9) < start.next_version() < start.next_version().past(1)
    True
    >>> Offset.of(start.past(9).as_json()) == start.past(9)
    True
    """

    table_id: str
    version: int
    index: int
    is_initial: bool
    began_version: int
    began_initial: bool

    @staticmethod
    def beginning(table_id: str, version: int, *, is_initial: bool = False) -> Offset:
        """Where a stream begins: before the first file of a version, or of its commit."""
        return Offset(table_id, version, 0, is_initial, version, is_initial)

    def __lt__(self, other: Offset) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, bool, int]:
        return self.version, not self.is_initial, self.index

    def next_version(self) -> Offset:
        """After all files of the version."""
        return replace(self, version=self.version + 1, index=0, is_initial=False)

    def past(self, count: int) -> Offset:
        """After so many more files."""
        return replace(self, index=self.index + count)

    def where_began(self, end: Offset) -> Offset:
        """This offset as the start of a batch that is known to have ended with `end`.

        Where it is a beginning, it is the one of the stream that `end` is of.

        >>> asked_anew = Offset.beginning("t", 9, is_initial=True)
        >>> start = Offset.beginning("t", 3, is_initial=True)
        >>> asked_anew.where_began(start.past(2)) == start
        True
        """
        is_beginning = (self.version, self.index, self.is_initial) == (
            self.began_version,
            0,
            self.began_initial,
        )
        if not is_beginning:
            return self
        return Offset.beginning(end.table_id, end.began_version, is_initial=end.began_initial)

    def as_json(self) -> dict[str, Any]:
        """As the checkpoint keeps it."""
        return {
            "sourceVersion": SOURCE_VERSION,
            "tableId": self.table_id,
            "version": self.version,
            "index": self.index,
            "isInitialSnapshot": self.is_initial,
            "beganVersion": self.began_version,
            "beganInitial": self.began_initial,
        }

    @staticmethod
    def of(json: Mapping[str, Any]) -> Offset:
        """From a checkpoint."""
        if json.get("sourceVersion") != SOURCE_VERSION:
            raise InvalidInputError(
                "the stream's checkpoint contains an unknown offset",
                expected=f"sourceVersion {SOURCE_VERSION}",
                found=dict(json),
                hint="continue with the source and the lakelog version that wrote the checkpoint",
            )
        return Offset(
            str(json["tableId"]),
            int(json["version"]),
            int(json["index"]),
            bool(json["isInitialSnapshot"]),
            int(json["beganVersion"]),
            bool(json["beganInitial"]),
        )
