"""Rules for file actions: paths, identities, partition values, sizes, statistics, deletion vectors.

Whole columns are checked at once; only texts that a pattern does not decide are parsed one by one.
Paths are decoded.

Source: Delta protocol, Data Files; Add File and Remove File; Delta Log Entries; Partition Value
Serialization; Deletion Vector Descriptor Schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

import orjson
import polars as pl

from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    DuplicateFileError,
    InvalidPathError,
    InvalidTransactionError,
    PartitionMismatchError,
)
from lakelog.model import contract
from lakelog.model.actions import DV_COLUMNS, with_dv_id
from lakelog.skipping.values import PREFIX, texts_of, typed_partitions
from lakelog.storage.containment import SCHEME

LOG_FOLDERS = ("_delta_log", "_transaction_log")
"""Log folders of all dialects; no data file may be in one."""

CHANGE_DATA_FOLDER = "_change_data"
"""The only hidden folder that files of a table may be in."""

_ABSOLUTE = rf"^(?:/|{SCHEME})"  # a colon is enough: Hadoop would read it as a scheme
_STRAY = r"^$|//|/$|(?:^|/)\.{1,2}(?:/|$)|\x00"
_HIDDEN = r"(?:^|/)_[^/]*/"
SUSPECT = f"{_ABSOLUTE}|{_STRAY}|{_HIDDEN}"
"""Pattern of the paths that may violate a rule."""

_TEXT = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"'
_SCALAR = rf"(?:{_TEXT}|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)"
_STRUCT_LEVELS = 2
"""Maximum nesting of a column whose statistics the pattern covers."""


def _object(value: str) -> str:
    member = f"{_TEXT}:{value}"
    return rf"\{{(?:{member}(?:,{member})*)?\}}"


def _usual_statistics() -> str:
    """A strict pattern of common writers' statistics, ``numRecords`` first; others are parsed."""
    value = _object(_SCALAR)
    for _ in range(_STRUCT_LEVELS):
        value = _object(f"(?:{_SCALAR}|{value})")
    columns = rf',"(?:minValues|maxValues|nullCount)":{value}'
    bounds = r',"tightBounds":(?:true|false)'
    return rf'^\{{"numRecords":(?:0|[1-9][0-9]{{0,17}})(?:{columns}|{bounds})*\}}$'


_USUAL_STATISTICS = _usual_statistics()
_IS_ODD = ~pl.col("stats").str.contains(_USUAL_STATISTICS)

_REQUIRED = {
    "add": ("path", "partitionValues", "size", "modificationTime", "dataChange"),
    "remove": ("path", "dataChange"),
    "cdc": ("path", "partitionValues", "size", "dataChange"),
}
NOT_NEGATIVE = (
    *("size", "modificationTime", "deletionTimestamp", "baseRowId", "defaultRowCommitVersion"),
    *("dvOffset", "dvSizeInBytes", "dvCardinality", "numRecords"),
    *("footerStartOffset", "footerEndOffset", "hotcacheStartOffset", "hotcacheLength"),
    *("uncompressedSizeBytes", "numMergeOps"),
)
"""Columns of numbers that must not be negative."""

_VECTOR_REQUIRED = tuple(column for column in DV_COLUMNS if column != "dvOffset")
_UUID_CHARACTERS = 20
_FEW = 1_000
_MAX_LONG = (1 << 63) - 1


def check_files(
    files: pl.DataFrame,
    configured: TableConfiguration,
    *,
    external: bool = False,
) -> None:
    """Raise for file actions that are invalid in the table; `external` allows absolute paths. Of
    removes, only path, identity and numbers are checked, because another process may have added
    their files. An absolute path may be added again if the same commit removes it. About 0.3 s per
    million rows.
    """
    if not files.height:
        return
    kinds = {str(kind): files["actionType"] == kind for kind in files["actionType"].unique()}
    for kind in sorted(kinds.keys() - _REQUIRED.keys()):
        raise InvalidTransactionError(
            "not a file action", expected=", ".join(_REQUIRED), found=kind
        )
    _check_required(files, kinds)
    # The two patterns that scan all texts run concurrently.
    suspect = pl.col("path").str.contains(SUSPECT)
    if external:
        suspect &= ~pl.col("path").str.contains(_ABSOLUTE)
    checks = {"suspect": suspect}
    if "stats" in files.columns:
        checks["odd"] = (_IS_ODD & (pl.col("actionType") != "remove")).fill_null(False)
    # For a few rows, waking other threads takes longer than the work.
    found = files.select(**checks) if files.height > _FEW else files.select_seq(**checks)
    _check_paths(files, found["suspect"], kinds, configured.metadata.partition_columns)
    _check_numbers(files)
    _check_vectors(files)
    _check_identities(files, kinds)
    if "odd" in checks:
        _check_statistics(files, found["odd"])
    if "remove" in kinds:
        files = files.with_row_index("row").filter(~kinds["remove"])
    _check_partitions(files, configured)


