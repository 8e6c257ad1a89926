"""A few file actions by the fast path equal those of the general path, byte for byte."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import lakelog
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.log_content import CommitContent
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.registry import named
from lakelog.errors import ConcurrentTransactionError, InvalidInputError
from lakelog.log.context import Log
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol
from lakelog.skipping.values import HIVE_NULL
from lakelog.storage import open_store
from lakelog.transaction import operations, validation
from lakelog.transaction.action_input import rows_frame, stage_one
from lakelog.transaction.commit_content import CommitBase, Description, after, build_content
from lakelog.transaction.conflict_fast_path import own_paths
from lakelog.transaction.metadata_changes import fill_row
from lakelog.transaction.pending_commit import WRITE_SERIALIZABLE, PendingCommit, Reads
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.small_commit import MOST_ROWS, PlainTable, SmallCommit
from tests.transaction.tables import DIALECTS, NOW_MS, append, infos, location, new_table

RULES = DELTA.protocol_rules

COUNT = '{"numRecords":3}'
COMPRESSION = "spark.indextables.transaction.compression"
TYPES = ("string", "date", "boolean", "byte", "short", "integer", "long", "timestamp", "double")


def metadata(
    *partitions: str, nullable: bool = True, configuration: dict[str, str] | None = None
) -> Metadata:
    """Metadata of a table that is partitioned by columns named after their types."""
    fields = [
        {"name": name, "type": name, "nullable": nullable, "metadata": {}} for name in partitions
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    return Metadata("i", None, None, "parquet", {}, schema, partitions, configuration or {}, None)


def staged(kind: str, form: str = "delta", **fields: Any) -> dict[str, Any]:
    row = stage_one(form, kind, fields)
    fill_row(row, NOW_MS)
    return row


def plain_table(form: str = "delta", *partitions: str, nullable: bool = True) -> PlainTable:
    """The facts of a table that the fast path uses."""
    table = metadata(*partitions, nullable=nullable)
    plain = PlainTable.of(TableConfiguration(named(form), PROTOCOLS[form], table))
    assert plain is not None
    return plain


def added(path: str = "a", **fields: Any) -> dict[str, Any]:
    return staged("add", path=path, **({"size": 1} | fields))


NAMES = st.one_of(
    st.sampled_from(["a", "b", "c/d", "é", "a b%", "x:y", "a\x7f\x1f", "\u2028", "\ud800"]),
    st.sampled_from(["", "/a", "s3://b/c", "../a", "a//b", "_delta_log/a", "_x/a", "a/", "a\n"]),
    st.text(min_size=1, max_size=5),
)
VALUES = st.one_of(
    st.none(),
    st.sampled_from(["", HIVE_NULL, "a", "true", "TRUE", "\u0661"]),
    st.sampled_from(["2024-02-29", "2023-02-29", "0000-01-01"]),
    st.sampled_from(["1", "-1", "-0", "007", "+1", "1.0", "99", "-128", "128", "2147483648"]),
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.dates().map(str),
    st.text(max_size=4),
)
STATS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            '{"numRecords":3}',
            '{"numRecords":3,"numRecords":4}',
            '{ "numRecords" : 5, "minValues": {"a\\"é": "\\u0001"} }',
            '{"minValues":{"a":1}}',
            '{"numRecords":null}',
            '{"numRecords":-1}',
            '{"numRecords":true}',
            '{"numRecords":9223372036854775808}',
            "[]",
            "x",
            "",
        ]
    ),
)
WHOLE = st.sampled_from([0, 1, 1 << 40, 1 << 60, -1])
USUAL_VALUES: dict[str, st.SearchStrategy[str]] = {
    "string": st.text(max_size=4),
    "date": st.dates().map(str),
    "boolean": st.sampled_from(["true", "false"]),
    "byte": st.integers(-99, 99).map(str),
    "short": st.integers(-9999, 9999).map(str),
    "integer": st.integers(-(10**9) + 1, 10**9 - 1).map(str),
    "long": st.integers(-(10**18) + 1, 10**18 - 1).map(str),
}
"""Values that the fast path accepts, for each type that it supports."""
ODD_FIELDS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"tags": {"a": "b"}},
        {"baseRowId": 1},
        {"clusteringProvider": "c"},
        {"deletionVector": {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1}},
    ]
)


MAPS = st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=2)
INDEXTABLES_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "numRecords": WHOLE,
        "minValues": MAPS,
        "tags": MAPS,
        "footerStartOffset": WHOLE,
        "hasFooterOffsets": st.booleans(),
        "timeRangeStart": st.sampled_from(["", "1", "2024-01-01T00:00:00Z", "\x1f"]),
        "splitTags": st.lists(st.text(max_size=3), max_size=2),
        "numMergeOps": st.sampled_from([0, -1, (1 << 31) - 1]),
        "docMappingRef": st.text(max_size=3),
        "companionDeltaVersion": WHOLE,
    },
)


@st.composite
def usual_rows_of(draw: st.DrawFn, partitions: tuple[str, ...], form: str) -> dict[str, Any]:
    """Usual rows."""
    kind = draw(st.sampled_from(["add", "add", "remove"]))
    values = st.fixed_dictionaries({name: USUAL_VALUES[name] | st.none() for name in partitions})
    fields = draw(
        st.fixed_dictionaries(
            {
                "path": st.text(min_size=1, max_size=5),
                "size": st.integers(0, (1 << 63) - 1),
                "partitionValues": values,
            },
            optional={"dataChange": st.booleans()},
        )
    )
    if kind == "add":
        fields["stats"] = draw(STATS.filter(lambda text: text is None or text.startswith("{")))
    if form == "indextables" and kind == "add":
        fields |= draw(INDEXTABLES_FIELDS)
    return staged(kind, form, **fields)


@st.composite
def rows_of(draw: st.DrawFn, partitions: tuple[str, ...], form: str) -> dict[str, Any]:
    kinds = ["add", "add", "add", "remove", *(["cdc"] if form == "delta" else [])]
    kind = draw(st.sampled_from(kinds))
    fields: dict[str, Any] = {"path": draw(NAMES)}
    names = list(partitions)
    if not draw(st.integers(0, 9)):
        names = draw(st.lists(st.sampled_from(TYPES)))
    if draw(st.booleans()) or names:
        fields["partitionValues"] = {name: draw(VALUES) for name in names}
    if draw(st.integers(0, 9)):
        fields["size"] = draw(WHOLE)
    if draw(st.booleans()):
        fields["dataChange"] = draw(st.booleans())
    if kind == "add":
        fields["stats"] = draw(STATS)
        if draw(st.booleans()):
            fields["modificationTime"] = draw(WHOLE)
    elif kind == "remove" and draw(st.booleans()):
        fields["deletionTimestamp"] = draw(WHOLE)
    if form == "indextables" and kind == "add":
        fields |= draw(INDEXTABLES_FIELDS)
    elif form == "delta" and kind != "cdc" and not draw(st.integers(0, 9)):
        fields |= draw(ODD_FIELDS)
    if kind == "remove":
        fields.pop("clusteringProvider", None)
    return staged(kind, form, **fields)


def recorded(app_id: str = "a", version: int = 1) -> dict[str, Any]:
    """An application's version as a transaction stages it."""
    row = stage_one("delta", "txn", {"appId": app_id, "version": version})
    return row | {"lastUpdated": NOW_MS}


