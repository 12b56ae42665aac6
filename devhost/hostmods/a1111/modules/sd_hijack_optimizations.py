"""AUTOMATIC1111: the built-in attention optimizations. Names, priorities and call forms are the host's."""

import ldm.modules.attention
import ldm.modules.diffusionmodules.model
import sgm.modules.attention
import sgm.modules.diffusionmodules.model
import torch
from devhost_math import batches, chunks, rows

from modules import shared
from modules.hypernetworks import hypernetwork

diffusionmodules_model_AttnBlock_forward = ldm.modules.diffusionmodules.model.AttnBlock.forward
sgm_diffusionmodules_model_AttnBlock_forward = sgm.modules.diffusionmodules.model.AttnBlock.forward


def _set_forwards(cross_attention, attn_block=None):
    for package in (ldm, sgm):
        package.modules.attention.CrossAttention.forward = cross_attention
        if attn_block is not None:
            package.modules.diffusionmodules.model.AttnBlock.forward = attn_block


class SdOptimization:
    name = None
    label = None
    cmd_opt = None
    priority = 0

    def title(self):
        return self.name if self.label is None else f"{self.name} - {self.label}"

    def is_available(self):
        return True

    def apply(self):
        pass

    def undo(self):
        _set_forwards(hypernetwork.attention_CrossAttention_forward)
        ldm.modules.diffusionmodules.model.AttnBlock.forward = diffusionmodules_model_AttnBlock_forward
        sgm.modules.diffusionmodules.model.AttnBlock.forward = sgm_diffusionmodules_model_AttnBlock_forward


class SdOptimizationXformers(SdOptimization):
    name, cmd_opt, priority = "xformers", "xformers", 100

    def is_available(self):
        return shared.cmd_opts.force_enable_xformers or (
            shared.xformers_available and torch.cuda.is_available()
            and (6, 0) <= torch.cuda.get_device_capability(shared.device) <= (9, 0))

    def apply(self):
        _set_forwards(xformers_attention_forward, xformers_attnblock_forward)


class SdOptimizationSdpNoMem(SdOptimization):
    name, label = "sdp-no-mem", "scaled dot product without memory efficient attention"
    cmd_opt, priority = "opt_sdp_no_mem_attention", 80

    def is_available(self):
        return callable(getattr(torch.nn.functional, "scaled_dot_product_attention", None))

    def apply(self):
        _set_forwards(scaled_dot_product_no_mem_attention_forward, sdp_no_mem_attnblock_forward)


class SdOptimizationSdp(SdOptimizationSdpNoMem):
    name, label, cmd_opt, priority = "sdp", "scaled dot product", "opt_sdp_attention", 70

    def apply(self):
        _set_forwards(scaled_dot_product_attention_forward, sdp_attnblock_forward)


class SdOptimizationSubQuad(SdOptimization):
    name, cmd_opt = "sub-quadratic", "opt_sub_quad_attention"

    @property
    def priority(self):
        return 1000 if shared.device.type == "mps" else 10

    def apply(self):
        _set_forwards(sub_quad_attention_forward, sub_quad_attnblock_forward)


class SdOptimizationV1(SdOptimization):
    name, label, cmd_opt, priority = "V1", "original v1", "opt_split_attention_v1", 10

    def apply(self):
        _set_forwards(split_cross_attention_forward_v1)


class SdOptimizationInvokeAI(SdOptimization):
    name, cmd_opt = "InvokeAI", "opt_split_attention_invokeai"

    @property
    def priority(self):
        return 1000 if shared.device.type != "mps" and not torch.cuda.is_available() else 10

    def apply(self):
        _set_forwards(split_cross_attention_forward_invokeAI)


class SdOptimizationDoggettx(SdOptimization):
    name, cmd_opt, priority = "Doggettx", "opt_split_attention", 90

    def apply(self):
        _set_forwards(split_cross_attention_forward, cross_attention_attnblock_forward)


