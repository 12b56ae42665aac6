"""The AUTOMATIC1111 adapter, from the dropdown to the line, on the devhost with Stability's own ldm classes."""

import pytest
from conftest import lines

from devhost.pictures import largest_difference

KEY, TILED = "cross_attention_optimization", "Tiled (no-flash)"
SDP = "sdp - scaled dot product"

FORWARDS = """
import ldm.modules.attention, ldm.modules.diffusionmodules.model
import sgm.modules.attention, sgm.modules.diffusionmodules.model
from modules import sd_hijack, sd_hijack_optimizations, shared
from modules.hypernetworks import hypernetwork

CLASSES = (ldm.modules.attention.CrossAttention, sgm.modules.attention.CrossAttention,
           ldm.modules.diffusionmodules.model.AttnBlock, sgm.modules.diffusionmodules.model.AttnBlock)
OWN = (hypernetwork.attention_CrossAttention_forward, hypernetwork.attention_CrossAttention_forward,
       sd_hijack_optimizations.diffusionmodules_model_AttnBlock_forward,
       sd_hijack_optimizations.sgm_diffusionmodules_model_AttnBlock_forward)

def holds():
    from lib_tiled.hosts import a1111
    ours = 2 * (a1111.tiled_attention_forward,) + 2 * (a1111.tiled_attnblock_forward,)
    now = [vars(cls)["forward"] for cls in CLASSES]
    return "ours" if all(a is b for a, b in zip(now, ours)) else \\
           "host" if all(a is b for a, b in zip(now, OWN)) else str(now)
"""

LAYER = FORWARDS + """
import torch
from lib_tiled.hosts import a1111

def layer(cls=CLASSES[0], context=None):
    torch.manual_seed(0)
    return cls(query_dim=32, context_dim=context, heads=2, dim_head=16)

def reference(self, x, context=None, bias=None):
    q, k, v = (t.unflatten(-1, (2, 16)).transpose(1, 2)
               for t in (self.to_q(x), self.to_k(x if context is None else context),
                         self.to_v(x if context is None else context)))
    scores = q @ k.transpose(-1, -2) * self.scale
    if bias is not None:
        scores = scores + bias
    return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

def difference(a, b):
    return (a - b).abs().max().item()

x = torch.randn(3, 70, 32, generator=torch.Generator().manual_seed(1))
"""


@pytest.fixture
def host(shared_host):
    host = shared_host("a1111")
    host.options(**{KEY: "None"})
    host.mark()
    return host


def test_from_the_dropdown_to_the_line(host):
    host.options(**{KEY: TILED})
    assert "Applying attention optimization: Tiled (no-flash)... done." in host.console_since_mark()
    assert host.run(FORWARDS + "result = holds()") == "ours"
    (tiled,) = host.txt2img()
    (line,) = lines(host)
    assert line.startswith("[Tiled] txt2img 64x64 2 steps | unet: tiled x") and line.endswith(f"| {TILED}")
    assert "vae: tiled x1" in line
    host.options(**{KEY: SDP})
    (sdp,) = host.txt2img()
    (line,) = lines(host)
    assert "unet: sdp:flash x" in line and "tiled x" not in line
    assert largest_difference(tiled, sdp) <= 2


def test_one_undo_restores_the_hosts_functions(host):
    assert host.run(FORWARDS + "result = holds()") == "host"
    host.options(**{KEY: TILED})
    assert host.run(FORWARDS + "sd_hijack.current_optimizer.undo()\nresult = holds()") == "host"
    host.options(**{KEY: SDP})
    host.options(**{KEY: "None"})
    assert host.run(FORWARDS + "result = holds()") == "host"


def test_a_generation_leaves_nothing_behind(host):
    host.options(**{KEY: TILED})
    code = FORWARDS + """
import torch.nn.functional as F
from modules import processing
result = [holds(), F.scaled_dot_product_attention.__module__, processing.process_images_inner.__module__]
"""
    before = host.run(code)
    host.txt2img()
    assert host.run(code) == before and before[0] == "ours"


