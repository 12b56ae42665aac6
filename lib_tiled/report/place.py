"""Where in the model an attention call came from: read off the modules on the call stack.

The stack is the one thing that every host, every model and every other extension has in common, and reading a
dozen frames costs about two microseconds. ControlNet and adapters that run inside the UNet count as unet.
"""

from __future__ import annotations

import sys

UNET, VAE, TEXT, OTHER = "unet", "vae", "text", "other"
MAX_DEPTH = 40

# Holds the functions that everybody calls, and the UNet's layer: whoever stands further out knows better.
_FUNCTIONS = "functions"

# Module names by their start, first match wins; innermost frame first.
_PLACES = (
    ("ldm_patched.ldm.modules.attention", _FUNCTIONS),
    ("ldm.modules.diffusionmodules.model", VAE),
    ("sgm.modules.diffusionmodules.model", VAE),
    ("ldm_patched.ldm.modules.diffusionmodules.model", VAE),
    ("backend.nn.vae", VAE),
    ("ldm.modules.encoders", TEXT),
    ("sgm.modules.encoders", TEXT),
    ("backend.nn.clip", TEXT),
    ("backend.nn.t5", TEXT),
    ("backend.text_processing", TEXT),
    ("ldm_patched.modules.sd1_clip", TEXT),
    ("ldm_patched.modules.clip_model", TEXT),
    ("ldm_patched.modules.text_encoders", TEXT),
    ("modules.sd_hijack_clip", TEXT),
    ("modules.sd_hijack_open_clip", TEXT),
    ("modules.models.sd3.other_impls", TEXT),
    ("ldm.modules", UNET),
    ("sgm.modules", UNET),
    ("ldm_patched.ldm", UNET),
    ("ldm_patched.controlnet", UNET),
    ("backend.nn", UNET),
    ("modules.models.sd3", UNET),
)
# Libraries that hold text encoders and image encoders alike; the class on the stack tells them apart.
_ENCODERS = ("transformers.models", "open_clip")
_cache: dict[str, str] = {}


def _place_of_module(name: str) -> str:
    place = next((p for start, p in _PLACES if name.startswith(start)), "")
    if not place and name.startswith(_ENCODERS):
        place = "encoder"
    _cache[name] = place
    return place


def place(skip: int = 1) -> str:
    """unet, vae, text or other, for the code that called the caller (`skip` frames up)."""
    frame = sys._getframe(skip)
    encoder, otherwise = False, OTHER
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        name = frame.f_globals.get("__name__", "")
        where = _cache[name] if name in _cache else _place_of_module(name)
        if not where:
            pass
        elif where == "encoder":
            encoder = True
            # Only the module that owns the layers is named after what it encodes.
            if "vision" in type(frame.f_locals.get("self")).__name__.lower():
                return OTHER
        elif where == _FUNCTIONS:
            otherwise = UNET
        else:
            return where if not encoder else (TEXT if where == TEXT else OTHER)
        frame = frame.f_back
    return TEXT if encoder else otherwise
