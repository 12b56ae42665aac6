"""reForge: the UNet's owner and its memory estimate."""

import math

import torch

from ldm_patched.modules import model_management


class BaseModel(torch.nn.Module):
    memory_usage_factor = 1.0

    def __init__(self, diffusion_model):
        super().__init__()
        self.diffusion_model = diffusion_model

    def get_dtype(self):
        return next(self.diffusion_model.parameters()).dtype

    def memory_required(self, input_shape, cond_shapes={}):
        """input_shape: the latent's (B, C, H, W). Returns bytes; 3.75 times as many without efficient attention."""
        area = input_shape[0] * math.prod(input_shape[2:])
        if model_management.xformers_enabled() or model_management.pytorch_attention_flash_attention():
            per_pixel = model_management.dtype_size(self.get_dtype()) * 0.01
        else:
            per_pixel = 0.15
        return area * per_pixel * self.memory_usage_factor * (1024 * 1024)
