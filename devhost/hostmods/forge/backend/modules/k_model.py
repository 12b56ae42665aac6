"""Forge: the UNet with its memory estimate, which looks at attention_function each time it is asked."""

import torch

from backend import attention, memory_management


class KModel(torch.nn.Module):
    def __init__(self, model, computation_dtype=torch.float32):
        super().__init__()
        self.diffusion_model, self.computation_dtype = model, computation_dtype

    def memory_required(self, input_shape):
        """input_shape: the latent's (B, C, H, W). Returns bytes."""
        area = input_shape[0] * input_shape[2] * input_shape[3]
        dtype_size = memory_management.dtype_size(self.computation_dtype)
        if attention.attention_function in [attention.attention_pytorch, attention.attention_xformers]:
            scaler = 1.28
        else:
            scaler = 1.65
            if attention.get_attn_precision() == torch.float32:
                dtype_size = 4
        return scaler * area * dtype_size * 16384
