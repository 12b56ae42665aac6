"""Threads that each run torch on one thread, for a CPU.

torch splits each operation among its threads, which meet after it. Here five short operations make a tile, and from
any thread but a process's first, where WebUIs draw, each meeting costs about 60 us: libgomp lets the waiting sleep as
soon as there are more threads than cores. So each thread of this pool takes heads or rows of its own and meets nobody,
as inside a fused kernel.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

START_SECONDS = 30


class Workers:
    """`count` threads, started once and kept."""

    def __init__(self, count: int):
        threads = torch.get_num_threads()
        started = threading.Barrier(count + 1)

        def begin():
            torch.get_num_threads()  # torch sets a thread up at its first call, and would undo the next line later
            torch.set_num_threads(1)
            started.wait(START_SECONDS)

        self._count = count
        self._pool = ThreadPoolExecutor(count, "tiled-attention", begin)
        for _ in range(count):
            self._pool.submit(int)
        started.wait(START_SECONDS)
        # The number is each thread's own, but threads that torch meets later begin with the last one set.
        torch.set_num_threads(threads)

    def run(self, job: Callable[[], object]) -> list:
        """Run `job` in every thread at once, without gradients; their results, or the first error after all ended."""
        inference = torch.is_inference_mode_enabled()  # a thread's own as well

        def guarded():
            with torch.inference_mode(inference), torch.no_grad():
                return job()

        futures = [self._pool.submit(guarded) for _ in range(self._count)]
        wait(futures)  # all write to the same result
        return [future.result() for future in futures]

    def share(self, new: Callable[[], object], take: Callable, pieces: Iterable) -> list:
        """Each thread makes one object by `new()` and calls `take(object, piece)` until no piece is left: the objects.

        After an error the remaining pieces are left.
        """
        left = collections.deque(pieces)

        def job():
            own = new()
            while True:
                try:
                    piece = left.popleft()
                except IndexError:
                    return own
                try:
                    take(own, piece)
                except BaseException:
                    left.clear()
                    raise

        return self.run(job)


workers = functools.lru_cache(maxsize=None)(Workers)
