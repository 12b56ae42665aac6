"""Long rows: many keys, where the kernel may tile them or leave out the softmax's maximum; extreme scores."""

from __future__ import annotations

import math

import pytest
import torch
from attention_reference import assert_close, error, plain, reference, tensors, unit

from lib_tiled import tiled_attention
from lib_tiled.kernel import options

LENGTHS = [511, 512, 513, 1024, 1100, 2047]


@pytest.mark.parametrize("tile", [{}, {"rows": 7}, {"rows": 300, "scratch_mb": 1}], ids=str)
@pytest.mark.parametrize("keys", LENGTHS)
def test_many_keys(keys, tile):
    q, k, v = tensors((2,), 3, 130, keys, 40, 24)
    mask = torch.rand(2, 1, 130, keys, generator=torch.Generator().manual_seed(keys)) > 0.5
    mask[:, :, 7] = False
    with options.using(**tile):
        assert_close(tiled_attention(q, k, v), reference(q, k, v))
        assert_close(tiled_attention(q, k, v, is_causal=True), reference(q, k, v, is_causal=True))
        out = tiled_attention(q, k, v, mask)
        assert (out[:, :, 7] == 0).all()
        assert_close(out, reference(q, k, v, mask))
        bias = torch.randn(3, 130, keys, generator=torch.Generator().manual_seed(keys)).masked_fill(~mask[0], -math.inf)
        assert_close(tiled_attention(q, k, v, bias), reference(q, k, v, bias))


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_many_keys_with_grouped_heads(kv_heads):
    q, k, v = tensors((2,), 6, 130, 1100, 16, kv_heads=kv_heads)
    assert_close(tiled_attention(q, k, v, enable_gqa=True), reference(q, k, v, enable_gqa=True))
    with options.using(rows=23):
        assert_close(
            tiled_attention(q, k, v, enable_gqa=True, is_causal=True),
            reference(q, k, v, enable_gqa=True, is_causal=True),
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_half_precision_where_keys_are_tiled(dtype, is_causal):
    # 1 MiB of fp32 scores: fewer than 16 rows beside all keys, so keys are tiled; the first causal rows see few.
    q, k, v = tensors((1,), 1, 20_001, 20_001, 1, dtype=dtype)
    q = q[..., :600, :]
    with options.using(scratch_mb=1):
        out = tiled_attention(q, k, v, is_causal=is_causal)
    assert_close(out, reference(q, k, v, is_causal=is_causal))


@pytest.mark.parametrize("keys", [100, 1100])
@pytest.mark.parametrize("level", [-3e4, -500.0, -88.0, 88.0, 500.0, 3e4])
def test_rows_whose_scores_all_lie_far_from_zero(level, keys):
    # Softmax ignores a shift of a whole row; a kernel that exponentiates unshifted scores does not.
    q, k, v = tensors((1,), 2, 65, keys, 8)
    q[..., 0], k[..., 0] = level, 1.0
    assert_close(tiled_attention(q, k, v, scale=1.0), reference(q, k, v, scale=1.0), 64 * max(abs(level), 1))
    bias = torch.full((65, 1), level)
    q[..., 0] = 0
    assert_close(tiled_attention(q, k, v, bias, scale=1.0), reference(q, k, v, bias, scale=1.0), 64 * abs(level))


@pytest.mark.parametrize("keys", [100, 1100])
def test_rows_of_very_different_size_in_one_call(keys):
    q, k, v = tensors((1,), 2, 65, keys, 8)
    q *= torch.logspace(-6, 4, 65)[:, None]
    out, expected = tiled_attention(q, k, v), reference(q, k, v)
    assert error(out, expected) <= 2 * error(plain(q, k, v), expected) + 8 * unit(expected, torch.float32)


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e36])
@pytest.mark.parametrize("keys", [100, 1100])
def test_very_small_and_very_large_values(size, keys):
    q, k, v = tensors((1,), 2, 65, keys, 8)
    v = v * size
    out, expected = tiled_attention(q, k, v), reference(q, k, v)
    assert error(out, expected) <= 64 * unit(expected, torch.float32)


@pytest.mark.parametrize("keys", [100, 1100])
def test_loud_values_behind_a_mask(keys):
    q, k, v = tensors((1,), 2, 65, keys, 8)
    keep = torch.rand(keys, generator=torch.Generator().manual_seed(1)) > 0.3
    loud_k, loud_v = k.clone(), v.clone()
    loud_k[:, :, ~keep] = 1e18
    loud_v[:, :, ~keep] = 3e38
    assert_close(tiled_attention(q, loud_k, loud_v, keep), reference(q, k, v, keep))


@pytest.mark.parametrize("keys", [100, 1100])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_is_passed_on_and_stays_in_its_head(where, keys):
    q, k, v = tensors((1,), 2, 65, keys, 8)
    {"q": q, "k": k, "v": v}[where][0, 1, 3, 2] = math.nan
    out = tiled_attention(q, k, v)
    assert torch.equal(out.isnan(), plain(q, k, v).isnan())
    assert out[0, 1].isnan().any()
    assert_close(out[0, 0], reference(q, k, v)[0, 0])
