"""AUTOMATIC1111: a stand-in for sgm.modules.diffusionmodules.model, whose AttnBlock is a class of its own."""

import torch
from torch import nn


class AttnBlock(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.in_channels = in_channels
        self.norm = nn.GroupNorm(num_groups=32, num_channels=in_channels, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(in_channels, in_channels, 1) for _ in range(4))

    def attention(self, h_):
        h_ = self.norm(h_)
        q, k, v = (layer(h_).flatten(2).transpose(1, 2)[:, None] for layer in (self.q, self.k, self.v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return out[:, 0].transpose(1, 2).unflatten(2, h_.shape[2:])

    def forward(self, x, **kwargs):
        """x (B, C, H, W) -> (B, C, H, W)"""
        return x + self.proj_out(self.attention(x))
