"""Train the demo's model from nothing, on pictures that this script draws: `python -m devhost.train_demo`.

First the autoencoder, then text encoder and UNet together on its latents. A run with the same options, the same
number of threads and no time limit repeats itself. The weights beside this file come from `--threads 1`, half an hour
on one core.
"""
import argparse
import copy
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from ldm.modules.attention import CrossAttention
from ldm.modules.diffusionmodules.model import AttnBlock, Downsample, ResnetBlock, Upsample
from safetensors.torch import save_file
from torch import nn

from devhost.demo_model import COLOURS, SHAPES, WEIGHTS, DemoModel, load

REPORT_EVERY = 50  # steps
BACKGROUNDS = ("white", "black")  # white where the prompt names none


def half_planes(x, y, normals, offset):
    """Largest distance of the points beyond the lines `normal . p = offset`: a convex polygon, negative inside."""
    return torch.stack([x * math.cos(a) + y * math.sin(a) for a in normals]).amax(0) - offset


def star(x, y, points=5, inner=0.42):
    """Signed distance, roughly, to a star with tips at radius 1 and notches at radius `inner`."""
    turn = math.pi / points
    angle = torch.remainder(torch.atan2(x, -y) + turn, 2 * turn) - turn  # from the nearest tip; one tip points up
    radius = torch.hypot(x, y)
    u, v = radius * torch.cos(angle), radius * torch.sin(angle).abs()
    du, dv = inner * math.cos(turn) - 1, inner * math.sin(turn)  # along the edge from the tip to the notch
    return ((u - 1) * dv - v * du) / math.hypot(du, dv)


DISTANCES = {  # (x, y) in units of the shape's size, y down, to a distance that is negative inside
    "circle": lambda x, y: torch.hypot(x, y) - 1,
    "square": lambda x, y: torch.maximum(x.abs(), y.abs()) - 0.85,
    "triangle": lambda x, y: half_planes(x, y, [math.pi / 2, -math.pi / 6, -5 * math.pi / 6], 0.55),
    "star": star,
}


def draw(shape, colour, background, size, rng):
    """A picture (3, size, size) in -1..1 with one antialiased shape of random place and size."""
    radius = rng.uniform(0.32, 0.36) * size
    cx, cy = (rng.uniform(0.48, 0.52) * size for _ in range(2))
    centres = torch.arange(size) + 0.5
    y, x = torch.meshgrid((centres - cy) / radius, (centres - cx) / radius, indexing="ij")
    cover = (0.5 - DISTANCES[shape](x, y) * radius).clamp(0, 1)
    picture = torch.lerp(torch.tensor(COLOURS[background])[:, None, None],
                         torch.tensor(COLOURS[colour])[:, None, None], cover)
    return picture * 2 - 1


def batch(count, size, rng):
    """Pictures (count, 3, size, size) and their prompts."""
    pictures, prompts = [], []
    for _ in range(count):
        shape, named = rng.choice(SHAPES), rng.random() < 0.5
        background = rng.choice(BACKGROUNDS) if named else BACKGROUNDS[0]
        colour = rng.choice([name for name in COLOURS if name != background])
        pictures.append(draw(shape, colour, background, size, rng))
        prompts.append(f"{colour} {shape} on {background}" if named else f"{colour} {shape}")
    return torch.stack(pictures), prompts


def fused_attention(self, x, context=None, mask=None):
    """CrossAttention.forward through the fused CPU kernel, which trains faster."""
    context = x if context is None else context
    q, k, v = (layer(source).unflatten(-1, (self.heads, -1)).transpose(1, 2)
               for layer, source in ((self.to_q, x), (self.to_k, context), (self.to_v, context)))
    return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def training_steps(parameters, steps, minutes, rate):
    """Yield (step, progress in 0..1) up to `steps` or `minutes`, the rate warmed up and then let down."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    start = time.monotonic()
    for step in range(steps):
        progress = max(step / steps, (time.monotonic() - start) / (60 * minutes))
        if progress >= 1:
            break
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 20) * (0.5 + 0.5 * math.cos(math.pi * progress))
        optimizer.zero_grad()
        if step % REPORT_EVERY == 0:
            print(f"step {step}, {time.monotonic() - start:.0f} s", end=", ")
        yield step, progress
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


@torch.no_grad()
def begin_linear(vae, rng):
    """Let the autoencoder begin as plain averaging and repeating of pixels, which takes minutes off its training.

    Residual branches begin at zero. Channels come in pairs (x, -x): as silu(x) - silu(-x) = x, the last layers can read
    them linearly.
    """
    for part in vae.modules():
        if isinstance(part, (AttnBlock, ResnetBlock)):
            last = part.proj_out if isinstance(part, AttnBlock) else part.conv2
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        elif isinstance(part, (Downsample, Upsample)):
            nn.init.dirac_(part.conv.weight)
            nn.init.zeros_(part.conv.bias)
            if isinstance(part, Downsample):  # ldm pads below and on the right: the mean of each 2x2 pixels
                mean = torch.tensor([[0.25, 0.25, 0.0], [0.25, 0.25, 0.0], [0.0, 0.0, 0.0]])
                part.conv.weight.copy_(part.conv.weight.sum((2, 3), keepdim=True) * mean)
    half = vae.encoder.conv_in.out_channels // 2
    for conv in (vae.encoder.conv_in, vae.encoder.conv_out, vae.decoder.conv_in):
        centre = 3 * conv.weight[:, :, 1, 1]
        nn.init.zeros_(conv.weight)
        conv.weight[:, :, 1, 1] = centre
    for conv in (vae.encoder.conv_in, vae.decoder.conv_in):
        conv.weight[half:], conv.bias[half:] = -conv.weight[:half], -conv.bias[:half]
    vae.encoder.conv_out.weight[:, half:] = -vae.encoder.conv_out.weight[:, :half]
    set_latent_scale(vae, rng)
    fit_last_layer(vae, rng)


def set_latent_scale(vae, rng):
    """Measure the latents' mean and deviation, which encode and decode go by."""
    z = vae.encode(batch(128, 64, rng)[0]) * vae.std + vae.mean
    vae.mean.copy_(z.mean((0, 2, 3), keepdim=True))
    vae.std.copy_(z.std((0, 2, 3), keepdim=True))


