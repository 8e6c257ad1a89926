"""The records and the state of a recovered log, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from lakelog.wal.decode import SCHEMA, pieces, table
from lakelog.wal.payload import mask_of
from lakelog.wal.recovery import Verdict
from lakelog.wal.segments import Segment
from lakelog.wal.threads import are_small, of_segments, parts_of

STATE_SCHEMA = pa.schema([SCHEMA.field("key"), SCHEMA.field("value"), SCHEMA.field("seqNum")])
"""Of `state_of`."""

_PUT_INDEX = 0  # of PUT among the names of the operations


def tables_of(
    verdict: Verdict, after_seq: int = 0, *, controls: bool = False
) -> Iterator[pa.Table]:
    """A log's records, a segment at a time."""
    after_seq = max(after_seq, verdict.truncated_to)
    for each in verdict.live:
        found = _table_of_one(each, after_seq, controls=controls)
        if found.num_rows:
            yield found


def table_of(verdict: Verdict, after_seq: int = 0) -> pa.Table:
    """A log's PUT and DELETE records as one table."""
    after_seq = max(after_seq, verdict.truncated_to)
    decode = partial(_table_of_one, after_seq=after_seq)
    if are_small(verdict.live):
        found = of_segments(decode, [part for each in verdict.live for part in parts_of(each)])
    else:
        found = list(map(decode, verdict.live))
    return pa.concat_tables([pa.Table.from_batches([], SCHEMA), *found])


def _table_of_one(segment: Segment, after_seq: int, *, controls: bool = False) -> pa.Table:
    found = pieces(segment.data, segment.frames, segment.path, after_seq, controls=controls)
    return table(list(found))


def state_of(records: pa.Table) -> pa.Table:
    """What PUT and DELETE records add up to: the last value of each key that was not deleted."""
    import polars as pl  # only here, since a log that is only written does without it

    from lakelog.model.reconcile import last_wins

    keys = pl.DataFrame({"key": pl.from_arrow(records["key"])}).with_row_index("row")
    last = last_wins(keys, ["key"])["row"].to_numpy()
    indices = (chunk.indices for chunk in records["op"].chunks)
    parts = (np.frombuffer(i.buffers()[1], np.int8)[i.offset :][: len(i)] for i in indices)
    codes = np.concatenate([np.empty(0, np.int8), *parts])
    kept = np.zeros(len(codes), dtype=bool)
    kept[last] = True
    kept &= codes == _PUT_INDEX
    rows = records if kept.all() else records.filter(mask_of(kept))
    return rows.select(STATE_SCHEMA.names).cast(STATE_SCHEMA)
