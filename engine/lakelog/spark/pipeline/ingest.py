"""The step ``ingest``: writes rows of any Spark source, each exactly once.

Spark's own reader silently reads a text in a numeric column as null, a truncated line as a row of
nulls, and only the first of two objects on a line. Here lines are read as text. Spark parses them
and keeps malformed input in a separate column. A malformed line, a line without exactly one value,
a line with an object that repeats a key, a line with a value that Spark would change, and a line
that is not UTF-8 raise an error with file and text. Blank lines are skipped. A key that is not in
the schema is ignored, and a key that is missing in the line is null.

- ``available_now`` is a stream that ends at the end of the source. Spark records the input of every
  batch in its checkpoint before it reads it. The sink records each batch in the commit that
  contains its rows: a repeated batch is recognised, and a lost checkpoint is an error.
- ``batch`` writes the whole source as one commit that records ``batch_id``. The caller decides
  which rows belong to a batch; the table ensures that it is written once.
- The format ``lakelog-ingest`` is the directory of a `lakelog.Ingestor`: its rows are committed by
  the driver, as the Ingestor itself would.

Files are read strictly: see `parsed` for NDJSON, and `_checked` for CSV; other text formats fail at
the first malformed record.

Source: Delta protocol, Transaction Identifiers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import fsspec
import polars as pl

from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    TableExistsError,
)
from lakelog.ingest.ingestor import Ingestor
from lakelog.ingest.state import read_state
from lakelog.redaction import redact_path
from lakelog.spark.error_display import raised_by_python
from lakelog.spark.options import STORAGE_JSON
from lakelog.spark.pipeline.steps import INGEST_LOG, Status, StepReport
from lakelog.spark.sql_functions import functions_of
from lakelog.spark.types import new_schema, spark_schema
from lakelog.sql.sql_text import quoted
from lakelog.table import Table
from lakelog.table_functions import create

if TYPE_CHECKING:
    from lakelog.spark.pipeline.steps import Ingest, Target
    from lakelog.telemetry import Progress


_CORRUPT = "_lakelog_corrupt"
_LINE, _ROW, _AGAIN, _WHOLE, _DETAILS, _RANDOM = (
    f"_lakelog_{name}" for name in ("line", "row", "again", "whole", "details", "random")
)
"""Temporary columns; a folder may be named like any other."""
_MARK = "lakelog-bad-line "
_UNREADABLE = re.compile(
    r"\[FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (\S+?)\.\s"
)
_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_SHOWN = 200
_SEARCHED_BYTES = 256 << 20
_LOOSE = "allow"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[T ][0-9]{2}(:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?"
_ISO_8601 = {
    "date": ("dateformat", rf"\A{_DATE}\z"),
    "timestamp": (
        "timestampformat",
        rf"\A{_DATE}({_TIME}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)?)?\z",
    ),
    "timestamp_ntz": ("timestampntzformat", rf"\A{_DATE}({_TIME})?\z"),
}
"""The texts of dates and times, and Spark's options that replace them."""
_PAIRED = r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
"""Escaped backslashes, and escapes of two code units that are one character."""
_SURROGATE = r"\\u[dD][89a-fA-F]"
_TEXTS = ("json", "csv", "xml")
_SETTINGS = {
    "spark.sql.legacy.timeParserPolicy": ("LEGACY", "CORRECTED", _TEXTS),
    "spark.sql.legacy.json.enableDateTimeParsingFallback": ("TRUE", "false", ("json",)),
    "spark.sql.legacy.csv.enableDateTimeParsingFallback": ("TRUE", "false", ("csv",)),
    "spark.sql.legacy.json.allowEmptyString.enabled": ("TRUE", "false", ("json",)),
    "spark.sql.variant.allowDuplicateKeys": ("TRUE", "false", ("json",)),
}
"""Settings of a session and their values that change what a text means; those that do not; and the
formats that they concern.
"""
_OF_VALUES = {"timezone", "locale", "nanvalue", "positiveinf", "negativeinf"}
"""Options of CSV that say how a value is read."""
_STRICT_OPTIONS = {
    "mode": ("FAILFAST", "replaces unreadable values by null, or drops them"),
    "enabledatetimeparsingfallback": ("FALSE", "reads the beginning of texts of another form"),
}
"""Options of text formats in lower case, their only value, and the effect of others."""
_REFUSED = {*_STRICT_OPTIONS, "columnnameofcorruptrecord", "encoding", "charset", "wholetext"}


