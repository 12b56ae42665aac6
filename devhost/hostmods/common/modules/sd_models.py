"""All hosts: the checkpoint. There is one, the demo model, and each face makes it its own (`devhost_face.adopt`)."""

import threading
import types

import torch

from modules import devices, script_callbacks


class SdModelData:
    def __init__(self):
        self.sd_model = None
        self.lock = threading.Lock()

    def get_sd_model(self):
        if self.sd_model is None:
            with self.lock:
                if self.sd_model is None:
                    load_model()
        return self.sd_model


model_data = SdModelData()
checkpoint_aliases = {"demo": "demo"}


def _plain_ldm():
    """ldm without its own xformers classes, as AUTOMATIC1111 sets it up."""
    import ldm.modules.attention as attention
    import ldm.modules.diffusionmodules.model as autoencoder

    attention.MemoryEfficientCrossAttention = attention.CrossAttention
    attention.BasicTransformerBlock.ATTENTION_MODES["softmax-xformers"] = attention.CrossAttention
    autoencoder.XFORMERS_IS_AVAILBLE = False


def load_model():
    import devhost_face
    from devhost import demo_model

    _plain_ldm()
    try:
        model = demo_model.load()
    except FileNotFoundError:  # before the weights are trained: noise, but the same noise each time
        torch.manual_seed(0)
        model = demo_model.DemoModel().eval().requires_grad_(False)
    model = model.to(devices.device)
    model.sd_checkpoint_info = types.SimpleNamespace(name_for_extra="demo", title="demo", filename="demo.safetensors")
    model.sd_model_hash = "devhost"
    devhost_face.adopt(model)  # shared.sd_model is still None in there
    model_data.sd_model = model
    script_callbacks.model_loaded_callback(model)
    print("Model loaded.")
    return model


def reload_model_weights(sd_model=None, info=None, forced_reload=False):
    """One checkpoint only: loads it where it is not loaded."""
    return model_data.get_sd_model()