def test_override_settings_hold_for_one_generation(host):
    host.options(**{KEY: SDP})
    host.txt2img(override_settings={KEY: TILED})
    host.txt2img()
    first, second = [line for line in host.console.splitlines() if "[Tiled]" in line][-2:]
    assert "unet: tiled x" in first and "unet: sdp:flash x" in second


def test_an_unknown_value_is_named_and_changes_nothing(host):
    host.options(**{KEY: SDP})
    host.txt2img(override_settings={KEY: "magic"})
    (line,) = lines(host)
    assert "unet: sdp:flash" in line and line.endswith(f"magic -> {SDP}: magic is not an optimization of this WebUI")


def test_reload_ui(start_host):
    host = start_host("a1111", config={KEY: TILED})
    host.txt2img()
    assert len(lines(host)) == 1
    host.reload_ui()
    host.txt2img()
    (line,) = lines(host)
    assert "unet: tiled x" in line
    assert host.run(FORWARDS + "result = holds()") == "ours"
    host.options(**{KEY: "None"})
    assert host.run(FORWARDS + "result = holds()") == "host"


def test_hires_img2img_and_batches_have_one_line_each(host):
    host.options(**{KEY: TILED})
    (picture,) = host.txt2img(enable_hr=True, hr_scale=2, denoising_strength=0.5)
    (line,) = lines(host)
    assert line.startswith("[Tiled] txt2img 64x64 2 steps, hires 128x128 |")
    host.img2img(picture.resize((64, 64)), denoising_strength=0.5)
    (line,) = lines(host)
    assert line.startswith("[Tiled] img2img 64x64 2 steps |") and "vae: tiled x2" in line
    host.txt2img(n_iter=2, batch_size=2)
    (line,) = lines(host)
    assert line.startswith("[Tiled] txt2img 64x64 2 steps, 2 x 2 pictures |")


def test_nested_and_failed_generations(host):
    host.options(**{KEY: TILED})
    host.mark()
    result = host.run("""
from modules import processing, shared
def make():
    return processing.StableDiffusionProcessingTxt2Img(
        sd_model=shared.sd_model, prompt="red circle", seed=1, steps=1, width=64, height=64)
from lib_tiled import webui
inner = make()
class Nested(Exception): pass
outer = make()
original = type(outer).sample
def sample(self, *args, **kwargs):
    out = original(self, *args, **kwargs)
    if self is outer:
        processing.process_images(inner)
        raise Nested
    return out
type(outer).sample = sample
try:
    processing.process_images(outer)
    result = "no error"
except Nested:
    result = "raised"
finally:
    type(outer).sample = original
""")
    assert result == "raised"
    nested, failed = lines(host)
    assert nested.startswith("[Tiled] (nested) txt2img 64x64 1 steps |") and "vae: tiled x1" in nested
    assert failed.startswith("[Tiled] txt2img 64x64 1 steps (failed) |") and "vae: tiled x1 |" in failed


def test_our_failure_costs_no_picture(host):
    host.options(**{KEY: TILED})
    (whole,) = host.txt2img()
    with host.failing_kernel("IndexError('a bug of ours')"):
        (picture,) = host.txt2img()
    (line,) = lines(host)
    assert "unet: Doggettx x" in line
    assert "tiled attention failed, Doggettx took over (IndexError: a bug of ours)" in line
    assert largest_difference(whole, picture) <= 2


def test_a_host_without_the_expected_classes_runs_its_own(start_host, tmp_path):
    breaker = tmp_path / "breaker" / "scripts"
    breaker.mkdir(parents=True)
    (breaker / "breaker.py").write_text("import sys\nsys.modules['sgm.modules.attention'] = None\n")
    from conftest import ROOT

    host = start_host("a1111", extensions=(breaker.parent, ROOT))
    (line,) = [line for line in host.console.splitlines() if "[Tiled]" in line]
    assert "not active (" in line and "runs its own attention" in line
    assert len(host.txt2img()) == 1


