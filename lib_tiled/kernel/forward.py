"""Exact attention, one score tile at a time.

For each tile: scores = scale * q k^T (+ mask) into a reused buffer, softmax over the keys in place, times v into
the output's slice. Query rows are independent of each other, so tiling them changes nothing. The keys are tiled too
where not even a few rows fit beside all of them, with a running maximum and sum (Milakov & Gimelshein 2018, "Online
normalizer calculation for softmax"; Rabe & Staats 2021, "Self-attention does not need O(n^2) memory"), and where no
maximum is needed (`scores_are_bounded`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .inputs import Block, pick
from .memory import Shrinking
from .plan import Tile

LOG2_E = math.log2(math.e)
WHOLE = slice(None)


def compute_dtype(dtype: torch.dtype, device_type: str, bf16_matmul: bool, precision: str) -> torch.dtype:
    """The dtype that scores and softmax are computed in: `dtype` itself or float32."""
    if dtype in (torch.float32, torch.float64):
        return dtype
    if precision == "safe":
        return torch.float32
    if precision == "fast":
        return dtype
    # CPUs multiply half precision slowly or not at all. bf16 without bf16 matmul goes to fp32, never to fp16,
    # which overflows where bf16 does not.
    native = device_type != "cpu" and (dtype != torch.bfloat16 or bf16_matmul)
    return dtype if native else torch.float32


def operand(t: Tensor, dtype: torch.dtype) -> Tensor:
    """`t` (h, N, D) in `dtype` with strides that BLAS takes: torch's own loop for others sums with larger rounding
    errors. Heads that are one expanded head stay so."""
    if t.shape[0] > 1 and t.stride(0) == 0:
        return operand(t[:1], dtype).expand(t.shape)
    t = t.to(dtype)
    return t if 1 in t.stride()[-2:] else t.contiguous()


def matmul_into(out: Tensor, a: Tensor, b: Tensor, scale: float) -> None:
    """out = scale * a @ b for batches of matrices, whatever `out` held before, NaN included."""
    if a.shape[1] * a.shape[2] * b.shape[2] < 512:  # torch < 2 multiplies what a tiny `out` held by beta=0
        out.zero_()
    torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)


class ForwardTiles:
    """Computes one `Block` in tiles of at most `tile`; `scale` multiplies the scores inside the matmul.

    The tile shrinks when memory runs out; rows that are finished stay. `bounded` says that exp(score) can neither
    overflow nor vanish: key tiles then need no running maximum, and exp(x) is computed as 2^(x log2 e), for which
    torch has the faster loop (1.7 times on a Zen 3 CPU), with log2 e inside the matmul's scale.
    """

    def __init__(
        self,
        tile: Tile,
        dtype: torch.dtype,
        device: torch.device,
        scale: float,
        is_causal: bool,
        bounded: bool = False,
    ):
        self.bounded = bounded
        self.shrinking = Shrinking(tile)
        self.dtype = dtype
        self.device = device
        self.scale = scale * LOG2_E if bounded else scale
        self.is_causal = is_causal
        self.buffer: Tensor | None = None

    @property
    def tile(self) -> Tile:
        return self.shrinking.tile

    def run(self, block: Block, heads: slice = WHOLE, rows: slice = WHOLE) -> None:
        """Compute `heads` and `rows` of the block's output."""
        first_head, last_head, _ = heads.indices(block.q.shape[0])
        first_row, last_row, _ = rows.indices(block.q.shape[1])
        todo = [(first_head, last_head, first_row)]  # a stack of what is left: first head, one past the last, first row
        while todo:
            start, stop, row = todo.pop()
            end = min(start + self.tile.heads * self.tile.batches, stop)
            if end < stop:
                todo.append((end, stop, row))
            heads_ = slice(start, end)
            k, v = block.k[heads_], block.v[heads_]
            with self.shrinking.attempt(block.q, block.k, self.dtype):
                if self.tile.keys >= k.shape[1]:
                    k, v = operand(k, self.dtype), operand(v, self.dtype)
                while row < last_row:
                    rows_ = slice(row, min(row + self.tile.rows, last_row))
                    self._one(block, heads_, rows_, k, v)
                    row = rows_.stop
                continue
            self.buffer = None  # memory ran out: go on from this row with the smaller tile
            todo.append((start, end, row))

    def _scores_buffer(self, heads: int, rows: int, keys: int) -> Tensor:
        if self.buffer is None or self.buffer.numel() < heads * rows * keys:
            self.buffer = torch.empty(heads * rows * keys, dtype=self.dtype, device=self.device)
        return self.buffer[: heads * rows * keys].view(heads, rows, keys)

    def _one(self, block: Block, heads: slice, rows: slice, k: Tensor, v: Tensor) -> None:
        """Attention of `heads` and `rows` over all keys, written to the output's slice."""
        q = operand(block.q[heads, rows], self.dtype)  # (h, r, D)
        out = block.out[heads, rows]  # (h, r, Dv)
        mask = pick(block.mask, (heads, rows))
        keys = min(k.shape[1], rows.stop) if self.is_causal else k.shape[1]
        if self.bounded or self.tile.keys < keys:
            self._online(q, k, v, out, mask, rows.start, keys)
            return
        # causal: fewer keys than the tile's may be left
        k, v = operand(k[:, :keys], self.dtype), operand(v[:, :keys], self.dtype)
        weights = self.weights(q, k, mask, rows.start)
        if out.dtype == self.dtype:
            torch.bmm(weights, v, out=out)
        else:
            out.copy_(torch.bmm(weights, v))

    def scores(self, q: Tensor, k: Tensor, mask: Tensor | None, first_row: int, first_key: int = 0) -> Tensor:
        """scale * q k^T with masks applied, (h, r, keys), in the reused buffer."""
        h, r, keys = q.shape[0], q.shape[1], k.shape[1]
        s = self._scores_buffer(h, r, keys)
        if mask is not None and mask.dtype != torch.bool and s.dtype in (torch.float16, torch.bfloat16):
            # As the matmul's addend: a masked key's score may pass the range of fp16 before the mask brings it back.
            s.copy_(mask.expand_as(s))
            torch.baddbmm(s, q, k.transpose(1, 2), beta=1, alpha=self.scale, out=s)
        else:
            matmul_into(s, q, k.transpose(1, 2), self.scale)
            if mask is not None and mask.dtype == torch.bool:
                s.masked_fill_(mask.logical_not(), -math.inf)
            elif mask is not None:
                # After the matmul: where a CPU adds product by product to an addend, each is rounded to its size.
                s.add_(mask.to(s.dtype))
        if self.is_causal:
            row = torch.arange(first_row, first_row + r, device=s.device)[:, None]
            tail = max(min(first_row, first_key + keys) - first_key, 0)  # keys before the first row are all seen
            key = torch.arange(first_key + tail, first_key + keys, device=s.device)
            s[:, :, tail:].masked_fill_(key > row, -math.inf)
        return s

    def weights(self, q: Tensor, k: Tensor, mask: Tensor | None, first_row: int) -> Tensor:
        """softmax of the scores over all keys, (h, r, keys), in the reused buffer; fully masked rows are 0."""
        s = self.scores(q, k, mask, first_row)
        if mask is None:
            return torch.softmax(s, -1, out=s)
        dead = s.amax(-1, keepdim=True) == -math.inf
        torch.softmax(s, -1, out=s)
        return s.masked_fill_(dead, 0)

    def _online(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None, first_row: int, keys: int
    ) -> None:
        """The same over key tiles, with the running maximum `m`, sum `l` and weighted sum `acc` in fp32."""
        wide = torch.promote_types(self.dtype, torch.float32)
        l = torch.zeros(*q.shape[:2], 1, dtype=wide, device=q.device)  # noqa: E741 - (h, r, 1), the literature's name
        m = torch.full_like(l, -math.inf)
        acc = torch.zeros(*q.shape[:2], v.shape[2], dtype=wide, device=q.device)  # (h, r, Dv)
        for start in range(0, keys, self.tile.keys):
            part = slice(start, min(start + self.tile.keys, keys))
            mask_ = pick(mask, (WHOLE, WHOLE, part))
            s = self.scores(q, operand(k[:, part], self.dtype), mask_, first_row, start)
            if not self.bounded:
                m_new = torch.maximum(m, s.amax(-1, keepdim=True).to(wide))
                base = m_new.masked_fill(m_new == -math.inf, 0)  # a row with no key yet: exp(-inf - 0) = 0
                s.sub_(base.to(s.dtype))
                correction = (m - base).exp_()
                l.mul_(correction)
                acc.mul_(correction)
                m = m_new
                s.exp_()
            else:
                s.exp2_()
            total = s.sum(-1, keepdim=True, dtype=wide)
            l.add_(total)
            v_ = operand(v[:, part], self.dtype)
            if self.dtype == wide:
                acc.baddbmm_(s, v_)
            elif self.dtype == torch.float16:  # a sum of many values may pass 65,504, their mean does not
                acc.add_(torch.bmm(s.div_(total.clamp(min=1e-30)), v_).mul(total))
            else:
                acc.add_(torch.bmm(s, v_))
        l.masked_fill_(l == 0, 1)
        if out.dtype == wide:
            torch.div(acc, l, out=out)
        else:
            out.copy_(acc.div_(l))


