"""``python -m perf``: measure the workloads and say which promises are kept."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from perf import report
from perf.answers import WrongAnswerError
from perf.measure import FailedRunError, measure
from perf.workloads import WORKLOADS


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks.

    Returns:
        0 when all ran and agreed; 1 when a promise was missed and ``--strict`` was given; 2 when
        a contender failed or gave another answer than the rest.
    """
    options = _parser().parse_args(arguments)
    chosen = [w for w in WORKLOADS if not options.only or w.name in options.only]
    results = []
    for workload in chosen:
        try:
            results.append(measure(workload, options.scale, options.runs, _tell))
        except (WrongAnswerError, FailedRunError) as error:
            _tell("")
            print(f"{workload.name}: {type(error).__name__}: {error}", file=sys.stderr)
            return 2
    _tell("")
    where = report.environment(options.scale, options.runs)
    report.show(results, where)
    if options.json:
        text = json.dumps(report.as_json(results, where), indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 1 if options.strict and any(r.missed for r in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf",
        description="lakelog beside deltalake and the raw decode of the same bytes. "
        "Tables are kept in LAKELOG_BENCH_DIR, else perf/.cache.",
    )
    names = [w.name for w in WORKLOADS]
    parser.add_argument("--only", action="append", choices=names, help="measure this one (repeat)")
    parser.add_argument("--runs", type=_positive, default=3, help="turns per contender (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the tables (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--strict", action="store_true", help="fail when a promise is missed")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least one run")
    return number


def _tell(message: str) -> None:
    """Progress on one line of a terminal, nowhere else."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{message}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
