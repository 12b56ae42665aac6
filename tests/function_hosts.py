"""What the tests of Forge and reForge have in common: they look into a running devhost from the inside."""

TILED = "Tiled (no-flash)"
KEY = "cross_attention_optimization"

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


def estimates(host, code, options):
    """MB by option, from `code` that sets `result` within a generation."""
    body = "\n".join("    " + line for line in code.strip().splitlines())
    return {option: run(host, SESSION + f"with generation(option):\n{body}\n", option=option) for option in options}
