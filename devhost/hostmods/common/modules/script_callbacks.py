"""All hosts: the callbacks an extension registers. An exception in one is reported and the next one runs."""

import inspect
from collections import namedtuple

import devhost
from modules import errors

ScriptCallback = namedtuple("ScriptCallback", "script callback name")
EVENTS = ("app_started", "on_reload", "model_loaded", "ui_tabs", "ui_settings", "before_component", "after_component",
          "infotext_pasted", "script_unloaded", "before_ui", "list_optimizers", "list_unets", "image_saved",
          "before_image_saved", "cfg_denoiser", "cfg_denoised", "image_grid")
callback_map = {f"callbacks_{event}": [] for event in EVENTS}


def clear_callbacks():
    for callbacks in callback_map.values():
        callbacks.clear()


def _registers(event):
    def on(callback, *, name=None):
        script = inspect.stack()[1].filename
        callback_map[f"callbacks_{event}"].append(ScriptCallback(script, callback, name or "unnamed"))
    return on


def _run(event, *args, order=iter, **kwargs):
    """The results of an event's callbacks, without those that failed."""
    results = []
    for entry in order(list(callback_map[f"callbacks_{event}"])):
        try:
            results.append(entry.callback(*args, **kwargs))
        except Exception:
            errors.report(f"Error executing callback {event} for {entry.script}", exc_info=True)
    return results


on_app_started = _registers("app_started")
on_before_reload = _registers("on_reload")
on_model_loaded = _registers("model_loaded")
on_ui_tabs = _registers("ui_tabs")
on_ui_settings = _registers("ui_settings")
on_before_component = _registers("before_component")
on_after_component = _registers("after_component")
on_infotext_pasted = _registers("infotext_pasted")
on_script_unloaded = _registers("script_unloaded")
on_before_ui = _registers("before_ui")
on_list_unets = _registers("list_unets")
on_image_saved = _registers("image_saved")
on_before_image_saved = _registers("before_image_saved")
on_cfg_denoiser = _registers("cfg_denoiser")
on_cfg_denoised = _registers("cfg_denoised")
on_image_grid = _registers("image_grid")
if devhost.face != "reforge":  # Forge registers it and never calls it
    on_list_optimizers = _registers("list_optimizers")


def app_started_callback(demo, app):
    _run("app_started", demo, app)


def app_reload_callback():
    _run("on_reload")


def model_loaded_callback(sd_model):
    _run("model_loaded", sd_model)


def ui_tabs_callback():
    return [tab for tabs in _run("ui_tabs") for tab in tabs or []]


def ui_settings_callback():
    _run("ui_settings")


def before_component_callback(component, **kwargs):
    _run("before_component", component, **kwargs)


def after_component_callback(component, **kwargs):
    _run("after_component", component, **kwargs)


def infotext_pasted_callback(infotext, params):
    _run("infotext_pasted", infotext, params)


def script_unloaded_callback():
    _run("script_unloaded", order=reversed)


def before_ui_callback():
    _run("before_ui", order=reversed)


def list_optimizers_callback():
    optimizers = []
    _run("list_optimizers", optimizers)
    return optimizers
