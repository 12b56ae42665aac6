"""The tile planner: limits, stability, the order of halving, the cost model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import attention_reference  # noqa: F401 - one thread, before the facts of the CPU are read
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib_tiled.device import facts as facts_module
from lib_tiled.device.facts import GFX906, facts
from lib_tiled.kernel.attention import choose_tile
from lib_tiled.kernel.plan import (
    MAX_BATCH,
    MAX_ELEMENTS,
    MIN_ROWS,
    Shape,
    Tile,
    plan,
    plan_bounded,
    predict_seconds,
    with_rows,
)

CPU = facts(torch.device("cpu"))
DTYPES = [torch.float16, torch.float32, torch.float64]
SIZES = st.one_of(st.integers(1, 300), st.integers(1, 1 << 18))
COUNTS = st.integers(1, 1 << 17)
SHAPES = st.builds(Shape, COUNTS, COUNTS, SIZES, SIZES, st.sampled_from([8, 40, 512]), st.just(64))


@settings(max_examples=300, deadline=None)
@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from([CPU, GFX906]), st.sampled_from([None, 1 << 20, 1 << 40]))
def test_tiles_keep_the_limits(shape, dtype, device, limit):
    tile = plan(shape, dtype, device, limit)
    size = torch.finfo(dtype).bits // 8
    assert 1 <= tile.heads <= shape.heads and 1 <= tile.rows <= shape.queries and 1 <= tile.batches <= shape.batches
    assert 1 <= tile.keys <= shape.keys
    assert tile.elements <= MAX_ELEMENTS
    assert tile.elements * size <= (limit or device.scratch_bytes)
    assert tile.heads * tile.batches <= MAX_BATCH
    assert tile.keys == shape.keys or tile.heads == 1, "keys are tiled only where a few rows of one head do not fit"
    if tile.keys < shape.keys:
        assert MIN_ROWS * shape.keys * size > (limit or device.scratch_bytes)
    assert plan.__wrapped__(shape, dtype, device, limit) == tile, "the same call gets the same tile"


@settings(max_examples=300, deadline=None)
@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from([None, 64, 1 << 20, 1 << 40]), st.sampled_from([1, 2, 16, 128]))
def test_bounded_tiles_keep_the_limits(shape, dtype, limit, threads):
    device = replace(CPU, units=threads)
    tile = plan_bounded(shape, dtype, device, limit)
    size = torch.finfo(dtype).bits // 8
    assert tile.heads == tile.batches == 1 and 1 <= tile.rows <= shape.queries and 1 <= tile.keys <= shape.keys
    room = min(limit or device.scratch_bytes, device.cache_bytes) // threads
    assert tile.elements * size <= max(room, size), "each thread has a tile"


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.integers(1, 1 << 20))
def test_forced_rows_keep_the_limits(shape, rows):
    planned = plan(shape, torch.float32, CPU)
    tile = with_rows(planned, rows)
    assert 1 <= tile.rows <= rows
    assert tile.elements <= MAX_ELEMENTS
    assert tile.elements <= max(planned.elements, rows * planned.keys)


@settings(max_examples=200, deadline=None)
@given(st.builds(Tile, *[st.integers(1, 5000)] * 4))
def test_halving_ends_at_a_small_tile(tile):
    steps = 0
    while (smaller := tile.halved()) is not None:
        assert smaller.elements < tile.elements
        assert smaller.keys == tile.keys or tile.rows == tile.heads == tile.batches == 1, "keys are halved last"
        tile, steps = smaller, steps + 1
    assert tile.elements <= 256 and steps <= 60


def test_tile_in_words():
    assert str(Tile(8, 64, 4096)) == "8x64x4096"
    assert str(Tile(8, 64, 77, batches=2)) == "2x8x64x77"


@pytest.mark.parametrize("tokens", [23188, 24130, 15625, 52020, 9409])
@pytest.mark.parametrize("device", [CPU, GFX906], ids=lambda d: d.name)
def test_no_jump_at_awkward_sizes(tokens, device):
    def cost(n):
        shape = Shape(2, 8, n, n, 40, 40)
        return predict_seconds(shape, plan(shape, torch.float32, device), torch.float32, device) / n**2

    assert cost(tokens) == pytest.approx(cost(tokens + 12), rel=0.03)
    assert cost(tokens) == pytest.approx(cost(tokens - 37), rel=0.03)


def test_small_batch_entries_share_a_tile():
    assert plan(Shape(64, 2, 16, 16, 8, 8), torch.float32, CPU).batches > 1
    assert plan(Shape(2, 8, 4096, 4096, 40, 40), torch.float32, CPU).batches == 1


def test_cost_model():
    shape = Shape(2, 10, 4096, 4096, 64, 64)
    tile = plan(shape, torch.float16, GFX906)
    seconds = predict_seconds(shape, tile, torch.float16, GFX906)
    flops = 4 * 2 * 10 * 4096**2 * 64
    assert seconds > flops / 26.5e12, "no plan beats the matmul rate of the data sheet"
    assert seconds <= predict_seconds(shape, Tile(10, 1024, 4096, batches=2), torch.float16, GFX906)
    slower = replace(GFX906, memory_bandwidth=GFX906.memory_bandwidth / 4, cache_bandwidth=GFX906.cache_bandwidth / 4)
    assert predict_seconds(shape, tile, torch.float16, slower) > seconds


def test_free_memory_decides_nothing(monkeypatch):
    """Facts and plan made anew never ask how much memory is free."""
    asked, read_text = [], Path.read_text
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *args: asked.append("mem_get_info"))
    monkeypatch.setattr(os, "sysconf", asked.append)
    monkeypatch.setattr(Path, "read_text", lambda path, **how: asked.append(str(path)) or read_text(path, **how))
    facts_module._facts.cache_clear()
    plan.cache_clear()
    q = torch.zeros(1, 8, 4096, 40)
    choose_tile(q, q, q, torch.float32)
    assert not [what for what in asked if "/cache/" not in what and "tune.json" not in what]


@pytest.mark.parametrize(
    "name, capability, bf16",
    [
        ("gfx803", (8, 0), False),
        ("gfx906:sramecc+:xnack-", (9, 0), False),
        ("gfx1010", (10, 1), False),
        ("gfx1030", (10, 3), False),
        ("gfx908", (9, 0), True),
        ("gfx1100", (11, 0), True),
        ("", (9, 0), False),  # torch before 2.1 on ROCm: gfx906 as well as gfx90a
        (None, (6, 1), False),
        (None, (8, 6), True),
    ],
)
def test_bf16_matmul_is_what_the_hardware_has(monkeypatch, name, capability, bf16):
    """Fake GPUs: what torch says of them, by their data sheets."""
    known = {"gcnArchName": name} if name else {}
    gpu = SimpleNamespace(major=capability[0], minor=capability[1], multi_processor_count=60, **known)
    monkeypatch.setattr(torch.version, "hip", None if name is None else "6.2")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    found = facts_module._cuda_facts(0)
    assert found.bf16_matmul is bf16
    expected = {"": "gfx90xx", None: f"sm_{capability[0]}{capability[1]}"}
    assert found.name == (expected[name] if not name else name.partition(":")[0])