def _row(files: pl.DataFrame, wrong: pl.Series) -> int:
    """The first wrong row, in the frame of the caller."""
    first = wrong.fill_null(False).arg_max()
    assert first is not None
    return int(files["row"][first]) if "row" in files.columns else first


def _refuse(
    message: str,
    files: pl.DataFrame,
    wrong: pl.Series,
    *,
    expected: object,
    hint: str | None = None,
    shown: pl.Series | None = None,
    error: type[InvalidTransactionError] = InvalidTransactionError,
) -> NoReturn:
    """Raise with the first wrong row as the example."""
    first = wrong.fill_null(False).arg_max()
    assert first is not None
    columns = {} if shown is None else {shown.name: shown[first]}
    raise error(
        message,
        path=files["path"][first] if "path" in files.columns else None,
        expected=expected,
        found={"row": _row(files, wrong), **columns},
        hint=hint,
    )


def _check_required(files: pl.DataFrame, kinds: dict[str, pl.Series]) -> None:
    for kind, rows in kinds.items():
        for column in _REQUIRED[kind]:
            if column not in files.columns:
                wrong = rows
            elif files[column].null_count():
                wrong = rows & files[column].is_null()
            else:
                continue
            if wrong.any():
                _refuse(
                    f"{kind} lacks a required field",
                    files,
                    wrong,
                    expected=column,
                )
    if "cdc" in kinds and (wrong := kinds["cdc"] & files["dataChange"]).any():
        _refuse(
            "a cdc action must have dataChange false",
            files,
            wrong,
            expected="dataChange false",
        )


def _check_paths(
    files: pl.DataFrame,
    suspect: pl.Series,
    kinds: dict[str, pl.Series],
    partition_columns: tuple[str, ...],
) -> None:
    paths = files["path"]
    if not suspect.any():
        return
    removes = kinds.get("remove")
    if removes is not None:
        empty = removes & (paths == "")
        if empty.any():
            _refuse_path("the path must not be empty", files, empty)
        suspect &= ~removes
    absolute = suspect & paths.str.contains(_ABSOLUTE)
    if absolute.any() and removes is not None:
        # An external file, as in a shallow clone, may be added again.
        absolute &= ~paths.is_in(paths.filter(removes).implode())
    if absolute.any():
        _refuse_path("the path is not relative to the table", files, absolute)
    stray = suspect & paths.str.contains(_STRAY) & ~paths.str.contains(_ABSOLUTE)
    if stray.any():
        _refuse_path("the path is empty, or has NUL, an empty part, '.' or '..'", files, stray)
    hidden = suspect & _in_hidden_folder(paths, kinds.get("cdc"), partition_columns)
    if hidden.any():
        in_log = hidden & paths.str.contains_any([f"{folder}/" for folder in LOG_FOLDERS])
        _refuse_path(
            "the path is inside the log folder"
            if in_log.any()
            else "the path is inside a hidden folder, which vacuum and readers ignore",
            files,
            in_log if in_log.any() else hidden,
        )


def _refuse_path(message: str, files: pl.DataFrame, wrong: pl.Series) -> NoReturn:
    _refuse(
        message,
        files,
        wrong,
        expected="a path below the table, such as part=1/file.parquet, with no folder that "
        "begins with an underscore",
        error=InvalidPathError,
    )


def table_folders(paths: pl.Series) -> set[str]:
    """Folders that are tables themselves, of the paths of all files below another folder."""
    pattern = rf"(?s)^(.+)/(?:{'|'.join(LOG_FOLDERS)})/"
    return set(paths.str.extract(pattern).drop_nulls().unique().to_list())


def _in_hidden_folder(
    paths: pl.Series, cdc: pl.Series | None, partition_columns: tuple[str, ...]
) -> pl.Series:
    # A folder named for a partition column is not hidden, whatever the column's name.
    for column in partition_columns:
        if column.startswith("_"):
            paths = paths.str.replace_all(f"(^|/){re.escape(column)}=", "${1}p=")
    if cdc is not None:
        shown = paths.str.strip_prefix(f"{CHANGE_DATA_FOLDER}/")
        paths = shown.zip_with(cdc, paths)
    relative = ~paths.str.contains(_ABSOLUTE)
    return relative & paths.str.contains(_HIDDEN)


