"""The hosts' page in small: txt2img, img2img, the extensions' tabs, settings. Element ids are the hosts'.

Runs on gradio 3.41 (AUTOMATIC1111, reForge) and 4.40 (Forge).
"""

import html
import os

import gradio as gr

from devhost import HERE, extensions
from modules import infotext_utils, paths, processing, script_callbacks, scripts, shared
from modules.call_queue import wrap_gradio_gpu_call
from modules.shared import opts

GRADIO_4 = gr.__version__.startswith("4")
JS = "js" if GRADIO_4 else "_js"


# -- what the extensions add to the page ------------------------------------------------------------------------------

def announce_components():
    """Makes every gradio component call the before_component and after_component callbacks, once per process."""
    base = gr.components.Component if GRADIO_4 else gr.components.IOComponent
    if hasattr(base, "devhost_init"):
        return
    base.devhost_init = base.__init__

    def init(self, *args, **kwargs):
        script_callbacks.before_component_callback(self, **kwargs)
        if scripts.scripts_current is not None:
            scripts.scripts_current.before_component(self, **kwargs)
        base.devhost_init(self, *args, **kwargs)
        script_callbacks.after_component_callback(self, **kwargs)
        if scripts.scripts_current is not None:
            scripts.scripts_current.after_component(self, **kwargs)

    base.__init__ = init


def _link(path):
    return f"file={path}?{os.path.getmtime(path)}"


def inject_files():
    """Adds script.js, the extensions' javascript/*.js and their style.css to the page's HTML."""
    javascript = [HERE / "script.js", *(path for _, path in scripts.list_scripts("javascript", ".js"))]
    head = "".join(f'<script type="text/javascript" src="{_link(path)}"></script>\n' for path in javascript)
    styles = [path / "style.css" for path in extensions if (path / "style.css").is_file()]
    css = "".join(f'<link rel="stylesheet" property="stylesheet" href="{_link(path)}">' for path in styles)
    templates = gr.routes.templates
    if not hasattr(templates, "devhost_response"):
        templates.devhost_response = templates.TemplateResponse

    def template_response(*args, **kwargs):
        response = templates.devhost_response(*args, **kwargs)
        response.body = response.body.replace(b"</head>", f"{head}</head>".encode())
        response.body = response.body.replace(b"</body>", f"{css}</body>".encode())
        response.init_headers()
        return response

    templates.TemplateResponse = template_response


# -- the tabs ---------------------------------------------------------------------------------------------------------

def _generate(is_img2img, prompt, negative_prompt, steps, width, height, n_iter, batch_size, cfg_scale, seed, strength,
              extra, *script_args):
    """extra: the picture to start from on img2img, whether to use hires fix on txt2img."""
    values = {"prompt": prompt, "negative_prompt": negative_prompt, "steps": int(steps), "width": int(width),
              "height": int(height), "n_iter": int(n_iter), "batch_size": int(batch_size), "cfg_scale": cfg_scale,
              "seed": int(seed), "denoising_strength": strength}
    if is_img2img:
        p = processing.StableDiffusionProcessingImg2Img(init_images=[extra], **values)
    else:
        p = processing.StableDiffusionProcessingTxt2Img(enable_hr=extra, **values)
    p.scripts = scripts.scripts_img2img if is_img2img else scripts.scripts_txt2img
    p.script_args = script_args
    processed = p.scripts.run(p, *script_args) or processing.process_images(p)
    info = html.escape(processed.info).replace("\n", "<br>\n")
    return processed.images, processed.js(), f"<p>{info}</p>", f"<p class='comments'>{processed.comments}</p>"


def txt2img(*args):
    return _generate(False, *args)


def img2img(*args):
    return _generate(True, *args)


