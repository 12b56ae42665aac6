"""devhost itself: attention runs where the hosts run it, and every built-in way draws the same picture."""

import threading
import time

import pytest

from devhost.pictures import largest_difference

FACES = ["a1111", "reforge", "forge"]


@pytest.fixture
def host(request, shared_host):
    return shared_host(request.param, extensions=())


def test_all_faces_draw_the_same_picture(shared_host):
    first, *others = [shared_host(face, extensions=()).txt2img()[0] for face in FACES]
    assert first.getextrema()[0][0] < first.getextrema()[0][1]
    assert all(largest_difference(first, other) <= 1 for other in others)


def test_a1111_lists_optimizations_and_prefers_invokeai_on_a_cpu(shared_host):
    host = shared_host("a1111", extensions=())
    choices, current = host.run(
        "from modules import sd_hijack, shared\n"
        "component_args = shared.opts.data_labels['cross_attention_optimization'].component_args()\n"
        "result = [component_args['choices'], sd_hijack.model_hijack.optimization_method]")
    assert choices == ["Automatic", "InvokeAI", "Doggettx",
                       "sdp-no-mem - scaled dot product without memory efficient attention",
                       "sdp - scaled dot product", "sub-quadratic", "V1 - original v1", "None"]
    assert current == "InvokeAI"


def test_a1111_every_optimization_draws_the_same_picture(shared_host):
    host = shared_host("a1111", extensions=())
    reference, = host.txt2img()
    for title in ("Doggettx", "sdp - scaled dot product", "sub-quadratic", "V1 - original v1", "None"):
        host.options(cross_attention_optimization=title)
        if title != "None":
            assert f"Applying attention optimization: {title.split(' ')[0]}... done." in host.console
        picture, = host.txt2img()
        assert largest_difference(picture, reference) <= 1, title
    host.options(cross_attention_optimization="Automatic")


def test_a1111_override_settings_do_not_apply_an_optimization(shared_host):
    host = shared_host("a1111", extensions=())
    host.txt2img(override_settings={"cross_attention_optimization": "Doggettx"})
    assert "Applying" not in host.console_since_mark()
    assert host.options()["cross_attention_optimization"] == "Automatic"


def test_a1111_command_line_flag_decides_automatic(start_host):
    host = start_host("a1111", "--opt-sdp-attention", extensions=())
    host.txt2img()
    assert "Applying attention optimization: sdp... done." in host.console


COUNT_CALLS = """
import {module} as holder
counts = holder.devhost_counts = []
original = holder.devhost_original = holder.{name}
def counted(q, *args, **kwargs):
    counts.append(tuple(q.shape))
    return original(q, *args, **kwargs)
holder.{name} = counted
"""


@pytest.mark.parametrize("face, module, name, reached", [
    ("forge", "backend.attention", "attention_function", False),
    ("forge", "backend.nn.unet", "attention_function", True),
    ("forge", "backend.nn.vae", "attention_function_single_head_spatial", True),
    ("reforge", "ldm_patched.ldm.modules.attention", "optimized_attention", True),
    ("reforge", "ldm_patched.controlnet.cldm", "optimized_attention", False),
])
def test_rebinding_a_name_reaches_the_calls_it_reaches_in_the_host(shared_host, face, module, name, reached):
    host = shared_host(face, extensions=())
    host.txt2img()
    host.run(COUNT_CALLS.format(module=module, name=name))
    host.txt2img()
    shapes = host.run(f"import {module} as holder; holder.{name} = holder.devhost_original\n"
                      f"result = holder.devhost_counts")
    assert bool(shapes) == reached
    if "single_head" in name:
        assert shapes == [[1, 32, 16, 16]]  # one VAE decode of a 64x64 picture
    elif reached:
        assert [2, 256, 32] in shapes  # self-attention of the first level, cond and uncond in one batch


def test_reforge_vae_keeps_what_it_was_given_at_construction(shared_host):
    host = shared_host("reforge", extensions=())
    host.txt2img()
    names = host.run(
        "from modules import shared\n"
        "from ldm_patched.ldm.modules.diffusionmodules import model\n"
        "result = [m.optimized_attention.__name__ for m in shared.sd_model.modules()"
        " if isinstance(m, model.AttnBlock)]")
    assert names == 2 * ["normal_attention"]


@pytest.mark.parametrize("face, module", [("forge", "backend.nn.flux"),
                                          ("reforge", "lib_ipadapter.CrossAttentionPatch")])
def test_a_module_is_imported_during_the_first_generation(shared_host, face, module):
    host = shared_host(face, "--attention-pytorch", extensions=())  # no other test generates with this one
    loaded = f"import sys; result = {module!r} in sys.modules"
    assert host.run(loaded) is False
    host.txt2img()
    assert host.run(loaded) is True


@pytest.mark.parametrize("face, default, pytorch", [("forge", 2 * 64 * 64 * 1.65 * 4 * 16384, 1.28 / 1.65),
                                                    ("reforge", 1228.8 * 1024**2, 0.04 / 0.15)])
def test_memory_estimates_are_the_hosts(shared_host, face, default, pytorch):
    estimate = {"forge": "from backend.modules.k_model import KModel as M",
                "reforge": "from ldm_patched.modules.model_base import BaseModel as M"}[face]
    ask = f"import torch\n{estimate}\nresult = M(torch.nn.Linear(1, 1)).memory_required((2, 4, 64, 64))"
    assert shared_host(face, extensions=()).run(ask) == pytest.approx(default)
    host = shared_host(face, "--attention-pytorch", extensions=())
    if face == "reforge":  # the host counts PyTorch attention as efficient on a GPU only
        host.run("from ldm_patched.modules import model_management as m; m.xformers_enabled = lambda: True")
    assert host.run(ask) == pytest.approx(default * pytorch)


@pytest.mark.parametrize("host", FACES, indirect=True)
def test_img2img_and_hires_fix_start_from_a_picture(host):
    picture, = host.txt2img(steps=3)
    changed, = host.img2img(picture, denoising_strength=0.5, seed=2)
    assert changed.size == picture.size and "Denoising strength: 0.5" in changed.info["parameters"]
    assert largest_difference(changed, picture) > 1
    larger, = host.txt2img(enable_hr=True, hr_scale=2, denoising_strength=0.5)
    assert larger.size == (128, 128) and "Hires upscale: 2" in larger.info["parameters"]


@pytest.mark.parametrize("host", ["a1111"], indirect=True)
def test_an_interrupt_ends_a_generation_with_the_picture_so_far(host):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(host.txt2img(steps=150, n_iter=2)))
    thread.start()
    while host.get("/sdapi/v1/progress")["progress"] == 0:
        time.sleep(0.05)
    host.post("/sdapi/v1/interrupt")
    thread.join(60)
    assert len(answers) == 1 and len(answers[0]) == 1
    assert host.get("/sdapi/v1/progress")["state"]["job"] == ""
