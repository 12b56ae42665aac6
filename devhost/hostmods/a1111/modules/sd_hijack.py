"""AUTOMATIC1111: the list of attention optimizations, which one is applied, and undoing it."""

import ldm.modules.attention
import ldm.modules.diffusionmodules.model
import sgm.modules.attention
import sgm.modules.diffusionmodules.model

from modules import errors, script_callbacks, shared
from modules.hypernetworks import hypernetwork

diffusionmodules_model_AttnBlock_forward = ldm.modules.diffusionmodules.model.AttnBlock.forward

optimizers = []
current_optimizer = None


def list_optimizers():
    """Fills `optimizers`, highest priority first. is_available() is not guarded: an exception stops the start-up."""
    found = [optimizer for optimizer in script_callbacks.list_optimizers_callback() if optimizer.is_available()]
    optimizers[:] = sorted(found, key=lambda optimizer: optimizer.priority, reverse=True)


def _selected(selection):
    if selection == "None" or selection == "Automatic" and shared.cmd_opts.disable_opt_split_attention:
        return None
    if selection == "Automatic":
        asked = (x for x in optimizers if x.cmd_opt and getattr(shared.cmd_opts, x.cmd_opt, False))
        return next(asked, optimizers[0])
    return next((x for x in optimizers if x.title() == selection), optimizers[0])


def apply_optimizations(option=None):
    """Returns the applied optimization's name, "" for none."""
    global current_optimizer
    undo_optimizations()
    if not optimizers:
        current_optimizer = None
        return ""
    if current_optimizer is not None:
        current_optimizer.undo()
        current_optimizer = None
    optimizer = _selected(option or shared.opts.cross_attention_optimization)
    if optimizer is None:
        print("Disabling attention optimization")
        return ""
    print(f"Applying attention optimization: {optimizer.name}... ", end="")
    optimizer.apply()
    print("done.")
    current_optimizer = optimizer
    return optimizer.name


def undo_optimizations():
    # sgm gets ldm's functions here, as in the host
    for package in (ldm, sgm):
        package.modules.attention.CrossAttention.forward = hypernetwork.attention_CrossAttention_forward
        package.modules.diffusionmodules.model.AttnBlock.forward = diffusionmodules_model_AttnBlock_forward


class StableDiffusionModelHijack:
    optimization_method = None
    circular_enabled = False

    def __init__(self):
        self.extra_generation_params, self.comments = {}, []

    def apply_optimizations(self, option=None):
        try:
            self.optimization_method = apply_optimizations(option)
        except Exception as e:
            errors.display(e, "applying cross attention optimization")
            undo_optimizations()

    def hijack(self, m):
        self.apply_optimizations()

    def undo_hijack(self, m):
        undo_optimizations()

    def redo_hijack(self, m):
        self.undo_hijack(m)
        self.hijack(m)

    def clear_comments(self):
        self.extra_generation_params, self.comments = {}, []


model_hijack = StableDiffusionModelHijack()
