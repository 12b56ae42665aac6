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
import torch
from modules import devices, sd_hijack, sd_hijack_optimizations, shared
from modules.hypernetworks import hypernetwork
from torch import Tensor
from torch.nn import functional

from .. import kernel
from ..backends import calls, choose, tiled
from ..backends.patches import Patch, Patches, patch_of
from ..backends.policy import Policy
from ..device.probe import probe
from ..report.log import logger
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


_policy = Policy()  # as the settings stood when the running generation began


def _without() -> tuple[str, ...]:
    """Kernels that the host was started without: it imports xformers for --xformers alone."""
    return () if getattr(shared, "xformers_available", False) else ("xformers",)


def _heads_first(t: Tensor, heads: int) -> Tensor:
    """(B, N, H*D) -> (B, H, N, D), a view."""
    return t.unflatten(-1, (heads, -1)).transpose(1, 2)


def _mask_4d(mask: Tensor, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """A mask as other extensions hand it over, broadcastable to (B, H, Nq, Nk).

    Two dimensions are one key mask per picture, as in ldm, if they can be, else (Nq, Nk); three are
    (B, Nq, Nk) or (B*H, Nq, Nk).
    """
    if mask.dim() == 2:
        per_picture = mask.shape == (batch, keys) and (mask.dtype == torch.bool or batch != queries)
        return mask[:, None, None, :] if per_picture else mask[None, None]
    if mask.dim() == 3:
        return mask.unflatten(0, (batch, heads)) if mask.shape[0] == batch * heads and heads > 1 else mask[:, None]
    return mask


def _upcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.float() for t in tensors) if shared.opts.upcast_attn else tensors


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    dtype = q.dtype
    q, k, v = _upcast(q, k, v)
    with devices.without_autocast(disable=not shared.opts.upcast_attn):
        if q.shape[-2] < _policy.min_tokens and hasattr(functional, "scaled_dot_product_attention"):
            return functional.scaled_dot_product_attention(q, k, v, mask).to(dtype)
        return tiled.run(q, k, v, mask).to(dtype)


def _or_the_hosts(fallback):
    """If our code fails, the host's own attention finishes the picture and the log says so."""

    def decorate(forward):
        @functools.wraps(forward)
        def guarded(self, x, *args, **kwargs):
            try:
                return forward(self, x, *args, **kwargs)
            except kernel.TiledOutOfMemoryError:
                raise  # the host's own would need more
            except Exception as error:
                reason = f"tiled attention failed ({type(error).__name__}: {error}); Doggettx took over"
                logger().debug(reason, exc_info=True)
                out = fallback(self, x, *args, **kwargs)
                calls.ran("Doggettx", reason=reason)
                return out

        return guarded

    return decorate


@_or_the_hosts(sd_hijack_optimizations.split_cross_attention_forward)
def tiled_attention_forward(self, x, context=None, mask=None, **kwargs):
    """CrossAttention.forward: x (B, N, C), context (B, M, C') or None. Extra arguments are ignored as the host does."""
    context = x if context is None else context
    context_k, context_v = hypernetwork.apply_hypernetworks(shared.loaded_hypernetworks, context)
    h = self.heads
    q = _heads_first(self.to_q(x), h)  # (B, H, N, D)
    k = _heads_first(self.to_k(context_k), h)  # (B, H, M, D)
    v = _heads_first(self.to_v(context_v), h)
    if mask is not None:
        mask = _mask_4d(mask, q.shape[0], h, q.shape[2], k.shape[2])
    out = _attend(q, k, v, mask)
    return self.to_out(out.transpose(1, 2).flatten(2))  # (B, N, H*D), the layout it was written in


@_or_the_hosts(sd_hijack_optimizations.cross_attention_attnblock_forward)
def tiled_attnblock_forward(self, x):
    """AttnBlock.forward of the VAE: x (B, C, H, W), one head over H*W tokens with D = C."""
    h = self.norm(x)
    q, k, v = (conv(h).flatten(2).transpose(1, 2)[:, None] for conv in (self.q, self.k, self.v))  # (B, 1, HW, C)
    out = _attend(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
    return x + self.proj_out(out)


class SdOptimizationTiled(sd_hijack_optimizations.SdOptimization):
    """The entry of the dropdown. `undo` is the host's own: it puts back the host's four functions."""

    name = TITLE
    cmd_opt = "opt_tiled_attention"

    def is_available(self) -> bool:
        return True

    @property
    def priority(self) -> int:
        return choose.priority(probe(devices.device), _without())

    def apply(self) -> None:
        for cls in CROSS_ATTENTION:
            cls.forward = tiled_attention_forward
        for cls in ATTN_BLOCK:
            cls.forward = tiled_attnblock_forward


def _is_known(function) -> bool:
    """Whether this is a forward of the host's or ours, not somebody's wrapper, which may end here again."""
    known = (*vars(sd_hijack_optimizations).values(), hypernetwork.attention_CrossAttention_forward)
    ours = (tiled_attention_forward, tiled_attnblock_forward)
    return patch_of(function) is not None or any(function is one for one in (*known, *ours))


def _counted(patch: Patch):
    """The class's forward, and word of it where no kernel spoke for itself."""

    @functools.wraps(patch.original)
    def forward(self, *args, **kwargs):
        function = patch.original
        if not patch.active:
            # HyperTile keeps what it finds on first use, for good. It keeps this one, so look up what holds now.
            now = vars(patch.owner)["forward"]
            function = now if _is_known(now) else function
        with calls.named(_NAMES.get(function.__name__, function.__name__)):
            return function(self, *args, **kwargs)

    return forward


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
        for cls in (*CROSS_ATTENTION, *ATTN_BLOCK):
            patches.replace(cls, "forward", _counted)
        for cls in XFORMERS_BLOCK:
            patches.replace(cls, "forward", _tiled_if_chosen)

    @contextlib.contextmanager
    def choose(self, option: str, overridden: bool, policy: Policy):
        global _policy
        policy, _policy = _policy, policy
        before = _running()
        titles = (AUTOMATIC, "None", *(o.title() for o in sd_hijack.optimizers))
        # The host itself ignores the option in `override_settings`.
        switch = overridden and option in titles and option != before
        if switch:
            sd_hijack.model_hijack.apply_optimizations(option)
        try:
            yield self._chosen(option, option in titles)
        finally:
            _policy = policy
            if switch:
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
            flag = getattr(shared.cmd_opts, SdOptimizationTiled.cmd_opt, False)
            reason = choose.FLAG if flag else probe(devices.device).summary()
        return Chosen(option, text, reason)

    def _why_not_offered(self, option: str) -> str:
        if choose.backend_of(option) != "xformers":
            return f"{option} is not an optimization of this WebUI"
        return f"xformers is not offered here: {probe(devices.device).why_not('xformers') or 'started without it'}"

    def advice(self) -> str | None:
        if sd_hijack.current_optimizer is None or shared.opts.cross_attention_optimization != AUTOMATIC:
            return None
        return choose.advice(_running(), probe(devices.device), self.name, _without())
