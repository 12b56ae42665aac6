"""The HTTP API of the hosts under /sdapi/v1, as far as the tests and `dev.py host-test` use it."""

import secrets

from fastapi import Body, Depends, HTTPException
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBasic, HTTPBasicCredentials

import devhost_face
from modules import errors, images, infotext_utils, processing, script_callbacks, scripts, shared
from modules.call_queue import queue_lock

NOT_FOR_PROCESSING = ("alwayson_scripts", "script_name", "script_args", "send_images", "save_images", "init_images",
                      "mask", "infotext")


def _script_args(runner, request):
    """(p.script_args, whether a selectable script was asked for)"""
    args = runner.default_args()
    by_name = {script.name: script for script in runner.scripts}
    name = (request.get("script_name") or "").lower()
    if name:
        if name not in by_name:
            raise HTTPException(422, f"Script '{name}' not found")
        script = by_name[name]
        args[script.args_from:script.args_to] = request.get("script_args") or args[script.args_from:script.args_to]
        args[0] = runner.selectable_scripts.index(script) + 1
    for name, given in (request.get("alwayson_scripts") or {}).items():
        script = by_name.get(name.lower())
        if script is None or not script.alwayson:
            raise HTTPException(422, f"always on script {name} not found")
        for i, value in enumerate(given.get("args", [])[:script.args_to - script.args_from]):
            args[script.args_from + i] = value
    return args, bool(args[0])


def _generate(request, is_img2img):
    runner = scripts.scripts_img2img if is_img2img else scripts.scripts_txt2img
    args, selected = _script_args(runner, request)
    values = {key: value for key, value in request.items() if key not in NOT_FOR_PROCESSING}
    with queue_lock:
        if is_img2img:
            if not request.get("init_images"):
                raise HTTPException(404, "Init image not found")
            mask = request.get("mask")
            p = processing.StableDiffusionProcessingImg2Img(
                init_images=[images.decode_base64(text) for text in request["init_images"]],
                mask=images.decode_base64(mask) if mask else None, **values)
        else:
            p = processing.StableDiffusionProcessingTxt2Img(**values)
        p.is_api, p.do_not_save_samples = True, not request.get("save_images", False)
        p.scripts, p.script_args = runner, args
        shared.state.begin(job="scripts_img2img" if is_img2img else "scripts_txt2img")
        try:
            processed = runner.run(p, *args) if selected else processing.process_images(p)
        finally:
            shared.state.end()
    encoded = [images.encode_base64(image) for image in processed.images] if request.get("send_images", True) else []
    return {"images": encoded, "parameters": {k: v for k, v in request.items() if k not in ("init_images", "mask")},
            "info": processed.js()}


def _get_options():
    keys = devhost_face.api_options()
    return {key: value for key, value in shared.opts.data.items() if keys is None or key in keys}


def _set_options(request):
    for key, value in request.items():
        shared.opts.set(key, value, is_api=True)
    shared.opts.save(shared.config_filename)


def _png_info(image):
    text, items = images.read_info_from_image(images.decode_base64(image))
    params = infotext_utils.parse_generation_parameters(text or "")
    script_callbacks.infotext_pasted_callback(text or "", params)
    return {"info": text or "", "items": {k: str(v) for k, v in items.items()}, "parameters": params}


def _answer_errors(app):
    """An exception becomes the hosts' JSON with status 500."""
    @app.middleware("http")
    async def exception_handling(request, call_next):
        try:
            return await call_next(request)
        except Exception as e:
            errors.report(f"API error: {request.method}: {request.url}", exc_info=True)
            return JSONResponse({"error": type(e).__name__, "detail": "", "body": "", "errors": str(e)}, 500)


def add_routes(app):
    allowed = dict(pair.split(":") for pair in (shared.cmd_opts.api_auth or "").split(",") if pair)

    def auth(credentials: HTTPBasicCredentials = Depends(HTTPBasic())):
        if not secrets.compare_digest(credentials.password, allowed.get(credentials.username, "")):
            raise HTTPException(401, "Incorrect username or password", {"WWW-Authenticate": "Basic"})

    def route(method, path, endpoint):
        app.add_api_route(f"/sdapi/v1/{path}", endpoint, methods=[method],
                          dependencies=[Depends(auth)] if allowed else [])

    def txt2img(request: dict = Body(...)):
        return _generate(request, is_img2img=False)

    def img2img(request: dict = Body(...)):
        return _generate(request, is_img2img=True)

    def set_options(request: dict = Body(...)):
        _set_options(request)

    def png_info(request: dict = Body(...)):
        return _png_info(request["image"])

    def script_names():
        return {tab: [script.name for script in runner.scripts if script.name]
                for tab, runner in (("txt2img", scripts.scripts_txt2img), ("img2img", scripts.scripts_img2img))}

    def progress():
        state = shared.state
        return {"progress": state.sampling_step / state.sampling_steps if state.job and state.sampling_steps else 0,
                "state": {"job": state.job, "job_no": state.job_no, "job_count": state.job_count}}

    _answer_errors(app)
    route("POST", "txt2img", txt2img)
    route("POST", "img2img", img2img)
    route("GET", "options", _get_options)
    route("POST", "options", set_options)
    route("POST", "png-info", png_info)
    route("GET", "scripts", script_names)
    route("GET", "progress", progress)
    route("POST", "interrupt", lambda: shared.state.interrupt())
    route("POST", "skip", lambda: shared.state.skip())
    route("GET", "cmd-flags", lambda: {k: str(v) for k, v in vars(shared.cmd_opts).items()})
    route("GET", "sd-models", lambda: [{"title": "demo", "model_name": "demo"}])
    route("GET", "samplers", lambda: [{"name": "Euler", "aliases": [], "options": {}}])


def add_test_hooks(app):
    """POST /devhost/run {"code": ...}: executes Python inside the host, answers its variable `result`.
    POST /devhost/reload: the Reload UI button."""
    def run(request: dict = Body(...)):
        names = {}
        exec(request["code"], names)
        return {"result": names.get("result")}

    app.add_api_route("/devhost/run", run, methods=["POST"])
    app.add_api_route("/devhost/reload", lambda: shared.state.request_restart(), methods=["POST"])
