"""A state on Spark equals the local replay's, with any strategy and checkpoint layout."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import polars as pl
import pyarrow as pa
import pytest

import lakelog
import lakelog.spark
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.delta.paths import decode_path, encode_path
from lakelog.errors import InvalidInputError, LakelogError, UnsupportedFeatureError
from lakelog.log.files import file_columns, tombstone_columns
from lakelog.model import contract
from lakelog.spark.checkpoint_rows import decoded_path, decoded_valid_path, encoded_path
from lakelog.spark.replay import plan_replay
from lakelog.spark.shuffle_replay import LogSplit, TableLocation, replay_in_partitions
from lakelog.spark.sql_functions import functions_of
from lakelog.spark.strategy import BROADCAST, HASH, POLARS, STRATEGIES, Choice
from tests.checkpoint import tables
from tests.dialects.indextables.writing import Log, add, metadata
from tests.loggen import LAYOUTS, Options, generate
from tests.model import replay as model
from tests.model.compare import differences, normal, rows_of
from tests.spark.configured import configured
from tests.spark.replayed import by_tag, comparable, local_state, out_of_spark, tagged

pytestmark = pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")

SEED = int(os.environ.get("LAKELOG_SPARK_SEED", "7"))
EVERY_TABLE = os.environ.get("LAKELOG_SPARK_CORPUS") == "all"
"""Whether the whole corpus is replayed, and not only the smallest table of each kind."""

STATE = tuple(dict.fromkeys(("actionType", *file_columns(DELTA), *tombstone_columns(DELTA))))


def test_valid_paths_are_decoded_like_lakelog_and_others_refused(spark: Any) -> None:
    rng = random.Random(SEED + 1)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(5))) for _ in range(3_000)]
    texts += [f"%{first:02X}{rest}" for first in range(256) for rest in TAILS]
    texts += ["%C3%A9" * 2_000]
    valid = [text for text in texts if _is_valid(text)]
    invalid = [text for text in texts if not _is_valid(text)]
    assert min(len(valid), len(invalid)) > 500

    frame = spark.createDataFrame(pa.table({"path": pa.array([*valid, None])}))
    found = frame.selectExpr("path", f"{decoded_valid_path('path')} AS decoded").toArrow()
    assert found["decoded"].to_pylist() == [*map(decode_path, valid), None]

    frame = spark.createDataFrame(pa.table({"path": pa.array(invalid)}))
    rule = decoded_valid_path("path").replace("raise_error", "concat")  # to return each refusal
    refused = frame.selectExpr(f"{rule} AS decoded").toArrow()["decoded"].to_pylist()
    assert {"unusual percent-encoding" in text for text in refused} == {True}
    with pytest.raises(Exception, match="use strategy hash"):
        frame.selectExpr(decoded_valid_path("path")).toArrow()


def _is_valid(text: str) -> bool:
    """Whether each % has two hex digits, and what they encode is UTF-8."""
    if re.search("%(?![0-9A-Fa-f]{2})", text):
        return False
    try:
        unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return False
    return True


TAILS = [
    *("", "%80", "%BF", "%7F", "%C0", "%80%80", "%9F%BF", "%A0%80", "%90%80%80", "%8F%BF%BF"),
    *("%BF%BF", "%BF%BF%BF", "%a0%bf", "%80%80%80", "%80x%80", "%8", "%BF%7F", "%BF%BF%C0"),
]


def test_paths_are_decoded_and_encoded_like_lakelog(either: Any) -> None:
    rng = random.Random(SEED)
    texts = ["".join(rng.choices(PIECES, k=rng.randrange(9))) for _ in range(3_000)]
    texts += [f"s3://b/{piece}" for piece in PIECES] + [f"{piece}:x" for piece in PIECES]
    frame = either.createDataFrame(pa.table({"path": pa.array([*texts, None])}))
    sql = functions_of(either)
    column = sql.col("path")
    decoded = sql.expr(decoded_path("path")).alias("decoded")
    found = frame.select(column, decoded, encoded_path(column).alias("encoded")).toArrow()
    for row in found.to_pylist():
        text = row["path"]
        if text is None:
            assert row["decoded"] is row["encoded"] is None
        else:
            assert (text, row["decoded"], row["encoded"]) == (
                text,
                decode_path(text),
                encode_path(text),
            )


PIECES = [
    *"% 2 0 F f a x %20 %2F %2f %25 + ~ # ? - ; & : / [ { } ] * é 雪 😀 %zz %% \\ \ufffd".split(),
    *"%C3%A9 %c3%a9 %F0%9F%98%80 %EF%BF%BD %EF%BF %C3 %A9 %ED%A0%80 %C0%80 %F5 %00".split(),
    *(" ", "\n", "\t", "\x85", "\u00a0", "\u2028"),
]


@pytest.mark.sampled(2)
def test_random_logs_of_every_layout_replay_like_the_model(either: Any, tmp_path: Path) -> None:
    """A failure names its layout and strategy; the seed is LAKELOG_SPARK_SEED."""
    frames, cases = [], []
    for number, layout in enumerate(LAYOUTS):
        options = Options(7, (layout,), 0.0, forced=(3,), truncate=0.5, noise=False)
        root = generate(tmp_path / layout, SEED + number, options)
        for strategy in STRATEGIES:
            try:
                planned = plan_replay(either, root, strategy=strategy, columns=STATE)
            except InvalidInputError:
                assert strategy == BROADCAST, "only Spark itself may be unable to read a layout"
                continue
            frames.append(planned.frame)
            cases.append((layout, strategy, model.replay(root)))
    assert sum(strategy == BROADCAST for _, strategy, _ in cases) >= len(LAYOUTS) - 1
    for found, (layout, strategy, state) in zip(
        by_tag(tagged(frames), len(frames)), cases, strict=True
    ):
        for kind, rows in (("add", state.files), ("remove", state.tombstones)):
            own = found.filter(pl.col("actionType") == kind)
            columns = {*STATE}
            problems = differences(
                [normal(row, columns) for row in rows.values()],
                [normal(row, columns) for row in rows_of(own)],
                ("path", "dvId"),
            )
            assert (layout, strategy, SEED, problems) == (layout, strategy, SEED, [])


def test_corpus_tables_replay_like_the_local_replay(spark: Any, corpus: Path) -> None:
    """The smallest table of each kind of checkpoint; all of them with LAKELOG_SPARK_CORPUS=all."""
    strategies = set()
    for root in corpus_tables(corpus):
        try:
            expected = local_state(lakelog.open(root, upkeep=False).snapshot())
        except LakelogError as error:
            with pytest.raises(type(error)):
                plan_replay(spark, root)
            continue
        for strategy in STRATEGIES:
            try:
                planned = plan_replay(spark, root, strategy=strategy)
            except InvalidInputError:
                assert strategy == BROADCAST
                continue
            found = comparable(out_of_spark(planned.frame))
            assert (root.name, strategy, found) == (root.name, strategy, comparable(expected))
            strategies.add(strategy)
            if not EVERY_TABLE:
                break  # the first that can serve
    assert strategies >= {BROADCAST, HASH}


def corpus_tables(corpus: Path) -> list[Path]:
    """Tables of the corpus; of those whose logs have files of the same kinds, the smallest."""
    found: dict[tuple[str, ...], tuple[int, Path]] = {}
    every = []
    for log in sorted((*corpus.glob("*/*/_delta_log"), *corpus.glob("*/*/_transaction_log"))):
        files = [path for path in log.rglob("*") if path.is_file()]
        names = {re.sub(r"[0-9a-f-]{8,}", "N", path.name) for path in files}
        named = {n for n in names if "avro" in n or ".checkpoint." in n}
        kinds = (log.parent.parent.name, *sorted(named))
        size = sum(path.stat().st_size for path in files)
        every.append(log.parent)
        if "_archives" not in log.parts:
            found[kinds] = min(found.get(kinds, (size, log.parent)), (size, log.parent))
    return every if EVERY_TABLE else [root for _, root in found.values()]


@pytest.mark.parametrize("kind", [tables.FLATTENED, tables.FLATTENED_PARTS], ids=["one", "parts"])
def test_flattened_checkpoints_replay_like_the_local_replay(
    kind: tables.Kind, either: Any, tmp_path: Path
) -> None:
    root = tables.make(kind, tmp_path / "t")
    log = tables.log_at(root, kind.dialect)
    table = lakelog.Table(log)
    write_checkpoint(log, tables.EARLIER, layout="flattened", options=kind.options)
    snapshot = table.snapshot()
    assert snapshot.provenance.checkpoint is not None
    assert snapshot.provenance.checkpoint.layout == "flattened"
    frames = [plan_replay(either, table, strategy=s).frame for s in (BROADCAST, HASH)]
    expected = comparable(local_state(snapshot))
    for found in by_tag(tagged(frames), len(frames)):
        assert comparable(found) == expected


def test_state_has_the_schema_of_the_contract(either: Any, tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    root = tables.make(tables.MULTIPART, tmp_path / "t")
    expected = StructType.fromJson(contract.to_json(contract.load("actions")))
    for strategy in STRATEGIES:
        planned = plan_replay(either, str(root), strategy=strategy)
        assert planned.choice.strategy == strategy
        assert planned.explain() == f"version {tables.LATEST} by {strategy}: it was requested"
        assert [(f.name, f.dataType) for f in planned.frame.schema] == [
            (f.name, f.dataType) for f in expected
        ]
    assert plan_replay(either, str(root)).choice.strategy == POLARS


def test_query_reads_only_the_columns_that_it_needs(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    frame = lakelog.spark.replay(spark, root, strategy=BROADCAST)
    frame.where("actionType = 'add'").select("path", "size").explain("formatted")
    (schema,) = re.findall(r"ReadSchema: (.*)", capsys.readouterr().out)
    assert "stats" not in schema
    assert "partitionValues" not in schema
    assert "path" in schema


def test_state_with_whole_stage_codegen_is_the_same(spark: Any, tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    columns = ("path", "size", "modificationTime", "stats")
    expected = comparable(local_state(lakelog.open(root).snapshot(), columns))
    compiling = {"wholeStage": "true", "factoryMode": "FALLBACK"}
    with configured(spark, {f"spark.sql.codegen.{k}": v for k, v in compiling.items()}):
        frame = lakelog.spark.replay(spark, root, strategy=BROADCAST, columns=columns)
        assert comparable(out_of_spark(frame)) == expected
        query = frame.groupBy().sum("size")
        [total] = query.collect()[0]
        plan = query._jdf.queryExecution().executedPlan().toString()
    assert total == sum(json.loads(row).get("size", 0) for row in expected)
    assert re.search(r"\*\(1\) Union", plan), "compiled with the operator above it"


def test_query_plan_decodes_only_needed_fields_of_commit_rows(spark: Any, tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    setting = "spark.sql.execution.arrow.localRelationThreshold"
    with configured(spark, {setting: "7MB"}):
        frame = lakelog.spark.replay(spark, root, strategy=BROADCAST)
        assert spark.conf.get(setting) == "7MB", "as the user has it"
    lakelog.spark.replay(spark, root, strategy=BROADCAST)
    assert spark.conf.get(setting, None) is None, "as it was, unset"

    def planned(*sums: str) -> str:
        query = frame.where("actionType = 'add'").selectExpr(*sums)
        return str(query._jdf.queryExecution().optimizedPlan().toString())

    plan = planned("sum(size)", "sum(length(stats))")
    assert re.findall(r"LocalRelation \[(\w+)#", plan) == ["gone_path"]
    assert re.search("LogicalRDD .*stats#", plan), "complete, for a task to decode"
    assert "_spread_batch" not in plan
    assert "_spread_batch" in planned("sum(numRecords)")


def test_planned_size_of_a_state_is_not_underestimated(spark: Any, tmp_path: Path) -> None:
    # Spark broadcasts a relation that it estimates as small, whatever its actual size.
    place, choice, rows = (
        TableLocation(str(tmp_path), None, "delta"),
        Choice(HASH, "", 2),
        3_000_000,
    )
    pieces, meta = [LogSplit()] * 3, pl.DataFrame()
    made = replay_in_partitions(spark, place, pieces, STATE, choice, meta, about_rows=rows)
    expected_bytes = (8 + 20) * rows  # as Spark guesses
    assert 0.9 < _planned_bytes(made.select("path")) / expected_bytes < 1.1
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"id": [1]}))
    table.checkpoint()
    table.append(pl.DataFrame({"id": [2]}))
    state = lakelog.spark.replay(spark, table, strategy=BROADCAST)
    assert _planned_bytes(state.select("path")) > 1 << 50, "unknown field"


def _planned_bytes(frame: Any) -> int:
    return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


def test_executors_get_the_options_with_which_the_table_was_opened(tmp_path: Path) -> None:
    lakelog.create(tmp_path, {"id": pl.Int64}, upkeep=False)
    log = lakelog.open(tmp_path, {"auto_mkdir": True}, upkeep=False).log
    assert TableLocation.of(log, None).storage_options == {"auto_mkdir": True}
    assert TableLocation.of(log, {}).storage_options == {}
    assert TableLocation.of(log, None).store().root == log.store.root


def test_columns_without_values_are_null(spark: Any, tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    columns = ("docMappingJson", "companionFastFieldMode")
    expected = local_state(lakelog.open(root).snapshot(), columns)
    assert expected.height
    frames = [lakelog.spark.replay(spark, root, strategy=s, columns=columns) for s in STRATEGIES]
    for strategy, found in zip(STRATEGIES, by_tag(tagged(frames), len(frames)), strict=True):
        assert found.equals(expected), strategy


def test_an_earlier_version_and_columns_by_name(either: Any, tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    columns = ("size", "actionType", "path")
    frames = [
        lakelog.spark.replay(either, root, version, strategy, columns=columns)
        for version in (2, tables.EARLIER, 5)
        for strategy in (POLARS, HASH)
    ]
    assert all(tuple(frame.columns) == columns for frame in frames)
    found = by_tag(tagged(frames), len(frames))
    for number, version in enumerate((2, tables.EARLIER, 5)):
        expected = local_state(lakelog.open(root).snapshot(version), columns)
        for frame in found[2 * number : 2 * number + 2]:
            assert comparable(frame) == comparable(expected)


def test_paths_with_glob_characters_are_read_literally(spark: Any, tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t[1] {a,b} *? \\ 100%41")
    frame = lakelog.spark.replay(spark, root, strategy=BROADCAST, columns=("actionType", "path"))
    expected = local_state(lakelog.open(root).snapshot(), ("actionType", "path"))
    assert comparable(out_of_spark(frame)) == comparable(expected)


def test_replay_refuses_what_a_snapshot_refuses(spark: Any, tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    with lakelog.open(root, upkeep=False).transaction() as tx:
        tx.set_protocol(minReaderVersion=1, minWriterVersion=2)
    commit = root / "_delta_log" / f"{tables.LATEST + 1:020d}.json"
    commit.write_text(
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,'
        '"readerFeatures":["unheardOf"],"writerFeatures":["unheardOf"]}}\n'
    )
    with pytest.raises(UnsupportedFeatureError, match="unheardOf"):
        lakelog.spark.replay(spark, root)
    with pytest.raises(InvalidInputError, match="unknown or repeated column"):
        lakelog.spark.replay(spark, root, columns=("path", "colour"))
    with pytest.raises(InvalidInputError, match="no checkpoint"):
        lakelog.spark.replay(spark, root, 1, BROADCAST)


def test_references_are_resolved_by_every_metadata_of_the_log(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "t"
    log = Log(root)
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 3}}
    log.commit(0, [protocol, metadata(configuration={"docMappingSchema.h": "M"})])
    log.commit(1, [add("a", docMappingRef="h")])
    lakelog.open(root, upkeep=False).checkpoint(layout="flattened")
    log.commit(2, [metadata(configuration={})])
    log.commit(3, [add("b", docMappingRef="h")])
    columns = ("path", "docMappingJson")
    frames = [lakelog.spark.replay(spark, root, strategy=s, columns=columns) for s in STRATEGIES]
    for strategy, found in zip(STRATEGIES, by_tag(tagged(frames), len(frames)), strict=True):
        files = found.drop_nulls("path").sort("path")
        assert files["docMappingJson"].to_list() == ["M", "M"], strategy
