"""What the kernel's tests compare with: attention written out in full, in float64 or in the inputs' dtype; and the
mark of tests that need torch's own SDPA (2.0 and newer)."""

from __future__ import annotations

import math
import os
import tempfile

import pytest
import torch
from torch import Tensor

os.environ["XDG_CACHE_HOME"] = tempfile.gettempdir()  # not the tile sizes that `tune` kept for this machine
torch.set_num_threads(1)  # the tests' tensors are small: more threads only wait for each other

HAS_SDPA = hasattr(torch._C._nn, "scaled_dot_product_attention")
needs_sdpa = pytest.mark.skipif(not HAS_SDPA, reason=f"torch {torch.__version__} has no SDPA")


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 0.0
    scores = q @ k.transpose(-2, -1) * scale  # (..., H, Nq, Nk)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, -math.inf)
    return scores + mask.to(scores.dtype)


def _repeat_heads(q: Tensor, t: Tensor) -> Tensor:
    return t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) if t.shape[-3] else t


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as one would write it, computed in the inputs' dtype; a row with nothing to attend to gives 0."""
    if enable_gqa:
        k, v = _repeat_heads(q, k), _repeat_heads(q, v)
    scores = _scores(q, k, mask, is_causal, scale)
    weights = scores.softmax(-1)
    if scores.shape[-1]:
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0)
    return weights @ v


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **kwargs) -> Tensor:
    """`plain` in float64."""
    return plain(q.double(), k.double(), v.double(), mask, **kwargs)


def error(out: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; infinite where `out` is not finite or has another shape."""
    assert out.shape == expected.shape, f"{tuple(out.shape)} instead of {tuple(expected.shape)}"
    if out.numel() == 0:
        return 0.0
    difference = (out.double() - expected.double()).abs().max().item()
    return difference if math.isfinite(difference) else math.inf


def mean_error(out: Tensor, expected: Tensor) -> float:
    """Root of the mean squared difference. Unlike the largest one it does not hang on a single score's rounding."""
    assert out.shape == expected.shape, f"{tuple(out.shape)} instead of {tuple(expected.shape)}"
    difference = (out.double() - expected.double()).square().mean().sqrt().item() if out.numel() else 0.0
    return difference if math.isfinite(difference) else math.inf


def unit(expected: Tensor, dtype: torch.dtype) -> float:
    """One rounding step of `dtype` at the largest value of `expected`: what nobody can be better than."""
    return torch.finfo(dtype).eps * (expected.abs().max().item() if expected.numel() else 0.0)


def rounding(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What rounding alone does to each value of the result, (..., H, Nq, Dv), typically: one standard deviation.

    Computed in fp32 (float64 inputs: float64) and stored in the inputs' dtype. A sum of n terms, one after the other,
    is rounded to the size of its terms, and sqrt(n) times to that of the whole, which the partial sums grow to; this
    holds for each score, a sum over D, and for the result, a sum over the keys. Mask, weights and result are rounded
    once each. Half of eps / 2, its bound, is about the standard deviation of one rounding. To first order, as in
    N. Higham, "Accuracy and Stability of Numerical Algorithms" (2002), chapters 3 and 4.
    """
    wide = torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps / 4
    stored = torch.finfo(q.dtype).eps / 4
    q, k, v = q.double(), k.double(), v.double()
    if enable_gqa:
        k, v = _repeat_heads(q, k), _repeat_heads(q, v)
    one = torch.eye(k.shape[-2], dtype=torch.float64).expand(*v.shape[:-1], k.shape[-2])
    weights = plain(q, k, one, mask, is_causal=is_causal, scale=scale)  # (..., H, Nq, Nk)
    bias = None if mask is None or mask.dtype == torch.bool else mask.abs().masked_fill(mask == -math.inf, 0)
    terms = _scores(q.abs(), k.abs(), bias, False, None if scale is None else abs(scale))
    scores = terms.square() + q.shape[-1] * _scores(q, k, None, False, scale).square()
    result = weights @ v
    sums = (weights @ v.abs()).square() + k.shape[-2] * result.square()
    return wide * ((weights.square() * (1 + scores)) @ v.square() + sums).sqrt() + stored * result.abs()


def assert_close(out: Tensor, expected: Tensor, steps: float = 64) -> None:
    """`out` is at most `steps` rounding steps of its dtype away from the float64 result."""
    allowed = steps * max(unit(expected, out.dtype), torch.finfo(out.dtype).eps)
    assert error(out, expected) <= allowed, f"error {error(out, expected):.3g}, allowed {allowed:.3g}"


def tensors(
    batch: tuple[int, ...],
    heads: int,
    queries: int,
    keys: int,
    dim: int,
    dim_v: int | None = None,
    dtype: torch.dtype = torch.float32,
    kv_heads: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Seeded q, k, v as a model makes them: (B, H, N, D) views of (B, N, H, D); the seed comes from the sizes."""
    kv_heads = heads if kv_heads is None else kv_heads
    dim_v = dim if dim_v is None else dim_v
    seed = sum((i + 1) * n for i, n in enumerate((*batch, heads, queries, keys, dim, dim_v)))
    generator = torch.Generator().manual_seed(seed)

    def make(n: int, h: int, d: int) -> Tensor:
        return torch.randn(*batch, n, h, d, generator=generator).to(dtype).transpose(-2, -3)

    return make(queries, heads, dim), make(keys, kv_heads, dim), make(keys, kv_heads, dim_v)