DOMAIN = {
    "actionType": "domainMetadata",
    "domain": "d",
    "domainConfiguration": "",
    "domainRemoved": False,
}
OTHERS = st.one_of(
    st.just([]),
    st.builds(
        recorded,
        st.one_of(st.sampled_from(["", "a", "é\u2028", "\ud800", '"\x1f']), st.text(max_size=4)),
        st.sampled_from([0, 7, -1, (1 << 63) - 1, -(1 << 63)]),
    ).map(lambda row: [row]),
    st.sampled_from([[recorded(), recorded()], [recorded(), recorded("b")], [DOMAIN]]),
)


@st.composite
def transactions(
    draw: st.DrawFn, form: str
) -> tuple[Metadata, list[dict[str, Any]], list[dict[str, Any]]]:
    is_usual = draw(st.integers(0, 3)) > 0
    types = st.sampled_from(TYPES[:-2] if is_usual else TYPES)
    partitions = tuple(draw(st.lists(types, max_size=2, unique=True)))
    table = metadata(*partitions, nullable=is_usual or draw(st.booleans()))
    row = usual_rows_of(partitions, form) if is_usual else rows_of(partitions, form)
    rows = draw(st.lists(row, min_size=1, max_size=3))
    return table, rows, draw(OTHERS) if form == "delta" else []


