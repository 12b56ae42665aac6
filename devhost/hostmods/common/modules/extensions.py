"""All hosts: the list of extensions, here those given on the command line."""

import os

import devhost


class Extension:
    def __init__(self, path):
        self.path = str(path)
        self.name = self.canonical_name = os.path.basename(self.path)
        self.enabled, self.is_builtin = True, False

    def list_files(self, folder, suffix):
        """Full paths of the files in a folder of the extension, sorted."""
        folder = os.path.join(self.path, folder)
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return [os.path.join(folder, name) for name in names if name.endswith(suffix)]


extensions = []


def list_extensions():
    extensions[:] = [Extension(path) for path in devhost.extensions]


def active():
    return [extension for extension in extensions if extension.enabled]
