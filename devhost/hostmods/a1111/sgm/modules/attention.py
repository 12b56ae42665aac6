"""AUTOMATIC1111: a stand-in for sgm.modules.attention (SDXL), whose CrossAttention is a class of its own."""

import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.0, backend=None):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads, self.scale, self.backend = heads, dim_head**-0.5, backend
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim or query_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim or query_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def forward(self, x, context=None, mask=None, additional_tokens=None, n_times_crossframe_attn_in_self=0):
        """x (B, N, query_dim), context (B, M, context_dim) -> (B, N, query_dim)"""
        context = x if context is None else context
        q, k, v = (layer(t).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for layer, t in ((self.to_q, x), (self.to_k, context), (self.to_v, context)))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(out.transpose(1, 2).flatten(2))
