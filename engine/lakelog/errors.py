"""The one error tree of lakelog, grouped by what the caller does about it.

Every error carries a stable ``kind`` and the structured fields that apply: ``path`` (the file or
table concerned), ``version``, ``line`` (1-based), ``byte_offset`` (0-based, in the file's decoded
bytes), ``expected``, ``found``, and ``hint``: what to do next. Each branch also inherits the
builtin that a caller would expect to catch.

========================  ==========================================  =====================
branch                    the caller should                           also a
========================  ==========================================  =====================
`InvalidInputError`       fix the call                                ``ValueError``
`NotFoundError`           look elsewhere                              ``FileNotFoundError``
`CorruptionError`         stop, and repair the log                    ``ValueError``
`UnsupportedError`        upgrade lakelog, or the table               ``NotImplementedError``
`UnavailableError`        retry later                                 ``OSError``
`InternalError`           report it                                   ``RuntimeError``
========================  ==========================================  =====================
"""

from __future__ import annotations

from typing import Any, ClassVar

_FIELDS = ("path", "version", "line", "byte_offset", "expected", "found")


class LakelogError(Exception):
    """Root of everything that lakelog raises on purpose.

    Args:
        message: One sentence that says what is wrong.
        path: The file or table concerned, as the store spells it.
        version: The table version concerned.
        line: 1-based line in ``path``.
        byte_offset: 0-based offset in the decoded bytes of ``path``.
        expected: What should have been there.
        found: What was there instead.
        hint: What to do next.
    """

    kind: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        version: int | None = None,
        line: int | None = None,
        byte_offset: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.version = version
        self.line = line
        self.byte_offset = byte_offset
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        details = [
            f"{name}={value}" for name in _FIELDS if (value := getattr(self, name)) is not None
        ]
        text = self.message
        if details:
            text += f" [{', '.join(details)}]"
        if self.hint:
            text += f" Next: {self.hint}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """The structured fields as plain data, for machines (``kind``, ``message``, the rest)."""
        fields = {name: getattr(self, name) for name in (*_FIELDS, "hint")}
        present = {name: value for name, value in fields.items() if value is not None}
        return {"kind": self.kind, "message": self.message, **present}


class InvalidInputError(LakelogError, ValueError):
    """The call is wrong: fix the call."""

    kind = "invalid_input"


class NotFoundError(LakelogError, FileNotFoundError):
    """What was asked for is not there."""

    kind = "not_found"


class TableNotFoundError(NotFoundError):
    """The location holds no log that any dialect knows."""

    kind = "table_not_found"


class VersionNotFoundError(NotFoundError):
    """The version cannot be rebuilt from what is on disk; ``expected`` gives the range that can."""

    kind = "version_not_found"


class CorruptionError(LakelogError, ValueError):
    """The log breaks its own rules: stop, and repair it. No state is returned."""

    kind = "corruption"


class MalformedLogError(CorruptionError):
    """A log file's bytes cannot be decoded (bad JSON, truncated Parquet, broken gzip or Avro)."""

    kind = "malformed_log"


class CheckpointCorruptionError(CorruptionError):
    """A checkpoint cannot be read, and no older files give the version soundly."""

    kind = "checkpoint_corruption"


class InvalidActionError(CorruptionError):
    """An action decodes but lacks a required field, or holds a value of the wrong type."""

    kind = "invalid_action"


class LogGapError(CorruptionError):
    """Versions are not contiguous; ``expected`` and ``found`` name both."""

    kind = "log_gap"


class MissingActionError(CorruptionError):
    """The reconciled log has no protocol or no metadata (``expected`` says which)."""

    kind = "missing_action"


class UnsupportedError(LakelogError, NotImplementedError):
    """This version of lakelog cannot do that rightly, so it refuses."""

    kind = "unsupported"


class UnsupportedFeatureError(UnsupportedError):
    """The table needs a protocol version or a feature (``found``) that would change the answer."""

    kind = "unsupported_feature"


class MissingDependencyError(UnsupportedError):
    """An optional package is needed; ``hint`` gives the command that installs it."""

    kind = "missing_dependency"


class UnavailableError(LakelogError, OSError):
    """The store did not answer, or answered with a fault: retry later."""

    kind = "unavailable"


class InternalError(LakelogError, RuntimeError):
    """lakelog contradicts itself: please report it."""

    kind = "internal"


class LakelogWarning(UserWarning):
    """A read was answered rightly, but something in the log deserves attention."""
