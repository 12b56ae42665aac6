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
        except (OSError, ValueError):  # a closed console must not cost the picture
            self.handleError(record)


def logger() -> logging.Logger:
    """The extension's logger. INFO is the line per generation; it shows whatever the host's root level is."""
    log = logging.getLogger(NAME)
    if not any(type(h).__name__ == _Console.__name__ for h in log.handlers):
        handler = _Console()
        handler.setFormatter(logging.Formatter("[Tiled] %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = True
    return log
