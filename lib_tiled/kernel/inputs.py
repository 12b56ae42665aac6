"""From what callers hand over to what the kernel computes on: checks, broadcasting, and cutting into 3-D views.

Nothing here copies q, k or v, except where several small batch entries are put side by side into one tile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool) -> None:
    """Raise ValueError or TypeError that names what is wrong with the arguments of an attention call."""
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(t).__name__}")
        if not 2 <= t.dim() <= 5:
            raise ValueError(f"{name} must have 2 to 5 dimensions (..., N, D), not shape {tuple(t.shape)}")
        if t.dtype not in DTYPES:
            raise TypeError(f"{name} must be float16, bfloat16, float32 or float64, not {t.dtype}")
        if t.layout != torch.strided or t.is_nested:
            raise TypeError(f"{name} must be a dense tensor, not a {'nested' if t.is_nested else t.layout} one")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim():
        raise ValueError(f"q, k and v must have the same number of dimensions: {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device, not {q.device}, {k.device} and {v.device}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q and k must have the same head dimension: {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ValueError(f"k and v must have the same number of keys: {shapes}")
    if enable_gqa and q.dim() >= 3:
        heads, kv_heads = q.shape[-3], k.shape[-3]
        if k.shape[-3] != v.shape[-3] or (kv_heads == 0) != (heads == 0) or (kv_heads and heads % kv_heads):
            raise ValueError(f"enable_gqa needs q's heads to be a multiple of k's and v's: {shapes}")
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"attn_mask must be a tensor or None, not {type(mask).__name__}")
    if is_causal:
        raise ValueError("attn_mask and is_causal cannot be given together")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"attn_mask must be boolean (True = attend) or floating-point, not {mask.dtype}")
    if mask.device != q.device:
        raise ValueError(f"attn_mask must be on q's device {q.device}, not {mask.device}")
    heads = q.shape[-3] if enable_gqa and q.dim() >= 3 else 1  # without grouped heads `broadcast` checks them
    rows_and_keys = zip(mask.shape[-2:][::-1], (k.shape[-2], q.shape[-2]))
    if (
        mask.dim() > q.dim()
        or any(m not in (1, n) for m, n in rows_and_keys)
        or (heads > 1 and mask.dim() >= 3 and mask.shape[-3] not in (1, heads))
    ):
        raise ValueError(f"attn_mask {tuple(mask.shape)} does not broadcast to the scores of {shapes}")


def broadcast(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, enable_gqa: bool) -> tuple:
    """Views of the inputs with equal leading dimensions and at least 4 dimensions: (..., B, H, N, D).

    With `enable_gqa` k and v keep their own number of heads. The mask keeps dimensions of size 1.
    Raises ValueError where leading dimensions do not broadcast.
    """
    shared = slice(None, -3 if enable_gqa and q.dim() >= 3 else -2)
    tensors = [t.shape[shared] for t in (q, k, v)]
    if mask is not None:
        masked = (1,) * (q.dim() - mask.dim()) + tuple(mask.shape)
        tensors.append(masked[shared])
    try:
        lead = torch.broadcast_shapes(*tensors)
    except RuntimeError:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        shapes += "" if mask is None else f", attn_mask {tuple(mask.shape)}"
        hint = "" if enable_gqa else " (enable_gqa=True lets several query heads share one key head)"
        raise ValueError(f"leading dimensions do not broadcast: {shapes}{hint}") from None
    q, k, v = (t.expand(*lead, *t.shape[len(lead) :]) for t in (q, k, v))
    missing = max(4 - q.dim(), 0)
    q, k, v = (t[(None,) * missing] for t in (q, k, v))
    if mask is not None:
        mask = mask[(None,) * (q.dim() - mask.dim())]
    return q, k, v, mask


def like_layout(q: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An uninitialised tensor of `shape` whose dimensions lie in memory in the order of q's.

    So a (B, H, N, D) view of (B, N, H*D) gets an output that folds back into (B, N, H*D) without a copy.
    """
    order = list(range(q.dim()))
    dense = 0 not in q.stride() and 1 in q.stride()[-2:] and q.shape[-1] > 1
    if dense:
        order.sort(key=lambda i: -q.stride(i))
    strides, step = [0] * q.dim(), 1
    for i in reversed(order):
        strides[i], step = step, step * max(shape[i], 1)
    return torch.empty_strided(shape, strides, dtype=q.dtype, device=q.device)  # no view: autograd lets it be changed


