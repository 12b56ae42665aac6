"""reForge and Forge-Classic: the functions of `ldm_patched`, and the VAE's, which its layers keep for good."""

from __future__ import annotations

import functools
import inspect

from ldm_patched.ldm.modules import attention
from ldm_patched.ldm.modules.diffusionmodules import model as vae
from ldm_patched.modules import model_management
from ldm_patched.modules.model_base import BaseModel

from ..backends.patches import Patch, Patches
from .call_forms import heads_family, spatial_family
from .functions import FunctionsHost
from .names import modules

_HEADS = {
    "xformers": "attention_xformers",
    "sdp": "attention_pytorch",
    "sub-quadratic": "attention_sub_quad",
    "split": "attention_split",
    "basic": "attention_basic",
}
# The VAE has one function without a kernel; the host calls it split. Last, so that it is counted under that name.
_SPATIAL = {
    "xformers": "xformers_attention",
    "sdp": "pytorch_attention",
    "sub-quadratic": "normal_attention",
    "basic": "normal_attention",
    "split": "normal_attention",
}
_FOR_DEVICE = "optimized_attention_for_device"
_KEPT = "optimized_attention"  # the attribute under which VAE layers keep their function


def _pick(module, names: dict) -> dict:
    return {title: vars(module)[name] for title, name in names.items() if name in vars(module)}


def _heads():
    known = [f for name, f in vars(attention).items() if name.startswith("attention_") and callable(f)]
    return heads_family(_pick(attention, _HEADS), tuple(known), attention.attention_pytorch, model_management)


def _spatial():
    by_title = _pick(vae, _SPATIAL)
    if getattr(model_management, "is_amd", lambda: False)():
        del by_title["sdp"]  # the host keeps SDPA away from the VAE there, for crashes at large pictures
    return spatial_family(by_title, tuple({id(f): f for f in by_title.values()}.values()))


def _keeps_function(cls: type) -> bool:
    """Whether this VAE layer's forward calls the function that the layer keeps."""
    forward = inspect.unwrap(vars(cls).get("forward", len))
    return _KEPT in getattr(getattr(forward, "__code__", None), "co_names", ())


class ReForge(FunctionsHost):
    name = "reForge"

    def __init__(self):
        super().__init__(attention, model_management, _heads(), _spatial())

    def model_class(self) -> type:
        return BaseModel

    def install(self, patches: Patches) -> None:
        super().install(patches)
        ask, choose_vae = vars(attention).get(_FOR_DEVICE), vars(vae).get("vae_attention")
        for module in modules():
            if ask is not None and vars(module).get(_FOR_DEVICE) is ask:
                stand_in = self.remember(ask, _FOR_DEVICE, lambda: self._for_device(ask))
                patches.replace(module, _FOR_DEVICE, lambda _, stand_in=stand_in: stand_in)
            if module is vae or (choose_vae is not None and vars(module).get("vae_attention") is choose_vae):
                for cls in list(vars(module).values()):
                    if isinstance(cls, type) and cls.__module__ == module.__name__ and _keeps_function(cls):
                        patches.replace(cls, "forward", self._with_stand_in)

    def _for_device(self, ask):
        """Text and image encoders ask for a function at each call. Small inputs keep theirs, unless Tiled is chosen."""

        @functools.wraps(ask)
        def optimized_attention_for_device(*args, **kwargs):
            function = ask(*args, **kwargs)
            return self.stand_in(self.heads, function, follows=False) if self.heads.knows(function) else function

        return optimized_attention_for_device

    def _with_stand_in(self, patch: Patch):
        """A VAE layer's forward, for the time of which the layer keeps the stand-in of its function."""

        @functools.wraps(patch.original)
        def forward(layer, *args, **kwargs):
            own = vars(layer).get(_KEPT)
            # Whoever keeps this forward for good (HyperTile does) goes on reaching what is chosen then.
            if not self.busy or not self.spatial.knows(own):
                return patch.original(layer, *args, **kwargs)
            setattr(layer, _KEPT, self.stand_in(self.spatial, own))
            try:
                return patch.original(layer, *args, **kwargs)
            finally:
                setattr(layer, _KEPT, own)

        return forward
