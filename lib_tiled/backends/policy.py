"""What may be replaced by the tiled kernel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

#: Below this many scores (4 MB in fp32) math attention costs less than tiling saves: text encoders, decode steps.
SMALL_CALL_SCORES = 1 << 20


@dataclass(frozen=True)
class Policy:
    """How the backends behave while they are patched in.

    fallback: run tiled where the chosen kernel cannot run on this device.
    min_tokens: leave calls with fewer query tokens than this to the host ("minimum sequence").
    no_fused: why the device is treated as one without fused SDPA kernels although torch offers one
        (TILED_PRETEND); "" otherwise.
    """

    fallback: bool = True
    min_tokens: int = 0
    no_fused: str = ""

    def takes(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether a call that only math attention would serve is one for the tiled kernel, and worth tiling."""
        if not 2 <= q.dim() <= 5 or not q.dim() == k.dim() == v.dim() or q.shape[-2] < self.min_tokens:
            return False
        batch = q.numel() // max(q.shape[-1] * q.shape[-2], 1)
        return batch * q.shape[-2] * k.shape[-2] > SMALL_CALL_SCORES
