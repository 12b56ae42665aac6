"""The tiled attention kernel. Imports torch alone."""

from .attention import attend, autocast, forget_reductions, last_tile, tiled_attention
from .memory import TiledOutOfMemoryError, is_out_of_memory

__all__ = [
    "TiledOutOfMemoryError",
    "attend",
    "autocast",
    "forget_reductions",
    "is_out_of_memory",
    "last_tile",
    "tiled_attention",
]
