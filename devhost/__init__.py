"""A miniature Stable Diffusion WebUI, written for this extension's demo and tests.

It loads an extension as AUTOMATIC1111, Forge and reForge do and offers it modules under the hosts' names, so that
the extension's own code runs unchanged. `hostmods/common` holds what the three hosts share, `hostmods/<face>` what
is one host's own. `__main__` fills face, data and extensions before the first of those modules is imported.
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent
face = ""  # "a1111", "forge" or "reforge"
data = Path()  # stands for the WebUI's own folder: config.json and the pictures
extensions: list[Path] = []
