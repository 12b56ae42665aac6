"""Threads that each run torch on one thread, for a CPU.

torch splits each operation among its threads, which meet after it. Here five short operations make a tile, and from
any thread but a process's first, where WebUIs draw, each meeting costs about 60 us: libgomp lets the waiting sleep as
soon as there are more threads than cores. So each thread of this pool takes heads or rows of its own and meets nobody,
as inside a fused kernel.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

START_SECONDS = 30


class Closed(Exception):
    """No threads can be had: Python is about to end, or the system gives no more."""


class Workers:
    """`count` threads, started once and kept. Raises Closed."""

    def __init__(self, count: int):
        threads = torch.get_num_threads()
        started = threading.Barrier(count + 1)

        def begin():
            torch.get_num_threads()  # torch sets a thread up at its first call, and would undo the next line later
            torch.set_num_threads(1)
            with contextlib.suppress(threading.BrokenBarrierError):
                started.wait(START_SECONDS)

        self._count = count
        self._pool = ThreadPoolExecutor(count, "tiled-attention", begin)
        try:
            if len(self._submit(int)) < count:
                started.abort()
                raise Closed
            started.wait(START_SECONDS)
        finally:
            # The number is each thread's own, but threads that torch meets later begin with the last one set.
            torch.set_num_threads(threads)

    def _submit(self, job: Callable[[], object]) -> list:
        """`job` handed to every thread, or to as many as still take it."""
        futures = []
        try:
            for _ in range(self._count):
                futures.append(self._pool.submit(job))
        except RuntimeError:  # the main thread has ended, others go on
            pass
        return futures

    def run(self, job: Callable[[], object]) -> list:
        """Run `job` in every thread at once, without gradients; their results, or the first error after all ended.

        Raises Closed where no thread takes it.
        """
        inference = torch.is_inference_mode_enabled()  # a thread's own as well

        def guarded():
            with torch.inference_mode(inference), torch.no_grad():
                return job()

        futures = self._submit(guarded)
        if not futures:
            raise Closed
        wait(futures)  # all write to the same result
        return [future.result() for future in futures]

    def share(self, new: Callable[[], object], take: Callable, pieces: Iterable) -> list:
        """Each thread makes one object by `new()` and calls `take(object, piece)` until no piece is left: the objects.

        After an error, and after Ctrl-C, the remaining pieces are left. Raises Closed before the first piece.
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

        try:
            return self.run(job)
        except BaseException:
            left.clear()
            raise


_kept: dict[int, Workers | None] = {}  # None: could not be had
_lock = threading.Lock()


def workers(count: int) -> Workers:
    """The one pool of `count` threads. Raises Closed."""
    with _lock:
        if count not in _kept:
            _kept[count] = None
            _kept[count] = Workers(count)
    if _kept[count] is None:
        raise Closed
    return _kept[count]


def _forget() -> None:
    """A forked process has none of the threads, and perhaps a lock that nobody will open."""
    global _lock
    _kept.clear()
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
