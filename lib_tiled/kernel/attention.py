"""`tiled_attention`: exact attention in O(N) memory from plain PyTorch matmuls."""

from __future__ import annotations

import contextlib
import math
import numbers

import torch
from torch import Tensor

from ..device.facts import facts
from . import inputs, options, tuned
from .backward import backward
from .forward import ForwardTiles, compute_dtype, scores_are_bounded
from .memory import Shrinking
from .plan import BOUNDED_FROM_KEYS, Shape, Tile, plan, plan_bounded, with_rows
from .threads import Closed, workers

THREADED_FROM = 1 << 24  # scores; below, what it takes to wake the threads counts

_reduced: dict[torch.device, int] = {}  # device -> how often memory ran out and the tile was halved

_last: Tile | None = None


def last_tile() -> Tile | None:
    """The score tile of the latest call, for reports; None before the first."""
    return _last


def forget_reductions() -> None:
    """Let the next call start with full tiles again after memory ran out. Called between generations."""
    _reduced.clear()


def _autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype autocast asks of matmuls on this device, None where autocast is off."""
    if not hasattr(torch, "get_autocast_dtype"):  # torch < 2.4 has one function for each device
        if device_type == "cpu":
            return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
        return torch.get_autocast_gpu_dtype() if device_type == "cuda" and torch.is_autocast_enabled() else None
    try:
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    except RuntimeError:  # a device without autocast
        return None


def autocast(t: Tensor | None) -> Tensor | None:
    """`t` in the dtype that autocast gives a matmul's operands; float64 and what is no float tensor stay."""
    if not isinstance(t, Tensor) or t.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return t
    return t.to(_autocast_dtype(t.device.type) or t.dtype)


def _without_autocast(device_type: str):
    if _autocast_dtype(device_type) is None:
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)


def choose_tile(
    q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, share: float = 1.0, bounded: bool = False
) -> Tile:
    """The tile for 4-D or 5-D inputs computed in `dtype`, using `share` of the scratch limit.

    `bounded`: the scores are known to need no maximum, which makes key tiles cheap.
    """
    settings, device = options.current(), facts(q.device)
    kv_heads = k.shape[-3]
    heads = q.shape[-3] if kv_heads in (0, q.shape[-3]) else q.shape[-3] // kv_heads
    grouped = q.dim() > 4 or kv_heads != q.shape[-3]  # such entries are not put side by side
    counts = (1 if grouped else q.shape[0], heads, q.shape[-2], k.shape[-2])
    shape = Shape(*(max(n, 1) for n in counts), q.shape[-1], v.shape[-1])
    size = settings.scratch_mb or tuned.scratch_mb(q.device)
    limit = size * 2**20 if size else device.scratch_bytes
    tile = (plan_bounded if bounded else plan)(shape, dtype, device, int(limit * share))
    if settings.rows:
        tile = with_rows(tile, min(settings.rows, shape.queries))
    for _ in range(_reduced.get(q.device, 0)):
        tile = tile.halved() or tile
    return tile


def attention_into(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    is_causal: bool,
    precision: str | None,
) -> Tile:
    """Attention of views from `inputs.broadcast`, written to `out` (..., B, H, Nq, Dv); returns the tile used."""
    global _last
    precision = precision or options.current().precision
    dtype = compute_dtype(q.dtype, q.device.type, facts(q.device).bf16_matmul, precision)
    # Reading the bound off a GPU would wait for it; a CPU has it at once.
    bounded = (
        q.device.type == "cpu"
        and dtype in (torch.float32, torch.float64)
        and (q.dtype == dtype or hasattr(torch, "compile"))  # torch 1.13 sums the norms of half precision in it
        and k.shape[-2] >= BOUNDED_FROM_KEYS
        and q.numel() > 0
        and v.numel() > 0
        and scores_are_bounded(q, k, v, mask, scale)
    )
    tile = _last = choose_tile(q, k, v, dtype, bounded=bounded)
    if k.shape[-2] == 0:
        out.zero_()
    if out.numel() == 0 or k.shape[-2] == 0:
        return tile

    def new_work():
        return ForwardTiles(tile, dtype, q.device, scale, is_causal, bounded)

    threads = facts(q.device).units
    shrinking = None
    if bounded and threads > 1 and q.shape[:-1].numel() * k.shape[-2] >= THREADED_FROM:
        pieces = inputs.pieces(inputs.blocks(q, k, v, out, mask), tile.rows, 4 * threads)
        with contextlib.suppress(Closed):
            works = workers(threads).share(new_work, lambda work, piece: work.run(*piece), pieces)
            shrinking = max((work.shrinking for work in works), key=lambda shrinking: shrinking.halvings)
    shrinking = shrinking or _sequential(new_work(), q, k, v, out, mask)
    if shrinking.halvings:
        _reduced[q.device] = _reduced.get(q.device, 0) + shrinking.halvings
    _last = shrinking.tile
    return _last