def generation_tab(tab):
    """One of the two tabs, with its scripts' components."""
    is_img2img = tab == "img2img"
    runner = scripts.scripts_img2img if is_img2img else scripts.scripts_txt2img
    runner.initialize_scripts(is_img2img)
    scripts.scripts_current = runner

    def slider(name, label, low, high, step, value):
        return gr.Slider(minimum=low, maximum=high, step=step, label=label, value=value, elem_id=f"{tab}_{name}")

    with gr.Row(elem_id=f"{tab}_toprow"):
        with gr.Column(scale=6):
            prompt = gr.Textbox("red circle on white", label="Prompt", elem_id=f"{tab}_prompt", lines=2)
            negative = gr.Textbox(label="Negative prompt", elem_id=f"{tab}_neg_prompt")
        with gr.Column(scale=1):
            generate = gr.Button("Generate", elem_id=f"{tab}_generate", variant="primary")
            interrupt = gr.Button("Interrupt", elem_id=f"{tab}_interrupt")
            paste = gr.Button("Read generation parameters", elem_id="paste")
    with gr.Row():
        with gr.Column(elem_id=f"{tab}_settings"):
            if is_img2img:
                extra = gr.Image(type="pil", label="Image for img2img", elem_id="img2img_image")
            else:
                extra = gr.Checkbox(False, label="Hires. fix", elem_id="txt2img_hr")
            numbers = [
                slider("steps", "Sampling steps", 1, 150, 1, 12), slider("width", "Width", 64, 2048, 16, 128),
                slider("height", "Height", 64, 2048, 16, 128), slider("batch_count", "Batch count", 1, 100, 1, 1),
                slider("batch_size", "Batch size", 1, 8, 1, 1), slider("cfg_scale", "CFG Scale", 1, 30, 0.5, 2),
                gr.Number(label="Seed", value=1, elem_id=f"{tab}_seed"),
                slider("denoising_strength", "Denoising strength", 0, 1, 0.01, 0.7)]
            with gr.Column(elem_id=f"{tab}_script_container"):
                script_inputs = runner.setup_ui()
        with gr.Column(elem_id=f"{tab}_results"):
            gallery = gr.Gallery(label="Output", show_label=False, elem_id=f"{tab}_gallery", columns=4, preview=True)
            info_json = gr.Textbox(visible=False, elem_id=f"generation_info_{tab}")
            info = gr.HTML(elem_id=f"html_info_{tab}", elem_classes="infotext")
            log = gr.HTML(elem_id=f"html_log_{tab}", elem_classes="html-log")
    scripts.scripts_current = None

    def read_parameters(text):
        params = infotext_utils.parse_generation_parameters(text)
        script_callbacks.infotext_pasted_callback(text, params)
        return params["Prompt"], params.get("Steps", 12), params.get("Seed", 1)

    run = wrap_gradio_gpu_call(img2img if is_img2img else txt2img, extra_outputs=[None, "", ""])
    generate.click(run, [prompt, negative, *numbers, extra, *script_inputs], [gallery, info_json, info, log])
    interrupt.click(lambda: shared.state.interrupt(), queue=False)
    paste.click(read_parameters, [prompt], [prompt, numbers[0], numbers[6]])


def setting(key):
    """The component of one option, as the hosts choose it."""
    option = opts.data_labels[key]
    kinds = {str: gr.Textbox, int: gr.Number, float: gr.Number, bool: gr.Checkbox}
    component = option.component or kinds[type(option.default)]
    args = option.component_args() if callable(option.component_args) else option.component_args or {}
    value = opts.data.get(key, option.default)
    return component(label=option.label, value=value, elem_id=f"setting_{key}", **args)


def settings_tab():
    with gr.Row():
        submit = gr.Button("Apply settings", variant="primary", elem_id="settings_submit")
        restart = gr.Button("Reload UI", elem_id="settings_restart_gradio")
    result = gr.HTML(elem_id="settings_result")
    sections = {}
    for key, option in opts.data_labels.items():
        sections.setdefault(option.section, []).append(key)
    components = shared.settings_components = {}
    with gr.Tabs(elem_id="settings"):
        for (name, title), keys in sections.items():
            with gr.TabItem(title, elem_id=f"settings_{name}"), gr.Column(elem_id=f"column_settings_{name}"):
                components.update({key: setting(key) for key in keys})
    as_json = gr.Textbox(elem_id="settings_json", value=lambda: opts.dumpjson(), visible=False)
    saved = [key for key in components if not opts.data_labels[key].do_not_save]

    def run_settings(*values):
        changed = [key for key, value in zip(saved, values) if opts.set(key, value)]
        opts.save(shared.config_filename)
        return opts.dumpjson(), f"{len(changed)} settings changed: {', '.join(changed)}."

    submit.click(run_settings, [components[key] for key in saved], [as_json, result])
    restart.click(lambda: shared.state.request_restart(), queue=False, **{JS: "restart_reload"})


def create():
    """The whole page as gr.Blocks."""
    announce_components()
    inject_files()
    script_callbacks.ui_settings_callback()
    interfaces = script_callbacks.ui_tabs_callback()  # outside the page's block, which would take them in at once
    with gr.Blocks(analytics_enabled=False, title="devhost") as demo, gr.Tabs(elem_id="tabs"):
        for tab in ("txt2img", "img2img"):
            with gr.TabItem(tab, id=tab, elem_id=f"tab_{tab}"):
                generation_tab(tab)
        for interface, label, name in interfaces:
            with gr.TabItem(label, id=name, elem_id=f"tab_{name}"):
                interface.render()
        with gr.TabItem("Settings", id="settings", elem_id="tab_settings"):
            settings_tab()
    return demo.queue()


def launch(demo, port):
    """Starts the server on 127.0.0.1 without blocking; returns the FastAPI app, open to new middleware."""
    allowed = [str(HERE), paths.data_path, *map(str, extensions)]
    app, _, _ = demo.launch(server_name="127.0.0.1", server_port=port, prevent_thread_lock=True,
                            show_api=False, allowed_paths=allowed)
    app.user_middleware = [entry for entry in app.user_middleware if entry.cls.__name__ != "CORSMiddleware"]
    app.middleware_stack = None
    return app
