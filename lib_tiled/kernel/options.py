"""Settings of the kernel. One object per process; the WebUI's settings page and the tests write to it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

PRECISIONS = ("auto", "fast", "safe")


@dataclass(frozen=True)
class KernelOptions:
    """How the kernel computes.

    precision: "auto" computes in the input's dtype where the device multiplies it natively, else in fp32;
        "fast" always in the input's dtype; "safe" keeps scores and softmax in fp32.
    scratch_mb: upper limit in MiB for a score tile, None for the device's own.
    rows: rows per score tile, None for the planner's choice.
    """

    precision: str = "auto"
    scratch_mb: int | None = None
    rows: int | None = None

    def __post_init__(self):
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision!r}")
        for name in ("scratch_mb", "rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")


_current = KernelOptions()


def current() -> KernelOptions:
    return _current


def configure(**changes) -> KernelOptions:
    """Change settings for this process; returns the earlier ones. ValueError names a value that does not fit."""
    global _current
    before, _current = _current, replace(_current, **changes)
    return before


@contextlib.contextmanager
def using(**changes):
    """`configure` for a block."""
    global _current
    before = configure(**changes)
    try:
        yield _current
    finally:
        _current = before
