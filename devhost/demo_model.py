"""A latent diffusion model small enough for a CPU that draws coloured shapes from words.

It is made of Stability's own classes (`ldm`, from the package `stable-diffusion-sdkit`), so a WebUI's patches of
`CrossAttention.forward` and `AttnBlock.forward` reach it as they reach Stable Diffusion. A 128x128 picture is a
32x32 latent, so the UNet's first level attends over 1024 tokens; a 256x256 picture gives 4096.

The model is a rectified flow: a latent at time t is `(1 - t) * picture + t * noise`, t from 0 (picture) to 1 (noise),
and the UNet predicts the velocity `noise - picture`.
"""
import contextlib
import io
import re
from pathlib import Path

import torch
from torch import nn

with contextlib.redirect_stdout(io.StringIO()):  # ldm prints while it is imported
    from ldm.modules import attention as ldm_attention
    from ldm.modules.diffusionmodules import model as ldm_model
    from ldm.modules.diffusionmodules import openaimodel as ldm_unet
    from ldm.modules.diffusionmodules.model import Decoder, Encoder
    from ldm.modules.diffusionmodules.openaimodel import UNetModel

# ldm prints what it builds; redirecting stdout there would swallow other threads' lines
ldm_model.print = ldm_unet.print = lambda *args, **kwargs: None

# where xformers is installed ldm takes layers of its own for it, which nobody patches; the hosts undo that as well
ldm_attention.BasicTransformerBlock.ATTENTION_MODES["softmax-xformers"] = ldm_attention.CrossAttention
ldm_model.XFORMERS_IS_AVAILBLE = False

WEIGHTS = Path(__file__).with_name("demo.safetensors")
COLOURS = {
    "red": (0.86, 0.10, 0.12), "green": (0.10, 0.62, 0.22), "blue": (0.12, 0.25, 0.85), "yellow": (0.98, 0.85, 0.10),
    "purple": (0.55, 0.15, 0.70), "orange": (0.98, 0.52, 0.08), "white": (1.0, 1.0, 1.0), "black": (0.0, 0.0, 0.0),
}
SHAPES = ("circle", "square", "triangle", "star")
WORDS = ("", "<start>", "on", *COLOURS, *SHAPES)  # index 0 pads

LATENT_CHANNELS = 4
PIXELS_PER_LATENT = 4
SIZE_STEP = 16  # pixels; the VAE halves twice and the UNet twice more
PROMPT_LENGTH = 77  # tokens, as in Stable Diffusion
CONTEXT_DIM = 64


