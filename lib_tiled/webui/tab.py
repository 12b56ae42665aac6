"""The tab "Attention": what this device runs, the last generations, benchmark, tune, report.

Nothing is looked up before the tab is opened (the page's script presses Refresh then); what fails becomes text.
"""

from __future__ import annotations

import gradio as gr
from modules import shared

from ..device.probe import probe
from ..hosts.base import Host
from . import api, report, tab_bench, tab_view

TITLE, NAME = "Attention", "tiled_attention"
JS = "_js" if gr.__version__.startswith("3.") else "js"  # gradio 4 renamed the argument


def _tried(part) -> str:
    """The HTML that `part` makes, or what went wrong."""
    try:
        return part()
    except Exception as error:
        return tab_view.failed(error)


def refresh() -> tuple[str, str]:
    """The device's table and that of the last generations."""
    device = _tried(lambda: tab_view.device(probe(shared.device).to_dict()))
    return device, _tried(lambda: tab_view.generations(api.every()))


def _shown(progress: gr.Progress):
    return lambda share, what: progress(share, desc=what)


def benchmark(sizes: list[str], progress=gr.Progress()) -> str:  # gradio finds the bar by this default
    return _tried(lambda: tab_bench.benchmark(sizes, _shown(progress)))


def tune(progress=gr.Progress()) -> str:
    return _tried(lambda: tab_bench.tuned(_shown(progress)))


def create(host: Host | None) -> gr.Blocks:
    """The tab's contents. `host`: None where the extension is not active."""
    with gr.Blocks(analytics_enabled=False) as page:
        with gr.Row():
            again = gr.Button("Refresh", elem_id=f"{NAME}_refresh")
            copy = gr.Button("Copy report", elem_id=f"{NAME}_copy")
        gr.Markdown("### What this device runs")
        device = gr.HTML("<p>Press Refresh.</p>", elem_id=f"{NAME}_device")
        gr.Markdown("### The last generations")
        generations = gr.HTML(elem_id=f"{NAME}_generations")
        gr.Markdown("### Benchmark\nTime and memory of one attention call, for each kernel that runs here.")
        sizes = gr.CheckboxGroup(
            tab_bench.SIZES, value=tab_bench.SIZES[:3], label="Picture sizes, beside those of your last generations"
        )
        with gr.Row():
            start = gr.Button("Benchmark this GPU", variant="primary", elem_id=f"{NAME}_benchmark")
            cancel = gr.Button("Cancel", elem_id=f"{NAME}_cancel")
            find = gr.Button("Tune", elem_id=f"{NAME}_tune")
        result = gr.HTML(elem_id=f"{NAME}_result")
        gr.Markdown("### Report for an issue")
        block = gr.Textbox(
            label="Device, versions, settings and the last line; no prompts, no names, no paths",
            lines=12,
            show_copy_button=True,
            interactive=False,
            elem_id=f"{NAME}_report",
        )
        again.click(refresh, outputs=[device, generations], show_progress="hidden")
        start.click(benchmark, inputs=[sizes], outputs=[result])
        cancel.click(tab_bench.cancel, queue=False)  # the queue may be waiting for what is to be cancelled
        find.click(tune, outputs=[result])
        copied = copy.click(lambda: report.block(host), outputs=[block], show_progress="hidden")
        copied.then(None, inputs=[block], **{JS: "(report) => TiledAttentionTab.copy(report)"})
    return page
