"""`Attention: tiled` in the generation info: off by default, true, and harmless when pasted back."""

import re

import pytest

OPTION = "cross_attention_optimization"


@pytest.fixture(params=["a1111", "reforge", "forge"])
def host(request, shared_host):
    host = shared_host(request.param)
    host.options(**{OPTION: "Tiled (no-flash)", "tiled_png_info": True})
    yield host
    host.options(**{OPTION: "Automatic", "tiled_png_info": False})


def attention(text):
    """What the info text says of attention, None where it says nothing."""
    found = re.search(r'Attention: ("[^"]*"|[^,]*)', text)
    return found and found[1].strip('"')


def test_the_setting_decides(host):
    picture = host.txt2img()[0]
    assert attention(host.info["infotexts"][0]) == "tiled"
    assert attention(picture.info["parameters"]) == "tiled"
    assert host.info["extra_generation_params"]["Attention"] == "tiled"
    host.options(tiled_png_info=False)
    picture = host.txt2img()[0]
    assert "Attention" not in picture.info["parameters"]
    assert "Attention" not in host.info["extra_generation_params"]


def test_it_names_what_ran_not_what_was_chosen(host):
    """The UNet's kernels as the line names them, also where the option was Automatic."""
    host.options(**{OPTION: "Automatic"})
    host.txt2img()
    ran = re.search(r"unet: ([^|]*)", host.console_since_mark())[1]
    kernels = [part.rsplit(" x", 1)[0].strip() for part in ran.split(", ")]
    assert attention(host.info["infotexts"][0]) == ", ".join(kernels)
    assert "tiled" not in kernels


def test_each_picture_of_a_batch_has_it(host):
    host.txt2img(n_iter=2, batch_size=2, steps=1)
    assert [attention(text) for text in host.info["infotexts"]] == ["tiled"] * 4


def test_pasting_it_back_changes_nothing(host):
    picture = host.txt2img()[0]
    text = picture.info["parameters"]
    parse = "from modules import infotext_utils\nresult = infotext_utils.parse_generation_parameters({!r})"
    read, without = (host.run(parse.format(version)) for version in (text, text.replace("Attention: tiled, ", "")))
    assert {**without, "Attention": "tiled"} == read and "Attention" not in without
    # No setting claims the word, so the hosts make no override of it.
    assert "Attention" not in host.run("from modules import shared\n"
                                       "result = [str(o.infotext) for o in shared.opts.data_labels.values()]")
    assert list(host.txt2img()[0].getdata()) == list(picture.getdata())


def test_a_generation_inside_another(host):
    """ADetailer hands its own generation the same dictionary: each info text names its own."""
    texts = host.run("""
import contextlib
from types import SimpleNamespace
from lib_tiled.report.generation import Generation
from lib_tiled.webui import infotext

def text():
    value = p.extra_generation_params.get("Attention")
    return value() if callable(value) else value

p = SimpleNamespace(extra_generation_params={})
outer, inner = Generation(), Generation()
result = []
with infotext.written(p, outer):
    result.append(text())
    outer.counts["unet", "tiled"] += 3
    outer.counts["vae", "basic"] += 9
    with infotext.written(p, inner):
        result.append(text())
        inner.counts["unet", "sdp:math"] += 1
        result.append(text())
    result.append(text())
result.append(p.extra_generation_params["Attention"])
with infotext.written(p, Generation()):
    result.append(text())
result.append(p.extra_generation_params["Attention"])
""")
    assert texts == [None, None, "sdp:math", "tiled", "tiled", None, None]
