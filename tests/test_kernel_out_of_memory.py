"""Running out of memory. `Memory` is a fake for memory pressure: it makes torch's matmuls raise at chosen calls."""

from __future__ import annotations

import weakref

import pytest
import torch
from attention_reference import assert_close, reference, tensors

from lib_tiled import TiledOutOfMemoryError, tiled_attention
from lib_tiled.kernel import attention, forget_reductions, is_out_of_memory, memory, options
from lib_tiled.kernel.plan import Tile

ERRORS = {
    "torch": lambda: getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)("HIP out of memory."),
    "driver": lambda: RuntimeError("CUDA error: out of memory"),
    "cublas": lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    "cpu": lambda: RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    "mps": lambda: RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"),
    "python": lambda: MemoryError(),
}


class Memory:
    """Stands in for torch.baddbmm, which makes every score tile, and runs out of memory as told.

    fail(call, elements) -> bool decides for the n-th call with a tile of so many scores. `tiles` lists the shapes of
    the tiles that were computed.
    """

    def __init__(self, monkeypatch, fail, error=ERRORS["torch"]):
        self.calls, self.tiles, self.emptied, self.failed = 0, [], 0, None
        real = torch.baddbmm

        def baddbmm(s, *args, **kwargs):
            self.calls += 1
            if fail(self.calls, s.numel()):
                self.failed = weakref.ref(s)
                raise error()
            self.tiles.append(tuple(s.shape))
            return real(s, *args, **kwargs)

        def empty_cache(device):
            assert self.failed is None or self.failed() is None, "the failed tile is still alive: nothing to give back"
            self.emptied += 1

        monkeypatch.setattr(torch, "baddbmm", baddbmm)
        monkeypatch.setattr(memory, "empty_cache", empty_cache)


@pytest.fixture(autouse=True)
def full_tiles_afterwards():
    forget_reductions()
    yield
    forget_reductions()


@pytest.fixture
def tile(monkeypatch):
    """A planned tile of 3 heads x 40 rows x all keys; reductions work as usual."""
    monkeypatch.setattr(attention, "plan", lambda shape, *args: Tile(3, 40, shape.keys))


@pytest.mark.parametrize("kind", ERRORS)
def test_halves_and_goes_on_from_the_row_it_reached(kind, tile, monkeypatch):
    q, k, v = tensors((1,), 7, 101, 60, 8)
    pressure = Memory(monkeypatch, lambda call, n: call == 3, ERRORS[kind])
    out = tiled_attention(q, k, v)
    assert_close(out, reference(q, k, v))
    # Three heads: rows 0-39, 40-79, then 80-100 fails and is done in tiles of 20 rows; so are the other heads.
    assert pressure.tiles[:4] == [(3, 40, 60), (3, 40, 60), (3, 20, 60), (3, 1, 60)]
    assert set(pressure.tiles[4:]) == {(3, 20, 60), (3, 1, 60), (1, 20, 60), (1, 1, 60)}
    assert sum(h * r for h, r, _ in pressure.tiles) == 7 * 101  # no row twice
    assert pressure.emptied == 1


@pytest.mark.parametrize("limit", [3 * 40 * 60 - 1, 1000, 300, 200, 60])
def test_halves_until_it_fits(limit, tile, monkeypatch):
    q, k, v = tensors((1,), 7, 101, 60, 8)
    pressure = Memory(monkeypatch, lambda call, n: n > limit)
    mask = torch.rand(7, 101, 60, generator=torch.Generator().manual_seed(0)) > 0.3
    assert_close(tiled_attention(q, k, v, mask), reference(q, k, v, mask))
    assert max(h * r * n for h, r, n in pressure.tiles) <= limit
    assert sum(h * r for h, r, _ in pressure.tiles) == 7 * 101
    assert pressure.emptied == 1


def test_halves_keys_last(tile, monkeypatch):
    q, k, v = tensors((1,), 3, 9, 1000, 8)
    Memory(monkeypatch, lambda call, n: n > 300)
    assert_close(tiled_attention(q, k, v), reference(q, k, v))


def test_batches_side_by_side(monkeypatch):
    q, k, v = tensors((6,), 2, 20, 30, 8)
    monkeypatch.setattr(attention, "plan", lambda shape, *args: Tile(2, 20, 30, batches=4))
    Memory(monkeypatch, lambda call, n: n > 90)
    assert_close(tiled_attention(q, k, v), reference(q, k, v))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, tile, monkeypatch):
    q, k, v = tensors((1,), 7, 101, 60, 8, dtype=dtype)
    Memory(monkeypatch, lambda call, n: n > 1000)
    assert_close(tiled_attention(q, k, v), reference(q, k, v))


def test_smallest_tile_names_what_was_tried(tile, monkeypatch):
    q, k, v = tensors((1,), 7, 101, 600, 8)
    pressure = Memory(monkeypatch, lambda call, n: True)
    with pytest.raises(TiledOutOfMemoryError) as caught:
        tiled_attention(q, k, v)
    for words in ("(7, 101, 8)", "(7, 600, 8)", "torch.float32", "cpu", "1x1x150", "free"):
        assert words in str(caught.value), str(caught.value)
    assert is_out_of_memory(caught.value.__cause__)
    assert pressure.emptied == 1


def test_other_errors_pass(tile, monkeypatch):
    q, k, v = tensors((1,), 7, 101, 60, 8)
    Memory(monkeypatch, lambda call, n: call == 2, lambda: RuntimeError("an illegal instruction"))
    with pytest.raises(RuntimeError, match="illegal instruction"):
        tiled_attention(q, k, v)
    assert not is_out_of_memory(ValueError("out of memory"))


def test_reduction_is_remembered_until_the_generation_ends(tile, monkeypatch):
    q, k, v = tensors((1,), 7, 101, 60, 8)
    first = Memory(monkeypatch, lambda call, n: n > 1000)
    tiled_attention(q, k, v)
    assert first.calls > len(first.tiles) and max(first.tiles) == (3, 5, 60)
    second = Memory(monkeypatch, lambda call, n: False)
    tiled_attention(q, k, v)
    assert max(second.tiles) == (3, 5, 60) and second.emptied == 0
    forget_reductions()
    third = Memory(monkeypatch, lambda call, n: False)
    tiled_attention(q, k, v)
    assert max(third.tiles) == (3, 40, 60)


def test_backward_starts_over_with_a_smaller_tile(tile, monkeypatch):
    q, k, v = (t.requires_grad_() for t in tensors((1,), 7, 101, 60, 8))
    mask = torch.zeros(101, 60, requires_grad=True)
    inputs = (q, k, v, mask)
    expected = torch.autograd.grad(tiled_attention(*inputs).square().sum(), inputs)
    out = tiled_attention(*inputs)
    pressure = Memory(monkeypatch, lambda call, n: call == 3)
    found = torch.autograd.grad(out.square().sum(), inputs)
    assert pressure.emptied == 1
    for f, e in zip(found, expected):
        assert torch.allclose(f, e, rtol=1e-4, atol=1e-5)
    Memory(monkeypatch, lambda call, n: True)
    with pytest.raises(TiledOutOfMemoryError):
        torch.autograd.grad(tiled_attention(*inputs).sum(), inputs)


def test_settings_apply_to_the_reduced_tile_too(tile, monkeypatch):
    q, k, v = tensors((1,), 7, 101, 60, 8)
    pressure = Memory(monkeypatch, lambda call, n: call == 1)
    with options.using(rows=10):
        assert_close(tiled_attention(q, k, v), reference(q, k, v))
    assert {rows for _, rows, _ in pressure.tiles} == {5, 1}
