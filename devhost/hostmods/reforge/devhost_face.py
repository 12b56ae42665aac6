"""reForge: what devhost's common part asks the face it wears. It has no option cross_attention_optimization."""

import importlib
import types

import torch

from modules import shared

no_grad = torch.inference_mode
loads_model_at_start = True
memory_estimate = None  # bytes, of the latest sampling


def start():
    for holder in ("controlnet.cldm", "contrib.nodes_sag", "ldm.lumina.model"):
        importlib.import_module(f"ldm_patched.{holder}")


def scripts_loaded():
    pass


def model_ready():
    pass


def adopt(model):
    """The demo model's attention layers become the host's classes, with the weights they have."""
    import ldm.modules.attention as ldm_attention
    import ldm.modules.diffusionmodules.model as ldm_model
    from ldm_patched.ldm.modules import attention
    from ldm_patched.ldm.modules.diffusionmodules import model as vae
    from ldm_patched.modules.model_base import BaseModel

    for module in model.modules():
        if type(module) is ldm_attention.CrossAttention:
            module.__class__ = attention.CrossAttention
        elif type(module) is ldm_model.AttnBlock:
            module.__class__ = vae.AttnBlock
            module.optimized_attention = vae.vae_attention()
    unet_patcher = types.SimpleNamespace(model=BaseModel(model.model.diffusion_model))
    model.forge_objects = types.SimpleNamespace(unet=unet_patcher)


def sampling_starts(model, shape):
    """shape: the latent's. Estimates memory, and loads a module late, as the IP-Adapter would make the host do."""
    global memory_estimate
    memory_estimate = model.forge_objects.unet.model.memory_required(shape)
    importlib.import_module("lib_ipadapter.CrossAttentionPatch")


def restore_options(stored):
    for key, value in stored.items():
        setattr(shared.opts, key, value)


def api_options():
    """The keys of GET /sdapi/v1/options; None: all."""
    return None
