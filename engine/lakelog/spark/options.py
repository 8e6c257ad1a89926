"""Parses the options of the data source ``lakelog``, for readers, writers and streams.

Spark passes options as strings, with lower-case names. An option that is unknown, not applicable or
malformed raises an error with its name. Values of ``storage.<key>``, which may be secret, are never
printed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from lakelog.display import parse_size
from lakelog.errors import InvalidInputError, TableNotFoundError
from lakelog.log.context import to_ms
from lakelog.model.column_names import close_names

Use = Literal["read", "write", "stream", "sink"]
"""Use of a source: batch reader, batch writer, stream reader or stream writer."""

TABLES = ("rows", "files", "history", "actions", "diff", "changes", "skips")
"""Values of option ``table``."""

STORAGE = "storage."
STORAGE_JSON = f"{STORAGE}<secret>"
"""Reserved for pipelines: all options of the store as one JSON object, which keeps their types and
the letters of their names. Spark hides the values of options with this word.
"""
_TRUE_OR_FALSE = {"true": True, "false": False}
_PASSED_BY_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options of a stream, in lower case, that Spark passes although they are not the source's."""

_WHERE_READ = (
    "pass the table's location; a table of the catalog can be read if it was created "
    "by CREATE TABLE … USING lakelog LOCATION '…', without columns, and not by "
    "saveAsTable or AS SELECT"
)
_WHERE_WRITTEN = (
    "pass the table's location by .save(path) or .start(path); Spark does not pass the "
    "location of a catalog's table, so INSERT, insertInto and toTable cannot write"
)
_S3_OF_HADOOP = re.compile(r"^s3n://")


def _flag(value: str) -> bool:
    return _TRUE_OR_FALSE[value.strip().lower()]


def _count(value: str) -> int:
    count = int(value)
    if count < 0:
        raise ValueError(value)
    return count


def _positive(value: str) -> int:
    count = int(value)
    if count < 1:
        raise ValueError(value)
    return count


def _seconds(value: str) -> float | None:
    if value.strip().lower() == "none":
        return None
    seconds = float(value)
    if not seconds > 0:
        raise ValueError(value)
    return seconds


def _size(value: str) -> int:
    size = parse_size(value)
    if size is None:
        raise ValueError(value)
    return size


def _names(value: str) -> tuple[str, ...]:
    if value.lstrip().startswith("["):
        names = json.loads(value)
        if not all(isinstance(name, str) for name in names):
            raise ValueError(value)
    else:
        names = [name.strip() for name in value.split(",")]
    if not names or not all(names) or len(set(names)) < len(names):
        raise ValueError(value)
    return tuple(names)


def _external(value: str) -> bool | tuple[str, ...]:
    known = _TRUE_OR_FALSE.get(value.strip().lower())
    return _names(value) if known is None else known


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(value)
        return value.lower()

    return parse


@dataclass(frozen=True)
class Option:
    """An option of the data source: name, parser (ValueError or KeyError if malformed), expected
    text, and the uses and values of ``table`` that it applies to.
    """

    name: str
    parse: Callable[[str], Any]
    expected: str
    uses: frozenset[Use]
    tables: tuple[str, ...] = TABLES


def _option(
    name: str,
    parse: Callable[[str], Any],
    expected: str,
    uses: str,
    tables: tuple[str, ...] = TABLES,
) -> Option:
    return Option(name, parse, expected, cast("frozenset[Use]", frozenset(uses.split())), tables)


_TIME = "ISO 8601, or milliseconds since the Unix epoch"
_SIZE = "a number of bytes, such as 134217728 or 128m"
_EXTERNAL = "true, false, or comma-separated URLs and paths, or a JSON list of them"
_OF_A_VERSION = ("rows", "files", "skips")
_BETWEEN = ("actions", "diff", "changes")
_OF_ROWS = ("rows", "changes")
_MODES = ("static", "dynamic")

