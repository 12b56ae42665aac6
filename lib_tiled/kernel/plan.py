"""How large a score tile should be.

A tile is `heads` x `rows` x `keys` scores. It is written by one matmul, rewritten by the softmax and read by a
second matmul; it should stay in the cache between the three and still be large enough to feed the device. The
plan comes from shapes, dtype and device facts alone, so the same call is always computed in the same way.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch

from ..device.facts import DeviceFacts

MAX_ELEMENTS = (1 << 31) - 1  # 32-bit indexing inside many GPU kernels
MAX_BATCH = 65_535  # grid limit of batched matmuls
CPU_BATCH_EFFICIENCY = 0.9  # of a batch of matrices against one that the threads share (measured, MKL)
MIN_ROWS = 16  # fewer rows starve the matmul; below this the keys are tiled instead


@dataclass(frozen=True)
class Tile:
    """Scores computed at a time: `heads` x `rows` x `keys`, for `batches` batch entries side by side."""

    heads: int
    rows: int
    keys: int
    batches: int = 1

    @property
    def elements(self) -> int:
        return self.batches * self.heads * self.rows * self.keys

    def __str__(self) -> str:
        head = f"{self.batches}x{self.heads}" if self.batches > 1 else f"{self.heads}"
        return f"{head}x{self.rows}x{self.keys}"

    def halved(self) -> Tile | None:
        """The next smaller tile, or None where there is none: rows first, then heads, batches and keys."""
        if self.rows > 1:
            return replace(self, rows=math.ceil(self.rows / 2))
        if self.batches > 1:
            return replace(self, batches=self.batches // 2)
        if self.heads > 1:
            return replace(self, heads=self.heads // 2)
        return replace(self, keys=math.ceil(self.keys / 2)) if self.keys > 256 else None


@dataclass(frozen=True)
class Shape:
    """The sizes that decide a plan: B batches of H heads, Nq queries, Nk keys, head dimensions D and Dv."""

    batches: int
    heads: int
    queries: int
    keys: int
    dim: int
    dim_v: int


def _copied(tile: Tile, shape: Shape) -> int:
    """Elements of q, k, v and result that are copied for one batch entry of `tile` where several lie side by side."""
    return tile.heads * (tile.rows + tile.keys) * (shape.dim + shape.dim_v) if tile.heads > 1 else 0


def predict_seconds(shape: Shape, tile: Tile, dtype: torch.dtype, facts: DeviceFacts) -> float:
    """Modelled seconds of one attention call: launches, matmuls, softmax and the bytes each pass moves.

    `dtype` is the one the scores are computed in. A model, not a measurement.
    """
    size = torch.finfo(dtype).bits // 8
    heads, rows = min(tile.heads, shape.heads), min(tile.rows, shape.queries)
    calls = (
        math.ceil(shape.batches / tile.batches)
        * math.ceil(shape.heads / heads)
        * math.ceil(shape.queries / rows)
        * math.ceil(shape.keys / tile.keys)
    )
    elements = tile.batches * heads * rows * min(tile.keys, shape.keys)
    blocks = tile.batches * heads * math.ceil(rows / 128) * math.ceil(tile.keys / 128)
    waves = max(blocks / facts.units, 1e-9)
    fill = waves / math.ceil(waves) if facts.name != "cpu" else 1.0
    efficiency = rows / (rows + facts.half_rate_rows) * fill
    if facts.name == "cpu" and tile.batches * heads > 1:
        efficiency *= CPU_BATCH_EFFICIENCY
    matmul = 2 * elements * (shape.dim + shape.dim_v) / (facts.rate(dtype) * efficiency)
    in_cache = elements * size <= facts.cache_bytes
    bandwidth = facts.cache_bandwidth if in_cache else facts.memory_bandwidth
    keys_and_values = tile.batches * heads * tile.keys * (shape.dim + shape.dim_v) * size
    passes = 4 * elements * size / bandwidth + keys_and_values / facts.memory_bandwidth
    if tile.batches > 1:
        passes += 2 * tile.batches * _copied(tile, shape) * size / facts.memory_bandwidth
    softmax = elements / facts.softmax_rate
    if facts.name == "cpu":  # operations follow one another
        one = 3 * facts.launch_seconds + matmul + softmax + passes
    else:  # launches of the next tile overlap the work of this one
        one = max(3 * facts.launch_seconds, matmul + softmax + passes)
    return calls * one


def _candidates(upto: int) -> list[int]:
    """1, 2, 4 ... and `upto` itself."""
    return sorted({upto, *(1 << n for n in range(upto.bit_length()) if 1 << n < upto)})


BOUNDED_FROM_KEYS = 1024  # below, all keys in the tile are faster
BOUNDED_TILE_KEYS = 256
BOUNDED_ELEMENTS = 1 << 18  # scores in a tile: 1 MB of fp32


def plan_bounded(shape: Shape, dtype: torch.dtype, facts: DeviceFacts, limit_bytes: int | None = None) -> Tile:
    """One thread's tile where key tiles need no running maximum (CPU): of one head, small enough for a core's cache.

    Tall rather than wide, because each row tile reads all of K and V; but at least as wide as Dv, because the
    accumulator of rows x Dv is read and written once for each key tile. The rows are divided evenly: a short last
    tile feeds the matmul badly.
    """
    limit = min((limit_bytes or facts.scratch_bytes), facts.cache_bytes) // (torch.finfo(dtype).bits // 8)
    limit = max(min(limit // facts.units, BOUNDED_ELEMENTS), 1)
    keys = min(max(BOUNDED_TILE_KEYS, shape.dim_v), shape.keys, limit)
    rows = math.ceil(shape.queries / max(round(shape.queries * keys / limit), 1))
    return Tile(1, max(min(rows, limit // keys), 1), keys)


@functools.lru_cache(maxsize=1024)
def plan(shape: Shape, dtype: torch.dtype, facts: DeviceFacts, limit_bytes: int | None = None) -> Tile:
    """The tile for one call: the cheapest by `predict_seconds` that keeps within the scratch limit.

    `dtype` is the compute dtype, `limit_bytes` replaces the device's scratch limit. Every count of `shape` must be at
    least 1.
    """
    size = torch.finfo(dtype).bits // 8
    limit = min((limit_bytes or facts.scratch_bytes) // size, MAX_ELEMENTS)
    keys = shape.keys
    if MIN_ROWS * keys > limit:
        # Not even a minimal row tile fits: tile the keys as well (running maximum and sum).
        rows = min(shape.queries, 256)
        return Tile(heads=1, rows=rows, keys=max(min(keys, limit // rows), 1))
    best, best_cost = None, math.inf
    for heads in _candidates(min(shape.heads, MAX_BATCH)):
        for rows in _candidates(shape.queries):
            tile = Tile(heads, rows, keys)
            if tile.elements > limit or (rows < MIN_ROWS and rows < shape.queries):
                continue
            tiles = [tile]
            if heads == shape.heads and rows == shape.queries:
                room = min(facts.cache_bytes // size, limit) // max(tile.elements, _copied(tile, shape))
                tiles.append(replace(tile, batches=max(min(shape.batches, room, MAX_BATCH // heads), 1)))
            for candidate in tiles:
                cost = predict_seconds(shape, candidate, dtype, facts)
                if cost < best_cost:
                    best, best_cost = candidate, cost
    return best or Tile(1, min(MIN_ROWS, shape.queries), keys)


def with_rows(tile: Tile, rows: int) -> Tile:
    """`tile` with `rows` rows, and so few heads that it grows only where one head's rows are larger already."""
    rows = min(rows, MAX_ELEMENTS // tile.keys)
    return Tile(max(min(tile.heads, tile.elements // (rows * tile.keys)), 1), rows, tile.keys)
