"""Queries all facts of a lakelog snapshot, and lists those that differ from the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.model.compare import differences, normal, rows_of
from tests.model.replay import State, list_log, replay

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


def replay_from_its_base(root: Path, version: int | None, snapshot: Any) -> State:
    """The plain replay from the checkpoint that the snapshot started from.

    An update keeps its base, and a checkpoint can contain less than the commits below it (expired
    tombstones, optional columns): both are correct.
    """
    used = snapshot.provenance.checkpoint
    paths = used.paths if used is not None else ()
    bound = used.version if used is not None else -1
    newer = [c for c in list_log(root).candidates if c.version >= bound and c.paths != paths]
    return replay(root, version, excluded=newer)


def disagreements(state: State, snapshot: Any) -> list[str]:
    """Every fact on which the snapshot and the model differ."""
    assert state.protocol is not None
    assert state.metadata is not None
    # First, because reading the files may detect a broken checkpoint; all answers then depend on
    # older files.
    frames = [snapshot.files().collect(), snapshot.tombstones().collect()]
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
    # Rows of a compaction do not record which of its commits wrote them.
    blind = bool(snapshot.provenance.compactions)
    for rows, frame in zip((state.files, state.tombstones), frames, strict=True):
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
