"""The Forge adapter on the devhost's Forge face."""

import function_hosts as checks
import pytest
from function_hosts import KEY, SESSION, TILED, lines

from devhost.pictures import largest_difference


@pytest.fixture
def host(shared_host):
    host = shared_host("forge")
    host.options(**{KEY: "Automatic"})
    return host


def test_a_module_imported_during_a_generation_gets_the_hosts_function_back(start_host):
    host = start_host("forge")
    assert host.run("import sys\nresult = 'backend.nn.flux' in sys.modules") is False
    host.txt2img(override_settings={KEY: TILED})
    assert host.run("""
import sys
from backend import attention
result = sys.modules["backend.nn.flux"].attention_function is attention.attention_sub_quad
""")


def test_a_late_module_is_reached_while_the_generation_lasts(host):
    kernels = host.run(SESSION + """
import importlib, sys
sys.modules.pop("backend.nn.flux", None)
q = torch.randn(1, 2, 300, 16)
with generation("Tiled (no-flash)") as done:
    flux = importlib.import_module("backend.nn.flux")
    inside = flux.attention(q, q, q)
outside = flux.attention(q, q, q)
result = [done.counts.total(), [kernel for _, kernel in done.counts], (inside - outside).abs().max().item()]
""")
    assert kernels[:2] == [1, ["tiled"]]
    assert kernels[2] < 1e-5


def test_a_stand_in_that_somebody_keeps_is_the_hosts_function_outside(host):
    same, counted = host.run(SESSION + """
from backend.nn import unet
with generation("Tiled (no-flash)"):
    kept = unet.attention_function
q = torch.randn(1, 300, 32)
with generation("Automatic") as done:
    pass
result = [torch.equal(kept(q, q, q, 2), unet.attention_function(q, q, q, heads=2)), done.calls]
""")
    assert same and counted == 0


# Like T5, which holds attention_pytorch under the common name, and calls it with a float bias per head.
T5 = SESSION + """
import sys
from backend import attention
t5 = sys.modules["backend.nn.t5"] = types.ModuleType("backend.nn.t5")
t5.attention_function = attention.attention_pytorch
q, bias = torch.randn(2, 90, 48), torch.randn(1, 3, 90, 90)
expected = attention.attention_pytorch(q, q * 4, q, 3, bias)
with generation(option) as done:
    out = t5.attention_function(q, q * 4, q, 3, bias)
result = [list(done.kernels().values()), (out - expected).abs().max().item(),
          t5.attention_function is attention.attention_pytorch]
del sys.modules["backend.nn.t5"]
"""


@pytest.mark.parametrize(("option", "kernel"), [(TILED, "tiled"), ("split", "sdp:flash"), ("Automatic", "sdp:flash")])
def test_t5_keeps_its_own_function_unless_tiled_is_chosen(host, option, kernel):
    kernels, error, restored = checks.run(host, T5, option=option)
    assert [list(one) for one in kernels] == [[kernel]]
    assert error < 1e-5
    assert restored


FORMS = SESSION + """
from backend import attention
from backend.nn import unet, vae
torch.manual_seed(0)
b, h, n, m, d = 2, 4, 150, 70, 16
q, k, v = torch.randn(b, n, h * d), torch.randn(b, m, h * d), torch.randn(b, m, h * d)
split = lambda t: t.unflatten(-1, (h, d)).transpose(1, 2)
calls_of = [
    ((q, k, v, h), {}),
    ((q, k, v), {"heads": h, "mask": None}),
    ((q, k, v, h, torch.randn(n, m)), {}),
    ((q, k, v, h, torch.rand(n, m) > 0.5), {}),
    ((q, k, v, h), {"mask": torch.randn(h, n, m)}),
    ((q, k, v, h), {"mask": torch.randn(b, h, n, m)}),
    ((q, k, v, h), {"mask": torch.rand(b, 1, 1, m) > 0.5, "attn_precision": torch.float32}),
    ((split(q), split(k), split(v), h), {"skip_reshape": True}),
    ((split(q).contiguous(), split(k), split(v)), {"heads": h, "skip_reshape": True}),
]
picture = torch.randn(1, 64, 20, 30)
expected = [attention.attention_pytorch(*args, **kwargs) for args, kwargs in calls_of]
expected.append(attention.pytorch_attention_single_head_spatial(picture, picture, picture))
with generation("Tiled (no-flash)") as done:
    out = [unet.attention_function(*args, **kwargs) for args, kwargs in calls_of]
    out.append(vae.attention_function_single_head_spatial(picture, picture, picture))
result = [[tuple(a.shape) == tuple(b.shape) for a, b in zip(out, expected)],
          max((a - b).abs().max().item() for a, b in zip(out, expected)), dict(done.kernels()), done.reasons]
"""


