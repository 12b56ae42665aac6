"""A progress bar on standard error, for anything over two seconds."""

from __future__ import annotations

import shutil
import sys
import time


class Progress:
    """Counts steps up to `total`; shows itself after two seconds, on a terminal only.

    with Progress(3) as progress:
        progress("reading")   # before each step
    """

    def __init__(self, total: int, stream=None):
        self.total = max(total, 1)
        self.done = -1
        self.stream = sys.stderr if stream is None else stream
        self.started = time.monotonic()
        self._width = 0

    def __call__(self, what: str) -> None:
        self.done += 1
        self._show(min(self.done / self.total, 1.0), what)

    def share(self, share: float, what: str) -> None:
        """The same where the caller counts: `share` from 0 to 1."""
        self._show(share, what)

    def _show(self, share: float, what: str) -> None:
        if not self.stream.isatty() or time.monotonic() - self.started < 2:
            return
        columns = shutil.get_terminal_size().columns - 1
        bar = "#" * int(share * 20)
        text = f"[{bar:<20}] {share:4.0%} {what}"[:columns]
        self.stream.write("\r" + text.ljust(self._width))
        self.stream.flush()
        self._width = len(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error) -> None:
        if self._width:
            self.stream.write("\r" + " " * self._width + "\r")
            self.stream.flush()
