"""`Pipeline`: a table and its steps.

A frozen description. Running it is `lakelog.spark.pipeline.run`'s; every step can be run again at
any time: what is done already is found done.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakelog.errors import InvalidInputError
from lakelog.spark.pipeline.steps import (
    STEPS,
    Checkpoint,
    Cleanup,
    Compact,
    Ingest,
    Settings,
    Target,
    Vacuum,
    require_known,
)

if TYPE_CHECKING:
    from lakelog.spark.pipeline.report import PipelineReport
    from lakelog.telemetry import Progress

_SECTIONS: dict[str, type[Settings]] = {
    "table": Target,
    "ingest": Ingest,
    "compact": Compact,
    "checkpoint": Checkpoint,
    "cleanup": Cleanup,
    "vacuum": Vacuum,
}


@dataclass(frozen=True)
class Pipeline:
    """A table, and the steps that fill it and look after it, in this order; those that are None
    are left out.

    Attributes:
        name: What the table's log knows it by: two pipelines that ingest into one table have two
            names, and a pipeline keeps its own.
        table: The table.
        ingest: Rows from anything that Spark reads, each once.
        compact: Small files become large ones.
        checkpoint: A checkpoint of the latest version.
        cleanup: Log files that no promised version needs go.
        vacuum: Data files that no retained version needs go.
        spark: Settings of a session that is started for it: ``master``, and any of Spark's.

    >>> pipeline = Pipeline("clicks", Target(path="clicks"), compact=Compact(target_bytes="64MB"))
    >>> pipeline.steps, pipeline.compact.target_bytes
    (('compact',), 67108864)
    """

    name: str
    table: Target
    ingest: Ingest | None = None
    compact: Compact | None = None
    checkpoint: Checkpoint | None = None
    cleanup: Cleanup | None = None
    vacuum: Vacuum | None = None
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name.strip():
            raise InvalidInputError("a pipeline has a name", expected="a text", found=name)
        if not self.steps:
            raise InvalidInputError(
                "the pipeline has no step", expected=" or ".join(f"[{step}]" for step in STEPS)
            )
        settings = dict(self.spark)
        values: list[object] = list(settings.values())
        if not all(isinstance(value, str) for value in values):
            raise InvalidInputError(
                "[spark] holds texts", expected='"spark.driver.memory" = "2g"', found=settings
            )
        object.__setattr__(self, "spark", MappingProxyType(settings))

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of its steps, in the order in which they run."""
        return tuple(step for step in STEPS if getattr(self, step) is not None)

    def chosen(self, only: Sequence[str] | None) -> tuple[str, ...]:
        """The steps of these names, or of that one; None is all of them.

        Raises:
            InvalidInputError: The step does not exist.
        """
        if isinstance(only, str):  # else its letters would be taken for names
            only = (only,)
        for step in only or ():
            if step not in self.steps:
                raise InvalidInputError(
                    "the pipeline has no such step", expected=", ".join(self.steps), found=step
                )
        return self.steps if only is None else tuple(only)

    @staticmethod
    def from_toml(source: str | os.PathLike[str]) -> Pipeline:
        """A pipeline as a TOML file describes it: a key ``name`` and a section for the table and
        for each step. An empty section is a step with its defaults.

        Args:
            source: Path of the file. Paths in it are as they are from the working folder.

        Raises:
            InvalidInputError: The file does not exist, it is not TOML, or a key is unknown, missing
                or malformed, by name.
        """
        path = os.fspath(source)
        try:
            given = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as cause:
            reason = getattr(cause, "strerror", None) or str(cause)
            raise InvalidInputError(f"the pipeline cannot be read: {reason}", path=path) from cause
        except tomllib.TOMLDecodeError as cause:
            raise InvalidInputError(f"the pipeline is no TOML: {cause}", path=path) from cause
        try:
            return _described(given)
        except InvalidInputError as error:
            error.path = error.path or path
            raise

    def run(
        self,
        spark: Any = None,
        only: Sequence[str] | None = None,
        progress: Progress | None = None,
        *,
        clock: Callable[[], int] | None = None,
    ) -> PipelineReport:
        """Run the steps, one after the other.

        Each step leaves a table that everybody can read, wherever it ends; run again, the pipeline
        continues where it was. Nothing is written twice, and where nothing is left to do nothing is
        changed.

        Args:
            spark: The session; None takes the one that is there, or starts one as `spark` says.
            only: Names of the steps to run, or one name; None is all of them.
            progress: Called with ``(step, done, total)``.
            clock: Milliseconds since the Unix epoch, for cooldowns and retentions; None is the
                system's.

        Returns:
            What each step did.

        Raises:
            MissingDependencyError: PySpark, or a Java that it can run on, is not installed.
            InvalidInputError: `only` names a step that the pipeline lacks, or the source does not
                fit the table.
            StreamMismatchError: The ingest's checkpoint is not the one that wrote before.
            CorruptionError: A line of the source is not what its schema says; or the table's log
                is damaged.
            ConflictError, UnavailableError, UnsupportedError: As the step's own work; the notes of
                the error show the steps before.
        """
        from lakelog.spark.session import active_session

        steps = self.chosen(only)  # before a session is started for nothing
        if spark is None:
            spark = active_session() or self.session()
        from lakelog.spark.pipeline.run import run  # not before PySpark is known to be there

        return run(self, spark, steps, progress, clock)

    def session(self, config: Mapping[str, str] | None = None) -> Any:
        """The session that is there, or a new one with the pipeline's settings.

        Args:
            config: Settings below the pipeline's own.

        Raises:
            MissingDependencyError: As `lakelog.spark.session`.
        """
        from lakelog.spark.session import session

        settings = dict(config or {}) | dict(self.spark)
        master = settings.pop("master", "local[*]")
        return session(self.name, master=master, config=settings)


def _described(given: Mapping[str, Any]) -> Pipeline:
    known = {"name": None, "spark": None, **_SECTIONS}
    require_known(given, known, "the pipeline")
    for key in ("name", "table"):
        if key not in given:
            raise InvalidInputError("the pipeline lacks a key", expected=key)
    made: dict[str, Any] = {
        name: section.of(given[name]) for name, section in _SECTIONS.items() if name in given
    }
    settings = given.get("spark", {})
    if not isinstance(settings, Mapping):
        raise InvalidInputError("spark is a section", expected="[spark]", found=repr(settings))
    return Pipeline(name=given["name"], spark=settings, **made)
