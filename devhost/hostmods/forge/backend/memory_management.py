"""Forge: which attention the command line asks for, and sizes of types."""

import torch

from backend.args import args
from modules import devices


def get_torch_device():
    return devices.device


def dtype_size(dtype):
    return torch.empty((), dtype=dtype).element_size()


def xformers_enabled():
    """The host looks for a GPU and for xformers; --force-enable-xformers does without the GPU here."""
    if not (torch.cuda.is_available() or args.force_enable_xformers):
        return False
    try:
        import xformers.ops  # noqa: F401
    except ImportError:
        return False
    return True


def xformers_enabled_vae():
    return xformers_enabled()


def pytorch_attention_enabled():
    return args.attention_pytorch