def intent_of(
    rows: list[dict[str, Any]],
    table: Metadata,
    protocol: Protocol,
    form: str,
    others: Sequence[dict[str, Any]] = (),
) -> PendingCommit:
    meta = rows_frame(others) if others else actions.concat([])
    return PendingCommit(
        Reads(),
        rows_frame(rows),
        meta,
        WRITE_SERIALIZABLE,
        TableConfiguration(named(form), protocol, table),
    )


def no_files() -> Any:
    raise AssertionError("the live files must not be listed")


PLAIN = Protocol(1, 2)
PROTOCOLS = {"delta": PLAIN, "indextables": Protocol(2, 2)}
DESCRIPTION = Description("WRITE", {}, {}, "id", "engine", True, 0, WRITE_SERIALIZABLE)


@pytest.mark.parametrize("form", PROTOCOLS)
@given(data=st.data())
def test_fast_path_writes_the_same_bytes_as_the_general_path(
    form: str, data: st.DataObject
) -> None:
    table, rows, others = data.draw(transactions(form))
    protocol, encode = PROTOCOLS[form], DIALECTS[form].encode
    plain = PlainTable.of(TableConfiguration(named(form), protocol, table))
    assert (plain is None) is bool({"timestamp", "double"} & {*table.partition_columns})
    small = plain.take(rows, others) if plain is not None else None
    event("fast" if small is not None else "general")
    if small is None:
        return
    pending = intent_of(rows, table, protocol, form, others)
    validation.check(pending, "table", replaced=False, live_files=no_files)
    assert small.lines == encode(CommitContent({}, pending.meta, pending.files))
    info = {"operation": "WRITE"}
    general = encode(CommitContent(info, pending.meta, pending.files))
    assert encode(CommitContent(info, file_lines=small.lines)) == general
    assert small.frame.equals(pending.files)
    assert small.meta.equals(pending.meta)
    assert build_content(
        replace(pending, staged=small), DESCRIPTION, CommitBase(), NOW_MS
    ).info == (build_content(pending, DESCRIPTION, CommitBase(), NOW_MS).info)
    assert after(replace(pending, staged=small, meta=small.meta)) == after(pending)
    assert small.metrics() == operations.metrics(pending.files)
    assert small.operation(table) == operations.infer(
        pending.files, pending.meta, table, table, protocol
    )
    assert small.adds_only is bool((pending.files["actionType"] == "add").all())
    assert small.paths == own_paths(pending)


@pytest.mark.parametrize("form", PROTOCOLS)
@pytest.mark.parametrize("type_", TYPES[:-2])
@given(value=VALUES, nullable=st.booleans())
def test_partition_value_accepted_by_the_fast_path_is_valid(
    type_: str, form: str, value: str | None, nullable: bool
) -> None:
    table = metadata(type_, nullable=nullable)
    plain = plain_table(form, type_, nullable=nullable)
    rows = [staged("add", form, path="a", size=1, partitionValues={type_: value})]
    try:
        taken = plain.take(rows)
        pending = intent_of(rows, table, PROTOCOLS[form], form)
    except InvalidInputError:  # an unpaired surrogate
        assert taken is None
        return
    if taken is not None:
        validation.check(pending, "table", replaced=False, live_files=no_files)


