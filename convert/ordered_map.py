"""A function over many items in several threads, results in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], n_threads: int
) -> Generator[Result, None, None]:
    """function(item) of every item. At most 2 n_threads results wait for being taken.

    Raises what the function raises, in place of its result; later items may have been begun.
    """
    pool = ThreadPoolExecutor(n_threads)
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            if len(pending) == 2 * n_threads:
                yield pending.popleft().result()
            pending.append(pool.submit(function, item))
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