def fit_last_layer(vae, rng):
    """Set the decoder's last convolution by least squares."""
    pictures, _ = batch(64, 32, rng)
    last, inputs = vae.decoder.conv_out, []
    hook = last.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    vae.decode(vae.encode(pictures))
    hook.remove()
    rows = F.unfold(inputs[0], 3, padding=1).transpose(1, 2).flatten(0, 1)  # (pixels, 9 x channels)
    rows = torch.cat([rows, torch.ones(len(rows), 1)], 1).double()
    targets = pictures.permute(0, 2, 3, 1).flatten(0, 2).double()
    square = rows.T @ rows
    square.diagonal().add_(1e-2 * square.diagonal().mean())  # the features repeat each other
    solution = torch.linalg.solve(square, rows.T @ targets).T.float()
    last.weight.copy_(solution[:, :-1].reshape(last.weight.shape))
    last.bias.copy_(solution[:, -1])


def train_autoencoder(model, steps, minutes, rng):
    """Reconstruct pictures from latents with a little noise, then set the latents' mean and deviation."""
    print("autoencoder")
    vae = model.first_stage_model
    begin_linear(vae, rng)
    for step, _ in training_steps(list(vae.parameters()), steps, minutes, rate=3e-4):
        pictures, _ = batch(8, 32, rng)
        z = vae.encode(pictures)
        z = z + 0.05 * torch.randn_like(z)
        error = vae.decode(z) - pictures
        loss = error.abs().mean() + error.square().mean()
        loss.backward()
        if step % REPORT_EVERY == 0:
            print(f"loss {loss.item():.4f}", flush=True)
    with torch.no_grad():
        set_latent_scale(vae, rng)
    vae.requires_grad_(False)


def train_diffusion(model, steps, minutes, rng, out):
    """Teach text encoder and UNet the velocity; returns a model with their moving averages."""
    print("diffusion model")
    average = copy.deepcopy(model)
    trained = [*model.model.parameters(), *model.cond_stage_model.parameters()]
    averaged = [*average.model.parameters(), *average.cond_stage_model.parameters()]
    average.requires_grad_(False)
    for step, progress in training_steps(trained, steps, minutes, rate=2e-3):
        size, count = (128, 4) if rng.random() < progress else (64, 12)  # small pictures teach most things, and cheaply
        pictures, prompts = batch(count, size, rng)
        prompts = ["" if rng.random() < 0.1 else prompt for prompt in prompts]  # for classifier-free guidance
        with torch.no_grad():
            z = model.encode_first_stage(pictures)
        noise, t = torch.randn_like(z), torch.sigmoid(torch.randn(count) + 0.5)
        velocity = model.apply_model(torch.lerp(z, noise, t[:, None, None, None]), t,
                                     model.get_learned_conditioning(prompts))
        loss = F.mse_loss(velocity, noise - z)
        loss.backward()
        if step % REPORT_EVERY == 0:
            print(f"loss {loss.item():.4f}", flush=True)
            save(average, out)
        torch._foreach_lerp_(averaged, trained, 1 - min(0.995, (1 + step) / (10 + step)))
    return average


def save(model, out):
    save_file({name: tensor.half().contiguous() for name, tensor in model.state_dict().items()}, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--vae-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=3000, help="steps of the diffusion model")
    parser.add_argument("--vae-minutes", type=float, default=math.inf, help="stop the autoencoder after this time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop the diffusion model after this time")
    parser.add_argument("--resume", type=Path, help="start from these weights and leave their autoencoder as it is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    CrossAttention.forward = fused_attention
    if options.resume:
        model = load(options.resume).requires_grad_(True)
        model.first_stage_model.requires_grad_(False)
    else:
        model = DemoModel()
        train_autoencoder(model, options.vae_steps, options.vae_minutes, rng)
    save(train_diffusion(model, options.steps, options.minutes, rng, options.out), options.out)


if __name__ == "__main__":
    main()
