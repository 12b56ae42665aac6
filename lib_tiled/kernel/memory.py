"""Running out of memory: how it looks on each device, and what to tell the user."""

from __future__ import annotations

import torch
from torch import Tensor

from .plan import Tile

_TYPES = tuple(
    t for t in (getattr(torch, "OutOfMemoryError", None), getattr(torch.cuda, "OutOfMemoryError", None)) if t
)
# CPU, MPS, HIP, DirectML and driver libraries raise a plain RuntimeError.
_WORDS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "hiperroroutofmemory",
    "cublas_status_alloc_failed",
    "hipblas_status_alloc_failed",
    "could not allocate",
)


class TiledOutOfMemoryError(RuntimeError):
    """Not even the smallest score tile fits into memory."""


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, *_TYPES)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)


def empty_cache(device: torch.device) -> None:
    """Give cached blocks back to the driver, where the device has such a cache."""
    backend = getattr(torch, device.type, None)
    if hasattr(backend, "empty_cache"):
        backend.empty_cache()


def free_memory(device: torch.device) -> str:
    """Free memory of `device` in words; for messages only, never for decisions."""
    if device.type == "cuda":
        try:
            return f"{torch.cuda.mem_get_info(device)[0] / 2**20:.0f} MiB free"
        except RuntimeError:
            pass
    return "free memory unknown"


def too_large(q: Tensor, k: Tensor, tile: Tile, dtype: torch.dtype) -> TiledOutOfMemoryError:
    return TiledOutOfMemoryError(
        f"out of memory in tiled attention of q {tuple(q.shape)}, k {tuple(k.shape)}, {q.dtype} on {q.device}, "
        f"at the smallest tile {tile} in {dtype} ({free_memory(q.device)}). "
        "Free memory by unloading other models or use a smaller picture."
    )
