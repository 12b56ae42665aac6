"""What Forge's and reForge's attention functions have in common: layouts, masks, and the kinds of attention.

Heads layouts: q, k, v are (B, N, H*D), or (B, H, N, D) with skip_reshape; the result is (B, N, H*D), or (B, H, N, D)
with skip_output_reshape. Spatial layouts (VAE): q, k, v and the result are (B, C, H, W), one head.
"""

import torch
from devhost_math import chunks, rows


def split_heads(t, heads, skip_reshape):
    """-> (B, H, N, D)"""
    return t if skip_reshape else t.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(t, skip_output_reshape=False):
    return t if skip_output_reshape else t.transpose(1, 2).flatten(2)


def mask_of_4(mask):
    """2-D (Nq, Nk) and 3-D (B, Nq, Nk) masks get the dimensions they lack."""
    while mask is not None and mask.ndim < 4:
        mask = mask[None] if mask.ndim == 2 else mask[:, None]
    return mask


def sdp(q, k, v, mask=None):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0, is_causal=False)


def by_hand(q, k, v, mask=None, *, kind, upcast=False):
    """(B, H, N, D) attention without a fused kernel. kind: "basic", "split" or "sub_quad"; upcast: scores in fp32."""
    batch, heads, length, dim = q.shape
    dtype = q.dtype
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    if mask is not None:
        mask = mask_of_4(mask).expand(batch, heads, -1, -1).flatten(0, 1)
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    if kind == "sub_quad":
        out = chunks(q, k, v, dim**-0.5, mask)
    else:
        out = rows(q, k, v, dim**-0.5, mask, slice_rows=length if kind == "basic" else 1024)
    return out.unflatten(0, (batch, heads)).to(dtype)


def xformers(q, k, v, mask=None):
    import xformers.ops

    out = xformers.ops.memory_efficient_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_bias=mask)
    return out.transpose(1, 2)


def spatial(q, k, v, attend):
    """Runs attend on (B, 1, H*W, C) for the VAE's (B, C, H, W)."""
    out = attend(*(t.flatten(2).transpose(1, 2)[:, None].contiguous() for t in (q, k, v)))
    return out[:, 0].transpose(1, 2).reshape(q.shape)
