"""Another process that uses a log: ``concurrent_process.py MODE directory``, with one of these
modes.

``hold`` opens the log, forks a child, prints once that runs, and keeps the log open until its
standard input ends, as does the child. ``churn`` writes, rotates and truncates until then, and
prints the last record that it wrote. ``read`` reads the log repeatedly until then, and prints the
number of reads; any error or gap ends it.
"""

from __future__ import annotations

import os
import random
import sys
import threading

from lakelog.wal.log import WriteAheadLog


def stdin_closed() -> threading.Event:
    """Set once standard input ends."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def print_line(*words: object) -> None:
    print(*words, flush=True)


def hold(directory: str) -> None:
    with WriteAheadLog(directory, sync="none") as log:
        readable, writable = os.pipe()
        if os.fork() == 0:
            os.write(writable, b"!")  # the child runs, and can close what it inherited
            sys.stdin.read()
            log.close()  # a no-op in a process that does not own the log
            os._exit(0)
        os.read(readable, 1)
        print_line("open", log.current_seq_num())
        stdin_closed().wait()


def churn(directory: str) -> None:
    """Segments of a few records; the older ones are removed."""
    ended = stdin_closed()
    rng = random.Random(1)
    with WriteAheadLog(directory, sync="none", segment_bytes=1200, frame_bytes=500) as log:
        print_line("open", log.current_seq_num())
        while not ended.is_set():
            if rng.random() < 0.5:
                log.append("PUT", f"{log.current_seq_num() + 1}", rng.randbytes(100))
            else:
                first = log.current_seq_num() + 1
                log.append_batch([("PUT", f"{first + n}", rng.randbytes(90)) for n in range(9)])
            if rng.random() < 0.1:
                log.truncate(log.current_seq_num() - rng.choice([0, 20, 100, 100]))
        print_line("wrote", log.current_seq_num())


def read(directory: str) -> None:
    """Each read has no gap, and starts at or after the end of the one before."""
    ended = stdin_closed()
    rounds = last = 0
    with WriteAheadLog(directory, read_only=True) as log:
        print_line("open", log.current_seq_num())
        is_last = False
        while not is_last:
            is_last = ended.is_set()
            records = [(record.seq_num, record.op_type, record.key) for record in log.records()]
            if records:
                first = records[0][0]
                assert [seq for seq, *_ in records] == list(range(first, first + len(records)))
                assert all(key == b"%d" % seq for seq, op, key in records if op == "PUT")
                assert records[-1][0] >= last, "records at the end are missing"
                last = records[-1][0]
            # Later records: nothing is missing except concurrently truncated records.
            since = log.replay(last)["seqNum"].to_pylist()
            assert since == sorted(set(since))
            assert all(seq > last for seq in since)
            assert log.current_seq_num() >= max([last, *since])
            assert log.recovery is None
            rounds += 1
        print_line("read", rounds, log.current_seq_num())


if __name__ == "__main__":
    {"hold": hold, "churn": churn, "read": read}[sys.argv[1]](sys.argv[2])