OPTIONS = (
    _option("path", str, "the table's folder", "read write stream sink"),
    _option("table", _one_of(*TABLES), " | ".join(TABLES), "read"),
    _option("allowExternal", _external, _EXTERNAL, "read write stream", _OF_ROWS),
    _option("readTimeout", _seconds, "seconds, or none", "read write stream sink"),
    _option("version", _count, "a version", "read", _OF_A_VERSION),
    _option("timestamp", to_ms, _TIME, "read", _OF_A_VERSION),
    _option("columns", _names, "comma-separated names, or a JSON list of them", "read stream"),
    _option("where", str, "a condition in SQL", "read", _OF_ROWS),
    _option("parallelism", _positive, "a number of tasks, at least 1", "read stream"),
    _option("startVersion", _count, "a version", "read", _BETWEEN),
    _option("endVersion", _count, "a version", "read", _BETWEEN),
    _option("startTimestamp", partial(to_ms, round_up=True), _TIME, "read", ("changes",)),
    _option("endTimestamp", to_ms, _TIME, "read", ("changes",)),
    _option("limit", _count, "a number of commits", "read", ("history",)),
    _option("partitionBy", _names, "comma-separated names, or a JSON list of them", "write"),
    _option("replaceWhere", str, "a condition in SQL", "write"),
    _option("partitionOverwriteMode", _one_of(*_MODES), " | ".join(_MODES), "write"),
    _option("readVersion", _count, "a version", "write"),
    _option("userMetadata", str, "any text", "write sink"),
    _option("txnAppId", str, "any text", "write sink"),
    _option("txnVersion", _count, "an increasing number", "write"),
    _option("targetFileBytes", _size, _SIZE, "write sink"),
    _option("compression", str, "a codec of Parquet", "write sink"),
    _option("startingVersion", str, "a version, or latest", "stream"),
    _option("startingTimestamp", partial(to_ms, round_up=True), _TIME, "stream"),
    _option("maxFilesPerTrigger", _positive, "a number of files, at least 1", "stream"),
    _option("maxBytesPerTrigger", _size, _SIZE, "stream"),
    _option("skipChangeCommits", _flag, "true or false", "stream"),
    _option("readChangeFeed", _flag, "true or false", "read stream"),
    _option("failOnDataLoss", _flag, "true or false", "stream"),
)
_BY_KEY = {option.name.lower(): option for option in OPTIONS}
_OF_DELTA = {"versionasof": "version", "timestampasof": "timestamp"}
"""Names of Delta's data source, in lower case, for options of the same meaning."""
_READ_CHANGE_FEED = "readchangefeed"
_OF_DELTAS_FEED = {
    "startingversion": "startVersion",
    "endingversion": "endVersion",
    "startingtimestamp": "startTimestamp",
    "endingtimestamp": "endTimestamp",
}
"""Names of Delta's data source, in lower case, for options of ``table`` ``changes``."""
_STARTS = ("startingversion", "startingtimestamp")


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options, picklable; `relative` is a path that was not absolute, as it was given."""

    path: str
    values: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    relative: str | None = None

    @property
    def table(self) -> str:
        """The value of option ``table``."""
        return str(self.get("table", "rows"))

    def get(self, name: str, default: Any = None) -> Any:
        """Value of an option by its documented name, else `default`."""
        return self.values.get(name, default)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Open the table; if it is missing, the error shows where a relative path was resolved."""
        try:
            yield
        except TableNotFoundError as error:
            if self.relative is not None:
                error.hint = (
                    f"{self.relative!r} was searched in the working folder of Spark's "
                    "driver, or of the Spark Connect server: use an absolute path; or "
                    f"{error.hint}"
                )
            raise


def parse_options(given: Mapping[str, str], use: Use | None = None) -> SourceOptions:
    """Parse the options passed by Spark."""
    values: dict[str, Any] = {}
    storage: dict[str, Any] = {}
    for key, text in _with_own_names(given, use):
        lower = key.lower()
        if lower == STORAGE_JSON:
            storage |= json.loads(text)
        elif lower.startswith(STORAGE):
            storage[key[len(STORAGE) :]] = _storage_value(text)
        elif lower == "paths":
            raise InvalidInputError(
                "several tables cannot be read at once",
                expected="one path",
                hint="load each of them, and union the dataframes",
            )
        elif lower not in _PASSED_BY_SPARK:
            option = _known(key, use)
            if option.name in values:
                raise InvalidInputError(
                    f"option {option.name} is passed twice", found=key, hint="remove one of them"
                )
            values[option.name] = _parsed(option, text)
    path = values.pop("path", "")
    if not path:
        raise InvalidInputError(
            "option path is missing",
            expected='.option("path", …), or .load(path)',
            hint=_WHERE_WRITTEN if use in {"write", "sink"} else _WHERE_READ,
        )
    located = _located(path)
    relative = None if _is_url(path) or os.path.isabs(path) else path
    options = SourceOptions(located, values, storage, relative)
    _check_together(options, use)
    return options


