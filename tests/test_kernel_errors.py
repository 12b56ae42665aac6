"""Wrong arguments: the error says which shapes, dtypes or devices do not fit."""

from __future__ import annotations

import pytest
import torch

from lib_tiled import tiled_attention
from lib_tiled.kernel import attend, options


def t(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


VALUE_ERRORS = {
    "rank 1": ((t(4), t(5, 4), t(5, 4)), {}, ["q", "(4,)"]),
    "rank 6": ((t(1, 1, 1, 1, 3, 4),) * 3, {}, ["2 to 5", "(1, 1, 1, 1, 3, 4)"]),
    "ranks differ": ((t(2, 3, 4), t(5, 4), t(5, 4)), {}, ["q (2, 3, 4)", "k (5, 4)"]),
    "head dimensions differ": ((t(3, 4), t(5, 6), t(5, 6)), {}, ["q (3, 4)", "k (5, 6)", "head dimension"]),
    "keys differ": ((t(3, 4), t(5, 4), t(6, 4)), {}, ["k (5, 4)", "v (6, 4)"]),
    "batches differ": ((t(2, 3, 4), t(3, 5, 4), t(3, 5, 4)), {}, ["q (2, 3, 4)", "k (3, 5, 4)"]),
    "heads differ": ((t(1, 6, 3, 4), t(1, 2, 5, 4), t(1, 2, 5, 4)), {}, ["enable_gqa", "k (1, 2, 5, 4)"]),
    "odd groups": ((t(1, 6, 3, 4), t(1, 4, 5, 4), t(1, 4, 5, 4)), {"enable_gqa": True}, ["multiple", "(1, 6, 3, 4)"]),
    "k and v heads": ((t(1, 6, 3, 4), t(1, 2, 5, 4), t(1, 3, 5, 4)), {"enable_gqa": True}, ["(1, 3, 5, 4)"]),
    "mask keys": ((t(3, 4), t(5, 4), t(5, 4), t(3, 6)), {}, ["attn_mask (3, 6)", "q (3, 4)"]),
    "mask rows": ((t(3, 4), t(5, 4), t(5, 4), t(2, 5)), {}, ["attn_mask (2, 5)"]),
    "mask rank": ((t(3, 4), t(5, 4), t(5, 4), t(1, 3, 5)), {}, ["attn_mask (1, 3, 5)"]),
    "mask heads": ((t(2, 3, 4), t(2, 5, 4), t(2, 5, 4), t(3, 3, 5)), {}, ["attn_mask (3, 3, 5)"]),
    "mask heads in groups": (
        (t(1, 6, 3, 4), t(1, 2, 5, 4), t(1, 2, 5, 4), t(2, 3, 5)),
        {"enable_gqa": True},
        ["attn_mask (2, 3, 5)"],
    ),
    "mask and causal": ((t(3, 4), t(5, 4), t(5, 4), t(3, 5)), {"is_causal": True}, ["attn_mask", "is_causal"]),
    "devices": ((t(3, 4), t(5, 4).to("meta"), t(5, 4)), {}, ["cpu", "meta"]),
    "mask device": ((t(3, 4), t(5, 4), t(5, 4), t(3, 5).to("meta")), {}, ["attn_mask", "meta"]),
}


@pytest.mark.parametrize("case", VALUE_ERRORS)
def test_value_errors(case):
    arguments, kwargs, words = VALUE_ERRORS[case]
    with pytest.raises(ValueError) as caught:
        tiled_attention(*arguments, **kwargs)
    assert all(word in str(caught.value) for word in words), str(caught.value)


TYPE_ERRORS = {
    "no tensor": (([[1.0]], t(5, 4), t(5, 4)), ["q", "list"]),
    "integers": ((t(3, 4), t(5, 4, dtype=torch.int64), t(5, 4)), ["k", "int64"]),
    "complex": ((t(3, 4, dtype=torch.complex64),) * 3, ["q", "complex64"]),
    "dtypes differ": ((t(3, 4), t(5, 4, dtype=torch.float16), t(5, 4)), ["float32", "float16"]),
    "mask of integers": ((t(3, 4), t(5, 4), t(5, 4), t(3, 5, dtype=torch.int64)), ["attn_mask", "int64"]),
    "sparse": ((t(3, 4), t(5, 4).to_sparse(), t(5, 4)), ["k", "sparse"]),
    "mask is no tensor": ((t(3, 4), t(5, 4), t(5, 4), True), ["attn_mask", "bool"]),
}


@pytest.mark.parametrize("case", TYPE_ERRORS)
def test_type_errors(case):
    arguments, words = TYPE_ERRORS[case]
    with pytest.raises(TypeError) as caught:
        tiled_attention(*arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.skipif(not hasattr(torch, "float8_e5m2"), reason="this torch has no float8")
def test_float8_is_refused_whatever_the_length():
    for keys in (5, 1100):
        q = torch.zeros(1, 2, keys, 8).to(torch.float8_e5m2)
        with pytest.raises(TypeError, match="q must be float16, bfloat16, float32 or float64, not torch.float8_e5m2"):
            tiled_attention(q, q, q)


def test_a_scale_that_is_no_number():
    with pytest.raises(TypeError, match="scale must be a number, not Tensor"):
        tiled_attention(t(3, 4), t(5, 4), t(5, 4), scale=torch.ones(2))


def test_settings_are_checked():
    with pytest.raises(ValueError, match="auto, fast, safe"):
        attend(t(3, 4), t(5, 4), t(5, 4), precision="best")
    for wrong in ({"precision": "best"}, {"rows": 0}, {"scratch_mb": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            options.configure(**wrong)
    assert options.current() == options.KernelOptions()


def test_settings_return_after_an_error():
    before = options.current()
    with pytest.raises(KeyError), options.using(rows=3):
        assert options.current().rows == 3
        raise KeyError
    assert options.current() is before
