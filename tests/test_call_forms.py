"""The call forms of Forge's and reForge's attention functions by the tiled kernel, against float64."""

import types

import pytest
import torch
from attention_reference import reference as exact

from lib_tiled.backends import calls
from lib_tiled.hosts import call_forms

B, H, N, M, D = 2, 3, 131, 77, 20


def tensors(dtype=torch.float32, keys=N):
    torch.manual_seed(keys)
    return (torch.randn(B, H, length, D, dtype=dtype) for length in (N, keys, keys))


def merged(t):
    """(B, H, N, D) -> (B, N, H*D), as the hosts hand it over."""
    return t.transpose(1, 2).flatten(2)


def attention(per_picture=True, upcast=lambda dtype: False):
    return call_forms.tiled_heads(per_picture, upcast)


def assert_close(out, expected, atol=2e-5):
    assert out.shape == expected.shape
    torch.testing.assert_close(out.double(), expected.double(), atol=atol, rtol=0)


@pytest.mark.parametrize("keys", [N, M])
@pytest.mark.parametrize("skip_reshape", [False, True])
@pytest.mark.parametrize("skip_output_reshape", [False, True])
def test_layouts(keys, skip_reshape, skip_output_reshape):
    q, k, v = tensors(keys=keys)
    expected = exact(q, k, v)
    given = (q, k, v) if skip_reshape else tuple(merged(t) for t in (q, k, v))
    out = attention()(*given, H, skip_reshape=skip_reshape, skip_output_reshape=skip_output_reshape)
    assert_close(out, expected if skip_output_reshape else merged(expected))


def test_output_of_the_unets_form_is_no_copy():
    q, k, v = (merged(t) for t in tensors())
    assert attention()(q, k, v, H).is_contiguous()


MASKS = {
    "(Nq, Nk)": (N, M),
    "(1, Nk)": (1, M),
    "(B, 1, 1, Nk)": (B, 1, 1, M),
    "(B, H, Nq, Nk)": (B, H, N, M),
    "(1, H, Nq, Nk), T5's bias": (1, H, N, M),
    "(B, 1, Nq, Nk)": (B, 1, N, M),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("per_picture", [True, False])
def test_masks_mean_what_they_mean_to_torch(shape, boolean, per_picture):
    q, k, v = tensors(keys=M)
    mask = torch.rand(shape) > 0.3 if boolean else torch.randn(shape)
    out = attention(per_picture)(merged(q), merged(k), merged(v), H, mask)
    assert_close(out, merged(exact(q, k, v, mask)))


def test_masks_of_three_dimensions_are_per_picture_or_per_head():
    q, k, v = tensors(keys=M)
    per_picture, per_head = torch.randn(B, N, M), torch.randn(H, N, M)
    out = attention(per_picture=True)(merged(q), merged(k), merged(v), H, mask=per_picture)
    assert_close(out, merged(exact(q, k, v, per_picture[:, None])))
    out = attention(per_picture=False)(merged(q), merged(k), merged(v), H, mask=per_head)
    assert_close(out, merged(exact(q, k, v, per_head)))


def test_fp32_scores_when_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(call_forms.tiled, "run", lambda q, k, v, mask, precision, **how: asked.append(precision) or q)
    q, k, v = tensors(torch.float16)
    forced = attention(upcast=lambda dtype: dtype == torch.float16)
    attention()(q, k, v, H, skip_reshape=True)
    attention()(q, k, v, H, attn_precision=torch.float32, skip_reshape=True)
    forced(q, k, v, H, skip_reshape=True)
    assert asked == [None, "safe", "safe"]


def test_fp32_scores_save_what_overflows_in_fp16():
    q = torch.full((1, 64, 40), 200.0, dtype=torch.float16)  # scores of 40 * 200 * 200 / sqrt(40) = 253,000
    v = torch.randn(1, 64, 40, dtype=torch.float16)
    out = attention()(q, q, v, 1, attn_precision=torch.float32)
    assert_close(out, v.float().mean(1, keepdim=True).expand(1, 64, 40), atol=2e-3)


@pytest.mark.parametrize(("answer", "forced"), [
    (None, False),
    (torch.float32, True),
    ({torch.float16: torch.float32}, True),
    ({torch.bfloat16: torch.float32}, False),
])
def test_the_hosts_answers_about_forced_fp32(answer, forced):
    management = types.SimpleNamespace(force_upcast_attention_dtype=lambda: answer)
    assert call_forms.forced_fp32(management)(torch.float16) is forced
    assert call_forms.forced_fp32(types.SimpleNamespace())(torch.float16) is False


def test_arguments_of_newer_relatives():
    q, k, v = tensors()
    hints = {"transformer_options": {}, "low_precision_attention": False}
    assert_close(attention()(q, k, v, H, skip_reshape=True, scale=0.5, **hints), merged(exact(q, k, v, scale=0.5)))
    out = attention()(q, k[:, :1], v[:, :1], H, skip_reshape=True, enable_gqa=True)
    assert_close(out, merged(exact(q, k[:, :1].expand_as(k), v[:, :1].expand_as(v))))


@pytest.mark.parametrize("shape", [(B, 24, 9, 13), (1, 24, 3, 9, 5)], ids=["picture", "video"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_spatial(shape, channels_last):
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape) for _ in range(3))
    if channels_last:
        layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        q, k, v = (t.to(memory_format=layout) for t in (q, k, v))
    tokens = [t.flatten(2).transpose(1, 2) for t in (q, k, v)]
    assert_close(call_forms.tiled_spatial(q, k, v), exact(*tokens).transpose(1, 2).reshape(shape))


def test_q_k_v_by_any_name():
    assert call_forms.by_position((1, 2, 3, 4), {"mask": 5}) == ((1, 2, 3, 4), {"mask": 5})
    assert call_forms.by_position((1,), {"key": 2, "v": 3, "heads": 4}) == ((1, 2, 3), {"heads": 4})
    given = {"query": 1, "key": 2, "value": 3}
    assert call_forms.by_position((), given) == ((1, 2, 3), {})
    assert given == {"query": 1, "key": 2, "value": 3}


def test_every_call_is_reported():
    told = []
    calls.listen(told.append)
    try:
        q, k, v = tensors()
        attention()(q, k, v, H, skip_reshape=True)
        call_forms.tiled_spatial(*(t.transpose(1, 2) for t in (q, k, v)))
    finally:
        calls.listen(None)
    assert [call.kernel for call in told] == ["tiled", "tiled"]
