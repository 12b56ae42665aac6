"""Dtypes: error against a plain attention in the same dtype, fp16's range, bf16 without bf16 matmul, autocast."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from attention_reference import assert_close, error, mean_error, plain, reference, tensors

from lib_tiled import tiled_attention
from lib_tiled.kernel import attend, options
from lib_tiled.kernel.forward import compute_dtype

HALVES = [torch.float16, torch.bfloat16]
SHAPES = [((2,), 4, 200, 200, 40), ((1,), 2, 100, 1500, 64), ((2,), 3, 64, 77, 128), ((1,), 1, 130, 700, 512)]


def plain_or_skip(q, k, v, **kwargs):
    try:
        return plain(q, k, v, **kwargs)
    except RuntimeError as problem:
        if "not implemented for 'Half'" not in str(problem):
            raise
        pytest.skip(f"torch {torch.__version__} has no plain fp16 attention on a CPU to compare with")


@pytest.mark.parametrize("precision", options.PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [None, 23])
def test_error_is_at_most_twice_that_of_plain_attention(shape, dtype, precision, rows):
    q, k, v = tensors(*shape, dtype=dtype)
    largest = [0.0, 0.0]  # over all calls; in one call it hangs on how a single score was rounded
    for kwargs in ({}, {"is_causal": True}, {"scale": 0.5}, {"scale": -0.03}):
        expected = reference(q, k, v, **kwargs)
        usual = plain_or_skip(q, k, v, **kwargs)
        with options.using(rows=rows, precision=precision):
            out = tiled_attention(q, k, v, **kwargs)
        assert out.dtype == dtype
        assert mean_error(out, expected) <= 2 * mean_error(usual, expected)
        largest = [max(a, error(t, expected)) for a, t in zip(largest, (out, usual))]
    assert largest[0] <= 2 * largest[1]


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("layout", ["strided", "one value"])
def test_strides_that_blas_does_not_take_round_no_more(layout, masked):
    # torch multiplies a few rows of them in a loop of its own, which adds product by product to what is there: the
    # digits of a mask a thousand times the scores were all that was left of them.
    def lay_out(t):
        return t.repeat_interleave(2, -1)[..., ::2] if layout == "strided" else t[..., :1].expand(t.shape)

    q, k, v = tensors((2,), 3, 30, 40, 64)
    q, k = lay_out(q * 0.01 if masked else q), lay_out(k * 0.01 if masked else k)
    mask = torch.linspace(-3, 3, 30)[:, None] if masked else None
    expected = reference(q, k, v, mask)
    with options.using(rows=3):
        out = tiled_attention(q, k, v, mask)
    assert mean_error(out, expected) <= 1.2 * mean_error(plain(q, k, v, mask), expected)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_on_a_cpu_half_precision_is_computed_in_fp32(dtype):
    q, k, v = tensors((2,), 4, 200, 200, 40, dtype=dtype)
    assert torch.equal(tiled_attention(q, k, v), tiled_attention(q.float(), k.float(), v.float()).to(dtype))
    assert_close(tiled_attention(q, k, v), reference(q, k, v), steps=1)


def test_compute_dtype():
    fp32, fp16, bf16, fp64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
    for dtype in (fp32, fp64):
        for precision in options.PRECISIONS:
            assert compute_dtype(dtype, "cuda", True, precision) == dtype
    assert compute_dtype(fp16, "cuda", False, "auto") == fp16
    assert compute_dtype(bf16, "cuda", True, "auto") == bf16
    assert compute_dtype(bf16, "cuda", False, "auto") == fp32  # never fp16, which overflows where bf16 does not
    assert compute_dtype(fp16, "cpu", True, "auto") == fp32
    assert compute_dtype(fp16, "cuda", True, "safe") == compute_dtype(bf16, "cuda", True, "safe") == fp32
    assert compute_dtype(fp16, "cuda", True, "fast") == fp16


def loud(score: float, dtype=torch.float16):
    """q, k, v whose products q.k are all `score` times sqrt(D), with D = 64."""
    q, k, v = tensors((1,), 2, 70, 130, 64, dtype=dtype)
    return torch.full_like(q, (score / 8) ** 0.5), torch.full_like(k, (score / 8) ** 0.5), v


def test_fp16_scores_are_scaled_inside_the_matmul():
    q, k, v = loud(60_000)  # the products are 480,000, eight times the scores: past fp16's 65,504
    try:
        out = attend(q, k, v, precision="fast")
    except RuntimeError as problem:
        if "not implemented for 'Half'" not in str(problem):
            raise
        pytest.skip(f"torch {torch.__version__} has no fp16 matmul on a CPU")
    assert_close(out, reference(q, k, v))


@pytest.mark.parametrize("score", [60_000, 1_000_000])
@pytest.mark.parametrize("precision", ["auto", "safe"])
def test_safe_precision_stays_finite_past_the_range_of_fp16(score, precision):
    q, k, v = loud(score)
    assert_close(attend(q, k, v, precision=precision), reference(q, k, v))
    with options.using(precision=precision):
        assert_close(tiled_attention(q, k, v), reference(q, k, v))


def test_bf16_scores_past_the_range_of_fp16():
    q, k, v = loud(1e9, torch.bfloat16)
    assert_close(tiled_attention(q, k, v), reference(q, k, v))


def test_fp16_key_tiles_do_not_overflow_on_sums(monkeypatch):
    # 4096 keys of equal weight and value 40: their unnormalised sum, 163,840, is past fp16's range.
    from lib_tiled.kernel import attention
    from lib_tiled.kernel.plan import Tile

    monkeypatch.setattr(attention, "choose_tile", lambda *args, **kwargs: Tile(1, 32, 3000))
    q, k, v = (torch.full((1, 1, n, 8), value, dtype=torch.float16) for n, value in ((40, 0.0), (4096, 1), (4096, 40)))
    try:
        out = attend(q, k, v, precision="fast")
    except RuntimeError as problem:
        if "not implemented for 'Half'" not in str(problem):
            raise
        pytest.skip(f"torch {torch.__version__} has no fp16 matmul on a CPU")
    assert_close(out, torch.full((1, 1, 40, 8), 40.0))


def test_autocast_gives_the_dtype_of_matmul_and_sdpa():
    q, k, v = tensors((2,), 3, 40, 50, 16)
    mask = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tiled_attention(q, k, v)
        masked = tiled_attention(q, k, v, mask)
        assert tiled_attention(*(t.double() for t in (q, k, v))).dtype == torch.float64
        assert out.dtype == (q @ k.transpose(-2, -1)).dtype
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):  # 2.1 leaves it out of a CPU's autocast
            assert out.dtype == F.scaled_dot_product_attention(q, k, v).dtype
    assert out.dtype == torch.bfloat16
    rounded = [t.bfloat16() for t in (q, k, v)]
    assert_close(out, reference(*rounded), steps=2)
    assert_close(masked, reference(*rounded, mask), steps=2)
    with torch.autocast("cpu", enabled=False):
        assert tiled_attention(q, k, v).dtype == torch.float32


def test_autocast_takes_mixed_dtypes_gradients_included():
    q, k, v = (t.requires_grad_() for t in tensors((2,), 3, 40, 50, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tiled_attention(q, k.bfloat16(), v.half())
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert q.grad.dtype == k.grad.dtype == v.grad.dtype == torch.float32
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    reference(*exact).square().sum().backward()
    for t, e in zip((q, k, v), exact):
        assert error(t.grad, e.grad) < 0.05 * e.grad.abs().max()


@pytest.mark.parametrize("hidden", [float("-inf"), torch.finfo(torch.float16).min])
def test_a_masked_score_past_the_range_of_fp16_stays_masked(hidden):
    q, k, v = tensors((1,), 2, 64, 64, 64, dtype=torch.float16)
    k[:, :, 5] = 0
    q[..., 0], k[:, :, 5, 0] = 200, 4000
    mask = torch.zeros(64, 64, dtype=torch.float16)
    mask[:, 5] = hidden
    plain_or_skip(q, k, v)
    out = attend(q, k, v, mask, precision="fast")
    assert_close(out, reference(q, k, v, mask), steps=64)