def _with_own_names(given: Mapping[str, str], use: Use | None) -> list[tuple[str, str]]:
    """The options, with those of Delta's change feed as ``table`` ``changes``."""
    if use not in {None, "read"}:
        return list(given.items())
    flags = [text for key, text in given.items() if key.lower() == _READ_CHANGE_FEED]
    others = [pair for pair in given.items() if pair[0].lower() != _READ_CHANGE_FEED]
    if not flags or flags[0].strip().lower() == "false":
        return others
    if flags[0].strip().lower() != "true":
        raise InvalidInputError(
            "option readChangeFeed is malformed", expected="true or false", found=flags[0]
        )
    if use is None:  # the schema depends on the end only; a stream may start at `latest`
        others = [pair for pair in others if pair[0].lower() not in _STARTS]
    return [
        ("table", "changes"),
        *((_OF_DELTAS_FEED.get(key.lower(), key), text) for key, text in others),
    ]


def _located(path: str) -> str:
    """A normalized absolute path, because tasks run in other working directories."""
    return _S3_OF_HADOOP.sub("s3://", path) if _is_url(path) else os.path.abspath(path)


def _is_url(path: str) -> bool:
    return "://" in path or "::" in path or path.startswith("file:")


def _known(key: str, use: Use | None) -> Option:
    """The option called `key`, if it applies to `use`."""
    lower = key.lower()
    option = _BY_KEY.get(_OF_DELTA.get(lower, lower))
    if option is not None and (use is None or use in option.uses):
        return option
    names = [each.name for each in OPTIONS if use is None or use in each.uses]
    if option is not None:
        raise InvalidInputError(
            f"option {option.name} does not apply here",
            expected=", ".join([*names, f"{STORAGE}<key>"]),
            hint=f"it is an option of: {', '.join(sorted(option.uses))}",
        )
    meant = close_names(key, names) or "remove it"
    raise InvalidInputError(
        f"option {key} is unknown",
        expected=", ".join([*names, f"{STORAGE}<key>"]),
        hint=f"{meant}; options of the store are {STORAGE}<key>",
    )


def _parsed(option: Option, text: str) -> Any:
    try:
        return option.parse(text)
    except (ValueError, KeyError, TypeError) as cause:
        raise InvalidInputError(
            f"option {option.name} is malformed", expected=option.expected, found=text
        ) from cause


def _check_together(options: SourceOptions, use: Use | None) -> None:
    """Raise for options that exclude each other."""
    values = options.values
    for one, other in (
        ("version", "timestamp"),
        ("startingVersion", "startingTimestamp"),
        ("startVersion", "startTimestamp"),
        ("endVersion", "endTimestamp"),
    ):
        if one in values and other in values:
            raise InvalidInputError(
                f"pass option {one} or {other}, not both",
                path=options.path,
                found=f"{one}={values[one]}, {other}={values[other]}",
            )
    if ("txnVersion" in values) and "txnAppId" not in values:
        raise InvalidInputError(
            "option txnVersion needs txnAppId", path=options.path, hint="pass txnAppId"
        )
    if "replaceWhere" in values and values.get("partitionOverwriteMode") == "dynamic":
        raise InvalidInputError(
            "options replaceWhere and partitionOverwriteMode=dynamic exclude each other",
            path=options.path,
            hint="remove one of them",
        )
    if values.get("readChangeFeed") and "skipChangeCommits" in values:
        raise InvalidInputError(
            "options readChangeFeed and skipChangeCommits exclude each other",
            path=options.path,
            hint="a change feed has the rows of every commit; remove skipChangeCommits",
        )
    if use != "read":
        return
    for name in values:
        if options.table not in _BY_KEY[name.lower()].tables:
            raise InvalidInputError(
                f"option {name} does not apply to table {options.table}",
                path=options.path,
                expected=" or ".join(_BY_KEY[name.lower()].tables),
            )
    if options.table == "changes" and not {"startVersion", "startTimestamp"} & set(values):
        raise InvalidInputError(
            "option startVersion is missing",
            path=options.path,
            expected="startVersion or startTimestamp; with readChangeFeed, startingVersion or "
            "startingTimestamp",
            hint="pass 0 for all changes that the log still has",
        )
    if options.table == "diff" and "startVersion" not in values:
        raise InvalidInputError(
            "option startVersion is missing",
            path=options.path,
            hint="a diff needs startVersion and endVersion (default: the latest version)",
        )


def _storage_value(text: str) -> Any:
    """An option of the store: true, false, JSON objects and lists are parsed; else a string."""
    if text.strip().lower() in _TRUE_OR_FALSE:
        return _flag(text)
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return json.loads(text)
        except ValueError:
            return text  # a secret may begin in this way
    return text