def test_call_forms(host):
    shapes, error, kernels, reasons = host.run(FORMS)
    assert all(shapes) and len(shapes) == 10
    assert error < 2e-5
    assert [sum(one.values()) for one in kernels.values()] == [10]
    assert [list(one) for one in kernels.values()] == [["tiled"]]
    assert reasons == []


ESTIMATE = """
from backend.modules.k_model import KModel
model = KModel(torch.nn.Identity(), torch.float16)
result = round(model.memory_required((2, 4, 128, 128)) / 2**20)
"""


def test_memory_estimates(host):
    """fp16, 1024x1024, cond and uncond in one batch."""
    found = checks.estimates(host, ESTIMATE, ["Automatic", TILED, "sdp", "sub-quadratic", "split", "basic"])
    assert found == {"Automatic": 3379, TILED: 1311, "sdp": 1311, "sub-quadratic": 3379, "split": 3379, "basic": 3379}
    assert host.run("import torch\n" + ESTIMATE) == 3379


def test_xformers_that_the_host_was_started_without(host):
    picture = host.txt2img()[0]
    other = host.txt2img(override_settings={KEY: "xformers"})[0]
    line, = lines(host)
    assert "unet: tiled x" in line
    assert "| xformers -> Tiled: " in line and "xformers" in line.rpartition(": ")[2]
    assert largest_difference(picture, other) <= 2
    host.options(tiled_fallback="leave it alone")
    host.txt2img(override_settings={KEY: "xformers"})
    assert "unet: sub-quadratic x" in lines(host)[0] and "| xformers -> sub-quadratic: " in lines(host)[0]
    host.options(tiled_fallback="use Tiled and say so")


def test_a_device_without_fused_kernels(start_host):
    host = start_host("forge", environment={"TILED_PRETEND": "gfx906"})
    host.txt2img()
    assert "unet: tiled x" in lines(host)[-1]
    assert "| Automatic -> Tiled: gfx906 runs no fused kernel (" in lines(host)[-1]
    host.txt2img(override_settings={KEY: "sdp"})
    assert "unet: tiled x" in lines(host)[-1]
    assert "| sdp -> Tiled: gfx906 runs no fused kernel (" in lines(host)[-1]
    host.txt2img(override_settings={KEY: "split"})
    assert "unet: split x" in lines(host)[-1]


def test_minimum_sequence(host):
    host.options(tiled_min_tokens=65)
    try:
        host.txt2img(override_settings={KEY: TILED})
    finally:
        host.options(tiled_min_tokens=0)
    assert "unet: sub-quadratic x" in lines(host)[0]


def test_the_flag_decides_automatic(start_host):
    host = start_host("forge", "--opt-tiled-attention", "--attention-pytorch")
    host.txt2img()
    assert lines(host)[-1].endswith("| Automatic -> Tiled: --opt-tiled-attention")


def test_a_title_of_another_webui(start_host):
    host = start_host("forge", "--attention-split", config={KEY: "Doggettx"})
    host.txt2img()
    assert lines(host)[-1].endswith("| Automatic -> split: Doggettx is not an optimization of this WebUI")
    assert host.options()[KEY] == "Doggettx"


def test_out_of_memory_is_torchs_own_error(host):
    """The host answers it with a tiled VAE."""
    kind = host.run(SESSION + """
from backend.nn import vae
from lib_tiled import kernel
working = kernel.attend
def attend(*args, **kwargs):
    raise kernel.TiledOutOfMemoryError("out of memory in tiled attention")
kernel.attend = attend
picture = torch.randn(1, 64, 20, 30)
try:
    with generation("Tiled (no-flash)"):
        vae.attention_function_single_head_spatial(picture, picture, picture)
except torch.cuda.OutOfMemoryError as error:
    result = str(error)
finally:
    kernel.attend = working
""")
    assert kind == "out of memory in tiled attention"
