"""The demo's weights draw what the prompt asks for, alike under every attention kernel."""
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("ldm.modules.attention", reason="the demo's classes come from stable-diffusion-sdkit")
pytest.importorskip("safetensors", reason="the demo's weights are safetensors")

from ldm.modules.attention import CrossAttention
from torch.nn.attention import SDPBackend, sdpa_kernel

from devhost.demo_model import COLOURS, WEIGHTS, load, sample

STEPS = 8
SIZE = 64  # pixels; a quarter of the work of the demo's 128
PROMPTS = {  # prompt: (colour of the shape, colour of the background)
    "red circle": ("red", "white"), "blue square": ("blue", "white"), "green triangle": ("green", "white"),
    "yellow star on black": ("yellow", "black"), "purple circle on white": ("purple", "white"),
    "white square on black": ("white", "black"), "orange star": ("orange", "white"),
    "red triangle on black": ("red", "black"),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """So small a model gains little from a second thread, and loses much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model():
    return load()


@pytest.fixture(scope="module")
def pictures(model):
    return sample(model, list(PROMPTS), seed=1, steps=STEPS, width=SIZE, height=SIZE)


def nearest_colours(picture):
    """Names of the palette's colours nearest to the pixels of a picture (3, H, W), as (H, W) indices into COLOURS."""
    palette = torch.tensor(list(COLOURS.values()))[:, :, None, None]
    return (picture - palette).square().sum(1).argmin(0)


def dominant(indices):
    return list(COLOURS)[indices.flatten().mode().values]


def sdpa_forward(self, x, context=None, mask=None):
    context = x if context is None else context
    q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
               for t in (self.to_q(x), self.to_k(context), self.to_v(context)))
    return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_weights_are_small():
    assert WEIGHTS.stat().st_size <= 4_000_000


def test_prompts_give_their_colours(pictures):
    wrong = []
    for picture, (prompt, (colour, background)) in zip(pictures, PROMPTS.items(), strict=True):
        indices = nearest_colours(picture)
        border = torch.cat([indices[:3].flatten(), indices[-3:].flatten()])
        shape = indices[indices != list(COLOURS).index(dominant(border))]
        share = len(shape) / indices.numel()
        seen = (dominant(shape) if len(shape) else None, dominant(border))
        if seen != (colour, background) or not 0.08 < share < 0.7:
            wrong.append(f"{prompt}: drew {seen}, shape on {share:.0%} of the picture")
    assert len(wrong) <= 1, wrong


def test_same_seed_same_picture_in_any_batch(model, pictures):
    again = sample(model, list(PROMPTS)[:1], seed=1, steps=STEPS, width=SIZE, height=SIZE)
    other = sample(model, list(PROMPTS)[:1], seed=2, steps=STEPS, width=SIZE, height=SIZE)
    assert (again - pictures[:1]).abs().max() < 1 / 255
    assert (other - pictures[:1]).abs().max() > 0.1


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], ids=lambda kernel: kernel.name)
def test_picture_does_not_depend_on_the_kernel(model, monkeypatch, kernel):
    """At the demo's own size, 1024 tokens."""
    arguments = {"prompts": ["red star"], "seed": 3, "steps": STEPS}
    original = sample(model, **arguments)
    calls = []
    monkeypatch.setattr(CrossAttention, "forward",
                        lambda *args, **kwargs: calls.append(args[1].shape[1]) or sdpa_forward(*args, **kwargs))
    with sdpa_kernel(kernel):
        replaced = sample(model, **arguments)
    assert 1024 in calls
    assert (replaced - original).abs().max() <= 2 / 255


def test_start_picture_and_callback(model, pictures):
    """A low strength keeps the picture, a high one leaves it; steps are reported in order."""
    latent = model.encode_first_stage(pictures[:1] * 2 - 1)
    seen = []
    changes = []
    for strength in (0.2, 1.0):
        drawn = sample(model, ["blue circle on black"], 5, 4, SIZE, SIZE, init_latent=latent,
                       denoising_strength=strength, callback=lambda step, steps, x: seen.append((step, steps, x.shape)))
        changes.append((drawn - pictures[:1]).abs().mean())
    assert changes[0] < changes[1] / 2
    assert [step for step, *_ in seen] == [1, 2, 3, 4] * 2
    assert seen[0][1:] == (4, latent.shape)


def test_other_sizes(model):
    assert sample(model, ["red circle"], 0, 1, width=96, height=160).shape == (1, 3, 160, 96)
    with pytest.raises(ValueError, match="multiples of 16"):
        sample(model, ["red circle"], 0, 1, width=100, height=128)
