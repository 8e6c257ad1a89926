"""`Pipeline`: a table and its steps, described in Python or TOML, and run in order.

Every step can be repeated at any time: completed work is detected.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakelog import telemetry
from lakelog.errors import InvalidInputError, NotFoundError, TableNotFoundError
from lakelog.spark.pipeline.steps import (
    INGEST_LOG,
    STEPS,
    Checkpoint,
    Cleanup,
    Compact,
    Ingest,
    PipelineReport,
    Settings,
    StepReport,
    Target,
    Vacuum,
    require_known,
)
from lakelog.table import Table
from lakelog.table_functions import open as open_table

if TYPE_CHECKING:
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
    """A table, and the steps that fill and maintain it, in this order; steps that are None are
    omitted.

    Attributes:
        name: Identifies the pipeline in the table's log. Two pipelines that ingest into one table
            need different names, and the name of a pipeline must not change.
        table: The table.
        ingest: Writes the rows of a Spark source, each once.
        compact: Merges small files.
        checkpoint: Writes a checkpoint of the latest version.
        cleanup: Deletes log files that no retained version needs.
        vacuum: Deletes data files that no retained version needs.
        spark: Settings of a session that is started for it: ``master``, and any Spark setting.

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
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not name.strip():
            raise InvalidInputError("the pipeline has no name", expected="a string", found=name)
        if not self.steps:
            raise InvalidInputError(
                "the pipeline has no step", expected=" or ".join(f"[{step}]" for step in STEPS)
            )
        if self.ingest is not None and self.ingest.format != INGEST_LOG:
            _require_json(self.table.storage_options)
        settings = dict(self.spark)
        values: Mapping[str, object] = settings
        wrong = [name for name, value in values.items() if not isinstance(value, str)]
        if wrong:
            raise InvalidInputError(
                "[spark] must contain strings",
                expected='"spark.driver.memory" = "2g"',
                found=", ".join(wrong),
            )
        object.__setattr__(self, "spark", MappingProxyType(settings))

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of its steps, in execution order."""
        return tuple(step for step in STEPS if getattr(self, step) is not None)

    def chosen(self, only: Sequence[str] | None) -> tuple[str, ...]:
        """The steps with these names, or this name; None means all.

        Raises:
            InvalidInputError: The step does not exist.
        """
        if isinstance(only, str):  # otherwise its letters would be treated as names
            only = (only,)
        for step in only or ():
            if step not in self.steps:
                raise InvalidInputError(
                    "the pipeline has no such step", expected=", ".join(self.steps), found=step
                )
        return self.steps if only is None else tuple(only)

    def check(self, only: Sequence[str] | None = None) -> tuple[str, ...]:
        """The steps to run; checks all that needs no Spark session.

        Raises:
            InvalidInputError: `only` names a step that the pipeline lacks.
            TableNotFoundError: The table does not exist, and no step to run creates it.
            CorruptionError, UnavailableError, UnsupportedError: The table cannot be opened.
        """
        steps = self.chosen(only)
        (_existing_table if "ingest" in steps else _opened)(self, None)
        return steps

    @staticmethod
    def from_toml(source: str | os.PathLike[str]) -> Pipeline:
        """A pipeline from a TOML file: a key ``name``, and a section for the table and for each
        step. An empty section is a step with its defaults.

        Args:
            source: Path of the file. Relative paths in it are relative to the working directory.

        Raises:
            NotFoundError: The file does not exist.
            InvalidInputError: The file is not TOML, or a key is unknown, missing
                or malformed; the message has its name.
        """
        path = os.fspath(source)
        try:
            given = tomllib.loads(Path(path).read_text("utf-8"))
        except FileNotFoundError as cause:
            raise NotFoundError("the file of the pipeline was not found", path=path) from cause
        except (OSError, UnicodeDecodeError) as cause:
            reason = getattr(cause, "strerror", None) or str(cause)
            raise InvalidInputError(f"the pipeline cannot be read: {reason}", path=path) from cause
        except tomllib.TOMLDecodeError as cause:
            raise InvalidInputError(
                f"the pipeline is not valid TOML: {cause}", path=path
            ) from cause
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
        """Run the steps, one after another.

        The table is readable at any time, also if a step fails. A repeated run continues where the
        last one ended. Nothing is written twice, and nothing is changed if nothing is left to do.

        Args:
            spark: The session; None uses the existing one, or starts one with the settings `spark`.
            only: Names of the steps to run, or one name; None means all.
            progress: Called with ``(step, done, total)``.
            clock: Returns milliseconds since the Unix epoch, for cooldowns and retentions; None
                uses the system clock.

        Returns:
            The report of each step.

        Raises:
            MissingDependencyError: PySpark, or a Java that it can run on, is not installed.
            InvalidInputError: `only` names a step that the pipeline lacks, or the source does not
                fit the table.
            TableNotFoundError: As `check`, before a session is started.
            StreamMismatchError: The checkpoint of the ingest is not the one of earlier batches.
            CorruptionError: A line of the source does not match the schema; or a file of the
                source, or the table's log, is damaged.
            ConflictError, UnavailableError, UnsupportedError: Raised by a step; the notes of the
                error list the completed steps.
        """
        from lakelog.spark.session import active_session

        steps = self.check(only)
        if spark is None:
            spark = active_session() or self.session()
        from lakelog.spark.session import register

        register(spark)
        done: list[StepReport] = []
        for step in (each for each in self.steps if each in steps):
            begin = time.perf_counter()
            try:
                report = _step(self, step, spark, progress, clock)
            except Exception as error:
                if done:
                    completed = ", ".join(f"{each.step}: {each.status}" for each in done)
                    error.add_note(f"lakelog: steps before {step}: {completed}")
                raise
            report = replace(report, seconds=round(time.perf_counter() - begin, 3))
            telemetry.event(
                "pipeline.step",
                pipeline=self.name,
                step=step,
                status=report.status,
                rows=report.rows,
                files=report.files,
                size_bytes=report.bytes,
                skips=report.skips,
                seconds=report.seconds,
            )
            done.append(report)
        return PipelineReport(self.name, self.table.path, tuple(done))

    def session(self, config: Mapping[str, str] | None = None) -> Any:
        """The existing session, or a new one with the pipeline's settings.

        Args:
            config: Settings that the pipeline's own override.

        Raises:
            MissingDependencyError: As `lakelog.spark.session`.
        """
        from lakelog.spark.session import session

        settings = dict(config or {}) | dict(self.spark)
        master = settings.pop("master", "local[*]")
        return session(self.name, master=master, config=settings)


def _require_json(storage_options: Mapping[str, Any]) -> None:
    """Raise for options that an option of Spark's writer cannot hold; their values are secret."""
    for name, value in storage_options.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as cause:
            raise InvalidInputError(
                f"[table] storage_options {name} cannot be passed to Spark: it is not JSON",
                expected="text, numbers, true, false, None, and lists and dicts of them",
                found=f"a value of type {type(value).__name__}",
                hint="pass the settings from which the store makes the object, such as keys",
            ) from cause


