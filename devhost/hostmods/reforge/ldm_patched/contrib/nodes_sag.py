"""reForge: another holder of optimized_attention (self-attention guidance)."""

from ldm_patched.ldm.modules.attention import optimized_attention


def attention(q, k, v, heads):
    return optimized_attention(q, k, v, heads=heads)
