"""All hosts: `modules.paths`, where extensions usually look for the folders."""

from modules.paths_internal import data_path, extensions_builtin_dir, extensions_dir, models_path, script_path  # noqa: F401
