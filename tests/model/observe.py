"""Asks a lakelog snapshot for everything it knows, and lists what the model says otherwise."""

from __future__ import annotations

from typing import Any

from tests.model.compare import differences, normal, rows_of
from tests.model.replay import State

FILE_KEY = ("path", "dvId")


def protocol_row(protocol: Any) -> dict[str, Any]:
    """A snapshot's protocol in flattened columns, without nulls."""
    lists = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    return {
        "minReaderVersion": protocol.min_reader_version,
        **({} if (v := protocol.min_writer_version) is None else {"minWriterVersion": v}),
        **{name: list(names) for name, names in lists.items() if names is not None},
    }


def metadata_row(metadata: Any) -> dict[str, Any]:
    """A snapshot's metadata in flattened columns, without nulls and empty collections."""
    row = {
        "metadataId": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "formatProvider": metadata.format_provider,
        "formatOptions": dict(metadata.format_options or {}),
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }
    return {name: value for name, value in row.items() if value not in (None, {}, [])}


def disagreements(state: State, snapshot: Any) -> list[str]:
    """Every fact on which the snapshot and the model differ."""
    assert state.protocol is not None
    assert state.metadata is not None
    found: list[str] = []
    if snapshot.version != state.version:
        found.append(f"version: model {state.version}, lakelog {snapshot.version}")
    protocol = protocol_row(snapshot.protocol)
    if protocol != {k: v for k, v in normal(state.protocol).items() if k in protocol}:
        found.append(f"protocol: model {state.protocol}, lakelog {protocol}")
    metadata = metadata_row(snapshot.metadata)
    expected = {k: v for k, v in state.metadata.items() if v not in (None, {}, [])}
    if metadata != {k: v for k, v in expected.items() if k not in _ROW_COLUMNS}:
        found.append(f"metadata: model {expected}, lakelog {metadata}")
    # Rows out of a compaction do not say which of its commits wrote them.
    blind = bool(snapshot.provenance.compactions)
    for rows, frame in (
        (state.files, snapshot.files()),
        (state.tombstones, snapshot.tombstones()),
    ):
        columns = {*frame.collect_schema().names(), "extra"} - ({"version"} if blind else set())
        found += differences(
            [normal(row, columns) for row in rows.values()],
            [normal(row, columns) for row in rows_of(frame)],
            FILE_KEY,
        )
    for by_name, frame, key, values in (
        (state.transactions, snapshot.transactions(), "appId", ("txnVersion", "lastUpdated")),
        (state.domains, snapshot.domains(), "domain", ("domainConfiguration",)),
    ):
        found += differences(
            [normal(row, (key, *values)) for row in by_name.values()],
            [normal(row, (key, *values)) for row in rows_of(frame)],
            [key],
        )
    files = state.files.values()
    if snapshot.num_files() != len(files):
        found.append(f"num_files: model {len(files)}, lakelog {snapshot.num_files()}")
    if snapshot.total_size() != sum(row["size"] for row in files):
        found.append(f"total_size: lakelog {snapshot.total_size()}")
    return found


_ROW_COLUMNS = ("version", "position", "actionType", "extra")