def _refuse_loose(options: Mapping[str, str]) -> None:
    """Raise for options that would accept malformed lines or drop them silently."""
    for name, value in options.items():
        lower = name.lower()
        if lower == "mode" and value.upper() == "FAILFAST":
            continue
        if lower in _REFUSED or lower.startswith(_LOOSE):
            raise InvalidInputError(
                f"[ingest] option {name} is not allowed: NDJSON is read strictly, as UTF-8",
                expected="no option that accepts lines which are not JSON of the schema",
                found=f"{name} = {value}",
                hint="remove the option, or fix the files",
            )


def _refuse_legacy(spark: Any, form: str) -> None:
    """Raise for settings with which Spark reads other dates, or empty text as null."""
    for name, (loose, strict, forms) in _SETTINGS.items():
        if form in forms and (found := spark.conf.get(name, strict)).upper() == loose:
            raise InvalidInputError(
                f"[ingest] with the session's setting {name} Spark changes values of {form}",
                expected=strict,
                found=found,
                hint=f'call spark.conf.set("{name}", "{strict}") before the pipeline',
            )


def parsed(lines: Any, schema: Any, options: Mapping[str, str]) -> Any:
    """Lines, the first column, as rows; the other columns are those of folders."""
    from pyspark.sql.types import StringType, StructField, StructType, VariantType

    sql = functions_of(lines)
    column, *folders = lines.columns
    line, kept = sql.col(column), [sql.col(quoted(name)) for name in folders]
    strict = {
        **options,
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
        "allowSingleQuotes": "false",  # Spark accepts these by default
    }
    check = _Fit(sql, frozenset(name.lower() for name in options))
    checked = check.read_again(schema) or StructType()

    def read(columns: Any) -> Any:
        corrupt = StructField(_CORRUPT, StringType())
        return sql.from_json(line, StructType([*columns.fields, corrupt]), strict)

    details = sql.struct(
        sql.col("_metadata.file_path").alias("file"), line.substr(1, _SHOWN).alias("text")
    )

    def length(end: str) -> Any:
        return sql.json_array_length(sql.concat(sql.lit("["), line, sql.lit(end)))

    # Spark ignores what follows an array: after a "]" in the line, the 0 is not counted.
    whole = (length("]") == 1) & (length(",0]") == 2)
    # Spark takes the last value of a key that an object repeats, except in a variant.
    unique = sql.from_json(line, VariantType(), strict).isNotNull()
    unpaired = sql.regexp_replace(line, _PAIRED, " ").rlike(_SURROGATE)
    rows = lines.where(sql.trim(line) != "").select(
        read(schema).alias(_ROW),
        *((read(checked).alias(_AGAIN),) if checked.fields else ()),
        (whole & unique & sql.is_valid_utf8(line) & ~unpaired).alias(_WHOLE),
        sql.to_json(details).alias(_DETAILS),
        *kept,
    )
    good = sql.col(_WHOLE) & sql.col(_ROW)[_CORRUPT].isNull()
    if checked.fields:
        again = sql.col(_AGAIN)
        good &= again[_CORRUPT].isNull() & ~check.misfit(again, schema)
    error = sql.raise_error(sql.concat(sql.lit(_MARK), sql.col(_DETAILS)))
    good = sql.coalesce(good, sql.lit(False))
    rows = rows.select(sql.when(good, sql.col(_ROW)).otherwise(error).alias(_ROW), *kept)
    # Spark computes only the columns that a query uses. The filter uses the row in every query; it
    # is not moved below the parser, which would run twice, because it uses a random number too.
    rows = rows.withColumn(_RANDOM, sql.rand())
    rows = rows.where(sql.col(_ROW).isNotNull() | (sql.col(_RANDOM) < 0))
    columns = [name for name in schema.names if name not in folders]
    return rows.select(*(sql.col(_ROW)[name].alias(name) for name in columns), *kept)


