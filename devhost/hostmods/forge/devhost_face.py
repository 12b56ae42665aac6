"""Forge: what devhost's common part asks the face it wears. The model is loaded by the first generation."""

import importlib
import types

import torch

from modules import shared

no_grad = torch.inference_mode
loads_model_at_start = False
memory_estimate = None  # bytes, of the latest sampling
_host_options = ()


def cross_attention_choices():
    return ["Automatic"]


def start():
    global _host_options
    _host_options = tuple(shared.opts.data_labels)
    from backend import attention  # noqa: F401  chooses the attention, and says so


def scripts_loaded():
    pass


def model_ready():
    pass


def adopt(model):
    """The demo model's attention layers become the host's classes, with the weights they have."""
    import ldm.modules.attention
    import ldm.modules.diffusionmodules.model
    from backend.modules.k_model import KModel
    from backend.nn import unet, vae

    for module in model.modules():
        if type(module) is ldm.modules.attention.CrossAttention:
            module.__class__ = unet.CrossAttention
        elif type(module) is ldm.modules.diffusionmodules.model.AttnBlock:
            module.__class__ = vae.AttnBlock
    unet_patcher = types.SimpleNamespace(model=KModel(model.model.diffusion_model))
    model.forge_objects = types.SimpleNamespace(unet=unet_patcher)


def sampling_starts(model, shape):
    """shape: the latent's. Estimates memory, and loads a module late, as a Flux refiner would make the host do."""
    global memory_estimate
    memory_estimate = model.forge_objects.unet.model.memory_required(shape)
    importlib.import_module("backend.nn.flux")


def restore_options(stored):
    """Unlike the other hosts, with the options' callbacks."""
    for key, value in stored.items():
        shared.opts.set(key, value)


def api_options():
    """The host answers with its own options alone."""
    return _host_options
