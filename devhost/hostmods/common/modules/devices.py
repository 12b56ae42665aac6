"""All hosts: device and precision. devhost computes in fp32 on the first GPU, or the CPU."""

import contextlib

import torch

cpu = torch.device("cpu")
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = dtype_vae = dtype_unet = dtype_inference = torch.float32
unet_needs_upcast = False


def get_optimal_device():
    return device


def cond_cast_unet(tensor):
    return tensor.to(dtype_unet)


def cond_cast_float(tensor):
    return tensor.float()


def autocast(disable=False):
    return contextlib.nullcontext()


def without_autocast(disable=False):
    if torch.is_autocast_enabled() and not disable:
        return torch.autocast("cuda", enabled=False)
    return contextlib.nullcontext()


def torch_gc():
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
