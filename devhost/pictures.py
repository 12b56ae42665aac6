"""What the demo, the host test and the tests ask of two pictures."""

from __future__ import annotations

import numpy as np


def largest_difference(first, second) -> int:
    """The largest difference of any channel of any pixel in steps of 1/255, of PIL images or arrays of one shape."""
    return int(np.abs(np.asarray(first, dtype=int) - np.asarray(second, dtype=int)).max())
