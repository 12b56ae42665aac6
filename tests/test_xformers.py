"""The real xformers beside a CPU torch: installed, but without an operator, as users of old cards meet it."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from lib_tiled.backends import xformers
from lib_tiled.backends.patches import Patches
from lib_tiled.backends.policy import Policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ops = pytest.importorskip("xformers.ops", reason="xformers is not installed")


@pytest.fixture(autouse=True)
def nothing_has_failed():
    yield
    xformers._failed.clear()


def bmhk(b=1, n=700, h=2, d=40):
    g = torch.Generator().manual_seed(n)
    return tuple(torch.randn(b, n, h, d, generator=g) for _ in range(3))


def guard(patches, **policy):
    xformers.install(patches, lambda: Policy(**policy))


def expected(q, k, v, **how):
    return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), **how).transpose(1, 2)


def test_no_operator_found_runs_tiled_and_says_so_once(heard):
    q, k, v = bmhk()
    with Patches() as patches:
        guard(patches)
        first = ops.memory_efficient_attention(q, k, v)
        second = ops.memory_efficient_attention(q, k, v)
    assert [call.kernel for call in heard] == ["tiled", "tiled"]
    assert heard[0].reason == "xformers found no operator for float32 on cpu" and heard[0].detail == "D=40"
    assert (first - expected(q, k, v)).abs().max() < 1e-5 and torch.equal(first, second)


def test_three_dimensions_causal_bias_and_scale(heard):
    q, k, v = bmhk()
    bias = torch.randn(1, 2, 700, 700)
    with Patches() as patches:
        guard(patches)
        flat = ops.memory_efficient_attention(*(t[:, :, 0] for t in (q, k, v)))
        causal = ops.memory_efficient_attention(q, k, v, attn_bias=ops.LowerTriangularMask())
        biased = ops.memory_efficient_attention(q, k, v, attn_bias=bias, scale=0.1)
    assert (flat - expected(q, k, v)[:, :, 0]).abs().max() < 1e-5
    assert (causal - expected(q, k, v, is_causal=True)).abs().max() < 1e-5
    assert (biased - expected(q, k, v, attn_mask=bias, scale=0.1)).abs().max() < 1e-5


@pytest.mark.parametrize("arguments, policy", [({}, {"fallback": False}), ({"p": 0.5}, {})])
def test_what_tiled_may_not_or_cannot_do_is_left_to_xformers(heard, arguments, policy):
    q, k, v = bmhk()
    with Patches() as patches:
        guard(patches, **policy)
        for _ in range(2):
            with pytest.raises(NotImplementedError, match="No operator found"):
                ops.memory_efficient_attention(q, k, v, **arguments)
    assert not heard


def test_wrong_arguments_stay_errors(heard):
    q, k, v = bmhk()
    with Patches() as patches:
        guard(patches)
        with pytest.raises(ValueError):
            ops.memory_efficient_attention(q, k[:, :10], v)
    assert not heard and not xformers._failed


def test_the_operator_that_ran_is_named(heard, monkeypatch):
    """A fake operator, since no real one runs on a CPU: it proves only that its name is told."""
    op = ops.fmha.ALL_FW_OPS[0]

    def apply(cls, inp, needs_gradient):
        return expected(inp.query, inp.key, inp.value), None

    monkeypatch.setattr(op, "apply", classmethod(apply))
    monkeypatch.setattr(op, "not_supported_reasons", classmethod(lambda cls, d: []))
    q, k, v = bmhk()
    with Patches() as patches:
        guard(patches)
        with torch.no_grad():
            ops.memory_efficient_attention(q, k, v, op=(op, None))
    assert [call.kernel for call in heard] == [f"xformers:{op.NAME}"]


def test_everything_is_put_back():
    before = ops.memory_efficient_attention, [vars(op).get("apply") for op in ops.fmha.ALL_FW_OPS]
    with Patches() as patches:
        guard(patches)
        assert ops.memory_efficient_attention is not before[0]
    assert before == (ops.memory_efficient_attention, [vars(op).get("apply") for op in ops.fmha.ALL_FW_OPS])


def test_five_dimensions_and_the_output_dtype(heard):
    q, k, v = (torch.randn(1, 300, 2, 4, 16) for _ in range(3))  # (B, N, G, H, D)
    half = q[:, :, 0].bfloat16()
    with Patches() as patches:
        guard(patches)
        out = ops.memory_efficient_attention(q, k, v)
        wide = ops.memory_efficient_attention(half, half, half, output_dtype=torch.float32)
    heads_first = F.scaled_dot_product_attention(*(t.permute(0, 2, 3, 1, 4) for t in (q, k, v)))
    assert (out - heads_first.permute(0, 3, 1, 2, 4)).abs().max() < 1e-5 and wide.dtype == torch.float32


def test_running_out_of_memory_is_no_missing_kernel(heard, monkeypatch):
    """A fake: no xformers kernel runs on a CPU. It proves only what is done with its error."""
    def full(query, key, value, attn_bias=None, p=0.0, scale=None):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(ops, "memory_efficient_attention", full)
    with Patches() as patches:
        guard(patches)
        with pytest.raises(RuntimeError, match="out of memory"):
            ops.memory_efficient_attention(*bmhk())
    assert not heard and not xformers._failed