def _checked(records: Any, schema: Any, options: Mapping[str, str]) -> Any:
    """Records of CSV that were read with the columns of `_unconverted`, in those of the schema."""
    sql = functions_of(records)
    check = _Fit(sql, frozenset(name.lower() for name in options))
    # A text that fits is one value, also if it contains the separator of the file.
    single = {name: value for name, value in options.items() if name.lower() in _OF_VALUES}
    single |= {"sep": "\x01", "quote": ""}
    file = records.metadataColumn("_metadata")["file_path"]

    def value(field: Any, fits: Any) -> Any:
        text = records[quoted(field.name)]
        type_ = field.dataType.simpleString()
        read = sql.from_csv(text, f"v {type_}", single)["v"]
        shown = text.substr(1, _SHOWN).alias("text")
        details = [file.alias("file"), shown, sql.lit(field.name).alias("column")]
        details.append(sql.lit(type_).alias("type"))
        mark = sql.concat(sql.lit(_MARK), sql.to_json(sql.struct(*details)))
        good = text.isNull() | sql.coalesce(fits(read, text) & read.isNotNull(), sql.lit(False))
        return sql.when(good, read).otherwise(sql.raise_error(mark))

    rules = {field: check.text_rule(field.dataType) for field in schema.fields}
    return records.withColumns(
        {field.name: value(field, fits) for field, fits in rules.items() if fits is not None}
    )


def _unconverted(schema: Any, options: Mapping[str, str]) -> Any:
    """The schema with texts in place of the values that Spark's reader of CSV changes."""
    from pyspark.sql.types import StringType, StructField, StructType

    check = _Fit(None, frozenset(name.lower() for name in options))
    types = [(each, check.text_rule(each.dataType) is not None) for each in schema.fields]
    return StructType(
        [StructField(each.name, StringType()) if is_text else each for each, is_text in types]
    )


@dataclass(frozen=True)
class _Fit:
    """Finds values that ``from_json`` changes: it wraps bytes, rounds decimals, reads numbers out
    of range as infinite, reads only the beginning of a date or a time, and other values as texts
    with other digits. Such columns are read again as variants, which keep digits and text.
    `options` are names in lower case.
    """

    sql: Any
    options: frozenset[str]

    def read_again(self, type_: Any) -> Any | None:
        """The type with variants for such values, without other fields; None if it has none."""
        from pyspark.sql.types import ArrayType, MapType, StructField, StructType, VariantType

        if isinstance(type_, StructType):
            found = [(field.name, self.read_again(field.dataType)) for field in type_.fields]
            fields = [StructField(name, each) for name, each in found if each is not None]
            return StructType(fields) if fields else None
        if isinstance(type_, ArrayType):
            element = self.read_again(type_.elementType)
            return None if element is None else ArrayType(element)
        if isinstance(type_, MapType):
            value = self.read_again(type_.valueType)
            return None if value is None else MapType(type_.keyType, value)
        return None if self._rule(type_) is None else VariantType()

    def misfit(self, value: Any, type_: Any) -> Any:
        """Whether a value read again, or one inside it, does not fit the type; never null."""
        from pyspark.sql.types import ArrayType, MapType, StructType

        if isinstance(type_, StructType):
            found = [
                self.misfit(value[field.name], field.dataType)
                for field in type_.fields
                if self.read_again(field.dataType) is not None
            ]
            return reduce(or_, found)
        if isinstance(type_, ArrayType | MapType):
            is_map = isinstance(type_, MapType)
            inner = type_.valueType if is_map else type_.elementType
            values = self.sql.map_values(value) if is_map else value
            found = self.sql.exists(values, lambda each: self.misfit(each, inner))
        else:
            rule = self._rule(type_)
            assert rule is not None
            found = ~rule(value, value.try_cast("string"))
        return self.sql.coalesce(found, self.sql.lit(False))

    def text_rule(self, type_: Any) -> Callable[[Any, Any], Any] | None:
        """Whether a value of CSV, given with its text, fits; None if Spark refuses all that do not
        or an option says how texts are read.
        """
        name = type_.typeName()
        if name == "decimal" and "locale" not in self.options:
            return lambda _, text: self._has_digits_for(type_, text)
        if name in {"float", "double"}:
            return lambda value, text: (self.sql.abs(value) != float("inf")) | ~text.rlike("[0-9]")
        return self._rule(type_) if name in _ISO_8601 else None

    def _rule(self, type_: Any) -> Callable[[Any, Any], Any] | None:
        """Whether a variant, given with its text, fits; None if Spark refuses all that do not."""
        name = type_.typeName()
        if name == "byte":
            return lambda _, text: text.try_cast("int").between(-128, 127)
        if name == "string":
            return lambda value, _: self.sql.schema_of_variant(value).isin("STRING", "VOID")
        if name == "decimal":
            return partial(self._fits_decimal, type_)
        if name in {"float", "double"}:
            return lambda value, text: (
                self._is_text(value) | (self.sql.abs(text.try_cast(name)) != float("inf"))
            )
        option, pattern = _ISO_8601.get(name, ("", ""))
        if not pattern or option in self.options:
            return None
        return lambda _, text: text.rlike(pattern)

    def _fits_decimal(self, type_: Any, value: Any, text: Any) -> Any:
        fits = self._has_digits_for(type_, text)
        return fits | self._is_text(value) if "locale" in self.options else fits

    def _has_digits_for(self, type_: Any, text: Any) -> Any:
        digits = text.rlike(rf"\A[+-]?[0-9]*(\.[0-9]{{0,{type_.scale}}}0*)?\z")
        number = text.try_cast("double")
        same = number.try_cast(type_.simpleString()).cast("double") == number
        return digits | (text.rlike("[eE]") & same)

    def _is_text(self, value: Any) -> Any:
        return self.sql.schema_of_variant(value) == "STRING"


