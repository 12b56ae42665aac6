"""The reForge adapter on the devhost's reForge face."""

import function_hosts as checks
import pytest
from function_hosts import KEY, SESSION, TILED, lines


@pytest.fixture
def host(shared_host):
    host = shared_host("reforge")
    host.options(**{KEY: "Automatic"})
    return host


def test_a_module_imported_during_a_generation_gets_the_hosts_function_back(start_host):
    host = start_host("reforge")
    assert host.run("import sys\nresult = 'lib_ipadapter.CrossAttentionPatch' in sys.modules") is False
    host.txt2img(override_settings={KEY: TILED})
    assert host.run("""
import sys
from ldm_patched.ldm.modules import attention
result = sys.modules["lib_ipadapter.CrossAttentionPatch"].optimized_attention is attention.attention_sub_quad
""")


FORMS = SESSION + """
from ldm_patched.contrib import nodes_sag
from ldm_patched.controlnet import cldm
from ldm_patched.ldm.lumina import model as lumina
from ldm_patched.ldm.modules import attention
torch.manual_seed(0)
b, h, n, m, d = 2, 4, 150, 70, 16
q, k, v = torch.randn(b, n, h * d), torch.randn(b, m, h * d), torch.randn(b, m, h * d)
split = lambda t: t.unflatten(-1, (h, d)).transpose(1, 2)
calls_of = [
    ((q, k, v, h), {}),
    ((q, k, v), {"heads": h, "mask": None}),
    ((q, k, v, h, torch.randn(n, m)), {}),
    ((q, k, v, h, torch.rand(n, m) > 0.5), {}),
    ((q, k, v, h), {"mask": torch.randn(b, n, m)}),
    ((q, k, v, h), {"mask": torch.rand(b, n, m) > 0.5}),
    ((q, k, v, h), {"mask": torch.randn(b, h, n, m)}),
    ((q, k, v, h), {"mask": torch.rand(b, 1, 1, m) > 0.5, "attn_precision": torch.float32}),
    ((split(q), split(k), split(v), h), {"skip_reshape": True}),
    ((split(q), split(k), split(v), h), {"skip_reshape": True, "skip_output_reshape": True}),
    ((q, k, v, h), {"skip_output_reshape": True}),
]
expected = [attention.attention_pytorch(*args, **kwargs) for args, kwargs in calls_of]
with generation("Tiled (no-flash)") as done:
    out = [attention.optimized_attention_masked(*args, **kwargs) for args, kwargs in calls_of]
    own = attention.attention_pytorch(q, q, q, h)
    before = done.counts.total()
    others = [cldm.attention(q, q, q, h), nodes_sag.attention(q, q, q, h),
              lumina.attention(split(q), split(q), split(q), h, None)]
    others = [(o - own).abs().max().item() for o in others] + [done.counts.total() - before]
result = [[tuple(a.shape) == tuple(b.shape) for a, b in zip(out, expected)],
          max((a - b).abs().max().item() for a, b in zip(out, expected)), others, done.reasons]
"""


def test_call_forms_and_holders(host):
    shapes, error, others, reasons = host.run(FORMS)
    assert all(shapes) and len(shapes) == 11
    assert error < 2e-5
    assert max(others[:3]) < 2e-5
    assert others[3] == 3
    assert reasons == []


FOR_DEVICE = SESSION + """
from ldm_patched.ldm.modules import attention
q = torch.randn(1, 77, 48)
kernels = []
for option in ("Tiled (no-flash)", "split"):
    with generation(option) as done:
        function = attention.optimized_attention_for_device(q.device, mask=False, small_input=True)
        out = function(q, q, q, 3)
    kernels.append([kernel for _, kernel in done.counts])
result = [kernels, function(q, q, q, 3).shape == q.shape]
"""


def test_encoders_that_ask_for_a_function_at_each_call(host):
    """A small input gets attention_pytorch from the host, and keeps it unless Tiled is chosen."""
    assert host.run(FOR_DEVICE) == [[["tiled"], ["sdp:flash"]], True]


ESTIMATE = """
from ldm_patched.modules.model_base import BaseModel
model = BaseModel(torch.nn.Linear(2, 2))
result = round(model.memory_required((2, 4, 64, 64)) / 2**20, 1)
"""


def test_memory_estimates(host):
    """fp32, 512x512, cond and uncond in one batch."""
    found = checks.estimates(host, ESTIMATE, ["Automatic", TILED, "sdp", "sub-quadratic", "split", "basic"])
    assert found == {
        "Automatic": 1228.8, TILED: 327.7, "sdp": 327.7, "sub-quadratic": 1228.8, "split": 1228.8, "basic": 1228.8}
    assert host.run("import torch\n" + ESTIMATE) == 1228.8


def test_a_vae_layer_keeps_its_function_after_an_error(host):
    host.txt2img()
    assert host.run(SESSION + """
from ldm_patched.ldm.modules.diffusionmodules import model as vae
from modules import shared
layer = next(m for m in shared.sd_model.modules() if type(m) is vae.AttnBlock)
own = layer.optimized_attention
with contextlib.suppress(RuntimeError), generation("Tiled (no-flash)"):
    layer(torch.zeros(1, 3, 2, 2))  # channels that do not fit
result = layer.optimized_attention is own
""")


def test_a_forward_that_somebody_keeps_goes_on_reaching_the_choice(host):
    """HyperTile keeps the bound forward that it finds on first use."""
    host.txt2img()
    kernels, own = host.run(SESSION + """
from ldm_patched.ldm.modules.diffusionmodules import model as vae
from modules import shared
layer = next(m for m in shared.sd_model.modules() if type(m) is vae.AttnBlock)
x = torch.randn(1, layer.q.in_channels, 4, 4)
with generation("split"):
    kept = layer.forward
outside = kept(x)
with generation("Tiled (no-flash)") as done:
    inside = kept(x)
result = [[kernel for _, kernel in done.counts], (inside - outside).abs().max().item() < 1e-4]
""")
    assert kernels == ["tiled"]
    assert own


def test_a_device_without_fused_kernels(start_host):
    host = start_host("reforge", environment={"TILED_PRETEND": "gfx906"})
    host.txt2img()
    assert "unet: tiled x" in lines(host)[-1]
    assert "| Automatic -> Tiled: gfx906 runs no fused kernel (" in lines(host)[-1]
