"""All hosts: what everything shares: options, state, the command line, and the model, loaded on first use."""

import os
import sys

import gradio as gr

import devhost
from modules import devices, options, paths, shared_items, shared_state
from modules.options import OptionHTML, OptionInfo, options_section  # noqa: F401
from modules.shared_cmd_options import cmd_opts, parser  # noqa: F401

config_filename = os.path.join(paths.data_path, "config.json")
device = devices.device
state = shared_state.State()
demo = None
hypernetworks = {}
loaded_hypernetworks = []
settings_components = {}
sd_upscalers = []
progress_print_out = sys.stdout


def _xformers_available():
    try:
        import xformers.ops  # noqa: F401
    except ImportError:
        return False
    return True


xformers_available = devhost.face == "a1111" and _xformers_available()

options_templates = {}
options_templates.update(options_section(("saving-images", "Saving images/grids", "saving"), {
    "samples_save": OptionInfo(True, "Always save all generated images"),
}))
options_templates.update(options_section(("sd", "Stable Diffusion", "sd"), {
    "sd_model_checkpoint": OptionInfo("demo", "Stable Diffusion checkpoint"),
    "upcast_attn": OptionInfo(False, "Upcast cross attention layer to float32"),
}))
if devhost.face != "reforge":
    options_templates.update(options_section(("optimizations", "Optimizations", "sd"), {
        "cross_attention_optimization": OptionInfo(
            "Automatic", "Cross attention optimization", gr.Dropdown,
            lambda: {"choices": shared_items.cross_attention_optimizations()}),
    }))
options_templates.update(options_section(("optimizations", "Optimizations", "sd"), {
    "token_merging_ratio": OptionInfo(0.0, "Token merging ratio", gr.Slider,
                                      {"minimum": 0.0, "maximum": 0.9, "step": 0.1}),
    "batch_cond_uncond": OptionInfo(True, "Batch cond/uncond"),
}))
opts = options.Options(options_templates)
opts.load(config_filename)


class Shared(sys.modules[__name__].__class__):
    """Makes `shared.sd_model` load the model when it is first read."""

    @property
    def sd_model(self):
        from modules import sd_models

        return sd_models.model_data.get_sd_model()

    @sd_model.setter
    def sd_model(self, value):
        from modules import sd_models

        sd_models.model_data.sd_model = value


sys.modules[__name__].__class__ = Shared