@pytest.mark.parametrize(
    "row",
    [
        added(),
        added("a b", stats={"numRecords": 3, "minValues": {"x": 1}}, dataChange=False),
        added(modificationTime=0, partitionValues={}),
        staged("remove", path="a"),
        staged("remove", path="a", size=1, partitionValues={}, dataChange=False),
    ],
)
def test_usual_action_uses_the_fast_path(row: dict[str, Any]) -> None:
    plain = plain_table()
    assert isinstance(plain.take([row]), SmallCommit)


def test_usual_partition_value_uses_the_fast_path() -> None:
    plain = plain_table("delta", "date", "string", "integer", "boolean")
    values = {"date": "2024-02-29", "string": "é", "integer": 7, "boolean": True}
    assert plain.take([added(partitionValues=values)]) is not None
    assert plain.take([added(partitionValues=dict.fromkeys(values))]) is not None
    assert plain.take([added(partitionValues=values | {"integer": "x"})]) is None


def test_application_version_uses_the_fast_path() -> None:
    plain = plain_table()
    small = plain.take([added()], [recorded("app", 3)])
    assert small is not None
    assert small.lines.startswith(b'{"txn":{"appId":"app","version":3,"lastUpdated":')
    assert plain.take([], [recorded()]) is None
    assert plain.take([added()], [recorded(), recorded("b")]) is None
    assert plain.take([added()], [DOMAIN]) is None


def test_many_actions_use_the_general_path() -> None:
    plain = plain_table()
    rows = [added(f"f{n}") for n in range(MOST_ROWS + 1)]
    assert plain.take(rows) is None
    assert plain.take(rows[1:]) is not None
    assert plain.take([]) is None


@pytest.mark.parametrize("name", sorted(RULES.features))
def test_feature_with_rules_for_files_disables_the_fast_path(name: str) -> None:
    # The features for which the general path checks files.
    ruling = {
        *("rowTracking", "clustering", "materializePartitionColumns"),
        *("appendOnly", "changeDataFeed", "inCommitTimestamp", "columnMapping"),
    }
    configuration = {
        "delta.appendOnly": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.columnMapping.mode": "name",
        "delta.constraints.c": "id > 0",
    }
    protocol = Protocol(3, 7, (name,), (name,))
    plain = PlainTable.of(
        TableConfiguration(DELTA, protocol, metadata(configuration=configuration))
    )
    assert (plain is None) is (name in ruling | {"checkConstraints"})


