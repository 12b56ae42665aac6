"""All hosts: one generation at a time, and the frame around a generation that the page asked for."""

import html
import threading
import time
from functools import wraps

from modules import errors, shared

queue_lock = threading.Lock()


def wrap_queued_call(func):
    @wraps(func)
    def f(*args, **kwargs):
        with queue_lock:
            return func(*args, **kwargs)
    return f


def wrap_gradio_gpu_call(func, extra_outputs=None):
    """Runs func in the queue; its last result is HTML, to which the time taken is added. Errors become that HTML."""
    @wraps(func)
    def f(*args, **kwargs):
        started = time.perf_counter()
        with queue_lock:
            shared.state.begin(job=func.__name__)
            try:
                results = list(func(*args, **kwargs))
            except Exception as e:
                errors.report(f"Error completing request\nArguments: {args} {kwargs}", exc_info=True)
                results = [*(extra_outputs or [None, ""]),
                           f"<div class='error'>{html.escape(f'{type(e).__name__}: {e}')}</div>"]
            finally:
                shared.state.end()
        results[-1] += (f"<div class='performance'><p class='time'>Time taken: <wbr><span class='measurement'>"
                        f"{time.perf_counter() - started:.1f} sec.</span></p></div>")
        return tuple(results)
    return f
