"""reForge: one of the many modules that hold optimized_attention by a name of their own (ControlNet)."""

from ldm_patched.ldm.modules.attention import optimized_attention


def attention(q, k, v, heads):
    return optimized_attention(q, k, v, heads)