def _check_numbers(files: pl.DataFrame) -> None:
    there = set(files.columns)
    for column in NOT_NEGATIVE:
        if column not in there:
            continue
        numbers = files[column]
        least = numbers.min()
        if isinstance(least, int) and least < 0:
            _refuse(
                f"{column} must not be negative",
                files,
                numbers < 0,
                expected="at least 0",
                shown=numbers,
            )


def _check_vectors(files: pl.DataFrame) -> None:
    columns = [c for c in DV_COLUMNS if c in files.columns]
    if not columns:
        return
    there = files.select(pl.any_horizontal(pl.col(c).is_not_null() for c in columns)).to_series()
    if not there.any():
        return
    for column in _VECTOR_REQUIRED:
        lacking = there & files[column].is_null() if column in files.columns else there
        if lacking.any():
            _refuse(
                "a deletion vector lacks a required field",
                files,
                lacking,
                expected=column,
            )
    kind, where = files["dvStorageType"], files["dvPathOrInline"]
    wrong = there & ~kind.is_in(["u", "i", "p"]).fill_null(False)
    if wrong.any():
        _refuse(
            "the storage type of a deletion vector is unknown",
            files,
            wrong,
            expected="u, i or p",
            shown=kind,
        )
    short = pl.select(
        pl.when(kind == "u").then(where.str.len_chars() < _UUID_CHARACTERS).otherwise(where == "")
    ).to_series()
    if (wrong := there & short).any():
        _refuse(
            "a deletion vector has no location",
            files,
            wrong,
            expected="u: a UUID in 20 characters of Z85; i: the bytes; p: a path",
            shown=where,
        )
    if "dvOffset" in files.columns:
        wrong = (kind == "i") & files["dvOffset"].is_not_null()
        if wrong.any():
            _refuse(
                "an inline deletion vector must not have an offset",
                files,
                wrong,
                expected="dvOffset null",
                shown=files["dvOffset"],
            )


def _check_identities(files: pl.DataFrame, kinds: dict[str, pl.Series]) -> None:
    paths = files["path"]
    for kind, rows in kinds.items():
        of_kind = paths if len(kinds) == 1 else paths.filter(rows)
        if of_kind.n_unique() == of_kind.len():
            continue
        again = of_kind.filter(~of_kind.is_first_distinct())
        _refuse(
            f"one commit contains two {kind} actions of the same path",
            files,
            rows & paths.is_in(again.implode()),
            expected="unique paths among the actions of one type; two calls of one transaction "
            "cannot change rows of the same file",
            error=DuplicateFileError,
        )
    if "add" not in kinds or "remove" not in kinds:
        return
    both = paths.filter(kinds["add"]).implode()
    meeting = kinds["remove"] & paths.is_in(both)
    if not meeting.any():
        return
    identity = [c for c in ("path", *DV_COLUMNS) if c in files.columns]
    keyed = with_dv_id(files.select(identity).with_row_index("row"))
    key = [c for c in ("path", "dvId") if c in keyed.columns]
    added = keyed.filter(kinds["add"]).select(key)
    same = keyed.filter(meeting).join(added, on=key, how="semi", nulls_equal=True)
    if same.height:
        _refuse(
            "one commit adds and removes the same file",
            files,
            pl.int_range(files.height, eager=True) == same["row"].min(),
            expected="only an add, to change the file's metadata, or another deletion vector",
            error=DuplicateFileError,
        )


def added_again(files: pl.DataFrame, configured: TableConfiguration) -> pl.DataFrame:
    """Rows of `Snapshot.files` as adds that obey the rules, which other writers' may not."""
    return _without_invalid_statistics(_with_partition_keys(files, configured))


def _without_invalid_statistics(files: pl.DataFrame) -> pl.DataFrame:
    if "stats" not in files.columns:
        return files
    stats = files["stats"]
    odd = files.select(_IS_ODD.fill_null(value=False)).to_series().arg_true().to_list()
    invalid = [row for row in odd if problem_of_statistics(stats[row]) is not None]
    return files.with_columns(stats.scatter(invalid, None)) if invalid else files


