"""reForge: a module of a built-in extension that is imported late and captures what is bound then."""

from ldm_patched.ldm.modules.attention import optimized_attention


def attention(q, k, v, heads):
    return optimized_attention(q, k, v, heads)
