"""The SDPA backend: the kernel it names is the one that ran, and tiled takes over where only math is left."""

import pytest
import torch
import torch.nn.functional as F
from attention_reference import needs_sdpa, reference
from torch.utils._python_dispatch import TorchDispatchMode

import lib_tiled
from lib_tiled.backends import calls, sdpa
from lib_tiled.backends.patches import Patches
from lib_tiled.backends.policy import Policy
from lib_tiled.report.generation import Generation

TAKES_GQA = "enable_gqa" in (getattr(sdpa._BUILTIN, "__doc__", None) or "")  # torch 2.5


class Observer(TorchDispatchMode):
    """Sees which attention operators torch really dispatches to; knows nothing of this project."""

    NAMES = {
        "_scaled_dot_product_flash_attention": "sdp:flash",
        "_scaled_dot_product_flash_attention_for_cpu": "sdp:flash",
        "_scaled_dot_product_efficient_attention": "sdp:mem-efficient",
        "_scaled_dot_product_cudnn_attention": "sdp:cudnn",
    }

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            self.seen.append(self.NAMES[name])
        elif name in ("softmax", "_softmax", "_safe_softmax"):
            # Math attention writes its softmax to a new tensor, the tiled kernel into its own buffer.
            self.seen.append("tiled tile" if "out" in func._overloadname else "sdp:math")
        elif name in ("exp_", "exp2_"):
            self.seen.append("tiled tile")
        return func(*args, **(kwargs or {}))


def qkv(*shape, keys=None, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape))
    make = lambda n: torch.randn(*shape[:-2], n, shape[-1], generator=g, dtype=dtype)  # noqa: E731
    return make(shape[-2]), make(keys or shape[-2]), make(keys or shape[-2])


#            name, q shape, keys, arguments, tiled expected under a policy that pretends no fused kernel
SCENARIOS = [
    ("unet self", (2, 8, 1024, 40), None, {}),
    ("unet cross", (2, 8, 1024, 40), 77, {}),
    ("text causal", (1, 12, 77, 64), None, {"is_causal": True}),
    ("vae 3-D", (1, 2048, 512), None, {}),
    ("small 3-D", (4, 77, 64), None, {}),
    ("bool mask", (1, 4, 640, 64), None, {"attn_mask": torch.rand(640, 640) > 0.2}),
    ("float mask", (1, 4, 640, 64), None, {"attn_mask": torch.randn(640, 640)}),
    ("dropout", (1, 4, 640, 64), None, {"dropout_p": 0.1}),
    ("5-D", (1, 2, 4, 640, 64), None, {}),
    ("bf16", (1, 4, 640, 64), None, {"dtype": torch.bfloat16}),
    ("long keys", (1, 2, 600, 64), 4096, {}),
]


@needs_sdpa
@pytest.mark.parametrize("no_fused", ["", "pretended: no fused kernel"])
@pytest.mark.parametrize("name, shape, keys, arguments", SCENARIOS, ids=[s[0] for s in SCENARIOS])
def test_what_is_told_is_what_ran(heard, name, shape, keys, arguments, no_fused):
    arguments = dict(arguments)
    q, k, v = qkv(*shape, keys=keys, dtype=arguments.pop("dtype", torch.float32))
    reference = F.scaled_dot_product_attention(q, k, v, **arguments)
    with Patches() as patches:
        sdpa.install(patches, lambda: Policy(no_fused=no_fused))
        with torch.no_grad(), Observer() as observer:
            out = F.scaled_dot_product_attention(q, k, v, **arguments)
    assert len(heard) == 1
    seen = {"tiled" if name == "tiled tile" else name for name in observer.seen}
    assert seen == {heard[0].kernel}
    if no_fused and name not in ("text causal", "small 3-D", "dropout"):
        assert heard[0].kernel == "tiled" and heard[0].reason == no_fused
    if "dropout_p" not in arguments:
        assert (out - reference).abs().max() < (1e-5 if q.dtype == torch.float32 else 2e-2)


@needs_sdpa
def test_three_dimensions_get_a_fused_kernel(heard):
    q, k, v = qkv(1, 2048, 64)
    assert sdpa.kernel_of(q, k, v, None, 0.0, False) == "math"
    with lib_tiled.patch_sdpa():
        F.scaled_dot_product_attention(q, k, v)
    assert heard[0].kernel == "sdp:flash"


@needs_sdpa
def test_fallback_switched_off_leaves_math_alone(heard):
    q, k, v = qkv(1, 2048, 64)
    with Patches() as patches:
        sdpa.install(patches, lambda: Policy(fallback=False))
        F.scaled_dot_product_attention(q, k, v)
    assert heard[0].kernel == "sdp:math"


