"""Gradients: gradcheck, against torch's own attention, double backward, training that learns."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from attention_reference import error, plain, reference, tensors, unit

from lib_tiled import tiled_attention
from lib_tiled.kernel import options

TILES = [{}, {"rows": 3}]


@pytest.fixture(params=TILES, ids=str)
def tile(request):
    with options.using(**request.param):
        yield


def doubles(*args, **kwargs):
    return [t.requires_grad_() for t in tensors(*args, dtype=torch.float64, **kwargs)]


def gradcheck(function, *inputs):
    """Against finite differences, projected at random: the full Jacobians of a hundred calls would take minutes."""
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


def test_gradcheck(tile):
    assert torch.autograd.gradcheck(tiled_attention, doubles((1,), 2, 4, 5, 2, 3))
    gradcheck(tiled_attention, *doubles((2,), 2, 7, 5, 3, 4))
    gradcheck(lambda *t: tiled_attention(*t, scale=-0.7), *doubles((), 2, 4, 5, 3, 4))


@pytest.mark.parametrize("sizes", [(7, 7), (7, 4), (4, 7)], ids=str)
def test_gradcheck_causal(sizes, tile):
    gradcheck(lambda *t: tiled_attention(*t, is_causal=True), *doubles((1,), 2, *sizes, 3))


MASKS = [(5,), (7, 1), (7, 5), (2, 1, 5), (2, 7, 5), (2, 1, 7, 5), (2, 2, 7, 5), (1, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_gradcheck_float_mask(shape, tile):
    mask = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    gradcheck(tiled_attention, *doubles((2,), 2, 7, 5, 3, 4), mask)


def test_gradcheck_boolean_mask(tile):
    mask = torch.rand(2, 1, 7, 5, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[0, 0, 2] = False  # a row that attends to nothing has no gradient
    q, k, v = doubles((2,), 2, 7, 5, 3, 4)
    gradcheck(lambda *t: tiled_attention(*t, mask), q, k, v)
    tiled_attention(q, k, v, mask).sum().backward()
    assert (q.grad[0, :, 2] == 0).all() and q.grad.isfinite().all()


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_gradcheck_grouped_heads(kv_heads, tile):
    inputs = doubles((1,), 4, 5, 6, 3, kv_heads=kv_heads)
    gradcheck(lambda *t: tiled_attention(*t, enable_gqa=True), *inputs)
    mask = torch.randn(4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    gradcheck(lambda *t: tiled_attention(*t, enable_gqa=True), *inputs, mask)


def test_gradcheck_broadcast_and_five_dimensions(tile):
    q, k, v = doubles((2, 2), 2, 4, 5, 3)
    gradcheck(tiled_attention, q, k, v)
    gradcheck(lambda q, k, v: tiled_attention(q, k[:1, :, :1], v), q, k, v)


@pytest.mark.parametrize("zero", range(6))
def test_zero_length_dimensions(zero):
    sizes = [2, 3, 4, 5, 6, 7]
    sizes[zero] = 0
    q, k, v = doubles((sizes[0],), *sizes[1:])
    mask = torch.zeros(sizes[2], sizes[3], dtype=torch.float64, requires_grad=True)
    out = tiled_attention(q, k, v, mask)
    out.sum().backward()
    for t in (q, k, v, mask):
        assert t.grad.shape == t.shape and t.grad.isfinite().all()


@pytest.mark.parametrize("kind", [None, "causal", "bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [None, 23])
def test_gradients_against_float64(kind, dtype, rows):
    inputs = tensors((2,), 3, 70, 600, 16, 24, dtype=dtype)
    generator = torch.Generator().manual_seed(3)
    keep, bias_ = torch.rand(70, 600, generator=generator) > 0.3, torch.randn(3, 1, 600, generator=generator)
    mask = {"bool": keep, "float": bias_}
    weight = torch.randn(2, 3, 70, 24, generator=generator).to(dtype)

    def gradients(function, dtype):
        tensors_ = [t.detach().to(dtype).requires_grad_() for t in inputs]
        bias = mask.get(kind)
        if kind == "float":
            bias = bias.to(dtype).requires_grad_()
            tensors_.append(bias)
        out = function(*tensors_[:3], bias, is_causal=kind == "causal")
        return torch.autograd.grad((out * weight.to(dtype)).sum(), tensors_)

    exact = gradients(plain, torch.float64)
    bound = gradients(plain, torch.float32)
    with options.using(rows=rows):
        found = gradients(tiled_attention, dtype)
    for name, f, e, b in zip("qkvm", found, exact, bound):
        limit = 2 * error(b, e) + (2 if dtype == torch.float32 else 6) * unit(e, dtype)
        assert error(f, e) <= limit, f"d{name}: {error(f, e):.3g} > {limit:.3g}"


def test_only_what_is_asked_for():
    q, k, v = tensors((2,), 3, 70, 60, 16)
    mask = torch.zeros(70, 60)
    for which in range(4):
        inputs = [t.clone().requires_grad_(i == which) for i, t in enumerate((q, k, v, mask))]
        tiled_attention(*inputs).square().sum().backward()
        exact = [t.detach().double().requires_grad_(i == which) for i, t in enumerate(inputs)]
        plain(*exact).square().sum().backward()
        assert [t.grad is not None for t in inputs] == [i == which for i in range(4)]
        assert error(inputs[which].grad, exact[which].grad) <= 64 * unit(exact[which].grad, torch.float32)


def test_double_backward_is_refused():
    q, k, v = doubles((1,), 1, 4, 5, 3)
    grad = torch.autograd.grad(tiled_attention(q, k, v).square().sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable|differentiate twice"):
        grad.sum().backward()


def test_gradient_checkpointing():
    q, k, v = (t.requires_grad_() for t in tensors((1,), 2, 50, 60, 8))
    kwargs = {"use_reentrant": False}
    torch.utils.checkpoint.checkpoint(tiled_attention, q, k, v, **kwargs).square().sum().backward()
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    reference(*exact).square().sum().backward()
    assert error(q.grad, exact[0].grad) <= 64 * unit(exact[0].grad, torch.float32)


def test_training_learns():
    # As textual inversion does it: everything frozen but one embedding behind the keys and values.
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 64, 8, generator=generator)
    to_k, to_v = (torch.randn(16, 16, generator=generator) / 4 for _ in range(2))
    target = torch.randn(1, 2, 64, 8, generator=generator) / 8
    start = torch.randn(1, 5, 16, generator=generator)

    def losses(attention):
        embedding = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([embedding], lr=0.05)
        for _ in range(60):
            k, v = ((embedding @ w).view(1, 5, 2, 8).transpose(1, 2) for w in (to_k, to_v))
            loss = (attention(q, k, v) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    with options.using(rows=23):
        ours = list(losses(tiled_attention))
    assert ours == pytest.approx(list(losses(plain)), rel=1e-3)
    assert ours[-1] < 0.2 * ours[0]


@pytest.mark.parametrize("dims", [2, 3, 4, 5])
def test_the_result_may_be_changed_in_place(dims):
    q, k, v = tensors((2,) * (dims - 3), 2, 9, 7, 4) if dims > 2 else (t[0] for t in tensors((), 1, 9, 7, 4))
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    out = tiled_attention(*inputs)
    out += 1
    out.mul_(2).sum().backward()
    others = [t.clone().requires_grad_() for t in (q, k, v)]
    (2 * plain(*others)).sum().backward()
    for t, other in zip(inputs, others):
        assert error(t.grad, other.grad) < 1e-5
