"""Hands the WebUI's callbacks to lib_tiled.webui. While this file loads, the extension's folder is on sys.path."""

from modules import script_callbacks

try:
    from lib_tiled import webui
except Exception as error:  # an older torch, a broken installation: the WebUI must start all the same
    print(f"[Tiled] not loaded ({type(error).__name__}: {error}); the WebUI runs its own attention")
else:
    webui.start()
    for name, callback in webui.callbacks().items():
        register = getattr(script_callbacks, name, None)  # reForge has no on_list_optimizers
        if register is not None:
            register(callback)
