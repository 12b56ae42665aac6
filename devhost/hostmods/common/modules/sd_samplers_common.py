"""All hosts: the sampler's side of a generation: progress bar, interruption, and the call into the demo model."""

import devhost_face
from tqdm import tqdm

from devhost import demo_model
from modules import shared


class InterruptedException(BaseException):
    """Carries the latent that was reached."""

    def __init__(self, latent=None):
        super().__init__()
        self.latent = latent


def sample(p, prompts, seed, steps, width, height, **kwargs):
    """Pictures (B, 3, height, width) in 0..1; kwargs are demo_model.sample's. An interrupt decodes what is there."""
    model = p.sd_model
    devhost_face.sampling_starts(model, (2 * len(prompts), 4, height // 8, width // 8))
    shared.state.sampling_steps = steps
    with tqdm(total=steps, file=shared.progress_print_out) as bar:
        def step_done(step, _steps, latent):
            bar.update()
            shared.state.sampling_step = step
            if shared.state.interrupted or shared.state.skipped:
                raise InterruptedException(latent)

        try:
            return demo_model.sample(model, prompts, seed, steps, width, height, p.cfg_scale, callback=step_done,
                                     **kwargs)
        except InterruptedException as stop:
            return model.decode_first_stage(stop.latent).add(1).div(2).clamp(0, 1)