def _sequential(work: ForwardTiles, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None) -> Shrinking:
    batches = work.tile.batches
    if batches > 1:
        for block, target in inputs.joined_blocks(q, k, v, out, mask, batches):
            work.run(block)
            if target is not None:
                target.copy_(block.out.view(target.shape))
    else:
        for block in inputs.blocks(q, k, v, out, mask):
            work.run(block)
    return work.shrinking


class _TiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask, scale, is_causal, precision):
        out = inputs.like_layout(q, (*q.shape[:-1], v.shape[-1]))
        attention_into(out, q, k, v, mask, scale, is_causal, precision)
        ctx.save_for_backward(q, k, v, mask)
        ctx.scale, ctx.is_causal = scale, is_causal
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, v, mask = ctx.saved_tensors
        mask_grad = mask is not None and ctx.needs_input_grad[3]
        with _without_autocast(q.device.type):
            # Two score-sized buffers are alive at a time here.
            dtype = torch.promote_types(q.dtype, torch.float32)
            tile = choose_tile(q, k, v, dtype, share=0.5)
            shrinking = Shrinking(tile)
            while True:  # sums over many tiles are half done when memory runs out: start over
                with shrinking.attempt(q, k, dtype):
                    grads = backward(grad, q, k, v, mask, ctx.scale, ctx.is_causal, shrinking.tile, mask_grad)
                    break
        return (*grads, None, None, None)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    precision: str | None = None,
) -> Tensor:
    """`tiled_attention` with a precision for this call; None takes the setting's."""
    q, k, v = (autocast(t) for t in (q, k, v))
    inputs.check(q, k, v, attn_mask, is_causal, enable_gqa)
    if precision is not None and precision not in options.PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(options.PRECISIONS)}, not {precision!r}")
    if not (scale is None or isinstance(scale, numbers.Real)):
        raise TypeError(f"scale must be a number, not {type(scale).__name__}")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None and q.shape[-1] else (scale or 0.0)
    lead = q.dim()
    q, k, v, mask = inputs.broadcast(q, k, v, attn_mask, enable_gqa)
    tensors = (q, k, v) if mask is None else (q, k, v, mask)
    with _without_autocast(q.device.type):
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            out = _TiledAttention.apply(q, k, v, mask, float(scale), is_causal, precision)
        else:
            out = inputs.like_layout(q, (*q.shape[:-1], v.shape[-1]))
            attention_into(out, q, k, v, mask, float(scale), is_causal, precision)
    return out[(0,) * (out.dim() - lead)] if lead < 4 else out


def tiled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Exact scaled dot product attention with constant scratch memory; torch's semantics without dropout.

    Args:
        q: queries (..., H, Nq, D); 2 to 5 dimensions, any strides, float16, bfloat16, float32 or float64.
        k: keys (..., H, Nk, D).
        v: values (..., H, Nk, Dv).
        attn_mask: boolean (True = attend) or float (added to the scaled scores), broadcastable to
            (..., H, Nq, Nk). A fully masked row gives 0; a masked key weighs exactly 0.
        is_causal: query i attends to keys 0..i (top-left aligned); not together with `attn_mask`.
        scale: factor on the scores, default 1/sqrt(D); applied inside the matmul.
        enable_gqa: let k and v have fewer heads than q, each shared by a group of query heads.

    Returns:
        (..., H, Nq, Dv) in q's dtype, laid out in memory like q. Differentiable once; the backward pass
        computes the score tiles again.

    Raises:
        ValueError, TypeError: naming the shapes, dtypes or devices that do not fit.
        TiledOutOfMemoryError: not even the smallest tile fits.

    Equivalent to, without the (..., Nq, Nk) intermediates::

        scores = q @ k.transpose(-2, -1) * scale
        scores = scores.masked_fill(~attn_mask, -inf)   # or scores + attn_mask
        return scores.softmax(-1) @ v
    """
    return attend(q, k, v, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