def _described(given: Mapping[str, Any]) -> Pipeline:
    known = {"name": None, "spark": None, **_SECTIONS}
    require_known(given, known, "the pipeline")
    for key in ("name", "table"):
        if key not in given:
            raise InvalidInputError("the pipeline lacks a required key", expected=key)
    made: dict[str, Any] = {
        name: section.of(given[name]) for name, section in _SECTIONS.items() if name in given
    }
    settings = given.get("spark", {})
    if not isinstance(settings, Mapping):
        raise InvalidInputError("spark must be a section", expected="[spark]", found=repr(settings))
    return Pipeline(name=given["name"], spark=settings, **made)


def _step(
    pipeline: Pipeline,
    step: str,
    spark: Any,
    progress: Progress | None,
    clock: Callable[[], int] | None,
) -> StepReport:
    # These import PySpark, which a pipeline needs only when it runs.
    from lakelog.spark.pipeline.compact import compact
    from lakelog.spark.pipeline.ingest import ingest
    from lakelog.spark.pipeline.upkeep import checkpoint, cleanup, vacuum

    target = pipeline.table
    options = dict(target.storage_options)
    if step == "ingest":
        assert pipeline.ingest is not None
        return ingest(
            spark,
            _existing_table(pipeline, clock),
            pipeline.ingest,
            target,
            pipeline.name,
            progress,
        )
    table = _opened(pipeline, clock)
    if step == "compact":
        assert pipeline.compact is not None
        return compact(spark, table, pipeline.compact, options, progress)
    if step == "checkpoint":
        assert pipeline.checkpoint is not None
        return checkpoint(spark, table, pipeline.checkpoint, options, progress)
    if step == "cleanup":
        assert pipeline.cleanup is not None
        return cleanup(table, pipeline.cleanup, progress)
    assert pipeline.vacuum is not None
    return vacuum(spark, table, pipeline.vacuum, options, progress)


def _opened(pipeline: Pipeline, clock: Callable[[], int] | None) -> Table:
    # The steps maintain the log themselves.
    target = pipeline.table
    table = open_table(
        target.path,
        dict(target.storage_options),
        upkeep=False,
        allow_external=target.allow_external,
    )
    return table if clock is None else Table(replace(table.log, clock=clock))


def _existing_table(pipeline: Pipeline, clock: Callable[[], int] | None) -> Table | None:
    """The table, or None if the pipeline will create it."""
    try:
        return _opened(pipeline, clock)
    except TableNotFoundError as error:
        if pipeline.table.create:
            return None
        error.hint = "set create = true in [table] to create it with the ingested columns"
        raise
