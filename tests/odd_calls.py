"""Calls every public function of lakelog with arguments that no caller should pass.

Run as a program, with a seed, a share and a folder: a child process with little memory calls all
functions, or those of the scope, or the one, that are named next. It writes each call to the file
``calls`` of the folder before making it, so that the last line names the call that ended the
process, and each exception that may not escape to the file ``escaped``.

Functions and parameters are found in ``lakelog.__all__`` and in signatures, so that a new one is
covered, or refused until a valid argument for it is listed here.
"""

from __future__ import annotations

import datetime as dt
import inspect
import json
import os
import random
import resource
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

import lakelog
from lakelog.errors import LakelogError
from lakelog.transaction.operations import CommitArguments, CommitDescription

MOST_BYTES = 6 << 30
BAD = {b"\xff": b"\xff"}
ODD = pa.table({"n": [1]}, schema=pa.schema([pa.field("n", pa.int64(), metadata=BAD)], BAD))
FRAME = pl.DataFrame({"n": [1]})
EAST, WEST = (dt.timezone(dt.timedelta(hours=hours)) for hours in (14, -14))

VALUES: list[Any] = [
    # numbers
    *(None, True, False, 0, -1, 1, 5, 2**31, 2**62, 2**63, -(2**63) - 1, 10**400, 0.5, -1.0, 1e308),
    *(float("nan"), float("inf"), float("-inf"), 1j, np.int64(1), np.float32(1), np.bool_(1)),
    # texts
    *("", " ", "\0", "a\0b", "\ud800", "x" * 5000, "é", "..", "%", "n", "delta", "true", "n = 1"),
    *("5", "9" * 400, "0000-00-00", "2024-13-45", "0001-01-01T00:00:00+14:00", "PUT", "a" * 300),
    *("\udcff", "none", "zstd", "merge", "²", "²²²²²", "a/../../b", "%00", "%FF", "é\u0301", "\n"),
    # bytes and collections
    *(
        b"",
        b"\xff",
        b"n",
        bytearray(b"n"),
        [],
        {},
        (),
        set(),
        {"n"},
        [None],
        [1],
        ["n"],
        ["n", "n"],
    ),
    *(["\0"], ["\ud800"], [[]], [b"\xff"], [2**70], [True], range(3), [("n",)], [(1, 2, 3)]),
    *([("PUT", "a\ud800", None)], [("PUT", b"a", 5)], [("PUT", "a", "b")], [{}], ((),)),
    *({"n": 1}, {1: "n"}, {"\0": "\0"}, {"n": None}, {"n": {}}, {"\ud800": "x"}, {"n": "\ud800"}),
    *({"n": float("nan")}, {"n": 10**400}, {"n": object()}, {b"n": b"n"}, {None: None}, {"": ""}),
    # times
    *(
        dt.date.min,
        dt.date.max,
        dt.datetime(1, 1, 1),
        dt.datetime(9999, 12, 31),
        dt.time(),
        dt.timedelta(0),
    ),
    *(dt.timedelta.min, dt.timedelta.max, dt.datetime.max.replace(tzinfo=dt.UTC)),
    *(dt.datetime.min.replace(tzinfo=EAST), dt.datetime.max.replace(tzinfo=WEST)),
    # frames, expressions and types
    *(pl.DataFrame(), pl.DataFrame({"n": ["x"]}), pl.DataFrame({"\0": [1]}), pl.LazyFrame(), FRAME),
    *(pl.DataFrame({"path": [None, "a\0", ""]}), pl.DataFrame({"key": ["a"], "value": [1]})),
    pl.LazyFrame({"n": [1]}).select("missing"),
    pl.DataFrame({"path": ["a"], "size": [-1], "modificationTime": [2**62]}),
    *(pl.col("n"), pl.col("n") == "x", pl.col("missing"), pl.lit(None), pl.lit(1), pl.all()),
    *(pl.col("n").cast(pl.Date) > dt.date.min, pl.col("n").list.len(), pl.col("n") > 0),
    *(pl.Series([1]), pl.Series(["n"]), pl.Series("n", [1]), pl.Int64, pl.Object, pl.Schema()),
    *(pa.int64(), pa.array([1]), pa.array(["n"]), pa.scalar(1), pa.table({}), pa.schema([])),
    *(ODD, ODD.schema, ODD.to_batches(), ODD.to_batches()[0], np.array([1]), np.array(["n"])),
    pa.schema([pa.field("n", pa.duration("s")), ("n", pa.int64())]),
    # others
    *(object(), int, float, len, lambda *_: None, ..., NotImplemented, Path(), Path("no/such")),
    *(Path("a\0b"), iter(()), iter([1])),
]
"""None of them points outside the working folder, or to a network."""

