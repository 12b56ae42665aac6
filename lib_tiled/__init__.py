"""Tiled (no-flash): exact attention in O(N) memory for GPUs that no fused attention supports."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("lib_tiled needs PyTorch: run it with the Python of your WebUI, in its venv") from None

from .backends.sdpa import patch_sdpa, scaled_dot_product_attention
from .device.probe import probe
from .kernel import TiledOutOfMemoryError, tiled_attention

__version__ = "0.1.0"
__all__ = [
    "TiledOutOfMemoryError",
    "patch_sdpa",
    "probe",
    "scaled_dot_product_attention",
    "tiled_attention",
]
