"""Tiled (no-flash): exact attention in O(N) memory for GPUs that no fused attention supports."""

from .kernel import TiledOutOfMemoryError, tiled_attention

__version__ = "0.1.0"
