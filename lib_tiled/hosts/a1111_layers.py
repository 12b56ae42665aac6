"""The forward functions of AUTOMATIC1111's attention layers through the tiled kernel."""

from __future__ import annotations

import functools

import torch
from modules import devices, sd_hijack_optimizations, shared
from modules.hypernetworks import hypernetwork
from torch import Tensor
from torch.nn import functional

from .. import kernel
from ..backends import calls, tiled
from ..backends.policy import Policy

policy = Policy()  # as the settings stood when the running generation began


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


class _Failed(Exception):
    """Our own part of a forward raised its cause. Errors of the model's layers pass as they are."""


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B, H, N, D) through the tiled kernel; a mask as `_mask_4d` takes it."""
    try:
        dtype = q.dtype
        q, k, v = _upcast(q, k, v)
        if mask is not None:
            mask = _mask_4d(mask, *q.shape[:3], k.shape[2])
        with devices.without_autocast(disable=not shared.opts.upcast_attn):
            if q.shape[-2] < policy.min_tokens and hasattr(functional, "scaled_dot_product_attention"):
                return functional.scaled_dot_product_attention(q, k, v, mask).to(dtype)
            return tiled.run(q, k, v, mask).to(dtype)
    except Exception as error:
        if kernel.is_out_of_memory(error):
            raise  # the host's own would need more
        raise _Failed from error


def _or_the_hosts(fallback):
    """If our code fails, the host's own attention finishes the picture and the log says so."""

    def decorate(forward):
        @functools.wraps(forward)
        def guarded(self, x, *args, **kwargs):
            try:
                return forward(self, x, *args, **kwargs)
            except _Failed as failure:
                reason, detail = tiled.failed(failure.__cause__, "Doggettx")
                out = fallback(self, x, *args, **kwargs)
                calls.ran("Doggettx", reason=reason, detail=detail)
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
    out = _attend(q, k, v, mask)
    return self.to_out(out.transpose(1, 2).flatten(2))  # (B, N, H*D), the layout it was written in


@_or_the_hosts(sd_hijack_optimizations.cross_attention_attnblock_forward)
def tiled_attnblock_forward(self, x):
    """AttnBlock.forward of the VAE: x (B, C, H, W), one head over H*W tokens with D = C."""
    h = self.norm(x)
    q, k, v = (conv(h).flatten(2).transpose(1, 2)[:, None] for conv in (self.q, self.k, self.v))  # (B, 1, HW, C)
    out = _attend(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
    return x + self.proj_out(out)
