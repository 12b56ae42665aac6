"""Forge and Forge-Neo: the functions of `backend.attention`."""

from __future__ import annotations

from backend import attention, memory_management
from backend.modules.k_model import KModel

from .call_forms import heads_family, spatial_family
from .functions import SPATIAL_NAMES, FunctionsHost

_HEADS = {
    "xformers": "attention_xformers",
    "sdp": "attention_pytorch",
    "sub-quadratic": "attention_sub_quad",
    "split": "attention_split",
    "basic": "attention_basic",
}
# The VAE has one function without a kernel; the host calls it split. Last, so that it is counted under that name.
_SPATIAL = {"xformers": "xformers", "sdp": "pytorch", "sub-quadratic": "normal", "basic": "normal", "split": "normal"}
_SPATIAL_SUFFIXES = ("_attention_single_head_spatial", "_attention_vae")  # Neo has the latter


def _heads():
    functions = vars(attention)
    known = [f for n, f in functions.items() if n.startswith("attention_") and n not in SPATIAL_NAMES and callable(f)]
    by_title = {title: functions[name] for title, name in _HEADS.items() if name in functions}
    return heads_family(by_title, tuple(known), attention.attention_pytorch, memory_management)


def _spatial():
    functions = vars(attention)
    suffix = next(s for s in _SPATIAL_SUFFIXES if f"pytorch{s}" in functions)
    by_title = {title: functions[kind + suffix] for title, kind in _SPATIAL.items() if kind + suffix in functions}
    return spatial_family(by_title, tuple({id(f): f for f in by_title.values()}.values()))


class Forge(FunctionsHost):
    name = "Forge"

    def __init__(self):
        super().__init__(attention, memory_management, _heads(), _spatial())

    def model_class(self) -> type:
        return KModel
