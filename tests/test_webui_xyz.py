"""The axis "Attention" of the X/Y/Z plot."""

import re

import pytest

PLOT = """
from modules import scripts
plot = next(data.module for data in scripts.scripts_data if data.path.endswith("xyz_grid.py"))
"""
LABELS = PLOT + "result = [option.label for option in plot.axis_options]"
TITLES = PLOT + "result = plot.axis_options[-1].choices()"
OPTION = "from modules import shared\nresult = shared.opts.cross_attention_optimization"


@pytest.fixture(params=["a1111", "reforge", "forge"])
def host(request, shared_host):
    return shared_host(request.param)


def test_one_cell_per_optimization(host):
    labels, titles = host.run(LABELS), host.run(TITLES)
    assert labels[-1] == "Attention"
    assert titles[0] == "Automatic" and "Tiled (no-flash)" in titles and len(titles) > 2
    before = host.run(OPTION)
    host.txt2img(script_name="x/y/z plot", steps=1, script_args=[labels.index("Attention"), ",".join(titles), 0, ""])
    lines = [line for line in host.console_since_mark().splitlines() if line.startswith("[Tiled] txt2img")]
    assert len(lines) == len(titles)
    for title, line in zip(titles, lines, strict=True):
        assert f"| {title}" in line
        assert title != "Tiled (no-flash)" or "unet: tiled x" in line
    assert len({re.search(r"unet: ([^|]*)", line)[1] for line in lines}) > 2
    assert host.run(OPTION) == before


def test_an_unknown_title_is_refused(host):
    text = host.run(PLOT + """
try:
    plot.axis_options[-1].confirm(None, ["Automatic", "Warp drive"])
    result = "accepted"
except RuntimeError as error:
    result = str(error)
""")
    assert text.startswith("Unknown attention: Warp drive. Known are: Automatic")


def test_there_is_one_axis_after_reload_ui_and_after_a_second_call(start_host):
    host = start_host("a1111")
    host.run("from lib_tiled import webui\nwebui.before_page()")
    assert host.run(LABELS).count("Attention") == 1
    host.reload_ui()
    assert host.run(LABELS).count("Attention") == 1
