"""What Forge and reForge must both do, on the devhost's faces."""

import pytest
from function_hosts import (
    KEY,
    TILED,
    assert_restored,
    count_layers,
    layers_run,
    lines,
    take_snapshot,
)

from devhost.pictures import largest_difference

# What the devhost's demo model does in two steps; `layers_run` counts it anew.
KERNELS = {"sdp": "sdp:flash", TILED: "tiled", "sub-quadratic": "sub-quadratic", "split": "split", "basic": "basic"}
VAE_KERNELS = KERNELS | {"sub-quadratic": "split", "basic": "split"}
OWN = "sub-quadratic"  # what both start with on a CPU


@pytest.fixture(params=["forge", "reforge"], scope="module")
def face(request):
    return request.param


@pytest.fixture
def host(face, shared_host):
    host = shared_host(face)
    host.options(**{KEY: "Automatic"})
    return host


def test_every_entry_draws_the_hosts_picture(host):
    host.txt2img()  # loads the model, and the module that comes late
    before = take_snapshot(host)
    count_layers(host)
    reference = host.txt2img()[0]
    host_counts = layers_run(host)
    assert lines(host)[-1].split(" | ")[-1] == f"Automatic -> {OWN}"
    for option, kernel in KERNELS.items():
        for request in ({"override_settings": {KEY: option}}, {}):
            host.options(**{KEY: "Automatic" if request else option})
            picture = host.txt2img(**request)[0]
            unet, vae = layers_run(host)
            line, = lines(host)
            assert (unet, vae) == host_counts
            assert f"unet: {kernel} x{unet} |" in line
            assert f"vae: {VAE_KERNELS[option]} x{vae} |" in line
            assert line.endswith(f"| {option}")
            assert largest_difference(picture, reference) <= 2
            assert_restored(host, before)
    host.options(**{KEY: "Automatic"})


def test_img2img_counts_both_vae_calls(host):
    picture = host.txt2img()[0]
    count_layers(host)
    layers_run(host)
    host.img2img(picture, override_settings={KEY: TILED})
    unet, vae = layers_run(host)
    assert vae == 2
    assert f"unet: tiled x{unet} | vae: tiled x2 |" in lines(host)[-1]


def test_names_are_restored_after_an_exception_and_an_interrupt(host):
    host.txt2img()
    before = take_snapshot(host)
    host.run("""
from modules import sd_samplers_common, shared
whole = sd_samplers_common.sample
def broken(*args, **kwargs):
    sd_samplers_common.sample = whole
    whole(*args, **kwargs)
    raise RuntimeError("broken on purpose")
sd_samplers_common.sample = broken
""")
    try:
        host.txt2img(override_settings={KEY: TILED})
    except Exception as error:  # HostError is the fixture module's own class
        assert "broken on purpose" in str(error)
    else:
        raise AssertionError("the host answered")
    assert "(failed)" in lines(host)[-1]
    assert_restored(host, before)
    host.run("""
from modules import sd_samplers_common, shared
whole = sd_samplers_common.sample
def interrupted(*args, **kwargs):
    sd_samplers_common.sample = whole
    shared.state.interrupt()
    return whole(*args, **kwargs)
sd_samplers_common.sample = interrupted
""")
    host.txt2img(override_settings={KEY: TILED})
    assert "(interrupted)" in lines(host)[-1]
    assert_restored(host, before)


def test_nested_generations_choose_for_themselves(host):
    host.txt2img()
    before = take_snapshot(host)
    host.run(f"""
from modules import processing, sd_samplers_common
whole = sd_samplers_common.sample
def outer(p, *args, **kwargs):
    sd_samplers_common.sample = whole
    inner = processing.StableDiffusionProcessingTxt2Img(prompt="x", seed=2, steps=1, width=64, height=64,
                                                        override_settings={{"{KEY}": "split"}})
    inner.do_not_save_samples = True
    processing.process_images(inner)
    return whole(p, *args, **kwargs)
sd_samplers_common.sample = outer
""")
    host.txt2img(override_settings={KEY: TILED})
    nested, outer = lines(host)
    assert "(nested)" in nested and "unet: split x" in nested and "tiled" not in nested
    assert "unet: tiled x" in outer and "split" not in outer
    assert_restored(host, before)


def test_reload_ui(face, start_host):
    host = start_host(face)
    host.txt2img(override_settings={KEY: TILED})
    before = take_snapshot(host)
    host.reload_ui()
    assert_restored(host, before)
    host.txt2img(override_settings={KEY: "split"})
    assert len(lines(host)) == 1
    assert "unet: split x" in lines(host)[0]
    assert_restored(host, before)


def test_failing_code_leaves_the_host_to_finish(host):
    reference = host.txt2img()[0]
    with host.failing_kernel("ValueError('no such tile')"):
        picture = host.txt2img(override_settings={KEY: TILED})[0]
    line = lines(host)[-1]
    assert f"unet: {OWN} x" in line
    assert f"tiled attention failed, {OWN} took over (ValueError: no such tile)" in line
    assert largest_difference(picture, reference) == 0


def test_the_dropdown(host):
    unavailable = {"xformers": ""}  # no GPU here; the reason depends on the environment
    choices, args, value = host.run(f"""
from lib_tiled import webui
from modules import shared
info = shared.opts.data_labels["{KEY}"]
args = info.component_args() if callable(info.component_args) else info.component_args
result = [[[c.title, c.available, c.reason] for c in webui._session.host.choices()], args["choices"],
          [info.section[0], info.component.__name__, shared.opts.{KEY}]]
""")
    titles = [title for title, *_ in choices]
    assert titles == ["Automatic", "xformers", "sdp", TILED, "sub-quadratic", "split", "basic"]
    assert args == [title for title, available, _ in choices if available]
    assert value == ["optimizations", "Dropdown", "Automatic"]
    for title, available, reason in choices:
        assert available == (title not in unavailable)
        assert unavailable.get(title, "") in reason