VALID: dict[str, Any] = {
    "paths": ["a.parquet"],
    "marks": {"id": 1},
    "a": 0,
    "b": 1,
    "df": FRAME,
    "directory": "there",
    "domain": "d",
    "items": {"k": "v"},
    "key": "k",
    "keys": {"n": 1},
    "location": "there",
    "older_than": dt.timedelta(1),
    "on": "n",
    "op": "PUT",
    "path": "here",
    "quarantine": "20240101T000000Z-00000000",
    "read": lambda _: None,
    "records": [("PUT", "k", "v")],
    "rows": {"n": 1},
    "schema": {"n": pl.Int64},
    "source": FRAME,
    "start": 0,
    "table": pl.DataFrame({"key": ["k"], "value": ["v"]}),
    "table_or_location": "here",
    "up_to_seq": 1,
    "value": "v",
    "values": {"n": "n + 1"},
    "version": 0,
    "where": pl.col("n") > 0,
}
"""Valid arguments of the parameters that have no default."""

OWN = frozenset(("clock", "disk", "log", "new_id", "part", "read", "state", "stop"))
"""Parameters for objects and functions of lakelog itself, which its tests pass."""

ENDING: dict[str, dict[str, Any]] = {"follow": {"stop": lambda: True}}
"""Arguments without which a function does not terminate."""

OPENED = ("open", "path")  # optional, because a store can take its place
FIELDS = (
    *("path", "size", "modificationTime", "partitionValues", "stats", "tags", "dataChange"),
    *("deletionVector", "appId", "version", "domain", "configuration", "id", "schemaString"),
    *("partitionColumns", "minReaderVersion", "minWriterVersion", "readerFeatures", "x"),
    *("writerFeatures", "deletionTimestamp", "format", "name", "reason", "retryAfter"),
    "numRecords",
)
"""Fields of actions, for methods that accept any."""

SCOPES = {
    "functions": None,
    "Table": lakelog.Table,
    "Snapshot": lakelog.Snapshot,
    "Transaction": lakelog.Transaction,
    "WriteAheadLog": lakelog.WriteAheadLog,
    "KeyedStore": lakelog.KeyedStore,
    "Ingestor": lakelog.Ingestor,
    "DiskCache": lakelog.DiskCache,
}
CONSTRUCTED = frozenset(("WriteAheadLog", "KeyedStore", "Ingestor", "DiskCache"))
"""Classes that callers construct; functions return objects of the others."""


SAME = frozenset(("AsyncIngestor",))
"""Classes whose methods are those of another class, as coroutines."""


class Call(NamedTuple):
    """One function, and the parameter with an odd argument."""

    function: str
    parameter: str
    is_valid_alone: bool
    """Whether the function can be called with the odd argument alone (``**fields``)."""


def functions_of(scope: str) -> list[str]:
    """The public functions of a scope, in order, constructors included."""
    if scope == "functions":
        found = [getattr(lakelog, name) for name in lakelog.__all__]
        plain = [f.__name__ for f in found if callable(f) and not inspect.isclass(f)]
        return plain + sorted(CONSTRUCTED)
    owner = SCOPES[scope]
    return [n for n, _ in inspect.getmembers(owner, callable) if not n.startswith("_")]


def unlisted() -> list[str]:
    """Public classes without a scope, and parameters without a valid argument."""
    found = []
    for name in lakelog.__all__:
        value = getattr(lakelog, name)
        is_error = inspect.isclass(value) and issubclass(value, BaseException | Warning)
        if inspect.isclass(value) and not is_error and name not in {*SCOPES, *SAME}:
            found.append(name)
    for scope in SCOPES:
        for function in functions_of(scope):
            for parameter in _parameters(scope, function):
                is_needed = parameter.default is parameter.empty and parameter.kind not in (
                    parameter.VAR_KEYWORD,
                    parameter.VAR_POSITIONAL,
                )
                if is_needed and parameter.name not in VALID and parameter.name not in OWN:
                    found.append(f"{scope}.{function}({parameter.name})")
    return found


