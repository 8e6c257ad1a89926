"""The version that ``_last_checkpoint`` names, in either dialect; a hint, and read as one."""

from __future__ import annotations

import orjson

from lakelog.errors import LakelogError
from lakelog.formats.delta.hints import read_last_checkpoint
from lakelog.formats.indextables.framing import unframe
from lakelog.formats.indextables.listing import LAST_CHECKPOINT
from lakelog.log.context import Log


def pointed_version(log: Log) -> int | None:
    """The version that the pointer names, whether or not a checkpoint stands there; None where
    there is no pointer, or one that cannot be read.
    """
    if log.dialect.name == "delta":
        return read_last_checkpoint(log.store).version
    try:
        pointer = orjson.loads(unframe(log.store.read(LAST_CHECKPOINT), LAST_CHECKPOINT))
    except (LakelogError, orjson.JSONDecodeError):
        return None
    version = pointer.get("version") if isinstance(pointer, dict) else None
    return version if type(version) is int else None
