"""The fast path over other writers' small commits gives the same result as the general path."""

from __future__ import annotations

from typing import Any

import orjson
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.log_content import CommitFile
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.registry import named
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol
from lakelog.storage.fsspec_store import MemoryStore
from lakelog.transaction.conflict_fast_path import effects_of, own_paths, parse_files_only
from lakelog.transaction.conflicts import find_conflict
from lakelog.transaction.pending_commit import WRITE_SERIALIZABLE, PendingCommit, Reads, Winner
from tests.transaction.tables import DIALECTS

NAMES = st.sampled_from(["a", "b", "a b", "a%20b", "%61", "ü", "d=1/x", "c%"])


def add(path: str) -> dict[str, Any]:
    body = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1}
    return {"add": body | {"dataChange": True, "stats": '{"numRecords":1}'}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 1}}


LINES = st.one_of(
    st.builds(add, NAMES),
    st.builds(remove, NAMES),
    st.builds(
        lambda n: {"commitInfo": {"operation": "X", "inCommitTimestamp": n}}, st.integers(0, 9)
    ),
    st.sampled_from(
        [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"txn": {"appId": "a", "version": 1}},
            {"domainMetadata": {"domain": "d", "configuration": "", "removed": False}},
            {"new": {"path": "a"}},
        ]
    ),
)


def written(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


def transaction_of(paths: list[str], kind: str) -> PendingCommit:
    rows = {"actionType": [kind] * len(paths), "path": paths}
    metadata = Metadata(
        "i", None, None, "parquet", {}, '{"type":"struct","fields":[]}', (), {}, None
    )
    files = pl.DataFrame(rows, schema={c: actions.schema()[c] for c in rows})
    return PendingCommit(
        Reads(),
        files,
        actions.concat([]),
        WRITE_SERIALIZABLE,
        TableConfiguration(DELTA, Protocol(1, 2), metadata),
    )


@pytest.mark.parametrize("form", DIALECTS)
@given(
    lines=st.lists(LINES, min_size=1, max_size=5),
    paths=st.lists(NAMES, max_size=3, unique=True),
    kind=st.sampled_from(["add", "remove"]),
)
def test_commit_accepted_by_the_fast_path_is_accepted_by_the_general_path(
    form: str, lines: list[dict[str, Any]], paths: list[str], kind: str
) -> None:
    import fsspec

    if form == "indextables" and len(lines) > 1 and "commitInfo" not in lines[1]:
        # The commitInfo is in the line of the first action.
        lines = [{"commitInfo": {"operation": "X"}} | lines[1], *lines[2:]]
    data = written(lines)
    commit = CommitFile(3, "_delta_log/3.json", len(data), 5)
    files_only = parse_files_only(named(form), commit, data)
    store = MemoryStore(fsspec.filesystem("memory"), "/quick", "memory://quick")
    store.put(commit.path, data)
    decoded = DIALECTS[form].decode(store, [commit])
    kinds = {key for line in lines for key in line}
    assert (files_only is not None) is kinds.issubset({"add", "remove", "commitInfo"})
    if files_only is None:
        return
    (step,) = effects_of([commit], decoded)
    assert files_only.step.info == step.info
    assert files_only.step.meta.height == step.meta.height == 0
    assert files_only.paths == frozenset(decoded.files["path"] if decoded.files.height else ())
    pending = transaction_of(paths, kind)
    pending_paths = own_paths(pending)
    assert pending_paths == frozenset(paths)
    if pending_paths.isdisjoint(files_only.paths):
        assert find_conflict(pending, Winner(3, decoded)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x1f\x8b",
        b"{",
        b"[]\n",
        b'{"add":3}\n',
        b'{"add":{"size":1}}\n',
        b'{"add":{"path":1}}\n',
        b'{"commitInfo":null}\n',
        b'{"add":{"path":"' + b"x" * (1 << 15) + b'"}}\n',
    ],
)
def test_unusual_commit_uses_the_general_path(data: bytes) -> None:
    assert parse_files_only(DELTA, CommitFile(1, "p", len(data), 0), data) is None


def test_transaction_with_reads_metadata_or_many_files_uses_the_general_path() -> None:
    from dataclasses import replace

    pending = transaction_of(["a"], "add")
    assert own_paths(pending) == frozenset({"a"})
    assert own_paths(replace(pending, reads=Reads(whole_table=True))) is None
    meta = pl.DataFrame({"actionType": ["metaData"]})
    assert own_paths(replace(pending, meta=meta)) is None
    assert own_paths(transaction_of([str(n) for n in range(300)], "add")) is None
