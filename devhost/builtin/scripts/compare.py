"""The demo's tab "Compare": one seed under every optimization, with seconds, memory and the extension's line."""

import ctypes
import html
import time

import gradio as gr
from modules import call_queue, processing, script_callbacks, shared

from devhost.pictures import largest_difference

OPTION = "cross_attention_optimization"
HEADINGS = ("Optimization", "Seconds", "Extra memory, MB", "Largest difference, of 255", "Line")


def optimizations():
    """What the settings' dropdown offers, without the entries that name no kernel."""
    arguments = shared.opts.data_labels[OPTION].component_args
    choices = (arguments() if callable(arguments) else arguments)["choices"]
    return [title for title in choices if title not in ("Automatic", "None")]


def return_freed_memory():
    """glibc keeps freed blocks; a picture that can live on an earlier one's would seem to need no memory."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # another C library
        pass


def draw(title, prompt, seed, size, steps):
    """(picture, seconds, bytes at the peak or None, line) of one txt2img."""
    from lib_tiled.cli.peak import extra_peak
    from lib_tiled.report import line
    from lib_tiled.report.generation import history

    p = processing.StableDiffusionProcessingTxt2Img(
        prompt=prompt, seed=seed, steps=steps, width=size, height=size, override_settings={OPTION: title})
    p.do_not_save_samples = True
    picture = seconds = None

    def process():
        nonlocal picture, seconds
        start = time.perf_counter()
        picture = processing.process_images(p).images[0]
        seconds = time.perf_counter() - start

    with call_queue.queue_lock:
        shared.state.begin(job="compare")
        try:
            return_freed_memory()
            extra = extra_peak(process, shared.device)
        finally:
            shared.state.end()
    return picture, seconds, extra, f"[Tiled] {line.line(history.last())}"


def table(rows):
    """rows: tuples in the order of HEADINGS."""
    def cells(tag, row):
        return "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', HEADINGS)}</tr></thead><tbody>{body}</tbody></table>"


def compare(prompt, seed, size, steps, progress=gr.Progress()):
    """Yields the pictures so far with captions, and the table."""
    pictures, rows = [], []
    titles = optimizations()
    progress(0, desc="warming up")
    draw(titles[0], prompt, int(seed), int(size), 1)  # the first picture also pays for what is set up once
    for i, title in enumerate(titles):
        if shared.state.interrupted:
            break
        progress((i + 0.5) / len(titles), desc=title)
        picture, seconds, extra, line = draw(title, prompt, int(seed), int(size), int(steps))
        pictures.append((picture, f"{title}: {seconds:.1f} s"))
        rows.append((title, f"{seconds:.1f}", "not known here" if extra is None else f"{extra / 2**20:.0f}",
                     largest_difference(picture, pictures[0][0]), line))
        yield pictures, table(rows)


def tab():
    with gr.Blocks(analytics_enabled=False) as interface:
        with gr.Row():
            prompt = gr.Textbox("red circle on white", label="Prompt", elem_id="compare_prompt", scale=3)
            seed = gr.Number(value=1, label="Seed", elem_id="compare_seed")
            size = gr.Slider(minimum=64, maximum=512, step=16, value=128, label="Size", elem_id="compare_size")
            steps = gr.Slider(minimum=1, maximum=50, step=1, value=12, label="Steps", elem_id="compare_steps")
        with gr.Row():
            start = gr.Button("Compare", variant="primary", elem_id="compare_start")
            stop = gr.Button("Interrupt", elem_id="compare_stop")
        gallery = gr.Gallery(label="Pictures", columns=4, height="auto", elem_id="compare_gallery")
        result = gr.HTML(elem_id="compare_table")
        start.click(compare, [prompt, seed, size, steps], [gallery, result])
        stop.click(lambda: shared.state.interrupt(), queue=False)
    return [(interface, "Compare", "compare")]


script_callbacks.on_ui_tabs(tab)