@contextmanager
def named(hint: str) -> Iterator[None]:
    """Convert Spark's failure for a line to an error with its file, line and text; its failure for
    a file, and an error of lakelog in a Python process of Spark, to that error.
    """
    try:
        yield
    except LakelogError:
        raise
    except Exception as error:
        found = _details(str(error))
        if found is None:
            if (raised := raised_by_python(str(error))) is not None:
                raise raised from None
            if (unreadable := _unreadable(str(error), hint)) is not None:
                raise unreadable from error
            raise
        path, text = unquote(found["file"]), found.get("text", "")
        if "column" in found:
            raise CorruptionError(
                "a value of the source does not fit its column; nothing of its batch was written",
                path=path,
                column=found["column"],
                expected=found["type"],
                found=text,
                hint=hint.replace("the line", "the value", 1),
            ) from None
        raise CorruptionError(
            "a line of the source is not one JSON object of the schema; nothing of its batch was "
            "written",
            path=path,
            line=_line_number(path, text),
            found=text,
            hint=hint,
        ) from None


def _details(message: str) -> dict[str, str] | None:
    begin = message.find(_MARK)
    if begin < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(message, begin + len(_MARK))
    except ValueError:
        return None
    return found if isinstance(found, dict) and "file" in found else None


def _unreadable(message: str, hint: str) -> LakelogError | None:
    found = _UNREADABLE.search(message)
    if found is None:
        return None
    causes = _CAUSE.findall(message)
    kind = NotFoundError if found[1] == "FILE_NOT_EXIST" else CorruptionError
    return kind(
        "a file of the source cannot be read; nothing of its batch was written",
        path=unquote(found[2]),
        found=causes[-1] if causes else None,
        hint=hint.replace("fix the line", "repair the file", 1),
    )


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


STEP = "ingest"
FILES = ("json", "csv", "xml", "parquet", "orc", "avro")
"""Formats of files, whose columns a stream must be given."""
_OF_FILES = (*FILES, "text", "binaryfile")

