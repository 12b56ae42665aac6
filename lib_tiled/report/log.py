"""The `[Tiled]` lines: through Python's logging, one handler however often the host reloads its scripts."""

from __future__ import annotations

import logging
import sys

NAME = "Tiled"


class _Console(logging.StreamHandler):
    """Writes whole lines to the console, below a progress bar that may stand there, in what it can encode."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            stream = sys.stderr  # looked up each time: hosts replace it
            encoding = getattr(stream, "encoding", None) or "utf-8"
            text = text.encode(encoding, "replace").decode(encoding)
            tqdm = sys.modules.get("tqdm")
            if tqdm is not None and getattr(tqdm.tqdm, "_instances", None):
                tqdm.tqdm.write(text, file=stream)
            else:
                stream.write(text + "\n")
            stream.flush()
        except Exception:  # noqa: S110 - a closed console, none (pythonw), half a stand-in: it must cost no picture
            pass


def logger() -> logging.Logger:
    """The extension's logger. INFO is the line per generation.

    The host's own console handler would print each line a second time, so records do not go up to it; the host's
    log files get them. `set_level` follows --loglevel.
    """
    log = logging.getLogger(NAME)
    if not any(type(h).__name__ == _Console.__name__ for h in log.handlers):
        handler = _Console()
        handler.setFormatter(logging.Formatter("[Tiled] %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
    for handler in logging.root.handlers:
        if isinstance(handler, logging.FileHandler) and handler not in log.handlers:
            log.addHandler(handler)
    return log


def set_level(name: str | None) -> None:
    """The level named on the host's command line; without one, INFO."""
    logger().setLevel(getattr(logging, (name or "INFO").upper(), logging.INFO))
