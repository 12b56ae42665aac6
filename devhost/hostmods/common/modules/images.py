"""All hosts: pictures as PNG, with the infotext in the text chunk "parameters"."""

import base64
import io
import os

from PIL import Image, PngImagePlugin

from modules import paths


def save_png(image, file):
    """file: a path or a binary file object."""
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", image.info.get("parameters", ""))
    image.save(file, format="PNG", pnginfo=info)


def save_image(image, path=None, basename="", seed=None, prompt=None, extension="png", info=None, **_other):
    """Saves under a running number; returns (file, None) as the hosts do."""
    folder = path or os.path.join(paths.data_path, "outputs")
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(folder, f"{len(os.listdir(folder)):05}-{seed}.{extension}")
    image.info["parameters"] = info or image.info.get("parameters", "")
    save_png(image, file)
    return file, None


def read_info_from_image(image):
    items = dict(image.info)
    return items.pop("parameters", None), items


def encode_base64(image):
    buffer = io.BytesIO()
    save_png(image, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def decode_base64(text):
    return Image.open(io.BytesIO(base64.b64decode(text.split(",", 1)[-1])))
