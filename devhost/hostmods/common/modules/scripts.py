"""All hosts: Script, the base class of an extension's scripts, how script files are loaded, and who calls them when."""

import os
import sys
from collections import namedtuple

import gradio as gr

import devhost
from modules import errors, extensions, paths, script_callbacks, script_loading

AlwaysVisible = object()


class PostprocessImageArgs:
    def __init__(self, image):
        self.image = image


class PostprocessBatchListArgs:
    def __init__(self, images):
        self.images = images


class Script:
    name = filename = section = api_info = infotext_fields = paste_field_names = controls = group = None
    args_from = args_to = 0
    alwayson = is_txt2img = is_img2img = False
    create_group = True

    def title(self):
        raise NotImplementedError

    def ui(self, is_img2img):
        return None

    def show(self, is_img2img):
        return True

    def run(self, p, *args):
        return None

    def elem_id(self, item_id):
        tab = "img2img" if self.is_img2img else "txt2img"
        return f"script_{tab}_{self.title().lower().replace(' ', '_')}_{item_id}"


def _does_nothing(self, *args, **kwargs):
    return None


EVENTS = ("setup", "before_process", "process", "before_process_batch", "process_batch", "postprocess_batch",
          "postprocess_batch_list", "postprocess_image", "postprocess", "before_hr", "before_component",
          "after_component")
for _event in EVENTS:
    setattr(Script, _event, _does_nothing)

ScriptClassData = namedtuple("ScriptClassData", "script_class path basedir module")
scripts_data = []
current_basedir = paths.script_path
scripts_txt2img = scripts_img2img = scripts_current = None


def basedir():
    """The folder of the extension whose script is being loaded; the WebUI's own folder at any other time."""
    return current_basedir


def list_scripts(folder, suffix):
    """(extension's folder, file) of every file with that suffix in that folder: devhost's own first."""
    own = extensions.Extension(os.path.join(os.path.dirname(devhost.__file__), "builtin"))
    return [(ext.path, path) for ext in (own, *extensions.active()) for path in ext.list_files(folder, suffix)]


def load_scripts():
    """Executes scripts/*.py of every extension, with the extension's folder first in sys.path only meanwhile."""
    global current_basedir, scripts_txt2img, scripts_img2img
    scripts_data.clear()
    script_callbacks.clear_callbacks()
    syspath = sys.path
    for folder, path in list_scripts("scripts", ".py"):
        try:
            sys.path = [folder, *sys.path]
            current_basedir = folder
            module = script_loading.load_module(path)
            scripts_data.extend(ScriptClassData(value, path, folder, module) for value in vars(module).values()
                                if isinstance(value, type) and issubclass(value, Script) and value is not Script)
        except Exception:
            errors.report(f"Error loading script: {os.path.basename(path)}", exc_info=True)
        finally:
            sys.path = syspath
            current_basedir = paths.script_path
    scripts_txt2img, scripts_img2img = ScriptRunner(), ScriptRunner()


class ScriptRunner:
    """The scripts of one tab. `p.script_args` is one list for all; each script owns a slice of it."""

    def __init__(self):
        self.scripts, self.alwayson_scripts, self.selectable_scripts = [], [], []
        self.titles, self.inputs, self.infotext_fields = [], [None], []

    def initialize_scripts(self, is_img2img):
        for found in (self.scripts, self.alwayson_scripts, self.selectable_scripts):
            found.clear()
        for data in scripts_data:
            try:
                script = data.script_class()
            except Exception:
                errors.report(f"Error # failed to initialize Script {data.module}: ", exc_info=True)
                continue
            script.filename, script.is_img2img, script.is_txt2img = data.path, is_img2img, not is_img2img
            visibility = script.show(is_img2img)
            if visibility is AlwaysVisible:
                script.alwayson = True
                self.alwayson_scripts.append(script)
            elif visibility:
                self.selectable_scripts.append(script)
        self.scripts[:] = self.alwayson_scripts + self.selectable_scripts

    def setup_ui(self):
        """Creates the scripts' components inside the current gr.Blocks; returns all of them, the dropdown first."""
        self.titles = [script.title() for script in self.selectable_scripts]
        self.inputs = [gr.Dropdown(label="Script", choices=["None", *self.titles], value="None", type="index",
                                   elem_id="script_list")]
        for script in self.scripts:
            with gr.Group(visible=script.alwayson) as script.group:
                try:
                    controls = script.ui(script.is_img2img) or []
                    script.name = script.title().lower()
                except Exception:
                    errors.report(f"Error calling: {script.filename}/ui", exc_info=True)
                    controls = []
            script.controls = controls
            script.args_from = len(self.inputs)
            self.inputs += controls
            script.args_to = len(self.inputs)
            self.infotext_fields += script.infotext_fields or []
        return self.inputs

    def default_args(self):
        return [0, *(control.value for control in self.inputs[1:])]

    def run(self, p, *args):
        """The selectable script chosen by args[0] (0: none), in place of process_images."""
        if not args or not args[0]:
            return None
        script = self.selectable_scripts[args[0] - 1]
        return script.run(p, *args[script.args_from:script.args_to])

    def _call(self, event, p, *more, **kwargs):
        for script in self.alwayson_scripts:
            try:
                args = p.script_args[script.args_from:script.args_to]
                getattr(script, event)(p, *more, *args, **kwargs)
            except Exception:
                errors.report(f"Error running {event}: {script.filename}", exc_info=True)

    def setup_scrips(self, p, *, is_ui=True):
        self._call("setup", p)

    def before_process(self, p):
        self._call("before_process", p)

    def process(self, p):
        self._call("process", p)

    def before_process_batch(self, p, **kwargs):
        self._call("before_process_batch", p, **kwargs)

    def process_batch(self, p, **kwargs):
        self._call("process_batch", p, **kwargs)

    def postprocess_batch(self, p, images, **kwargs):
        self._call("postprocess_batch", p, images=images, **kwargs)

    def postprocess_batch_list(self, p, pp, **kwargs):
        self._call("postprocess_batch_list", p, pp, **kwargs)

    def postprocess_image(self, p, pp):
        self._call("postprocess_image", p, pp)

    def postprocess(self, p, processed):
        self._call("postprocess", p, processed)

    def before_hr(self, p):
        self._call("before_hr", p)

    def before_component(self, component, **kwargs):
        for script in self.scripts:
            script.before_component(component, **kwargs)

    def after_component(self, component, **kwargs):
        for script in self.scripts:
            script.after_component(component, **kwargs)
