"""The kernel's results against attention in float64: shapes, masks, layouts, causal, scale, grouped heads."""

from __future__ import annotations

import math

import pytest
import torch
from attention_reference import assert_close, reference, tensors

from lib_tiled import tiled_attention
from lib_tiled.kernel import attention, options

# Every case runs with the planner's own tile, and with tiles that leave a remainder on rows and on keys.
TILES = [{}, {"rows": 13}, {"rows": 48, "scratch_mb": 1}]


@pytest.fixture(params=TILES, ids=lambda t: ",".join(f"{k}={v}" for k, v in t.items()) or "planned")
def tile(request):
    with options.using(**request.param):
        yield request.param


@pytest.fixture
def key_tiles(monkeypatch):
    """Tiles of 32 rows x 48 keys, whatever the planner says: the path with a running maximum and sum."""
    from lib_tiled.kernel import attention
    from lib_tiled.kernel.plan import Tile

    monkeypatch.setattr(attention, "choose_tile", lambda *args, **kwargs: Tile(1, 32, 48))


def check(q, k, v, mask=None, **kwargs):
    assert_close(tiled_attention(q, k, v, mask, **kwargs), reference(q, k, v, mask, **kwargs))


SHAPES = [
    # batch, heads, queries, keys, D, Dv
    ((2,), 8, 100, 100, 40, 40),
    ((2,), 5, 257, 77, 64, 64),
    ((1,), 1, 130, 131, 512, 512),
    ((3,), 7, 33, 100, 8, 24),
    ((1,), 3, 1, 333, 16, 16),
    ((1,), 3, 333, 1, 16, 16),
    ((2, 3), 4, 50, 61, 8, 8),  # 5-D
    ((5,), 2, 3, 4, 2, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, tile):
    check(*tensors(*shape))


@pytest.mark.parametrize("dims", [2, 3, 4, 5])
def test_dimensions(dims, tile):
    q, k, v = (t[(0,) * (5 - dims)] for t in tensors((2, 3), 4, 37, 53, 8, 12))
    assert q.dim() == dims
    check(q, k, v)
    check(q, k, v, is_causal=True)
    check(q, k, v, torch.rand(37, 53, generator=torch.Generator().manual_seed(dims)) > 0.4)


def test_leading_dimensions_broadcast(tile):
    q, k, v = tensors((3,), 4, 37, 53, 8)
    check(q, k[:1], v[:1])
    check(q, k[:, :1], v)
    check(q[:1, :1], k, v[:1])


def test_key_tiles(key_tiles):
    for shape in SHAPES:
        check(*tensors(*shape))
        check(*tensors(*shape), is_causal=True)


MASKS = [(), (101,), (1, 101), (70, 1), (70, 101), (1, 70, 101), (3, 1, 101), (3, 70, 1), (3, 70, 101)]
MASKS += [(2, 1, 1, 1), (2, 1, 1, 101), (1, 3, 1, 101), (2, 1, 70, 101), (1, 1, 70, 101), (2, 3, 70, 101), (2, 3, 1, 1)]


def random_mask(shape, kind, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if kind == "bool":
        return torch.rand(shape, generator=generator) > 0.3
    mask = torch.randn(shape, generator=generator) * 3
    return mask.masked_fill(torch.rand(shape, generator=generator) > 0.8, -math.inf) if kind == "-inf" else mask


@pytest.mark.parametrize("kind", ["bool", "float", "-inf"])
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks(shape, kind, tile):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    check(q, k, v, random_mask(shape, kind))


@pytest.mark.parametrize("kind", ["bool", "float", "-inf"])
def test_masks_with_key_tiles(kind, key_tiles):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    for shape in MASKS:
        check(q, k, v, random_mask(shape, kind))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_mask_strides(kind, tile):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    check(q, k, v, random_mask((101, 70), kind).t())
    check(q, k, v, random_mask((2, 101, 70, 3), kind).permute(0, 3, 2, 1))
    check(q, k, v, random_mask((140, 303), kind)[::2, 1::3])
    check(q, k, v, random_mask((1, 101), kind).expand(2, 3, 70, 101))
    check(q, k, v, random_mask((101,), kind).flip(0).expand(70, 101))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_float_mask_of_another_dtype(dtype, tile):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    check(q, k, v, random_mask((70, 101), "float").to(dtype))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_fully_masked_rows_give_zero(kind, tile):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    dead = torch.zeros(70, 1, dtype=torch.bool)
    dead[[0, 5, 13, 69]] = True
    mask = ~dead.expand(70, 101) if kind == "bool" else torch.zeros(70, 101).masked_fill(dead, -math.inf)
    out = tiled_attention(q, k, v, mask)
    assert (out[:, :, dead[:, 0]] == 0).all()
    assert_close(out, reference(q, k, v, mask))
    everything = torch.zeros(70, 101, dtype=torch.bool) if kind == "bool" else torch.full((1, 1), -math.inf)
    assert (tiled_attention(q, k, v, everything) == 0).all()


def test_fully_masked_rows_give_zero_with_key_tiles(key_tiles):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    mask = torch.ones(70, 101, dtype=torch.bool)
    mask[3] = False
    mask[40, :96] = False  # nothing in the first two key tiles
    out = tiled_attention(q, k, v, mask)
    assert (out[:, :, 3] == 0).all()
    assert_close(out, reference(q, k, v, mask))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masked_keys_weigh_exactly_zero(kind, tile):
    # Behind the mask lie values so large that a weight of 1e-30 would show.
    q, k, v = tensors((2,), 3, 70, 101, 16)
    keep = random_mask((101,), "bool")
    mask = keep if kind == "bool" else torch.zeros(101).masked_fill(~keep, -math.inf)
    loud = v.clone()
    loud[:, :, ~keep] = 3e38
    assert torch.equal(tiled_attention(q, k, loud, mask), tiled_attention(q, k, v * keep[:, None], mask))


def test_masked_keys_weigh_exactly_zero_with_key_tiles(key_tiles):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    keep = random_mask((101,), "bool")
    loud = v.clone()
    loud[:, :, ~keep] = 3e38
    assert torch.equal(tiled_attention(q, k, loud, keep), tiled_attention(q, k, v * keep[:, None], keep))


def test_nan_in_a_key_behind_a_boolean_mask_stays_there(tile):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    keep = random_mask((101,), "bool")
    broken = k.clone()
    broken[:, :, ~keep] = math.nan
    assert_close(tiled_attention(q, broken, v, keep), reference(q, k, v, keep))


@pytest.mark.parametrize("sizes", [(100, 100), (130, 50), (50, 130), (1, 40), (40, 1)], ids=str)
def test_causal_is_aligned_top_left(sizes, tile):
    q, k, v = tensors((2,), 3, *sizes, 16)
    check(q, k, v, is_causal=True)


def test_causal_ignores_later_keys(tile):
    q, k, v = tensors((2,), 3, 60, 90, 16)
    loud_k, loud_v = k.clone(), v.clone()
    loud_k[:, :, 60:], loud_v[:, :, 60:] = math.nan, math.nan
    assert_close(tiled_attention(q, loud_k, loud_v, is_causal=True), reference(q, k, v, is_causal=True))


@pytest.mark.parametrize("scale", [0.0, -0.3, 1.0, 2.5, 1e-4])
def test_scale(scale, tile):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    check(q, k, v, scale=scale)
    check(q, k, v, random_mask((70, 101), "float"), scale=scale)
    check(q, k, v, scale=scale, is_causal=True)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_grouped_heads(kv_heads, tile):
    q, k, v = tensors((2,), 6, 70, 101, 16, 24, kv_heads=kv_heads)
    check(q, k, v, enable_gqa=True)
    check(q, k, v, enable_gqa=True, is_causal=True)
    for shape in ((70, 101), (6, 1, 101), (2, 6, 70, 101), (2, 1, 70, 1)):
        for kind in ("bool", "float"):
            check(q, k, v, random_mask(shape, kind), enable_gqa=True)


def test_grouped_heads_in_other_dimensions(key_tiles):
    q, k, v = tensors((2, 3), 6, 40, 101, 16, kv_heads=2)
    check(q, k, v, enable_gqa=True)
    check(q[0, 0], k[0, 0], v[0, 0], enable_gqa=True)
    q, k, v = tensors((), 1, 40, 101, 16)
    check(q[0], k[0], v[0])


@pytest.mark.parametrize("zero", ["batch", "heads", "queries", "keys", "dim", "dim_v"])
def test_zero_length_dimensions(zero, tile):
    sizes = {"batch": 2, "heads": 3, "queries": 20, "keys": 30, "dim": 8, "dim_v": 4}
    sizes[zero] = 0
    batch = sizes.pop("batch")
    q, k, v = tensors((batch,), *sizes.values())
    out = tiled_attention(q, k, v)
    assert out.shape == (*q.shape[:-1], v.shape[-1])
    if zero == "keys":
        assert (out == 0).all()
        mask = torch.ones(20, 0, dtype=torch.bool)
        assert (tiled_attention(q, k, v, mask) == 0).all()
    else:
        assert_close(out, reference(q, k, v))
        check(q, k, v, is_causal=True)


LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "heads last": lambda t: t.transpose(-2, -3).contiguous().transpose(-2, -3),
    "transposed matrix": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "cut out of a larger tensor": lambda t: torch.nn.functional.pad(t, (3, 2, 1, 4))[..., 1:-4, 3:-2],
    "every second column": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "every second row": lambda t: t.repeat_interleave(2, -2)[..., ::2, :],
    "reversed dimensions": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, tile):
    q, k, v = tensors((2,), 3, 70, 101, 16, 24)
    expected = reference(q, k, v)
    change = LAYOUTS[layout]
    for which in ((1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        inputs = [change(t) if w else t for t, w in zip((q, k, v), which)]
        assert_close(tiled_attention(*inputs), expected)


def test_expanded_inputs(tile):
    q, k, v = tensors((1,), 1, 70, 101, 16)
    big = [t.expand(3, 4, -1, -1) for t in (q, k, v)]
    assert_close(tiled_attention(*big), reference(*big))
    one_key = k[:, :, :1].expand(-1, -1, 101, -1)  # stride 0 over the keys
    check(q, one_key, v)
    check(q[..., :1].expand(-1, -1, -1, 16), k, v)  # stride 0 over D


def test_output_is_laid_out_like_q():
    q, k, v = tensors((2,), 8, 100, 77, 40)
    out = tiled_attention(q, k, v)
    assert out.stride() == q.stride()
    out.transpose(1, 2).view(2, 100, 320)  # folds back without a copy
    assert tiled_attention(*(t.contiguous() for t in (q, k, v))).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nan_just_past_the_data_does_not_leak(dtype, tile):
    q, k, v = tensors((2,), 3, 70, 101, 16, dtype=dtype)

    def fenced(t, fill):
        whole = torch.full((t.shape[0], t.shape[1] + 2, t.shape[2] + 2, t.shape[3] + 2), fill, dtype=dtype)
        inner = whole[:, 1:-1, 1:-1, 1:-1]
        inner.copy_(t)
        return inner

    quiet = tiled_attention(*(fenced(t, 0.0) for t in (q, k, v)))
    assert torch.equal(tiled_attention(*(fenced(t, math.nan) for t in (q, k, v))), quiet)
    assert_close(quiet, reference(q, k, v))


@pytest.mark.parametrize("kind", [None, "bool", "float"])
def test_same_inputs_same_bits_and_never_written(kind, tile):
    q, k, v = tensors((2,), 3, 170, 301, 16)
    mask = None if kind is None else random_mask((3, 170, 301), kind)
    given = [t for t in (q, k, v, mask) if t is not None]
    copies = [t.clone() for t in given]
    first = tiled_attention(q, k, v, mask)
    torch.full((1 << 20,), math.nan)  # the next buffers may lie where NaN lay
    for _ in range(3):
        assert torch.equal(tiled_attention(q, k, v, mask), first)
    assert all(torch.equal(t, c) for t, c in zip(given, copies))


def test_same_bits_in_grad_and_inference_mode(tile):
    q, k, v = tensors((2,), 3, 70, 101, 16)
    first = tiled_attention(q, k, v)
    with torch.inference_mode():
        inside = tiled_attention(q, k, v)
        assert torch.equal(tiled_attention(q.clone(), k.clone(), v.clone()), first)
    assert torch.equal(inside, first)
    assert torch.equal(tiled_attention(q.requires_grad_(), k, v).detach(), first)


def test_values_so_small_that_their_squares_vanish(monkeypatch):
    """The norms that bound the scores are 0 then, and the scores are not."""
    monkeypatch.setattr(attention, "BOUNDED_FROM_KEYS", 1)
    q, k, v = tensors((1,), 2, 9, 30, 4)
    out = tiled_attention(q * 1e-24, k * 1e18, v, scale=1e8)
    assert_close(out, reference(q * 1e-24, k * 1e18, v, scale=1e8), steps=4096)
