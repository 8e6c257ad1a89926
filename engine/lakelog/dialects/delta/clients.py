"""Delta's readers and writers, and the table features that they support.

A client with the source ``tested`` is compared with its installed release by
``tests/conformance/test_clients.py`` (Python) and ``tests/kernel/test_clients.py`` (Java): each
feature, listed in the protocol of a table that does not use it. Some writers also refuse a
supported feature once a table uses it, such as a CHECK constraint.
"""

from __future__ import annotations

from lakelog.dialects.clients import Client

_TESTED = (
    "adaptiveMetadata adaptiveMetadata-preview allowColumnDefaults appendOnly catalogManaged "
    "catalogOwned catalogOwned-preview changeDataFeed checkConstraints checkpointProtection "
    "clustering collations collations-preview columnMapping coordinatedCommits-preview "
    "deletionVectors domainMetadata generatedColumns geospatial geospatial-dev icebergCompatV1 "
    "icebergCompatV2 icebergCompatV3 icebergWriterCompatV1 icebergWriterCompatV3 identityColumns "
    "inCommitTimestamp invariants managedCommit-preview materializePartitionColumns "
    "redirectReaderWriter-preview redirectWriterOnly-preview rowTracking timestampNanos "
    "timestampNtz typeWidening typeWidening-preview v2Checkpoint vacuumProtocolCheck "
    "variantShredding variantShredding-preview variantType variantType-preview"
).split()


def _tested(supported: str) -> dict[str, bool]:
    names = supported.split()
    return {name: name in names for name in _TESTED}


_DELTA_RS_READS = (
    "columnMapping deletionVectors timestampNtz v2Checkpoint variantType variantType-preview"
)
_DELTA_RS_WRITES = _tested(
    f"{_DELTA_RS_READS} appendOnly changeDataFeed checkConstraints generatedColumns invariants"
)
_KERNEL_READS = (
    f"{_DELTA_RS_READS} catalogManaged geospatial typeWidening typeWidening-preview "
    "vacuumProtocolCheck variantShredding variantShredding-preview"
)
_KERNEL_WRITES = (
    "allowColumnDefaults appendOnly changeDataFeed checkConstraints checkpointProtection "
    "clustering collations collations-preview domainMetadata generatedColumns icebergCompatV2 "
    "icebergCompatV3 icebergWriterCompatV1 icebergWriterCompatV3 identityColumns "
    "inCommitTimestamp invariants materializePartitionColumns rowTracking "
    f"{_KERNEL_READS.replace('catalogManaged ', '')}"
)

CLIENTS = (
    Client(
        "Delta Lake on Spark",
        reads={
            "columnMapping": "1.2",
            "deletionVectors": "2.3",
            "timestampNtz": "2.4",
            "v2Checkpoint": "3.0",
            "typeWidening-preview": "3.2",
            "typeWidening": "4.0",
        },
        writes={
            "appendOnly": True,
            "invariants": True,
            "checkConstraints": "0.8",
            "generatedColumns": "1.0",
            "columnMapping": "1.2",
            "changeDataFeed": "2.0",
            "deletionVectors": "2.3",
            "timestampNtz": "2.4",
            "icebergCompatV1": "3.0",
            "v2Checkpoint": "3.0",
            "domainMetadata": "3.0",
            "icebergCompatV2": "3.1",
            "clustering": "3.1",
            "rowTracking": "3.2",
            "typeWidening-preview": "3.2",
            "identityColumns": "3.3",
            "inCommitTimestamp": "3.3",
            "typeWidening": "4.0",
        },
        source="https://docs.delta.io/versioning",
    ),
    Client(
        "deltalake 1.6",
        reads=_tested(_DELTA_RS_READS),
        writes=_DELTA_RS_WRITES,
        source="tested",
    ),
    Client(
        "Polars 2.1 (writes through deltalake)",
        reads=_tested("deletionVectors timestampNtz variantType variantType-preview"),
        writes=_DELTA_RS_WRITES,
        source="tested",
    ),
    Client(
        "Java Delta Kernel 4.4",
        reads=_tested(_KERNEL_READS),
        writes=_tested(_KERNEL_WRITES),
        source="tested",
    ),
    Client(
        "Trino",
        reads=dict.fromkeys(("columnMapping", "deletionVectors", "timestampNtz"), True),
        writes=dict.fromkeys(
            (
                "appendOnly invariants checkConstraints changeDataFeed columnMapping timestampNtz"
            ).split(),
            True,
        ),
        source="https://trino.io/docs/current/connector/delta-lake.html",
    ),
    Client(
        "Amazon Athena",
        reads=dict.fromkeys(("columnMapping", "timestampNtz"), True),
        writes=None,
        source="https://docs.aws.amazon.com/athena/latest/ug/delta-lake-tables.html",
    ),
    Client(
        "DuckDB (extension delta)",
        reads={},
        writes={},
        source="https://duckdb.org/docs/stable/core_extensions/delta",
    ),
)
"""The clients, the most common first."""