def list_optimizers(res):
    res.extend([SdOptimizationXformers(), SdOptimizationSdpNoMem(), SdOptimizationSdp(), SdOptimizationSubQuad(),
                SdOptimizationV1(), SdOptimizationInvokeAI(), SdOptimizationDoggettx()])


def _attend(self, x, context, attend):
    """The host's frame around every cross attention; attend gets q, k, v as (B, N, H, D) and returns that."""
    context_k, context_v = hypernetwork.apply_hypernetworks(shared.loaded_hypernetworks,
                                                            x if context is None else context)
    q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (self.to_q(x), self.to_k(context_k), self.to_v(context_v)))
    dtype = q.dtype
    if shared.opts.upcast_attn:
        q, k, v = q.float(), k.float(), v.float()
    return self.to_out(attend(q, k, v).to(dtype).flatten(2))


def _by_head(self, x, context, attend):
    """As _attend, for functions of (B*H, N, D)."""
    def merged(q, k, v):
        out = attend(*(t.transpose(1, 2).flatten(0, 1) for t in (q, k, v)))
        return out.unflatten(0, (-1, self.heads)).transpose(1, 2)
    return _attend(self, x, context, merged)


def split_cross_attention_forward_v1(self, x, context=None, mask=None, **kwargs):
    return _by_head(self, x, context, lambda q, k, v: batches(q, k, v, self.scale, 2))


def split_cross_attention_forward(self, x, context=None, mask=None, **kwargs):
    return _by_head(self, x, context, lambda q, k, v: rows(q, k, v, self.scale))


def split_cross_attention_forward_invokeAI(self, x, context=None, mask=None, **kwargs):
    return _by_head(self, x, context, lambda q, k, v: batches(q, k, v, self.scale, 1))


def sub_quad_attention_forward(self, x, context=None, mask=None, **kwargs):
    assert mask is None, "attention-mask not currently implemented for SubQuadraticCrossAttnProcessor."
    return _by_head(self, x, context, lambda q, k, v: chunks(q, k, v, self.scale))


def xformers_attention_forward(self, x, context=None, mask=None, **kwargs):
    import xformers.ops

    return _attend(self, x, context, lambda q, k, v: xformers.ops.memory_efficient_attention(q, k, v, attn_bias=None))


def scaled_dot_product_attention_forward(self, x, context=None, mask=None, **kwargs):
    if mask is not None:
        mask = self.prepare_attention_mask(mask, x.shape[1], len(x))
        mask = mask.view(len(x), self.heads, -1, mask.shape[-1])

    def attend(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0, is_causal=False)
        return out.transpose(1, 2)
    return _attend(self, x, context, attend)


def scaled_dot_product_no_mem_attention_forward(self, x, context=None, mask=None, **kwargs):
    with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=False):
        return scaled_dot_product_attention_forward(self, x, context, mask)


def _attend_block(self, x, attend):
    """The host's frame around the VAE's attention; attend gets and returns (B, H*W, C): three dimensions, no heads."""
    h = self.norm(x)
    q, k, v = (layer(h).flatten(2).transpose(1, 2).contiguous() for layer in (self.q, self.k, self.v))
    dtype = q.dtype
    if shared.opts.upcast_attn:
        q, k, v = q.float(), k.float(), v.float()
    out = attend(q, k, v).to(dtype)
    return x + self.proj_out(out.transpose(1, 2).unflatten(2, x.shape[2:]))


def cross_attention_attnblock_forward(self, x):
    return _attend_block(self, x, lambda q, k, v: rows(q, k, v, q.shape[-1] ** -0.5))


def sub_quad_attnblock_forward(self, x):
    return _attend_block(self, x, lambda q, k, v: chunks(q, k, v, q.shape[-1] ** -0.5))


def xformers_attnblock_forward(self, x):
    import xformers.ops

    return _attend_block(self, x, xformers.ops.memory_efficient_attention)


def sdp_attnblock_forward(self, x):
    return _attend_block(self, x, lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, dropout_p=0.0, is_causal=False))


def sdp_no_mem_attnblock_forward(self, x):
    with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=True, enable_mem_efficient=False):
        return sdp_attnblock_forward(self, x)
