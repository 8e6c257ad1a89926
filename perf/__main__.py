"""``python -m perf``: measure the workloads and report which targets are met."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from perf import report
from perf.answers import WrongAnswerError
from perf.checkpoints.workloads import CHECKPOINT_WORKLOADS
from perf.ingest.workloads import INGEST_WORKLOADS
from perf.measure import FailedRunError, Result, measure
from perf.rows.workloads import ROW_WORKLOADS
from perf.spark.workloads import SPARK_WORKLOADS
from perf.wal.workloads import WAL_WORKLOADS
from perf.workloads import WORKLOADS
from perf.writing import report as writing_report
from perf.writing.measure import WriteResult
from perf.writing.measure import measure as measure_writing
from perf.writing.workloads import WRITE_WORKLOADS, WriteWorkload

_EVERY = (
    *WORKLOADS,
    *WRITE_WORKLOADS,
    *ROW_WORKLOADS,
    *CHECKPOINT_WORKLOADS,
    *SPARK_WORKLOADS,
    *WAL_WORKLOADS,
    *INGEST_WORKLOADS,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks. If one fails, the others are still run and shown. After SIGINT or
    SIGTERM, the completed ones are shown.

    Returns:
        0 if all ran and agreed; 1 if a target was missed and ``--strict`` was given; 2 if a
        contender failed or gave a different answer; 130 after SIGINT; 143 after SIGTERM.
    """
    options = _parser().parse_args(arguments)
    read: list[Result] = []
    written: list[WriteResult] = []
    failed = 0
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        for workload in _EVERY:
            if options.only and workload.name not in options.only:
                continue
            try:
                if isinstance(workload, WriteWorkload):
                    written.append(
                        measure_writing(workload, options.scale, options.runs, _show_progress)
                    )
                else:
                    read.append(measure(workload, options.scale, options.runs, _show_progress))
            except (WrongAnswerError, FailedRunError) as error:
                _show_progress("")
                print(f"{workload.name}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = 2
    except _TerminatedError:
        failed = 143
    except KeyboardInterrupt:
        failed = 130
    finally:
        signal.signal(signal.SIGTERM, previous)
    _show_progress("")
    _report(options, read, written)
    missed = [*(r.missed for r in read), *(r.missed for r in written)]
    return failed or (1 if options.strict and any(missed) else 0)


class _TerminatedError(KeyboardInterrupt):
    """SIGTERM was received; as SIGINT, it ends the measurement of a workload."""


def _terminate(_number: int, _frame: object) -> None:
    raise _TerminatedError


def _report(
    options: argparse.Namespace, read: Sequence[Result], written: Sequence[WriteResult]
) -> None:
    notes = writing_report.durability_notes(written) if written else []
    where = report.environment(options.scale, options.runs)
    if read:
        report.show(read, where)
    if written:
        print("\n" * bool(read), end="")
        writing_report.show(written, where, notes)
    if options.json:
        found = report.as_json(read, where) | {"writing": writing_report.as_json(written, notes)}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf",
        description="Reading: lakelog compared with deltalake and the raw decode of the bytes. "
        "Writing: lakelog compared with deltalake committing the same actions. "
        "Write-ahead log: compared with a plain decode, SQLite and a plain write. "
        "Tables are cached in LAKELOG_BENCH_DIR, else perf/.cache.",
    )
    names = [w.name for w in _EVERY]
    parser.add_argument(
        "--only", action="append", choices=names, help="measure only this workload; repeatable"
    )
    parser.add_argument("--runs", type=_positive, default=3, help="turns per contender (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE")
    parser.add_argument(
        "--strict", action="store_true", help="exit with code 1 if a target is missed"
    )
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("--runs must be at least 1")
    return number


def _show_progress(message: str) -> None:
    """Show progress on one line, only on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{message}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