def test_hypernetworks(host):
    result = host.run(LAYER + """
class Network:
    layers = {32: (torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))}
attention = layer()
shared.loaded_hypernetworks = [Network()]
try:
    ours = a1111.tiled_attention_forward(attention, x)
    theirs = hypernetwork.attention_CrossAttention_forward(attention, x)
finally:
    shared.loaded_hypernetworks = []
result = [difference(ours, theirs), difference(ours, reference(attention, x))]
""")
    assert result[0] < 1e-5 < result[1]


def test_masks_context_and_foreign_arguments(host):
    differences = host.run(LAYER + """
inf = float("inf")
g = torch.Generator().manual_seed(2)
attention, cross = layer(), layer(context=24)
context = torch.randn(3, 9, 24, generator=g)
keys = torch.rand(3, 70, generator=g) > 0.3
square = torch.rand(70, 70, generator=g) > 0.3
per_head = torch.randn(3, 2, 70, 70, generator=g)
per_picture = torch.randn(3, 70, 70, generator=g)
def bias(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, -inf)
f = a1111.tiled_attention_forward
result = {
    "plain": difference(f(attention, x), reference(attention, x)),
    "context": difference(f(cross, x, context), reference(cross, x, context)),
    "foreign arguments": difference(f(attention, x, additional_tokens=None, n_times_crossframe_attn_in_self=0,
                                      anything=1), reference(attention, x)),
    "key mask": difference(f(attention, x, mask=keys), reference(attention, x, bias=bias(keys)[:, None, None])),
    "key mask as ldm": difference(f(attention, x, mask=keys),
                                  hypernetwork.attention_CrossAttention_forward(attention, x, mask=keys)),
    "2-D": difference(f(attention, x, mask=square), reference(attention, x, bias=bias(square))),
    "3-D": difference(f(attention, x, mask=per_picture), reference(attention, x, bias=per_picture[:, None])),
    "3-D per head": difference(f(attention, x, mask=per_head.flatten(0, 1)), reference(attention, x, bias=per_head)),
    "4-D": difference(f(attention, x, mask=per_head), reference(attention, x, bias=per_head)),
    "sgm": difference(f(layer(CLASSES[1]), x), reference(layer(CLASSES[1]), x)),
}
""")
    assert {name: d for name, d in differences.items() if not d < 1e-5} == {}


def test_training_upcast_and_autocast(host):
    result = host.run(LAYER + """
attention = layer()
def gradients(f):
    attention.zero_grad()
    f(attention, x).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in attention.parameters()])
with torch.enable_grad():
    ours, theirs = gradients(a1111.tiled_attention_forward), gradients(reference)
half = attention.bfloat16()
shared.opts.data["upcast_attn"] = True
try:
    upcast = a1111.tiled_attention_forward(half, x.bfloat16())
finally:
    shared.opts.data["upcast_attn"] = False
with torch.autocast("cpu", torch.bfloat16):
    cast = a1111.tiled_attention_forward(layer(), x)
result = [difference(ours, theirs) / theirs.abs().max().item(), str(upcast.dtype), str(cast.dtype)]
""")
    assert result[0] < 1e-4
    assert result[1:] == ["torch.bfloat16", "torch.bfloat16"]


def test_a_forward_that_somebody_keeps_follows_later_switches(host):
    """HyperTile keeps the bound forward that it finds during its first generation, for good."""
    kept = host.run(LAYER + """
from lib_tiled import webui
import types
p = types.SimpleNamespace(width=64, height=64, steps=1, n_iter=1, batch_size=1, override_settings={})
attention = layer()
with webui._session.generation(p):
    attention.forward = attention.forward
sd_hijack.model_hijack.apply_optimizations("Tiled (no-flash)")
with webui._session.generation(p) as done:
    out = attention(x)
outside = attention(x)
result = [[kernel for _, kernel in done.counts], difference(out, reference(attention, x)), difference(out, outside)]
""")
    assert kept[0] == ["tiled"] and kept[1] < 1e-5 and kept[2] == 0