_PATIENCE_S = 1
_NEVER_S = 86_400.0
_BATCH_ONLY = ("parquet", "orc", "avro")
_HINTS = {
    "batch": "fix the line, or move the file away, and run the step again",
    # The batch is already planned, with the names of its files.
    "available_now": "fix the line, or replace the file by an empty one, and run the step again; a "
    "planned file that is moved away is never read",
}


def ingest(
    spark: Any,
    table: Table | None,
    step: Ingest,
    target: Target,
    name: str,
    progress: Progress | None = None,
) -> StepReport:
    """Write the rows of the source that the table lacks."""
    if step.format == INGEST_LOG:
        return _committed(table, step, target)
    app = f"{name}/{step.mode}"
    if table is not None and step.batch_id is not None and _recorded(table, app) >= step.batch_id:
        note = f"batch {step.batch_id} of {app} is in the table"
        return StepReport(STEP, "already done", version=table.version(), notes=(note,))
    frame = _frame(spark, table, step)
    made = table or _created(frame, target)
    before = made.version()
    options = {"path": target.path, "txnAppId": app}
    if target.storage_options:
        options[STORAGE_JSON] = json.dumps(dict(target.storage_options))
    with named(_HINTS[step.mode]):
        if step.mode == "batch":
            options["txnVersion"] = str(step.batch_id)
            frame.write.format("lakelog").options(**options).mode("append").save()
        else:
            _stream(frame, options, str(step.checkpoint), progress)
    report = _report(made, before, app)
    if table is None:
        report = replace(report, notes=(f"created {redact_path(made.path)}", *report.notes))
    if progress is not None:
        progress(STEP, report.rows, None)
    return report


def _committed(table: Table | None, step: Ingest, target: Target) -> StepReport:
    """Commit the remaining records in an Ingestor's directory, which also records its progress."""
    if table is None:
        raise InvalidInputError(
            "[ingest] the table of the Ingestor was not found",
            path=target.path,
            hint="create it before an Ingestor fills its directory",
        )
    before = table.version()
    state = read_state(step.path[0])
    with Ingestor(table, step.path[0], key=state.key or None, max_seconds=_NEVER_S) as ingestor:
        ingestor.flush()
    return _report(table, before, state.app_id)


