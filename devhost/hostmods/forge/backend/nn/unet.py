"""Forge: the UNet's CrossAttention. It holds attention_function by a name of its own."""

import torch

from backend.attention import attention_function


class CrossAttention(torch.nn.Module):
    def forward(self, x, context=None, value=None, mask=None, transformer_options=None):
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context if value is None else value)
        return self.to_out(attention_function(q, k, v, self.heads, mask))
