"""AUTOMATIC1111: hypernetworks, and the CrossAttention.forward that stands when no optimization is applied."""

import torch

from modules import devices, shared


def apply_single_hypernetwork(hypernetwork, context_k, context_v, layer=None):
    layers = (hypernetwork.layers if hypernetwork is not None else {}).get(context_k.shape[2])
    if layers is None:
        return context_k, context_v
    if layer is not None:
        layer.hyper_k, layer.hyper_v = layers
    return tuple(devices.cond_cast_unet(net(devices.cond_cast_float(context)))
                 for net, context in zip(layers, (context_k, context_v)))


def apply_hypernetworks(hypernetworks, context, layer=None):
    context_k = context_v = context
    for hypernetwork in hypernetworks:
        context_k, context_v = apply_single_hypernetwork(hypernetwork, context_k, context_v, layer)
    return context_k, context_v


def attention_CrossAttention_forward(self, x, context=None, mask=None, **kwargs):
    context_k, context_v = apply_hypernetworks(shared.loaded_hypernetworks, x if context is None else context, self)
    q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
               for t in (self.to_q(x), self.to_k(context_k), self.to_v(context_v)))
    scores = q @ k.transpose(-1, -2) * self.scale
    if mask is not None:
        scores = scores.masked_fill(~mask.flatten(1)[:, None, None], -torch.finfo(scores.dtype).max)
    return self.to_out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