def test_a_wrapper_that_somebody_leaves_around_ours_does_not_go_in_circles(host):
    far, calls, kept = host.run(LAYER + """
from lib_tiled import webui
import functools, types
p = types.SimpleNamespace(width=64, height=64, steps=1, n_iter=1, batch_size=1, override_settings={})
cls, attention, calls = CLASSES[0], layer(), []
with webui._session.generation(p):
    behind = cls.forward
    @functools.wraps(behind)
    def theirs(self, *args, **kwargs):
        calls.append(1)
        return behind(self, *args, **kwargs)
    cls.forward = theirs
with webui._session.generation(p):  # their unwrapping never came
    again = difference(attention(x), reference(attention, x))
result = [max(again, difference(attention(x), reference(attention, x))), len(calls), cls.forward is theirs]
cls.forward = OWN[0]
""")
    assert far < 1e-5 and calls == 2 and kept


def test_the_vae_that_xformers_is_built_into_runs_tiled_where_that_is_chosen(host):
    """With --xformers ldm builds its VAE of MemoryEfficientAttnBlock, whose forward no optimization replaces."""
    host.options(**{KEY: TILED})
    assert host.run(LAYER + """
from lib_tiled import webui
import types
cls = ldm.modules.diffusionmodules.model.MemoryEfficientAttnBlock
own, block = cls.forward, cls(32)
plain = CLASSES[2](32)
plain.load_state_dict(block.state_dict())
p = types.SimpleNamespace(width=64, height=64, steps=1, n_iter=1, batch_size=1, override_settings={})
x = torch.randn(1, 32, 8, 8)
with webui._session.generation(p) as done:
    out = block(x)
kernels = [kernel for _, kernel in done.counts.elements()]
result = [kernels, done.reasons, difference(out, OWN[2](plain, x)) < 1e-5, cls.forward is own]
""") == [["tiled"], [], True, True]


def test_fewer_tokens_than_the_minimum_stay_with_torch(host):
    host.options(**{KEY: TILED, "tiled_min_tokens": 128})
    try:
        host.txt2img()  # 64x64: 256, 64 and 16 tokens
    finally:
        host.options(tiled_min_tokens=0)
    (line,) = lines(host)
    assert "tiled x" in line.split("|")[1] and "sdp:flash x" in line.split("|")[1]


def test_pretending_gfx906_makes_automatic_tiled(start_host):
    host = start_host("a1111", environment={"TILED_PRETEND": "gfx906"})
    large = {"width": 256, "height": 256, "steps": 1}  # small calls stay with SDPA
    (tiled,) = host.txt2img(**large)
    assert "Applying attention optimization: Tiled (no-flash)... done." in host.console
    (line,) = lines(host)
    assert "unet: tiled x" in line and "| Automatic -> Tiled: gfx906 runs no fused kernel" in line
    (sdp,) = host.txt2img(override_settings={KEY: SDP}, **large)
    (line,) = lines(host)
    assert f"{SDP} -> Tiled: gfx906 runs no fused kernel" in line
    assert largest_difference(tiled, sdp) <= 2


def test_the_flag_makes_automatic_tiled(start_host):
    host = start_host("a1111", "--opt-tiled-attention")
    host.txt2img()
    (line,) = lines(host)
    assert line.endswith("| Automatic -> Tiled: --opt-tiled-attention")


@pytest.mark.parametrize(
    "x, y, size", [(0, 0, "768x1152"), (1024, 0, "1024x1536"), (0, 1536, "1024x1536"), (900, 900, "900x900")]
)
def test_the_size_of_the_hires_pass_is_the_hosts(host, x, y, size):
    text = host.run(f"""
import types
from lib_tiled.webui.settings import describe
result = describe(types.SimpleNamespace(width=512, height=768, steps=20, n_iter=1, batch_size=1, enable_hr=True,
                                        hr_scale=1.5, hr_resize_x={x}, hr_resize_y={y}))
""")
    assert text == f"txt2img 512x768 20 steps, hires {size}"