def _parameters(scope: str, function: str) -> list[inspect.Parameter]:
    owner = SCOPES[scope] or lakelog
    found = getattr(owner, function)
    parameters = [p for p in inspect.signature(found).parameters.values() if p.name != "self"]
    dicts = {f"Unpack[{each.__name__}]": each for each in (CommitArguments, CommitDescription)}
    if parameters and parameters[-1].annotation in dicts:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters[-1:] = [
            inspect.Parameter(name, kind, default=None)
            for name in dicts[parameters[-1].annotation].__annotations__
        ]
    return parameters


def calls(scope: str, function: str, rng: random.Random, share: int) -> Iterator[dict[str, Any]]:
    """Arguments by name: each parameter in turn gets odd values, the others valid ones."""
    parameters = _parameters(scope, function)
    needed = [p.name for p in parameters if p.default is p.empty or (function, p.name) == OPENED]
    valid = {name: VALID[name] for name in needed if name in VALID} | ENDING.get(function, {})
    for parameter in parameters:
        if parameter.name in OWN:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            for field in FIELDS:
                for value in _chosen(rng, max(2, share // 8)):
                    yield {"path": "a", "size": 1, field: value}
                    yield {field: value}
        else:
            for value in _chosen(rng, share):
                yield valid | {parameter.name: value}


def _chosen(rng: random.Random, share: int) -> list[Any]:
    return VALUES if share >= len(VALUES) else rng.sample(VALUES, share)


class Room:
    """The objects whose methods are called: a table, a log and a store.

    Each is recreated from a copy once a call has changed it.
    """

    def __init__(self, folder: Path, scope: str) -> None:
        self.folder, self.scope = folder, scope
        self.template, self.live = folder / "template", folder / "live"
        self.table: lakelog.Table | None = None
        self.object: Any = None
        if scope in {"Table", "Snapshot", "Transaction", "functions"}:
            table = lakelog.create(self.template, {"n": pl.Int64}, upkeep=False)
            for n in range(3):
                table.append(pl.DataFrame({"n": [n]}))
        elif scope == "KeyedStore":
            with lakelog.KeyedStore(self.template, sync="none") as store:
                store.put("k", "v")
        elif scope == "Ingestor":
            lakelog.create(self.template / "table", {"n": pl.Int64}, upkeep=False)
            self._ingestor(self.template).close()
        elif scope == "DiskCache":
            lakelog.DiskCache(self.template)
        else:
            with lakelog.WriteAheadLog(self.template, sync="none") as log:
                log.append("PUT", "k", "v")
        self.fresh()

    def fresh(self) -> None:
        """Create the object again."""
        self.close()
        shutil.rmtree(self.live, ignore_errors=True)
        shutil.copytree(self.template, self.live)
        if self.scope == "WriteAheadLog":
            self.object = lakelog.WriteAheadLog(self.live, sync="none")
        elif self.scope == "KeyedStore":
            self.object = lakelog.KeyedStore(self.live, sync="none")
        elif self.scope == "Ingestor":
            self.object = self._ingestor(self.live)
        elif self.scope == "DiskCache":
            self.object = lakelog.DiskCache(self.live)
        else:
            self.table = lakelog.open(self.live, upkeep=False)
            self.object = self.table
            if self.scope == "Snapshot":
                self.object = self.table.snapshot()
            elif self.scope == "functions":
                self.object = lakelog

    @staticmethod
    def _ingestor(folder: Path) -> lakelog.Ingestor:
        table = lakelog.open(folder / "table", upkeep=False)
        return lakelog.Ingestor(table, folder / "ingest", key="n", sync="none", max_seconds=3600)

    def close(self) -> None:
        if self.scope in CONSTRUCTED and hasattr(self.object, "close"):
            self.object.close()

    def call(self, function: str, given: dict[str, Any]) -> None:
        """Call it, and consume its whole result; an object that a call changed is discarded."""
        subject = self.object
        if self.scope == "Transaction":
            assert self.table is not None
            subject = self.table.transaction()
        called = getattr(subject, function)
        if self.scope == "Snapshot" and function == "open":
            assert self.table is not None
            given["log"] = self.table.log
        by_position = [
            given.pop(p.name)
            for p in inspect.signature(called).parameters.values()
            if p.kind is p.POSITIONAL_ONLY and p.name in given
        ]
        result = called(*by_position, **given)
        if self.scope == "Transaction" and function != "commit":
            subject.commit()
        if self.scope == "functions" and hasattr(result, "close"):
            result.close()
        elif isinstance(result, pl.LazyFrame):
            result.collect()
        elif isinstance(result, Iterator):
            for _ in result:
                pass

    def is_changed(self) -> bool:
        """Whether calls changed the object's content."""
        if self.scope == "functions":
            return False
        return self.table is None or self.table.version() != 3

    def assert_usable(self) -> None:
        """Assert that a valid write and a valid read succeed."""
        if self.scope == "WriteAheadLog":
            number = self.object.append("PUT", "end", "v")
            assert self.object.replay(number - 1)["key"].to_pylist() == [b"end"]
        elif self.scope == "KeyedStore":
            self.object.put("end", "v")
            assert self.object.get("end") == b"v"
        elif self.scope == "Ingestor":
            self.object.write({"n": 9})
            assert self.object.read_your_writes().collect()["n"].to_list().count(9) == 1
        elif self.scope == "DiskCache":
            assert self.object.entries().height == 0
        else:
            assert self.table is not None
            self.table.append(FRAME.with_columns(n=pl.lit(9, pl.Int64)))
            rows = self.table.snapshot().scan().collect()["n"].to_list()
            assert sorted(rows) == [0, 1, 2, 9], rows
            if self.scope == "Snapshot":
                assert sorted(self.object.scan().collect()["n"].to_list()) == [0, 1, 2]


def run(scope: str, seed: int, share: int, folder: Path, only: str | None = None) -> None:
    """Make the calls of a scope; unexpected exceptions are written to the file ``escaped``."""
    with (
        (folder / "calls").open("a", encoding="ascii") as made,
        (folder / "escaped").open("a", encoding="ascii") as escaped,
    ):
        room = Room(folder / scope, scope)
        for function in functions_of(scope):
            if only is not None and function != only:
                continue
            rng = random.Random(f"{seed} {scope} {function}")
            for given in calls(scope, function, rng, share):
                text = (
                    f"{scope}.{function}({', '.join(f'{k}={v!r:.60}' for k, v in given.items())})"
                )
                text = text.encode("ascii", "backslashreplace").decode().replace("\n", " ")
                print(text, file=made, flush=True)
                try:
                    room.call(function, dict(given))
                except BaseException as error:  # noqa: BLE001 - Polars' PanicException is a BaseException
                    if not may_escape(error, given):
                        details = [f"{type(error).__name__}: {error!s:.150}", *_where(error)]
                        print(json.dumps([text, *details]), file=escaped, flush=True)
                    failed = True
                else:
                    failed = False
                if room.scope in CONSTRUCTED:
                    if function == "close":
                        room.fresh()
                elif room.is_changed():
                    if failed:
                        print(json.dumps([text, "failed, and changed the table"]), file=escaped)
                    room.fresh()
            print(f"{scope}.{function}: usable", file=made, flush=True)
            room.assert_usable()
            room.fresh()
        room.close()


def may_escape(error: BaseException, given: dict[str, Any]) -> bool:
    """Whether the documentation of `lakelog.errors` lets an exception escape."""
    if isinstance(error, LakelogError):
        return True
    if isinstance(error, TypeError) and any(callable(value) for value in given.values()):
        return True  # a function of the caller's that takes other arguments
    is_of_polars = isinstance(error, pl.exceptions.PolarsError)
    return is_of_polars and any(isinstance(v, pl.LazyFrame | pl.Expr) for v in given.values())


def _where(error: BaseException) -> list[str]:
    trace = error.__traceback__
    places = []
    while trace is not None:
        places.append(
            f"{trace.tb_frame.f_code.co_filename.split('/lakelog/')[-1]}:{trace.tb_lineno}"
        )
        trace = trace.tb_next
    return places[-3:]


def _main() -> None:
    seed, share, folder, *only = sys.argv[1:]
    pl.LazyFrame({"a": [1]}).select(pl.col("a").sum()).collect()  # starts its threads
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    warnings.simplefilter("ignore")
    work = Path(folder) / "work"
    work.mkdir()
    os.chdir(work)
    for scope in only[:1] or SCOPES:
        run(scope, int(seed), int(share), Path(folder), *only[1:])


if __name__ == "__main__":
    _main()
