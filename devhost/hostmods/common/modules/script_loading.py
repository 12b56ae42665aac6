"""All hosts: one script file is executed under its file name; the module does not enter sys.modules."""

import importlib.util
import os

from modules import errors

loaded_scripts = {}


def load_module(path):
    path = str(path)
    spec = importlib.util.spec_from_file_location(os.path.basename(path), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded_scripts[path] = module
    return module


def preload_extensions(extensions, parser):
    """Runs preload(parser) of every extension's preload.py."""
    for folder in extensions:
        path = os.path.join(folder, "preload.py")
        if not os.path.isfile(path):
            continue
        try:
            module = load_module(path)
            if hasattr(module, "preload"):
                module.preload(parser)
        except Exception:
            errors.report(f"Error running preload() for {path}", exc_info=True)