def _with_partition_keys(files: pl.DataFrame, configured: TableConfiguration) -> pl.DataFrame:
    """The files with the partition columns as the keys of ``partitionValues``, which some writers
    wrote in another case, or with further keys; a missing key stays missing.
    """
    keys = _partition_keys(_partition_fields(configured), configured)
    wrong = (~_has_keys(files, keys)).fill_null(value=True).arg_true()
    if not wrong.len():
        return files
    maps = files["partitionValues"]
    found = [texts_of(maps.gather(wrong), key) for key in keys]
    pairs = [
        pl.when(there).then(pl.struct(pl.lit(key).alias("key"), texts.alias("value")))
        for key, (texts, there) in zip(keys, found, strict=True)
    ]
    none = pl.lit(pl.Series([{}] * wrong.len(), dtype=maps.dtype))
    right = pl.concat_list(pairs).list.drop_nulls().cast(maps.dtype) if pairs else none
    rows = pl.int_range(files.height, eager=True)
    rows = rows.scatter(wrong, pl.int_range(files.height, files.height + wrong.len(), eager=True))
    return files.with_columns(
        pl.concat([maps, pl.select(right.alias(maps.name)).to_series()]).gather(rows)
    )


def _partition_fields(configured: TableConfiguration) -> dict[str, contract.Field | None]:
    """The partition columns, and their fields in the schema."""
    columns = configured.metadata.partition_columns
    schema = configured.metadata.schema if columns else contract.Struct(())
    return {column: schema.field(column) for column in columns}


def _partition_keys(
    fields: Mapping[str, contract.Field | None], configured: TableConfiguration
) -> list[str]:
    return [
        column if field is None else contract.physical_name(field, configured.column_mapping)
        for column, field in fields.items()
    ]


def _has_keys(files: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Whether the partition values of files have these keys and no other."""
    return files.select(
        exact=pl.all_horizontal(
            pl.col("partitionValues").map.len() == len(keys),
            *(pl.col("partitionValues").map.contains_key(key) for key in keys),
        )
    )["exact"]


def _check_partitions(files: pl.DataFrame, configured: TableConfiguration) -> None:
    if not files.height:
        return
    metadata, mapping = configured.metadata, configured.column_mapping
    fields = _partition_fields(configured)
    maps = files["partitionValues"]
    keys = _partition_keys(fields, configured)
    complete = _has_keys(files, keys)
    if not complete.all():
        _refuse(
            "the partition values do not match the partition columns",
            files,
            ~complete,
            expected=keys,
            hint="pass a value, or null, for each partition column, and for no other column",
            shown=maps,
            error=PartitionMismatchError,
        )
    if not fields:
        return
    values, known = typed_partitions(
        maps, metadata.schema, list(fields), mapping=mapping, hive_null=configured.dialect.hive_null
    )
    for column, field in fields.items():
        if field is None or values[PREFIX + column].dtype == pl.Null:
            continue
        # Readers interpret binary values beyond ASCII differently, but all accept them.
        wrong = ~known[PREFIX + column]
        if wrong.any() and field.type != contract.Primitive("binary"):
            _refuse(
                f"the partition value of {column!r} has the wrong type",
                files,
                wrong,
                expected=contract.type_text(field.type),
                shown=maps,
                error=PartitionMismatchError,
            )
        if field.nullable or not values[PREFIX + column].null_count():
            continue
        wrong = values[PREFIX + column].is_null() & known[PREFIX + column]
        if wrong.any():
            _refuse(
                f"the partition value of {column!r} is null, and the column is NOT NULL",
                files,
                wrong,
                expected=f"a value of {contract.to_json(field.type)}",
                shown=maps,
                error=PartitionMismatchError,
            )


def _check_statistics(files: pl.DataFrame, odd: pl.Series) -> None:
    stats = files["stats"]
    if not odd.any():
        return
    rows = odd.arg_true()
    for row, text in zip(rows, stats.gather(rows), strict=True):
        if problem := problem_of_statistics(text):
            at = pl.int_range(files.height, eager=True) == row
            _refuse(
                problem,
                files,
                at,
                expected='a JSON object such as {"numRecords":10}, or null',
                shown=stats,
            )


def problem_of_statistics(text: str) -> str | None:
    """The problem of one text of statistics; None if it is valid."""
    try:
        parsed = orjson.loads(text)
    except ValueError:
        return "the statistics are not valid JSON"
    if not isinstance(parsed, dict):
        return "the statistics are not a JSON object"
    count = parsed.get("numRecords")
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _MAX_LONG:
        return "numRecords must be an integer >= 0"
    return None