@needs_sdpa
def test_more_batches_than_a_grid_holds(heard):
    q, k, v = qkv(70_000, 16, 8)
    out = lib_tiled.tiled_attention(q, k, v)
    assert (out - F.scaled_dot_product_attention(q, k, v)).abs().max() < 1e-5


@needs_sdpa
def test_patch_counts_a_call_once_however_often_it_is_on(heard):
    q, k, v = qkv(1, 2, 64, 16)
    original = F.scaled_dot_product_attention
    with lib_tiled.patch_sdpa(), lib_tiled.patch_sdpa():
        F.scaled_dot_product_attention(q, k, v)
    assert len(heard) == 1
    assert F.scaled_dot_product_attention is original


@needs_sdpa
def test_patch_undo_in_wrong_order_and_under_another_patch():
    original = F.scaled_dot_product_attention
    first, second = lib_tiled.patch_sdpa(), lib_tiled.patch_sdpa()
    first.undo()
    assert F.scaled_dot_product_attention is not original
    second.undo()
    assert F.scaled_dot_product_attention is original
    ours = lib_tiled.patch_sdpa()
    behind = F.scaled_dot_product_attention

    def theirs(*args, **kwargs):
        return behind(*args, **kwargs)

    F.scaled_dot_product_attention = theirs
    try:
        ours.undo()
        assert F.scaled_dot_product_attention is theirs
        q, k, v = qkv(1, 2, 8, 4)
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, scale=0.3), original(q, k, v, scale=0.3))
    finally:
        F.scaled_dot_product_attention = original


@needs_sdpa
def test_library_function_equals_torchs():
    q, k, v = qkv(2, 4, 300, 32, keys=77)
    assert torch.allclose(
        lib_tiled.scaled_dot_product_attention(q, k, v, scale=0.2),
        F.scaled_dot_product_attention(q, k, v, scale=0.2),
        atol=1e-5,
    )


@needs_sdpa
@pytest.mark.parametrize(
    "q, k", [((1, 1, 1, 4, 600, 16),) * 2, ((4, 600, 16), (600, 16)), ((2, 4, 600, 16), (4, 600, 16))], ids=str
)
def test_shapes_that_only_torch_takes_stay_with_it(heard, q, k):
    q, k = torch.randn(q), torch.randn(k)
    with lib_tiled.patch_sdpa():
        out = F.scaled_dot_product_attention(q, k, k)
    assert out.shape == q.shape and [call.kernel for call in heard] == ["sdp:math"]


@pytest.mark.skipif(not TAKES_GQA, reason="this torch knows no enable_gqa")
def test_what_tiled_refuses_ends_in_math(heard):
    q, k, v = torch.randn(1, 4, 1100, 8), torch.randn(1, 2, 1100, 8), torch.randn(1, 4, 1100, 8)
    with lib_tiled.patch_sdpa():
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.allclose(out, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert heard[0].kernel == "sdp:math" and heard[0].reason == "tiled attention failed, sdp:math took over"


@pytest.mark.skipif(not sdpa._autocasts("cpu"), reason="this torch's autocast leaves SDPA on a CPU alone")
def test_autocast_is_asked_for_what_it_makes_of_the_tensors(heard):
    q = torch.randn(1, 8, 1024, 40)
    k = q.bfloat16()
    with torch.no_grad(), lib_tiled.patch_sdpa(), torch.autocast("cpu", torch.bfloat16), Observer() as observer:
        F.scaled_dot_product_attention(q, k, k)
        F.scaled_dot_product_attention(q[:, :, :64], k[:, :, :64], k[:, :, :64])
    assert [call.kernel for call in heard] == observer.seen == ["sdp:flash"] * 2


@pytest.mark.skipif(not TAKES_GQA, reason="this torch multiplies no nested tensors in fp16")
@pytest.mark.parametrize("detailed", [False, True])
def test_nested_tensors_in_fp16_are_counted(detailed):
    nested = torch.nested.nested_tensor([torch.randn(3, 5, 8), torch.randn(3, 7, 8)], dtype=torch.float16)
    generation = Generation(detailed=detailed)
    calls.listen(generation.record)
    try:
        with lib_tiled.patch_sdpa():
            F.scaled_dot_product_attention(nested, nested, nested)
    finally:
        calls.listen(None)
    assert generation.calls == 1


def test_grouped_heads_of_a_small_call():
    """torch before 2.5 knows none."""
    q, k, v = qkv(1, 4, 11, 8)[0], *qkv(1, 2, 11, 8)[:2]
    out = lib_tiled.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert (out - reference(q, k, v, enable_gqa=True)).abs().max() < 1e-5
