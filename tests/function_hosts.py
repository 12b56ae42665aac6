"""What the tests of Forge and reForge have in common: they look into a running devhost from the inside."""

import numpy as np

TILED = "Tiled (no-flash)"
KEY = "cross_attention_optimization"
# What the devhost's demo model does in two steps; `layers_run` counts it anew.
KERNELS = {"sdp": "sdp:flash", TILED: "tiled", "sub-quadratic": "sub-quadratic", "split": "split", "basic": "basic"}
VAE_KERNELS = KERNELS | {"sub-quadratic": "split", "basic": "split"}

SNAPSHOT = """
import sys
names = ("attention_function", "attention_function_single_head_spatial", "optimized_attention",
         "optimized_attention_masked", "optimized_attention_for_device", "vae_attention", "memory_required", "forward",
         "xformers_enabled", "pytorch_attention_flash_attention", "scaled_dot_product_attention")

def snapshot():
    held = {}
    for module_name, module in list(sys.modules.items()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if name in names:
                held[f"{module_name}.{name}"] = id(value)
            if isinstance(value, type) and str(value.__module__).startswith(("backend", "ldm_patched")):
                for key, member in vars(value).items():
                    if key in names:
                        held[f"{module_name}.{name}.{key}"] = id(member)
    from modules import shared
    for path, layer in shared.sd_model.named_modules():
        for key in ("optimized_attention", "forward"):
            if key in vars(layer):
                held[f"{path}.{key}"] = id(vars(layer)[key])
    return held
"""

# A generation of the extension's own session around any code.
SESSION = """
import contextlib, types, torch
from lib_tiled import webui
from lib_tiled.backends import calls

def generation(option, **attributes):
    from modules import shared
    shared.opts.data["cross_attention_optimization"] = option
    p = types.SimpleNamespace(width=64, height=64, steps=1, n_iter=1, batch_size=1, override_settings={}, **attributes)
    return webui._session.generation(p)
"""


def run(host, code, **given):
    """host.run with `given` as variables."""
    return host.run("".join(f"{name} = {value!r}\n" for name, value in given.items()) + code)


def lines(host):
    return [line for line in host.console_since_mark().splitlines() if line.startswith("[Tiled]")]


def count_layers(host):
    """Lets every attention layer of the model count its calls: the observer that the extension knows nothing of."""
    host.run("""
from modules import shared
if not hasattr(shared, "counts_of_layers"):
    shared.counts_of_layers = {"CrossAttention": 0, "AttnBlock": 0}
counts = shared.counts_of_layers
def count(layer, *_):
    counts[type(layer).__name__] += 1
for layer in shared.sd_model.modules():
    if type(layer).__name__ in counts and not layer._forward_hooks:
        layer.register_forward_hook(count)
""")


def layers_run(host):
    """(UNet's, VAE's) attention layers that ran since the last call."""
    counts = host.run("""
from modules import shared
result = dict(shared.counts_of_layers)
shared.counts_of_layers.update(CrossAttention=0, AttnBlock=0)
""")
    return counts["CrossAttention"], counts["AttnBlock"]


def difference(first, second):
    """Largest difference of two pictures in steps of 1/255."""
    return int(np.abs(np.asarray(first, dtype=int) - np.asarray(second, dtype=int)).max())


def take_snapshot(host):
    return host.run(SNAPSHOT + "result = snapshot()")


def assert_restored(host, before):
    """Every name holds what it held, by identity; names of modules that loaded since hold nothing of ours."""
    after = take_snapshot(host)
    changed = {name for name in before if after.get(name) != before[name]}
    assert not changed
    ours = host.run("""
import sys
result = [f"{module_name}.{name}" for module_name, module in list(sys.modules.items())
          for name, value in list(getattr(module, "__dict__", {}).items())
          if "_tiled_patch" in getattr(value, "__dict__", {}) and name != "process_images_inner"
          and not module_name.startswith("lib_tiled")]
""")
    assert ours == []


def assert_every_entry_draws_the_hosts_picture(host, own):
    """own: the kernel that the host was started with."""
    host.txt2img()  # loads the model, and the module that comes late
    before = take_snapshot(host)
    count_layers(host)
    reference = host.txt2img()[0]
    host_counts = layers_run(host)
    assert lines(host)[-1].split(" | ")[-1] == f"Automatic -> {own}"
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
            assert difference(picture, reference) <= 2
            assert_restored(host, before)
    host.options(**{KEY: "Automatic"})


def assert_img2img_counts_both_vae_calls(host):
    picture = host.txt2img()[0]
    count_layers(host)
    layers_run(host)
    host.img2img(picture, override_settings={KEY: TILED})
    unet, vae = layers_run(host)
    assert vae == 2
    assert f"unet: tiled x{unet} | vae: tiled x2 |" in lines(host)[-1]


def assert_restored_after_an_exception_and_an_interrupt(host):
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


def assert_nested_generations_choose_for_themselves(host):
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


def assert_survives_reload(host):
    host.txt2img(override_settings={KEY: TILED})
    before = take_snapshot(host)
    host.reload_ui()
    assert_restored(host, before)
    host.txt2img(override_settings={KEY: "split"})
    assert len(lines(host)) == 1
    assert "unet: split x" in lines(host)[0]
    assert_restored(host, before)


def assert_failing_code_leaves_the_host_to_finish(host, own):
    reference = host.txt2img()[0]
    host.run("""
from lib_tiled import kernel
kernel.working = kernel.attend
def attend(*args, **kwargs):
    raise ValueError("no such tile")
kernel.attend = attend
""")
    try:
        picture = host.txt2img(override_settings={KEY: TILED})[0]
    finally:
        host.run("from lib_tiled import kernel\nkernel.attend = kernel.working")
    line = lines(host)[-1]
    assert f"unet: {own} x" in line
    assert f"tiled attention failed (ValueError: no such tile); {own} took over" in line
    assert difference(picture, reference) == 0


def assert_dropdown(host, unavailable):
    """unavailable: title -> words of its reason."""
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


def estimates(host, code, options):
    """MB by option, from `code` that sets `result` within a generation."""
    body = "\n".join("    " + line for line in code.strip().splitlines())
    return {option: run(host, SESSION + f"with generation(option):\n{body}\n", option=option) for option in options}