@dataclass
class Block:
    """One 3-D problem: q (h, Nq, D), k (h, Nk, D), v (h, Nk, Dv), out (h, Nq, Dv), mask (1|h, 1|Nq, 1|Nk) or None.

    `key` indexes the same block in tensors with k's leading dimensions; `shared` says that its h query heads
    share one key head (k and v are expanded views).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    mask: Tensor | None
    index: tuple
    key: tuple
    shared: bool = False


def pick(mask: Tensor | None, index: tuple) -> Tensor | None:
    """The part of a mask that `index` takes of the scores: dimensions of size 1 hold for every index."""
    if mask is None:
        return None
    return mask[tuple(i if n > 1 else (0 if isinstance(i, int) else slice(None)) for i, n in zip(index, mask.shape))]


def blocks(q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None) -> Iterator[Block]:
    """Cut (..., B, H, N, D) views into one `Block` per batch entry; with grouped heads, per key head."""
    heads, kv_heads = q.shape[-3], k.shape[-3]
    for lead in itertools.product(*(range(n) for n in q.shape[:-3])):
        if heads == kv_heads:
            yield Block(q[lead], k[lead], v[lead], out[lead], pick(mask, lead), lead, lead)
            continue
        group = heads // kv_heads
        for kv in range(kv_heads):
            index = (*lead, slice(kv * group, (kv + 1) * group))
            key = (*lead, slice(kv, kv + 1))
            yield Block(
                q[index],
                k[key].expand(group, -1, -1),
                v[key].expand(group, -1, -1),
                out[index],
                pick(mask, index),
                index,
                key,
                shared=True,
            )


def pieces(blocks: Iterable[Block], rows: int, wanted: int) -> Iterator[tuple[Block, slice, slice]]:
    """(block, head, rows): the heads one by one, cut into ranges of `rows` and more where that gives fewer than wanted.

    Depends on shapes alone.
    """
    blocks = list(blocks)
    heads, queries = blocks[0].q.shape[:2]
    parts = min(math.ceil(wanted / (len(blocks) * heads)), math.ceil(queries / rows))
    cuts = [queries * i // parts for i in range(parts + 1)]
    for block in blocks:
        for head in range(heads):
            for start, stop in zip(cuts, cuts[1:]):
                yield block, slice(head, head + 1), slice(start, stop)


def joined_blocks(q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None, batches: int) -> Iterator[tuple]:
    """Like `blocks` for 4-D inputs, `batches` entries side by side in one block: yields (block, target).

    `target` is None where the block's `out` is a view of `out`, else the (b, H, Nq, Dv) slice that the caller
    copies the finished block into. At most one tile's worth of small entries is copied.
    """
    for start in range(0, q.shape[0], batches):
        part = slice(start, start + batches)
        q_, k_, v_ = (t[part].flatten(0, 1) for t in (q, k, v))
        target = out[part]
        try:
            out_, target = target.view(-1, *target.shape[2:]), None
        except RuntimeError:  # strides do not fold
            out_ = target.new_empty(q_.shape[0], *target.shape[2:])
        mask_ = pick(mask, (part,))
        if mask_ is not None:
            if mask_.shape[0] == mask_.shape[1] == 1:
                mask_ = mask_[0]
            else:
                mask_ = mask_.expand(q_.shape[0] // q.shape[1], q.shape[1], -1, -1).flatten(0, 1)
        yield Block(q_, k_, v_, out_, mask_, (part,), (part,)), target
