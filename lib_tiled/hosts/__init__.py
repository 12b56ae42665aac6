"""One adapter per host behind one interface; the host is found out by what it offers, never by its name."""

from __future__ import annotations

import importlib
import importlib.util

from .base import Host


def _offers(module: str, attribute: str) -> bool:
    try:
        if importlib.util.find_spec(module) is None:
            return False
    except ImportError:  # a parent package is missing
        return False
    return hasattr(importlib.import_module(module), attribute)


def detect() -> Host | None:
    """The adapter for the WebUI this runs in, None where it has nothing that an adapter knows.

    Raises what the host's modules raise on import; the caller says so and leaves the host alone.
    """
    if _offers("backend.attention", "attention_function"):
        from .forge import Forge

        return Forge()
    if _offers("ldm_patched.ldm.modules.attention", "optimized_attention"):
        from .reforge import ReForge

        return ReForge()
    if _offers("modules.sd_hijack_optimizations", "SdOptimization"):
        from .a1111 import A1111

        return A1111()
    return None
