"""reForge: which attention the command line asks for, and what the memory estimate believes about it."""

import sys

import torch

from modules import devices
from modules.shared_cmd_options import cmd_opts as args


def get_torch_device():
    return devices.device


def dtype_size(dtype):
    return torch.empty((), dtype=dtype).element_size()


def xformers_enabled():
    return sys.modules.get("xformers") is not None and (torch.cuda.is_available() or args.force_enable_xformers)


def xformers_enabled_vae():
    return xformers_enabled()


def pytorch_attention_enabled():
    return args.attention_pytorch


def pytorch_attention_enabled_vae():
    return pytorch_attention_enabled()


def pytorch_attention_flash_attention():
    return pytorch_attention_enabled() and torch.cuda.is_available()


def sage_attention_enabled():
    return False


def flash_attention_enabled():
    return False
