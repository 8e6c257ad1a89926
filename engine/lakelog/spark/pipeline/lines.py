"""Strict NDJSON: each line must be one JSON object of the schema, or the job fails and names it.

Spark's own reader silently reads a text in a numeric column as null, a truncated line as a row of
nulls, and only the first of two objects on a line. Here lines are read as text. Spark parses them
and keeps malformed input in a separate column. A malformed line, a line without exactly one value,
and a line that is not UTF-8 raise an error with file and text. Blank lines are skipped. A key that
the schema lacks is not read, and a key that the line lacks is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

import fsspec

from lakelog.errors import CorruptionError, InvalidInputError, LakelogError
from lakelog.spark.sql_functions import functions_of

CORRUPT = "_lakelog_corrupt"
_MARK = "lakelog-bad-line "
_SHOWN = 200
_SEARCHED_BYTES = 256 << 20
_LOOSE = "allow"
_REFUSED = {"mode", "columnnameofcorruptrecord", "encoding", "charset", "wholetext"}


def refuse_loose(options: Mapping[str, str]) -> None:
    """Refuse options that would accept malformed lines or drop them silently."""
    for name, value in options.items():
        lower = name.lower()
        if lower == "mode" and value.upper() == "FAILFAST":
            continue
        if lower in _REFUSED or lower.startswith(_LOOSE):
            raise InvalidInputError(
                f"[ingest] option {name} is not taken: NDJSON is read strictly, as UTF-8",
                expected="no option that accepts lines which are not JSON of the schema",
                found=f"{name} = {value}",
                hint="remove the option, or fix the files",
            )


def parsed(lines: Any, schema: Any, options: Mapping[str, str]) -> Any:
    """Lines as rows."""
    from pyspark.sql.types import StringType, StructField, StructType

    sql = functions_of(lines)
    folders = [name for name in lines.columns if name != "value"]
    line = sql.col("value")
    strict = {
        **options,
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "allowSingleQuotes": "false",  # Spark accepts them by default
    }
    beside = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    row = sql.from_json(line, beside, strict)
    whole = sql.json_array_length(sql.concat(sql.lit("["), line, sql.lit("]"))) == 1
    good = sql.coalesce(whole & sql.is_valid_utf8(line) & row[CORRUPT].isNull(), sql.lit(False))
    told = sql.struct(
        sql.col("_metadata.file_path").alias("file"), line.substr(1, _SHOWN).alias("text")
    )
    error = sql.raise_error(sql.concat(sql.lit(_MARK), sql.to_json(told)))
    rows = lines.where(sql.trim(line) != "").select(
        sql.when(good, row).otherwise(error).alias("row"), *folders
    )
    columns = [name for name in schema.names if name not in folders]
    return rows.select(*(sql.col("row")[name].alias(name) for name in columns), *folders)


@contextmanager
def named(hint: str) -> Iterator[None]:
    """Convert Spark's failure for a line to an error with its file, line and text."""
    try:
        yield
    except LakelogError:
        raise
    except Exception as error:
        found = _told(str(error))
        if found is None:
            raise
        path, text = unquote(found["file"]), found.get("text", "")
        raise CorruptionError(
            "a line of the source is not one JSON object of the schema; nothing of its batch was "
            "written",
            path=path,
            line=_line_number(path, text),
            found=text,
            hint=hint,
        ) from None


def _told(message: str) -> dict[str, str] | None:
    begin = message.find(_MARK)
    if begin < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(message, begin + len(_MARK))
    except ValueError:
        return None
    return found if isinstance(found, dict) and "file" in found else None


def _line_number(path: str, text: str) -> int | None:
    """The 1-based number of the line, if this machine can read the file."""
    wanted = text.encode()
    with suppress(Exception), fsspec.open(path, "rb") as file:
        searched = 0
        for number, line in enumerate(file, 1):
            if line.rstrip(b"\r\n") == wanted or (len(text) == _SHOWN and line.startswith(wanted)):
                return number
            searched += len(line)
            if searched > _SEARCHED_BYTES:
                break
    return None
