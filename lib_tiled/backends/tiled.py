"""The tiled kernel as a backend: the kernel, and word of it to whoever listens."""

from __future__ import annotations

import logging

from torch import Tensor

from .. import kernel
from ..device.reasons import first_line
from . import calls


def run(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, reason: str = "", detail: str = "", **how
) -> Tensor:
    """`kernel.attend` on (..., N, D), reported as "tiled"."""
    started = calls.start(q)
    out = kernel.attend(q, k, v, mask, **how)
    calls.ran("tiled", q, k, out, reason, detail, kernel.last_tile(), started)
    return out


def failed(error: Exception, instead: str) -> tuple[str, str]:
    """Reason and detail for the line where tiled attention failed with `error` and `instead` finishes the call."""
    logging.getLogger("Tiled").debug("tiled attention failed", exc_info=error)
    return f"tiled attention failed, {instead} took over", f"{type(error).__name__}: {first_line(error)}"
