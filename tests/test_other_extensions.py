"""What other extensions, settings files and consoles do: the picture is finished, and the line stays true."""

import functools

import pytest
import torch
import torch.nn.functional as F
from attention_reference import needs_sdpa
from conftest import lines

import lib_tiled
from lib_tiled.backends import sdpa
from lib_tiled.backends.patches import Patches
from lib_tiled.backends.policy import Policy

KEY, TILED, SDP = "cross_attention_optimization", "Tiled (no-flash)", "sdp - scaled dot product"

# mid(f): the next generation's sampling runs twice, and f between.
MID = """
from modules import processing, sd_hijack, sd_samplers_common, shared
def mid(f):
    whole = sd_samplers_common.sample
    def twice(*args, **kwargs):
        sd_samplers_common.sample = whole
        whole(*args, **kwargs)
        f()
        return whole(*args, **kwargs)
    sd_samplers_common.sample = twice
"""


# -- AUTOMATIC1111 puts its functions in place anew -------------------------------------------------------------------


@pytest.mark.parametrize("option", ["InvokeAI", "Doggettx", "None", TILED])
def test_a_refiner_in_the_middle_of_a_generation(shared_host, option):
    """A refiner, or a checkpoint for the hires pass, makes the WebUI apply its optimization once more."""
    host = shared_host("a1111")
    host.options(**{KEY: option})
    host.run(MID + "mid(lambda: sd_hijack.model_hijack.redo_hijack(shared.sd_model))")
    host.txt2img()
    (line,) = lines(host)
    assert " x56 |" in line.partition("unet: ")[2] and " x2 |" in line.partition("vae: ")[2]  # 28 and 1 for each pass
    assert host.run("""
import ldm.modules.attention
from modules import sd_hijack
sd_hijack.undo_optimizations()
held = vars(ldm.modules.attention.CrossAttention)["forward"], sd_hijack.apply_optimizations
sd_hijack.apply_optimizations()
result = [hasattr(function, "_tiled_patch") for function in held]
""") == [False, False]


def test_a_nested_generation_with_another_optimization(shared_host):
    host = shared_host("a1111")
    host.options(**{KEY: "InvokeAI"})
    host.mark()
    host.run(MID + """
def inner():
    processing.process_images(processing.StableDiffusionProcessingTxt2Img(
        sd_model=shared.sd_model, prompt="x", seed=1, steps=2, width=64, height=64, do_not_save_samples=True,
        override_settings={"cross_attention_optimization": "Doggettx"}))
mid(inner)
""")
    host.txt2img()
    nested, outer = lines(host)
    assert "unet: Doggettx x28" in nested and "unet: InvokeAI x56" in outer


def test_an_override_that_is_to_stay(shared_host):
    host = shared_host("a1111")
    host.options(**{KEY: SDP})
    host.txt2img(override_settings={KEY: TILED}, override_settings_restore_afterwards=False)
    host.txt2img()
    assert "unet: tiled x28" in lines(host)[0]


@pytest.mark.parametrize("flag", ["--opt-sdp-attention", "--opt-split-attention"])
def test_our_flag_beside_another(start_host, flag):
    host = start_host("a1111", "--opt-tiled-attention", flag)
    host.txt2img()
    assert "unet: tiled" in lines(host)[0]


def test_an_error_of_the_models_own_layers_is_not_ours(shared_host):
    host = shared_host("a1111")
    host.options(**{KEY: TILED})
    host.run("""
import ldm.modules.attention as module
import torch
from modules import shared
layer = next(m for m in shared.sd_model.modules() if isinstance(m, module.CrossAttention))
def hook(*args):
    handle.remove()
    raise torch.cuda.OutOfMemoryError("in to_out")
handle = layer.to_out.register_forward_pre_hook(hook)
""")
    with pytest.raises(Exception, match="500"):
        host.txt2img()
    (line,) = lines(host)
    assert "(failed)" in line and "Doggettx" not in line


def test_a_forward_without_a_name(shared_host):
    host = shared_host("a1111")
    host.options(**{KEY: SDP})
    host.run("""
import functools, ldm.modules.attention as module
class Theirs:
    def __init__(self, function):
        self.function = function
    def __get__(self, layer, cls):
        return functools.partial(self.function, layer) if layer is not None else self
    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)
module.kept = module.CrossAttention.forward
module.CrossAttention.forward = Theirs(module.kept)
""")
    try:
        assert len(host.txt2img()) == 1 and "unet: sdp:flash x28" in lines(host)[0]
    finally:
        host.run("import ldm.modules.attention as module\nmodule.CrossAttention.forward = module.kept")


# -- Forge and reForge: a function of somebody else's in the place of the host's --------------------------------------


@pytest.mark.parametrize(
    "face, module, name",
    [
        ("forge", "backend.nn.unet", "attention_function"),
        ("reforge", "ldm_patched.ldm.modules.attention", "optimized_attention"),
    ],
)
def test_a_wrapper_around_the_hosts_function_is_counted_and_named(shared_host, face, module, name):
    host = shared_host(face)
    host.options(**{KEY: TILED})
    host.txt2img()  # loads the module
    host.mark()
    host.run(f"""
import sys
module = sys.modules["{module}"]
module.kept = module.{name}
def their_attention(*args, **kwargs):
    return module.kept(*args, **kwargs)
module.{name} = their_attention
""")
    try:
        host.txt2img()
        (line,) = lines(host)
        assert "unet: their_attention x28" in line
        assert f"another extension's attention is in place of {module}'s" in line
        assert host.run(f"import sys\nresult = sys.modules['{module}'].{name}.__name__") == "their_attention"
    finally:
        host.run(f"import sys\nmodule = sys.modules['{module}']\nmodule.{name} = module.kept")


