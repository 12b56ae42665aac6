"""AUTOMATIC1111: an SdOptimization beside the host's own, and the forward functions that it installs.

Attention runs through `CrossAttention.forward` and `AttnBlock.forward` of both `ldm` and `sgm`; the host's
optimizations replace these four, and so does ours. For the line per generation they are wrapped once more while
it lasts, so that functions which end in no kernel we know (Doggettx, InvokeAI ...) are counted as well.
"""

from __future__ import annotations

import contextlib
import functools

import ldm.modules.attention
import ldm.modules.diffusionmodules.model
import sgm.modules.attention
import sgm.modules.diffusionmodules.model
from modules import devices, sd_hijack, sd_hijack_optimizations, shared
from modules.hypernetworks import hypernetwork

from ..backends import calls, choose
from ..backends.patches import Patch, Patches, behind_ours, patch_of
from ..backends.policy import Policy
from ..device.probe import probe
from . import a1111_layers as layers
from .a1111_layers import tiled_attention_forward, tiled_attnblock_forward
from .base import AUTOMATIC, TITLE, Chosen, Host

CROSS_ATTENTION = (ldm.modules.attention.CrossAttention, sgm.modules.attention.CrossAttention)
_VAE = (ldm.modules.diffusionmodules.model, sgm.modules.diffusionmodules.model)
ATTN_BLOCK = tuple(module.AttnBlock for module in _VAE)
# With --xformers the VAE is built of these instead, which no optimization of the host's reaches.
XFORMERS_BLOCK = tuple(filter(None, (getattr(module, "MemoryEfficientAttnBlock", None) for module in _VAE)))

# The host's functions that run their own arithmetic, by what its dropdown calls them.
_NAMES = {
    "split_cross_attention_forward": "Doggettx",
    "cross_attention_attnblock_forward": "Doggettx",
    "split_cross_attention_forward_v1": "V1",
    "split_cross_attention_forward_invokeAI": "InvokeAI",
    "sub_quad_attention_forward": "sub-quadratic",
    "sub_quad_attnblock_forward": "sub-quadratic",
    "attention_CrossAttention_forward": "basic",
    "forward": "basic",
}


def _without() -> tuple[str, ...]:
    """Kernels that the host was started without: it imports xformers for --xformers alone."""
    return () if getattr(shared, "xformers_available", False) else ("xformers",)


def _flag() -> bool:
    """Whether --opt-tiled-attention was given."""
    return getattr(shared.cmd_opts, SdOptimizationTiled.cmd_opt, False)


class SdOptimizationTiled(sd_hijack_optimizations.SdOptimization):
    """The entry of the dropdown. `undo` is the host's own: it puts back the host's four functions."""

    name = TITLE
    cmd_opt = "opt_tiled_attention"

    def is_available(self) -> bool:
        return True

    @property
    def priority(self) -> int:
        return choose.priority(probe(devices.device), _without(), forced=_flag())

    def apply(self) -> None:
        for cls in CROSS_ATTENTION:
            cls.forward = tiled_attention_forward
        for cls in ATTN_BLOCK:
            cls.forward = tiled_attnblock_forward


def _is_known(function) -> bool:
    """Whether this is a forward of the host's or ours, not somebody's wrapper, which may end here again."""
    known = (*vars(sd_hijack_optimizations).values(), hypernetwork.attention_CrossAttention_forward)
    ours = (tiled_attention_forward, tiled_attnblock_forward)
    return any(function is one for one in (*known, *ours))


def _counted(patch: Patch):
    """The class's forward, and word of it where no kernel spoke for itself."""

    @functools.wraps(patch.original)
    def forward(self, *args, **kwargs):
        function = patch.original
        if not patch.active or vars(patch.owner)["forward"] is not patch.replacement:
            # HyperTile keeps what it finds on first use, for good. It keeps this one, so look up what holds now.
            now = behind_ours(vars(patch.owner)["forward"])
            function = now if _is_known(now) else function
        name = calls.name_of(function)
        with calls.named(_NAMES.get(name, name)):
            return function(self, *args, **kwargs)

    return forward


def _count(patches: Patches) -> None:
    """Wrap the forward functions that hold now, where they are not wrapped."""
    for cls in (*CROSS_ATTENTION, *ATTN_BLOCK):
        if patch_of(vars(cls)["forward"]) is None:
            patches.replace(cls, "forward", _counted)


def _counts_again(patch: Patch, patches: Patches):
    """sd_hijack.apply_optimizations, which puts functions in place: for a refiner in the middle of a generation too."""

    @functools.wraps(patch.original)
    def apply_optimizations(*args, **kwargs):
        applied = patch.original(*args, **kwargs)
        if patch.active:
            _count(patches)
        return applied

    return apply_optimizations


def _tiled_if_chosen(patch: Patch):
    """The xformers block's forward, ours while "Tiled (no-flash)" holds."""

    @functools.wraps(patch.original)
    def forward(self, x, *args, **kwargs):
        if patch.active and _running() == TITLE:
            return tiled_attnblock_forward(self, x)
        return patch.original(self, x, *args, **kwargs)

    return forward


def _running() -> str:
    """The title of the optimization that is applied."""
    current = sd_hijack.current_optimizer
    return current.title() if current else "None"


class A1111(Host):
    name = "AUTOMATIC1111"

    def optimizer(self) -> SdOptimizationTiled:
        return SdOptimizationTiled()

    def install(self, patches: Patches) -> None:
        _count(patches)
        patches.replace(sd_hijack, "apply_optimizations", lambda patch: _counts_again(patch, patches))
        for cls in XFORMERS_BLOCK:
            patches.replace(cls, "forward", _tiled_if_chosen)

    @contextlib.contextmanager
    def choose(self, option: str, overridden: bool, policy: Policy, lasting: bool = False):
        before_policy, layers.policy = layers.policy, policy
        before = _running()
        titles = (AUTOMATIC, "None", *(o.title() for o in sd_hijack.optimizers))
        # The host itself ignores the option in `override_settings`.
        switch = overridden and option in titles and option != before
        if switch:
            sd_hijack.model_hijack.apply_optimizations(option)
        try:
            yield self._chosen(option, option in titles)
        finally:
            layers.policy = before_policy
            if switch and not lasting:
                sd_hijack.model_hijack.apply_optimizations(before)

    def _chosen(self, option: str, offered: bool) -> Chosen:
        running = _running()
        if running == option:
            return Chosen(option, option)
        text, reason = f"{option} -> {'Tiled' if running == TITLE else running}", ""
        if not offered:
            reason = self._why_not_offered(option)
        elif option != AUTOMATIC:
            reason = "the option was changed but not applied yet"
        elif running == TITLE:
            reason = choose.FLAG if _flag() else probe(devices.device).summary()
        return Chosen(option, text, reason)

    def _why_not_offered(self, option: str) -> str:
        if choose.backend_of(option) != "xformers":
            return f"{option} is not an optimization of this WebUI"
        return f"xformers is not offered here: {probe(devices.device).why_not('xformers') or 'started without it'}"

    def advice(self) -> str | None:
        if sd_hijack.current_optimizer is None or shared.opts.cross_attention_optimization != AUTOMATIC:
            return None
        return choose.advice(_running(), probe(devices.device), self.name, _without())
