"""What counting costs: microseconds that the report adds to one attention call.

    python bench/overhead.py

Times a tiny F.scaled_dot_product_attention call with and without the session's patch and listener, in turns, and
prints the medians and their difference. Run it on a machine that does nothing else.
"""

import statistics
import sys
import time
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from lib_tiled.backends import calls, sdpa  # noqa: E402
from lib_tiled.backends.patches import Patches  # noqa: E402
from lib_tiled.backends.policy import Policy  # noqa: E402
from lib_tiled.report.generation import Generation  # noqa: E402

CALLS, ROUNDS = 500, 20
# Frames between the attention layer and the call: the host's forward, torch's module call, our wrapper.
FRAMES = 6


def in_unet(function):
    """Calls `function` from a module of the name that a UNet's layers have, `FRAMES` frames further up."""
    layer = types.ModuleType("ldm.modules.attention")
    exec("def forward(f):\n    return f()", layer.__dict__)

    def frames(n):
        return function() if n == 0 else frames(n - 1)

    return layer.forward(lambda: frames(FRAMES))


def microseconds(q) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        F.scaled_dot_product_attention(q, q, q)
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    q = torch.randn(1, 1, 16, 8)
    policy = Policy()
    plain, counted = [], []
    for _ in range(ROUNDS):
        plain.append(in_unet(lambda: microseconds(q)))
        with Patches() as patches:
            sdpa.install(patches, lambda: policy)
            calls.listen(Generation().record)
            counted.append(in_unet(lambda: microseconds(q)))
            calls.listen(None)
    a, b = statistics.median(plain), statistics.median(counted)
    print(f"plain {a:.1f} us, counted {b:.1f} us, added {b - a:.1f} us per call (median of {ROUNDS} x {CALLS} calls)")


if __name__ == "__main__":
    main()
