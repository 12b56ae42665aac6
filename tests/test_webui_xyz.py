"""The axis "Attention" of the X/Y/Z plot, with a script that does with its axes what the hosts' own does."""

import re

import pytest
from conftest import ROOT

PLOT = '''
from copy import copy
from modules import processing, scripts


class AxisOption:
    def __init__(self, label, type, apply, format_value=None, confirm=None, cost=0.0, choices=None, prepare=None):
        self.label, self.type, self.apply, self.confirm, self.choices = label, type, apply, confirm, choices


axis_options = [AxisOption("Nothing", str, None), AxisOption("Steps", int, lambda p, x, xs: setattr(p, "steps", x))]


class Script(scripts.Script):
    def title(self):
        return "X/Y/Z plot"

    def ui(self, is_img2img):
        return []

    def run(self, p, *_):
        axis = next(option for option in axis_options if option.label == "Attention")
        values = axis.choices()
        axis.confirm(p, values)
        for value in values:
            cell = copy(p)
            axis.apply(cell, value, values)
            processed = processing.process_images(cell)
        return processed
'''
LABELS = """
from modules import scripts
plot = next(data.module for data in scripts.scripts_data if data.path.endswith("xyz_grid.py"))
result = [option.label for option in plot.axis_options]
"""


@pytest.fixture(params=["a1111", "reforge", "forge"])
def host(request, start_host, tmp_path):
    folder = tmp_path / "plot" / "scripts"
    folder.mkdir(parents=True)
    (folder / "xyz_grid.py").write_text(PLOT)
    return start_host(request.param, extensions=(folder.parent, ROOT))


def test_one_cell_per_optimization_and_one_axis_after_reload(host):
    assert host.run(LABELS) == ["Nothing", "Steps", "Attention"]
    titles = host.run("from lib_tiled import webui\nresult = webui.settings.titles(webui._host())")
    assert titles[0] == "Automatic" and "Tiled (no-flash)" in titles and len(titles) > 2

    option = "from modules import shared\nresult = shared.opts.cross_attention_optimization"
    assert host.run(option) == "Automatic"
    host.txt2img(script_name="x/y/z plot", steps=1)
    lines = [line for line in host.console_since_mark().splitlines() if line.startswith("[Tiled] txt2img")]
    assert len(lines) == len(titles)
    for title, line in zip(titles, lines, strict=True):
        assert f"| {title}" in line
        assert ("unet: tiled x" in line) == (title == "Tiled (no-flash)")
    assert len({re.search(r"unet: ([^|]*)", line)[1] for line in lines}) > 1
    assert host.run(option) == "Automatic"

    host.reload_ui()
    assert host.run(LABELS) == ["Nothing", "Steps", "Attention"]


def test_an_unknown_title_is_refused(host):
    text = host.run("""
from modules import scripts
plot = next(data.module for data in scripts.scripts_data if data.path.endswith("xyz_grid.py"))
axis = plot.axis_options[-1]
try:
    axis.confirm(None, ["Automatic", "Warp drive"])
    result = "accepted"
except RuntimeError as error:
    result = str(error)
""")
    assert text.startswith("Unknown attention: Warp drive. Known are: Automatic")