@pytest.mark.parametrize("form", PROTOCOLS)
@pytest.mark.parametrize("configuration", [{}, {f"{COMPRESSION}.enabled": "true"}])
def test_fast_path_and_general_path_write_the_same_file(
    form: str, configuration: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: dict[str, Any] = {"app_id": "é", "app_version": 4} if form == "delta" else {}

    def written(where: str) -> list[bytes]:
        log = Log(open_store(where), DIALECTS[form], clock=lambda: NOW_MS)
        kept = configuration if form == "indextables" else {}
        new_table(where, form, partition_by=["day"], configuration=kept)
        table = lakelog.Table(log, Runtime(rng=random.Random(0)))
        with table.transaction(user_metadata="u") as tx:
            tx.add(path="day=1/a b", size=1, partitionValues={"day": "1"}, stats={"numRecords": 2})
            tx.add(path="day=1/b", size=2, partitionValues={"day": "1"}, modificationTime=1)
        with table.transaction(**app) as tx:
            tx.remove(path="day=1/b", size=2, partitionValues={"day": "1"}, deletionTimestamp=4)
        return [log.store.read(log.dialect.commit_path(version)) for version in (1, 2)]

    fast = written(f"{tmp_path}/fast")
    monkeypatch.setattr(PlainTable, "of", lambda *_: None)
    assert written(f"{tmp_path}/general") == fast


@pytest.mark.parametrize("spare", [{}, {"tags": {"a": "b"}}])
def test_metrics_may_exceed_64_bits(tmp_path: Path, spare: dict[str, Any]) -> None:
    table, most = new_table(location("local", tmp_path)), (1 << 63) - 1
    with table.transaction() as tx:
        for path in "abc":
            tx.add(path=path, size=most, stats={"numRecords": most}, **spare)
    with table.transaction() as tx:
        for path in "abc":
            tx.remove(path=path, size=most, partitionValues={}, **spare)
    total = str(3 * most)
    assert [info.get("operationMetrics") for info in infos(table)][1:] == [
        {"numFiles": "3", "numOutputBytes": total, "numOutputRows": total},
        {"numRemovedFiles": "3", "numRemovedBytes": total},
    ]


def test_indextables_table_with_columnar_commits_has_no_fast_path() -> None:
    columnar = Protocol(3, 3, ("columnarCommits",), ("columnarCommits",))
    plain_table("indextables")
    assert PlainTable.of(TableConfiguration(INDEXTABLES, columnar, metadata())) is None


def test_usual_split_uses_the_fast_path() -> None:
    plain = plain_table("indextables", "string")
    split = {
        "path": "string=a%20b/s.split",
        "size": 9,
        "partitionValues": {"string": "a b"},
        "numRecords": 3,
        "minValues": {"id": "1"},
        "footerStartOffset": 4,
        "hasFooterOffsets": True,
        "splitTags": ["x"],
    }
    small = plain.take([staged("add", "indextables", **split)])
    assert small is not None
    assert json.loads(small.lines)["add"]["path"] == "string=a%20b/s.split"
    assert small.metrics()["numOutputRows"] == 3
    for odd in ({"extra": '{"x":1}'}, {"numMergeOps": -1}, {"footerStartOffset": -1}):
        assert plain.take([staged("add", "indextables", **split | odd)]) is None


@pytest.mark.parametrize(
    ("counts", "rows"),
    [
        ([{"numRecords": 3}] * 2, 6),
        ([{"stats": COUNT}] * 2, 6),
        ([{"stats": COUNT}, {}], None),
        ([{"stats": COUNT}, {"stats": COUNT, "numRecords": 3}], None),
    ],
)
def test_rows_are_counted_only_if_each_split_stores_the_count_in_one_way(
    counts: list[dict[str, Any]], rows: int | None
) -> None:
    plain = plain_table("indextables")
    splits = [staged("add", "indextables", path=f"{n}", size=1, **t) for n, t in enumerate(counts)]
    small = plain.take(splits)
    assert small is not None
    assert small.metrics() == operations.metrics(small.frame)
    assert small.metrics().get("numOutputRows") == rows


def test_application_version_on_the_fast_path_conflicts_with_other_writers(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table = new_table(where)
    late, early, newer, unrelated = (lakelog.open(where) for _ in range(4))
    waiting = [
        each.transaction(app_id="app", app_version=version)
        for each, version in ((late, 5), (early, 4), (newer, 6))
    ]
    other_app = unrelated.transaction(app_id="other", app_version=5)
    assert append(table, "a", app_id="app", app_version=5) == 1
    for tx in (*waiting, other_app):
        tx.add(path=f"{tx.txn_id}.parquet", size=1)
    assert [tx.commit() for tx in waiting[:2]] == [None, None]
    assert [tx.duplicate for tx in waiting[:2]] == [True, True]
    with pytest.raises(ConcurrentTransactionError):
        waiting[2].commit()
    assert other_app.commit() == 2
    assert table.snapshot().version == 2


@pytest.mark.parametrize("app", [{}, {"app_id": "app", "app_version": 1}])
def test_fast_path_commit_is_rebased_on_changed_properties(
    tmp_path: Path, app: dict[str, Any]
) -> None:
    table = new_table(location("local", tmp_path))
    tx = table.transaction(**app)
    tx.add(path="a", size=1, stats={"numRecords": 3})
    with table.transaction() as other:
        other.set_metadata(configuration={"delta.enableInCommitTimestamps": "true"})
    assert tx.commit() == 2
    assert append(table, "b") == 3
    file = Path(table.path, "_delta_log", f"{2:020d}.json")
    info, *actions_ = map(json.loads, file.read_text().splitlines())
    assert next(iter(info["commitInfo"])) == "inCommitTimestamp"
    assert [kind for action in actions_ for kind in action] == [*(["txn"] if app else []), "add"]
    assert ["inCommitTimestamp" in info for info in infos(table)] == [False, True, True, True]
