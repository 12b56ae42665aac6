"""reForge: the attention functions, the names the command line chooses at import, and the UNet's CrossAttention."""

import devhost_attention as kinds
import torch

from ldm_patched.modules import model_management
from ldm_patched.modules.model_management import args


def get_attn_precision(attn_precision, current_dtype):
    return torch.float32 if args.force_upcast_attention else attn_precision


def _by_hand(q, k, v, heads, mask, attn_precision, skip_reshape, skip_output_reshape, kind):
    upcast = get_attn_precision(attn_precision, q.dtype) == torch.float32
    q, k, v = (kinds.split_heads(t, heads, skip_reshape) for t in (q, k, v))
    return kinds.merge_heads(kinds.by_hand(q, k, v, mask, kind=kind, upcast=upcast), skip_output_reshape)


def attention_basic(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False):
    return _by_hand(q, k, v, heads, mask, attn_precision, skip_reshape, skip_output_reshape, "basic")


def attention_sub_quad(query, key, value, heads, mask=None, attn_precision=None, skip_reshape=False,
                       skip_output_reshape=False):
    return _by_hand(query, key, value, heads, mask, attn_precision, skip_reshape, skip_output_reshape, "sub_quad")


def attention_split(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False):
    return _by_hand(q, k, v, heads, mask, attn_precision, skip_reshape, skip_output_reshape, "split")


def attention_xformers(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False):
    q, k, v = (kinds.split_heads(t, heads, skip_reshape) for t in (q, k, v))
    return kinds.merge_heads(kinds.xformers(q, k, v, kinds.mask_of_4(mask)), skip_output_reshape)


def attention_pytorch(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False):
    q, k, v = (kinds.split_heads(t, heads, skip_reshape) for t in (q, k, v))
    return kinds.merge_heads(kinds.sdp(q, k, v, kinds.mask_of_4(mask)), skip_output_reshape)


if model_management.xformers_enabled():
    optimized_attention = attention_xformers
elif model_management.pytorch_attention_enabled():
    optimized_attention = attention_pytorch
elif args.attention_split:
    optimized_attention = attention_split
else:
    optimized_attention = attention_sub_quad

optimized_attention_masked = optimized_attention


def optimized_attention_for_device(device, mask=False, small_input=False):
    if small_input:
        return attention_pytorch
    if device == torch.device("cpu"):
        return attention_sub_quad
    return optimized_attention_masked if mask else optimized_attention


class CrossAttention(torch.nn.Module):
    attn_precision = None

    def forward(self, x, context=None, value=None, mask=None):
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context if value is None else value)
        if mask is None:
            out = optimized_attention(q, k, v, self.heads, attn_precision=self.attn_precision)
        else:
            out = optimized_attention_masked(q, k, v, self.heads, mask, attn_precision=self.attn_precision)
        return self.to_out(out)