@pytest.mark.parametrize(
    "face, module, name",
    [
        ("forge", "backend.attention", "attention_function"),
        ("reforge", "ldm_patched.ldm.modules.attention", "optimized_attention_masked"),
    ],
)
def test_where_the_hosts_own_name_holds_a_wrapper_the_choice_reaches_the_others(start_host, face, module, name):
    host = start_host(face)
    host.txt2img()
    host.run(f"""
import sys
module = sys.modules["{module}"]
kept = module.{name}
module.{name} = lambda *args, **kwargs: kept(*args, **kwargs)
""")
    kernels = {"sdp": "sdp:flash", "split": "split", TILED: "tiled", "Automatic": "sub-quadratic"}
    for option, expected in kernels.items():
        host.mark()
        host.txt2img(override_settings={KEY: option})
        assert f"unet: {expected} x28" in lines(host)[0]


# -- somebody's own attention in the place of torch's -----------------------------------------------------------------


def patched(call, **policy):
    with Patches() as patches:
        sdpa.install(patches, lambda: Policy(**policy))
        return call()


@needs_sdpa
def test_somebodys_sdpa_gets_the_call_as_it_was_made(monkeypatch, heard):
    """SageAttention's documented way in has other arguments than torch's function, at other positions."""
    def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False, **kwargs):
        assert tensor_layout in ("HND", "NHD")
        return builtin(q, k, v, is_causal=is_causal, scale=sm_scale)

    builtin = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", sageattn)
    q = torch.randn(1, 2, 64, 40)
    out = patched(lambda: F.scaled_dot_product_attention(q, q, q, attn_mask=None, dropout_p=0.0, is_causal=False))
    assert torch.equal(out, builtin(q, q, q)) and [call.kernel for call in heard] == ["sdp:sageattn"]
    assert heard[0].reason == "somebody's own attention stands in the place of PyTorch's" and heard[0].out is out
    assert torch.equal(lib_tiled.scaled_dot_product_attention(q, q, q), out)


@needs_sdpa
def test_somebodys_sdpa_is_not_replaced_by_tiled(monkeypatch, heard):
    def triton_flash(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        return q.clone()

    monkeypatch.setattr(F, "scaled_dot_product_attention", triton_flash)
    q = torch.randn(1, 8, 1024, 40)
    patched(lambda: F.scaled_dot_product_attention(q, q, q), no_fused="gfx906 runs no fused kernel")
    assert [call.kernel for call in heard] == ["sdp:triton_flash"]


@needs_sdpa
def test_a_wrapper_between_two_patches_is_counted_once(heard):
    q = torch.randn(1, 2, 64, 16)
    with Patches() as patches:
        sdpa.install(patches, Policy)
        ours = F.scaled_dot_product_attention
        F.scaled_dot_product_attention = functools.partial(ours)
        with lib_tiled.patch_sdpa():
            F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention = ours
    assert [call.kernel for call in heard] == ["sdp:flash"]


# -- settings and consoles --------------------------------------------------------------------------------------------


def test_settings_that_do_not_fit_are_named_once_and_cost_nothing(start_host):
    bad = {"tiled_precision": "Safe", "tiled_scratch_mb": None, "tiled_rows": float("inf"), "tiled_min_tokens": -5,
           "tiled_fallback": "yes", "tiled_log_level": 3}
    host = start_host("forge", config={KEY: TILED, **bad})
    for _ in range(2):
        host.txt2img()
        (line,) = [line for line in lines(host) if "unet: " in line]
        assert "unet: tiled x28" in line
    for key, value in bad.items():
        assert host.console.count(f"[Tiled] the setting {key} is {value!r}, which does not fit") == 1


def test_an_option_that_is_no_text(start_host):
    host = start_host("forge", config={KEY: None})
    host.txt2img()
    assert any("unet: " in line and line.endswith("Automatic -> sub-quadratic") for line in lines(host))


@pytest.mark.parametrize("stream", ["None", "type('Tee', (), {'write': lambda self, text: None})()"])
def test_a_console_that_is_none(shared_host, stream):
    """pythonw has no stderr; other extensions put half a stand-in there."""
    host = shared_host("a1111")
    host.options(**{KEY: TILED})
    host.run(f"import sys\nsys.kept = sys.stderr\nsys.stderr = {stream}")
    try:
        assert len(host.txt2img()) == 1
    finally:
        host.run("import sys\nsys.stderr = sys.kept")


def test_a_fault_of_ours_under_sdp_costs_no_picture(start_host):
    host = start_host("a1111", environment={"TILED_PRETEND": "gfx906"})
    with host.failing_kernel(r"RuntimeError('CUDA error: x\nCUDA kernel errors might be asynchronously reported')"):
        assert len(host.txt2img(width=256, height=256, steps=1, override_settings={KEY: SDP})) == 1
    (line,) = lines(host)
    assert "tiled attention failed, sdp:flash took over (RuntimeError: CUDA error: x)" in line
