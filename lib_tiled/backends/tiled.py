"""The tiled kernel as a backend: the kernel, and word of it to whoever listens."""

from __future__ import annotations

from torch import Tensor

from .. import kernel
from . import calls


def run(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, reason: str = "", detail: str = "", **how
) -> Tensor:
    """`kernel.attend` on (..., N, D), reported as "tiled"."""
    started = calls.start(q)
    out = kernel.attend(q, k, v, mask, **how)
    calls.ran("tiled", q, k, out, reason, detail, kernel.last_tile(), started)
    return out
