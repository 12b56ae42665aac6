"""Forge: the VAE's AttnBlock. It holds attention_function_single_head_spatial by a name of its own."""

import torch

from backend.attention import attention_function_single_head_spatial


class AttnBlock(torch.nn.Module):
    def forward(self, x):
        h = self.norm(x)
        return x + self.proj_out(attention_function_single_head_spatial(self.q(h), self.k(h), self.v(h)))
