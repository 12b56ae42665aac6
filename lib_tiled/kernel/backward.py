"""Gradients of attention with the score tiles computed again, so that memory stays O(N).

With P = softmax(S) and dP = dO V^T: dS = P * dP - P * rowsum(P * dP). FlashAttention (Dao et al. 2022, B.2) takes
rowsum(dO * O) for the last factor, which is the same number; this one needs no O, which the caller may then change in
place, and the sum of dS over a row is 0 to the last digit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .forward import ForwardTiles, matmul_into, operand
from .inputs import blocks, pick
from .plan import Tile


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    tile: Tile,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients for q, k, v and a float mask (None unless `mask_grad`).

    All tensors as `inputs.broadcast` gives them; computed in fp32 (fp64 for fp64 inputs), which sums the
    contributions of many tiles without losing them.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    dq = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    dk = torch.zeros(k.shape, dtype=dtype, device=k.device)
    dv = torch.zeros(v.shape, dtype=dtype, device=v.device)
    dmask = torch.zeros(mask.shape, dtype=dtype, device=q.device) if mask_grad else None
    tiles = ForwardTiles(tile, dtype, q.device, scale, is_causal)
    # Gradients need whole rows of weights: where the plan tiles the keys, take fewer rows instead.
    step = tile.rows if tile.keys >= k.shape[-2] else max(tile.elements // k.shape[-2], 1)
    products = torch.empty(0, dtype=dtype, device=q.device)
    for block in blocks(q, k, v, grad, mask) if k.shape[-2] else ():
        dout = block.out  # its gradient, here
        dq_, dk_, dv_ = dq[block.index], dk[block.key], dv[block.key]
        dmask_ = pick(dmask, block.index)
        for start in range(0, block.q.shape[0], tile.heads):
            heads = slice(start, min(start + tile.heads, block.q.shape[0]))
            k_, v_ = operand(block.k[heads], dtype), operand(block.v[heads], dtype)  # (h, Nk, D), (h, Nk, Dv)
            for row in range(0, block.q.shape[1], step):
                rows = slice(row, min(row + step, block.q.shape[1]))
                q_, do = block.q[heads, rows].to(dtype), dout[heads, rows].to(dtype)  # (h, r, D), (h, r, Dv)
                keys = min(k_.shape[1], rows.stop) if is_causal else k_.shape[1]
                m = pick(block.mask, (heads, rows))
                p = tiles.weights(q_, k_[:, :keys], m, row)  # (h, r, keys)
                if products.numel() < p.numel():
                    products = torch.empty(p.numel(), dtype=dtype, device=q.device)
                ds = products[: p.numel()].view(p.shape)
                _accumulate(dv_, heads, keys, p, do, 1.0, block.shared)
                matmul_into(ds, do, v_[:, :keys].transpose(1, 2), 1.0)
                ds.mul_(p)
                ds.addcmul_(p, ds.sum(-1, keepdim=True), value=-1)
                dq_[heads, rows] = torch.bmm(ds, k_[:, :keys]).mul_(scale).to(q.dtype)
                _accumulate(dk_, heads, keys, ds, q_, scale, block.shared)
                if dmask_ is not None:
                    part = pick(dmask_, (heads, rows, slice(0, keys)))
                    part.add_(ds.sum_to_size(part.shape))
    return dq, dk.to(k.dtype), dv.to(v.dtype), None if dmask is None else dmask.to(mask.dtype)


def _accumulate(total: Tensor, heads: slice, keys: int, a: Tensor, b: Tensor, alpha: float, shared: bool) -> None:
    """total[heads, :keys] += alpha * a^T @ b for a (h, r, keys), b (h, r, D); where the heads share one key head, their
    sum goes to that one."""
    if shared:
        total[0, :keys].addmm_(a.flatten(0, 1).t(), b.flatten(0, 1), alpha=alpha)
    else:
        total[heads, :keys].baddbmm_(a.transpose(1, 2), b, alpha=alpha)
