"""All hosts: the folders. devhost's data folder plays the WebUI's folder."""

import devhost

script_path = data_path = str(devhost.data)
models_path = str(devhost.data / "models")
extensions_dir = str(devhost.data / "extensions")
extensions_builtin_dir = str(devhost.data / "extensions-builtin")
