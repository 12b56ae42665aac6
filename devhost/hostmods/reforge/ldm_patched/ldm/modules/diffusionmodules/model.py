"""reForge: the VAE's attention. AttnBlock asks vae_attention() once, when it is made, and keeps the answer."""

import devhost_attention as kinds
import torch

from ldm_patched.modules import model_management


def normal_attention(q, k, v):
    return kinds.spatial(q, k, v, lambda *qkv: kinds.by_hand(*qkv, kind="split"))


def xformers_attention(q, k, v):
    return kinds.spatial(q, k, v, kinds.xformers)


def pytorch_attention(q, k, v):
    return kinds.spatial(q, k, v, kinds.sdp)


def vae_attention():
    if model_management.xformers_enabled_vae():
        return xformers_attention
    if model_management.pytorch_attention_enabled_vae():
        return pytorch_attention
    return normal_attention


class AttnBlock(torch.nn.Module):
    optimized_attention = None

    def forward(self, x):
        h = self.norm(x)
        return x + self.proj_out(self.optimized_attention(self.q(h), self.k(h), self.v(h)))
