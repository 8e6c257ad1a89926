"""Decodes the next batch in a thread while the current one is encoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from queue import Full, Queue
from typing import TypeVar

_T = TypeVar("_T")

_POLL_S = 0.05


class _End:
    """Says that there are no more items, and why."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def prefetch(
    items: Iterable[_T], depth: int = 1, *, is_large: Callable[[_T], bool] | None = None
) -> Iterator[_T]:
    """Go through `items` in another thread, a few ahead of the consumer, in order.

    What goes wrong there is raised here, in its place. A caller that stops early stops the thread,
    before this returns: nothing is read behind its back.

    Memory: `depth` items, one that is being made, and one that was taken.

    >>> list(prefetch(n * n for n in range(4)))
    [0, 1, 4, 9]
    """
    iterator = iter(items)
    if is_large is not None and (yield from _until_large(iterator, is_large)):
        return
    yield from _in_thread(iterator, depth)


def _until_large(
    iterator: Iterator[_T], is_large: Callable[[_T], bool]
) -> Generator[_T, None, bool]:
    """The items up to the first large one; True if there are no more."""
    try:
        for item in iterator:
            yield item
            if is_large(item):
                return False
    except GeneratorExit:
        _close(iterator)
        raise
    return True


def _close(iterator: Iterator[_T]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _in_thread(iterator: Iterator[_T], depth: int) -> Iterator[_T]:
    waiting: Queue[_T | _End] = Queue(depth)
    stopped = threading.Event()

    def offer(item: _T | _End) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=_POLL_S)
            except Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            for item in iterator:
                if not offer(item):
                    return
            offer(_End())
        except BaseException as error:  # noqa: BLE001 - raised where the items are taken
            offer(_End(error))
        finally:
            _close(iterator)

    thread = threading.Thread(target=run, name="lakelog-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        stopped.set()
        thread.join()