def _largest_norm(t: Tensor) -> float:
    """The largest |row| of t (..., H, N, D). Models hold (B, N, H, D), and torch is slow out of the stored order."""
    as_stored = t.transpose(-3, -2)
    norms = torch.linalg.vector_norm(as_stored if as_stored.is_contiguous() else t, dim=-1)
    return max(float(norms.amax()), 1e-18)  # the squares of smaller values vanish


def scores_are_bounded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> bool:
    """Whether softmax may skip its maximum: exp(score) stays far inside fp32's range for every score.

    |q_i . k_j| <= |q_i| |k_j| (Cauchy-Schwarz) bounds the scores from the norms alone, in O(N). Softmax does not
    change when all scores of a row are shifted, so subtracting the maximum is needed only against overflow; where
    the bound rules that out, three passes over each tile become one. Float masks are not bounded below.
    """
    if mask is not None and mask.dtype != torch.bool:
        return False
    # Reductions that copy nothing, neither a dtype to convert to nor abs(), and that torch 1.13 has for fp16 as well.
    bound = abs(scale) * _largest_norm(q) * _largest_norm(k)
    size = math.log(max(float(v.amax()), -float(v.amin()), 1e-30))  # of the values, which multiply the exponentials
    # exp(88) is fp32's largest, exp(-87) its smallest normal number; 17 below is its last digit.
    return bound <= min(85 - math.log(k.shape[-2]) - size, 70 + size)  # False for NaN
