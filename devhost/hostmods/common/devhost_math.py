"""Attention of (B, N, D) tensors in the ways the hosts' built-in functions go; the three faces' functions call these.

They stand for the hosts' algorithms (what is sliced, what is held at once), not for their code or their speed.
"""

import torch


def rows(q, k, v, scale, mask=None, slice_rows=1024):
    """All keys, `slice_rows` query rows at a time. mask: None, boolean or float, broadcastable to (B, Nq, Nk)."""
    out = q.new_empty(*q.shape[:2], v.shape[2])
    for start in range(0, q.shape[1], slice_rows):
        part = slice(start, start + slice_rows)
        scores = torch.baddbmm(q.new_empty(()), q[:, part], k.transpose(1, 2), beta=0, alpha=scale)
        if mask is not None:
            here = mask[..., part, :] if mask.shape[-2] > 1 else mask
            scores = scores.masked_fill(~here, -torch.finfo(scores.dtype).max) if mask.dtype == torch.bool \
                else scores + here
        out[:, part] = torch.bmm(scores.softmax(-1), v)
    return out


def batches(q, k, v, scale, size):
    """`size` entries of the batch (that is, heads) at a time."""
    return torch.cat([rows(*(t[i:i + size] for t in (q, k, v)), scale, slice_rows=q.shape[1])
                      for i in range(0, len(q), size)])


def chunks(q, k, v, scale, mask=None, slice_rows=512, slice_keys=1024):
    """Query rows and keys in chunks with a running maximum and sum (Rabe and Staats 2021)."""
    if mask is not None:
        return rows(q, k, v, scale, mask, slice_rows)
    out = []
    for start in range(0, q.shape[1], slice_rows):
        part = q[:, start:start + slice_rows] * scale
        best = part.new_full((*part.shape[:2], 1), -torch.inf)
        total, weighted = torch.zeros_like(best), part.new_zeros(*part.shape[:2], v.shape[2])
        for keys in range(0, k.shape[1], slice_keys):
            scores = part @ k[:, keys:keys + slice_keys].transpose(1, 2)
            new_best = torch.maximum(best, scores.amax(-1, keepdim=True))
            weights, shrink = (scores - new_best).exp(), (best - new_best).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            weighted = weighted * shrink + weights @ v[:, keys:keys + slice_keys]
            best = new_best
        out.append(weighted / total)
    return torch.cat(out, dim=1)