class TextBlock(nn.Module):
    """One transformer layer on (B, L, C) that attends to the tokens where `mask` (B, 1, 1, L) is True."""

    def __init__(self, dim, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))  # (B, L, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, H, L, D)
        # looked up at each call, so that a patch of torch.nn.functional reaches it
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(out.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class TextEncoder(nn.Module):
    """Prompts to (B, 77, 64). Words it does not know are skipped; padding attends to the words and so sums them up."""

    def __init__(self, dim=CONTEXT_DIM, layers=2):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), dim)
        self.positions = nn.Parameter(torch.randn(PROMPT_LENGTH, dim))
        self.blocks = nn.ModuleList(TextBlock(dim) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def tokenize(self, prompts):
        """List of B strings to word numbers (B, 77), zero where padded."""
        rows = []
        for prompt in prompts:
            known = [WORDS.index(word) for word in re.findall("[a-z]+", prompt.lower()) if word in WORDS]
            row = [WORDS.index("<start>"), *known][:PROMPT_LENGTH]
            rows.append(row + [0] * (PROMPT_LENGTH - len(row)))
        return torch.tensor(rows, device=self.positions.device)

    def forward(self, prompts):
        tokens = self.tokenize(prompts)
        mask = (tokens != 0)[:, None, None, :]
        x = self.words(tokens) + self.positions
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class AutoEncoder(nn.Module):
    """Pictures (B, 3, H, W) in -1..1 to latents (B, 4, H/4, W/4) of about unit variance, and back."""

    def __init__(self):
        super().__init__()
        shared = {"ch": 32, "ch_mult": (1, 1, 1), "num_res_blocks": 0, "attn_resolutions": (), "resolution": 128,
                  "in_channels": 3, "out_ch": 3, "z_channels": LATENT_CHANNELS}
        self.encoder = Encoder(**shared, double_z=False)
        self.decoder = Decoder(**shared)
        # a normalization on the way out would hide how bright the picture is
        self.encoder.norm_out = self.decoder.norm_out = nn.Identity()
        self.register_buffer("mean", torch.zeros(1, LATENT_CHANNELS, 1, 1))
        self.register_buffer("std", torch.ones(1, LATENT_CHANNELS, 1, 1))

    def encode(self, x):
        return (self.encoder(x) - self.mean) / self.std

    def decode(self, z):
        return self.decoder(z * self.std + self.mean)


class DiffusionWrapper(nn.Module):
    """Holds the UNet where hosts look for it: `sd_model.model.diffusion_model`."""

    def __init__(self):
        super().__init__()
        self.diffusion_model = UNetModel(
            image_size=32, in_channels=LATENT_CHANNELS, out_channels=LATENT_CHANNELS, model_channels=32,
            channel_mult=(1, 2, 2), num_res_blocks=1, attention_resolutions=(1, 2, 4), num_attention_blocks=(1, 1, 1),
            num_heads=2, use_spatial_transformer=True, context_dim=CONTEXT_DIM)


class DemoModel(nn.Module):
    """Text encoder, UNet and VAE under the names that Stable Diffusion's model gives them."""

    def __init__(self):
        super().__init__()
        self.model = DiffusionWrapper()
        self.first_stage_model = AutoEncoder()
        self.cond_stage_model = TextEncoder()
        for module in self.modules():
            if isinstance(module, nn.GroupNorm):
                module.num_groups = 8  # ldm's 32 groups would leave one or two of these few channels in each

    def get_learned_conditioning(self, prompts):
        """List of B prompts to the context (B, 77, 64) of the UNet's cross-attention."""
        return self.cond_stage_model(prompts)

    def encode_first_stage(self, x):
        """Pictures (B, 3, H, W) in -1..1 to latents (B, 4, H/4, W/4)."""
        return self.first_stage_model.encode(x)

    def decode_first_stage(self, z):
        """Latents (B, 4, h, w) to pictures (B, 3, 4h, 4w), about -1..1 and not clamped."""
        return self.first_stage_model.decode(z)

    def apply_model(self, x, t, c):
        """Velocity (B, 4, h, w) of latents x (B, 4, h, w) at times t (B,) in 0..1 under the context c (B, 77, 64)."""
        return self.model.diffusion_model(x, t * 1000, context=c)


def load(path=WEIGHTS):
    """The trained model in fp32 on the CPU, ready to draw. Raises FileNotFoundError where `path` is missing."""
    from safetensors.torch import load_file

    model = DemoModel()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
    return model.eval().requires_grad_(False)


def noise(seed, count, width, height):
    """Noise (count, 4, height/4, width/4); picture i is drawn from seed + i alone, whatever the batch."""
    shape = (LATENT_CHANNELS, height // PIXELS_PER_LATENT, width // PIXELS_PER_LATENT)
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed + i)) for i in range(count)])


def times(steps, strength=1.0, shift=2.0):
    """steps + 1 times from `strength` down to 0; a shift above 1 spends more of the steps near the noise."""
    t = torch.linspace(strength, 0, steps + 1)
    return shift * t / (1 + (shift - 1) * t)


@torch.no_grad()
def sample(model, prompts, seed, steps=12, width=128, height=128, cfg_scale=2.0, init_latent=None,
           denoising_strength=1.0, callback=None):
    """Draw one picture per prompt with Euler steps.

    prompts: list of B strings such as "red circle on white"; seed: int, picture i uses seed + i
    width, height: pixels, multiples of 16
    cfg_scale: 1 turns classifier-free guidance off, which halves the work
    init_latent: (B, 4, height/4, width/4), a picture to start from; denoising_strength, in 0..1, says how much of it
        may change
    callback: called after each step as callback(step, steps, latent), step from 1, latent (B, 4, height/4, width/4)
    Returns (B, 3, height, width) in 0..1. Raises ValueError for a size that is no multiple of 16.
    """
    if width % SIZE_STEP or height % SIZE_STEP:
        raise ValueError(f"width and height must be multiples of {SIZE_STEP}, not {width}x{height}")
    device = next(model.parameters()).device
    context = model.get_learned_conditioning(prompts)
    if cfg_scale != 1:
        context = torch.cat([model.get_learned_conditioning([""] * len(prompts)), context])

    schedule = times(steps, denoising_strength).to(device)
    x = noise(seed, len(prompts), width, height).to(device)
    if init_latent is not None:
        x = torch.lerp(init_latent.to(device), x, schedule[0])
    for step in range(steps):
        t, t_next = schedule[step], schedule[step + 1]
        if cfg_scale == 1:
            velocity = model.apply_model(x, t.expand(len(x)), context)
        else:
            both = model.apply_model(torch.cat([x, x]), t.expand(2 * len(x)), context)
            plain, asked = both.chunk(2)
            velocity = torch.lerp(plain, asked, cfg_scale)
        x = x + (t_next - t) * velocity
        if callback is not None:
            callback(step + 1, steps, x)
    return model.decode_first_stage(x).add(1).div(2).clamp(0, 1)
