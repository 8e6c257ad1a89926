"""The workloads of the write-ahead log and the keyed store, their contenders and targets."""

from __future__ import annotations

from perf.writing.workloads import Ratio, Times, WriteWorkload

PACKAGE = "perf.wal"
CHECKER = "perf.wal.check"
_HISTORIC = ("002", "003-crc", "003")
_SQLITE = ("sqlite", "sqlite_one_connection")

WAL_WORKLOADS = (
    WriteWorkload(
        "wal_replay_1m_records",
        dict.fromkeys(
            (
                *("lakelog", "lakelog_single_appends"),
                *(
                    f"{contender}_{kind}"
                    for kind in _HISTORIC
                    for contender in ("lakelog", "plain")
                ),
            )
        ),
        size=1_000_000,
        least=1_000,
        comparisons=(
            Ratio("plain decode of 002, batches", "seconds", ("lakelog",), ("plain_002",), 20),
            Ratio(
                "plain decode of 002, single appends",
                "seconds",
                ("lakelog_single_appends",),
                ("plain_002",),
                20,
            ),
            *(
                Ratio(f"{kind} itself", "seconds", (f"lakelog_{kind}",), (f"plain_{kind}",), 5)
                for kind in _HISTORIC
            ),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "wal_durable_appends_8_threads",
        dict.fromkeys(("lakelog", *_SQLITE)),
        size=4_000,
        least=64,
        comparisons=(
            Ratio("SQLite, WAL, FULL", "seconds", ("lakelog",), ("sqlite",), 3),
            Ratio("one connection of its", "seconds", ("lakelog",), ("sqlite_one_connection",), 3),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "wal_append_table_1m_records",
        dict.fromkeys(("lakelog", "bytes")),
        size=1_000_000,
        least=1_000,
        comparisons=(Times("of the bytes and one fsync", "seconds", "lakelog", "bytes", 2),),
        package=PACKAGE,
        checker=CHECKER,
        one_commit=True,
    ),
    WriteWorkload(
        "keyed_open_1m_keys_in_the_log",
        dict.fromkeys(("lakelog", "lakelog_log")),
        size=1_000_000,
        least=1_000,
        comparisons=(
            Times("of opening and replaying the log", "seconds", "lakelog", "lakelog_log", 1.5),
            Times("with the first get", "first_s", "lakelog", "lakelog_log"),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
)
"""The workloads in order of measurement. ``plain`` decodes record by record, as the programs of the
specifications did. ``sqlite`` has one connection per thread, ``sqlite_one_connection`` one for all
threads, with a lock.
"""
