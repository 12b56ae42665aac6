"""reForge: a holder of optimized_attention_masked."""

from ldm_patched.ldm.modules.attention import optimized_attention_masked


def attention(q, k, v, heads, mask):
    """q, k, v (B, H, N, D) -> (B, N, H*D)"""
    return optimized_attention_masked(q, k, v, heads, mask, skip_reshape=True)
