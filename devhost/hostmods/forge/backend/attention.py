"""Forge: the attention functions, and the two names the command line chooses at import.

backend.nn.unet and backend.nn.vae take those names at their own import, so rebinding them here reaches no call.
"""

import devhost_attention as kinds
import torch

from backend import memory_management
from backend.args import args


def get_attn_precision(attn_precision=torch.float32):
    return None if args.disable_attention_upcast else attn_precision


def _by_hand(q, k, v, heads, mask, attn_precision, skip_reshape, kind):
    q, k, v = (kinds.split_heads(t, heads, skip_reshape) for t in (q, k, v))
    upcast = get_attn_precision(attn_precision) == torch.float32
    return kinds.merge_heads(kinds.by_hand(q, k, v, mask, kind=kind, upcast=upcast))


def attention_basic(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False):
    return _by_hand(q, k, v, heads, mask, attn_precision, skip_reshape, "basic")


def attention_sub_quad(query, key, value, heads, mask=None, attn_precision=None, skip_reshape=False):
    return _by_hand(query, key, value, heads, mask, attn_precision, skip_reshape, "sub_quad")


def attention_split(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False):
    return _by_hand(q, k, v, heads, mask, attn_precision, skip_reshape, "split")


def attention_xformers(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False):
    return kinds.merge_heads(kinds.xformers(*(kinds.split_heads(t, heads, skip_reshape) for t in (q, k, v)), mask))


def attention_pytorch(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False):
    return kinds.merge_heads(kinds.sdp(*(kinds.split_heads(t, heads, skip_reshape) for t in (q, k, v)), mask))


def normal_attention_single_head_spatial(q, k, v):
    return kinds.spatial(q, k, v, lambda *qkv: kinds.by_hand(*qkv, kind="split"))


def xformers_attention_single_head_spatial(q, k, v):
    return kinds.spatial(q, k, v, kinds.xformers)


def pytorch_attention_single_head_spatial(q, k, v):
    return kinds.spatial(q, k, v, kinds.sdp)


if memory_management.xformers_enabled():
    print("Using xformers cross attention")
    attention_function = attention_xformers
    attention_function_single_head_spatial = xformers_attention_single_head_spatial
elif memory_management.pytorch_attention_enabled():
    print("Using pytorch cross attention")
    attention_function = attention_pytorch
    attention_function_single_head_spatial = pytorch_attention_single_head_spatial
else:
    print(f"Using {'split' if args.attention_split else 'sub quadratic'} optimization for cross attention")
    attention_function = attention_split if args.attention_split else attention_sub_quad
    attention_function_single_head_spatial = normal_attention_single_head_spatial
