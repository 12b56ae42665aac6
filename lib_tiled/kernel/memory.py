"""Running out of memory: how it looks on each device, and what to tell the user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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


class Shrinking:
    """A tile that halves each time memory runs out, within one attention call."""

    def __init__(self, tile: Tile):
        self.tile = tile
        self.halvings = 0
        self._emptied_cache = False

    @contextlib.contextmanager
    def attempt(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> Iterator[None]:
        """Ends a block that runs out of memory quietly, with `tile` halved; other errors pass.

        Raises TiledOutOfMemoryError at the smallest tile. The device's cache is emptied once, at the start of the
        next attempt: until then the error's traceback holds the tensors of the failed one.
        """
        if self.halvings and not self._emptied_cache:
            self._emptied_cache = True
            empty_cache(q.device)
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            smaller = self.tile.halved()
            if smaller is None:
                raise too_large(q, k, self.tile, dtype) from error
            self.tile = smaller
            self.halvings += 1
