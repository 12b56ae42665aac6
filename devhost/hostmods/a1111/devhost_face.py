"""AUTOMATIC1111 1.10: what devhost's common part asks the face it wears."""

import torch

from modules import script_callbacks, sd_hijack, sd_hijack_optimizations, shared
from modules.call_queue import wrap_queued_call

no_grad = torch.no_grad
loads_model_at_start = True


def cross_attention_choices():
    return ["Automatic", *(optimizer.title() for optimizer in sd_hijack.optimizers), "None"]


def start():
    """Once, before anything is loaded."""
    shared.opts.onchange("cross_attention_optimization",
                         wrap_queued_call(lambda: sd_hijack.model_hijack.redo_hijack(shared.sd_model)), call=False)


def scripts_loaded():
    """After the scripts, at start and at each Reload UI. The built-ins come after the extensions' optimizers."""
    script_callbacks.on_list_optimizers(sd_hijack_optimizations.list_optimizers)
    sd_hijack.list_optimizers()


def model_ready():
    if sd_hijack.current_optimizer is None:
        sd_hijack.apply_optimizations()


def adopt(model):
    sd_hijack.model_hijack.hijack(model)


def sampling_starts(model, shape):
    pass


def restore_options(stored):
    for key, value in stored.items():
        setattr(shared.opts, key, value)


def api_options():
    """The keys of GET /sdapi/v1/options; None: all."""
    return None