def _stream(
    frame: Any, options: Mapping[str, str], checkpoint: str, progress: Progress | None
) -> None:
    query = (
        frame.writeStream.format("lakelog")
        .options(**options, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    rows: dict[int, int] = {}
    try:
        while not query.awaitTermination(_PATIENCE_S):
            rows |= {each.batchId: each.numInputRows for each in query.recentProgress}
            if progress is not None:
                progress(STEP, sum(rows.values()), None)
    finally:
        query.stop()


def _frame(spark: Any, table: Table | None, step: Ingest) -> Any:
    """The source's rows, with the table's columns."""
    reader = spark.read if step.mode == "batch" else spark.readStream
    form = step.format.lower()
    options = dict(step.options)
    schema = _schema(table, step)
    lines = form == "json" and not _is_on(options, "multiline")
    if form == "json":
        _refuse_loose(options)
    _refuse_legacy(spark, form)
    if lines:
        reader = reader.format("text").schema(f"{_LINE} string")
    else:
        reader = reader.format(step.format)
        if form in _TEXTS:
            options = _failfast(options)
        if schema is not None:
            reader = reader.schema(_unconverted(schema, options) if form == "csv" else schema)
    # Other sources may refuse options that they do not know.
    reader = reader.options(**(_strict_files(options) if form in _OF_FILES else options))
    paths = list(step.path)
    where = () if not paths else (paths if len(paths) > 1 else paths[0],)
    frame = reader.load(*where)
    if lines:
        assert schema is not None, "[ingest] columns of files must not be specified"
        folders = [field for field in schema.fields if field.name in frame.columns[1:]]
        if folders:  # without their types, Spark would read the folder code=007 as 7
            line = frame.schema[_LINE]
            frame = reader.schema(type(schema)([line, *folders])).load(*where)
        frame = parsed(frame, schema, options)
    elif form in _TEXTS:
        frame = _read_whole(frame)
    if form == "csv":
        frame = _checked(frame, schema, options)
    return frame.selectExpr(*step.select) if step.select else frame


def _strict_files(options: Mapping[str, str]) -> dict[str, str]:
    """Options with which a file that is damaged or missing fails the job, whatever the session's
    settings are, unless the section sets others.
    """
    given = {name.lower() for name in options}
    strict = ("ignoreCorruptFiles", "ignoreMissingFiles")
    return {**options, **{name: "false" for name in strict if name.lower() not in given}}


def _read_whole(records: Any) -> Any:
    """Records with a filter that is always true: Spark reads only the columns that a query uses,
    and finds malformed records by the columns that it reads.
    """
    there = ", ".join(f"isnull({quoted(name)})" for name in records.columns)
    return records.where(f"pmod(hash({there}), 2) < 2")


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return any(k.lower() == name and v.lower() == "true" for k, v in options.items())


def _failfast(options: dict[str, str]) -> dict[str, str]:
    """Options with which a malformed record fails the job, so that it is not lost."""
    given = {key.lower(): value for key, value in options.items()}
    for name, (strict, effect) in _STRICT_OPTIONS.items():
        if given.get(name, strict).upper() != strict:
            raise InvalidInputError(
                f"[ingest] option {name} {given[name]} {effect}",
                expected=strict,
                found=given[name],
                hint="remove it",
            )
    # The header of a CSV file is compared with the schema, not skipped.
    extra = {"enforceSchema": "false"} if "enforceschema" not in given else {}
    return {**options, "mode": "FAILFAST", **extra}


def _schema(table: Table | None, step: Ingest) -> Any | None:
    """The given columns, or the table's for files; None if the source defines them."""
    form = step.format.lower()
    if step.schema is not None:
        return _of_ddl(step.schema)
    if form not in FILES or (form in _BATCH_ONLY and step.mode == "batch"):
        return None
    if table is None or step.select:
        raise InvalidInputError(
            "[ingest] the columns of the source are not known",
            expected='schema, such as "id bigint, at timestamp"',
            hint=(
                "set schema; if select is not set and the table exists, the table's "
                "columns are used"
            ),
        )
    return spark_schema(table.snapshot().schema)


def _of_ddl(text: str) -> Any:
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        return StructType.fromDDL(text)
    except ParseException as cause:
        raise InvalidInputError(
            "[ingest] schema is malformed",
            expected='columns in Spark\'s DDL, such as "id bigint, at timestamp"',
            found=text,
        ) from cause


def _created(frame: Any, target: Target) -> Table:
    try:
        return create(
            target.path,
            new_schema(frame.schema),
            target.partition_by,
            configuration=dict(target.properties),
            storage_options=dict(target.storage_options),
            upkeep=False,
        )
    except TableExistsError:
        from lakelog.table_functions import open as open_table

        return open_table(target.path, dict(target.storage_options), upkeep=False)


def _recorded(table: Table, app: str) -> int:
    """The application's last unexpired version; -1 without one."""
    rows = table.snapshot().transactions().filter(appId=app).filter(~pl.col("expired")).collect()
    return int(rows["txnVersion"][0]) if rows.height else -1


def _report(table: Table, before: int, app: str) -> StepReport:
    """The report, from the commits of this application since then."""
    after = table.version()
    rows = files = size = commits = 0
    if after > before:
        committed = table.actions(before + 1, after)
        own_versions = (
            committed.filter(actionType="txn", appId=app).select("version").collect()["version"]
        )
        infos = committed.filter(
            pl.col("actionType") == "commitInfo", pl.col("version").is_in(own_versions.implode())
        )
        for metrics in infos.select("operationMetrics").collect()["operationMetrics"].to_list():
            kept = dict(metrics or {})
            rows += int(kept.get("numOutputRows") or 0)
            files += int(kept.get("numFiles") or 0)
            size += int(kept.get("numOutputBytes") or 0)
            commits += 1
    status: Status = "done" if commits else "nothing to do"
    return StepReport(STEP, status, rows=rows, files=files, bytes=size, version=after)
