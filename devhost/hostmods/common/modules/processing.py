"""All hosts: a generation. process_images -> process_images_inner (looked up when called, so it can be replaced).

Against a real host: one sampler, no negative conditioning, and an inpainting mask only keeps the old pixels.
"""

import json
import random

import devhost_face
import numpy as np
import torch
from PIL import Image

from modules import devices, errors, images, infotext_utils, scripts, sd_models, sd_samplers_common, shared
from modules.shared import opts, state


def get_fixed_seed(seed):
    return random.randrange(4294967294) if seed in (None, "", -1) else int(seed)


class StableDiffusionProcessing:
    is_img2img = False
    is_api = False

    def __init__(self, sd_model=None, prompt="", negative_prompt="", seed=-1, steps=12, cfg_scale=2.0, width=128,
                 height=128, batch_size=1, n_iter=1, sampler_name="Euler", denoising_strength=None,
                 override_settings=None, override_settings_restore_afterwards=True, do_not_save_samples=False,
                 outpath_samples=None, **_other):
        self.prompt, self.negative_prompt, self.seed, self.steps = prompt, negative_prompt, seed, steps
        self.cfg_scale, self.width, self.height = cfg_scale, width, height
        self.batch_size, self.n_iter, self.sampler_name = batch_size, n_iter, sampler_name
        self.denoising_strength = denoising_strength
        self.override_settings = dict(override_settings or {})
        self.override_settings_restore_afterwards = override_settings_restore_afterwards
        self.do_not_save_samples, self.outpath_samples = do_not_save_samples, outpath_samples
        self.extra_generation_params = {}
        self.scripts, self.script_args, self.user = None, [], None
        self.iteration = 0
        self.comments = {}

    @property
    def sd_model(self):
        return shared.sd_model

    def comment(self, text):
        self.comments[text] = 1

    def setup_prompts(self):
        total = self.batch_size * self.n_iter
        self.all_prompts = self.prompt if isinstance(self.prompt, list) else total * [self.prompt]
        self.all_negative_prompts = total * [self.negative_prompt]

    def init(self, all_prompts, all_seeds, all_subseeds):
        pass

    def partial_steps(self):
        """How many of the steps img2img takes; the hosts count the same way."""
        return int(min(self.denoising_strength, 0.999) * self.steps) + 1

    def close(self):
        pass


class StableDiffusionProcessingTxt2Img(StableDiffusionProcessing):
    def __init__(self, enable_hr=False, hr_scale=2.0, hr_second_pass_steps=0, denoising_strength=0.7, **kwargs):
        super().__init__(denoising_strength=denoising_strength, **kwargs)
        self.enable_hr, self.hr_scale, self.hr_second_pass_steps = enable_hr, hr_scale, hr_second_pass_steps
        self.is_hr_pass = False

    def init(self, all_prompts, all_seeds, all_subseeds):
        if self.enable_hr:
            self.hr_upscale_to_x, self.hr_upscale_to_y = (int(side * self.hr_scale) // 16 * 16
                                                          for side in (self.width, self.height))
            self.extra_generation_params["Hires upscale"] = self.hr_scale
            self.extra_generation_params["Denoising strength"] = self.denoising_strength

    def sample(self, prompts, seeds):
        pictures = sd_samplers_common.sample(self, prompts, seeds[0], self.steps, self.width, self.height)
        if not self.enable_hr or state.interrupted:
            return pictures
        self.is_hr_pass = True
        if self.scripts is not None:
            self.scripts.before_hr(self)
        size = (self.hr_upscale_to_y, self.hr_upscale_to_x)
        larger = torch.nn.functional.interpolate(pictures, size=size, mode="bicubic").clamp(0, 1)
        latent = self.sd_model.encode_first_stage(larger * 2 - 1)
        pictures = sd_samplers_common.sample(
            self, prompts, seeds[0], self.hr_second_pass_steps or self.partial_steps(), size[1], size[0],
            init_latent=latent, denoising_strength=self.denoising_strength)
        self.is_hr_pass = False
        return pictures


class StableDiffusionProcessingImg2Img(StableDiffusionProcessing):
    is_img2img = True

    def __init__(self, init_images=None, mask=None, denoising_strength=0.75, **kwargs):
        super().__init__(denoising_strength=denoising_strength, **kwargs)
        self.init_images, self.image_mask = init_images, mask
        self.init_latent = None

    def init(self, all_prompts, all_seeds, all_subseeds):
        self.extra_generation_params["Denoising strength"] = self.denoising_strength
        self.old = self.init_images[0].convert("RGB").resize((self.width, self.height))
        pixels = torch.from_numpy(np.array(self.old)).float().div(127.5).sub(1).movedim(-1, 0)[None]
        self.init_latent = self.sd_model.encode_first_stage(pixels.to(devices.device))

    def sample(self, prompts, seeds):
        return sd_samplers_common.sample(
            self, prompts, seeds[0], self.partial_steps(), self.width, self.height,
            init_latent=self.init_latent.expand(len(prompts), -1, -1, -1), denoising_strength=self.denoising_strength)


class Processed:
    def __init__(self, p, images_list, seed=-1, info="", infotexts=None, comments=""):
        self.images, self.seed, self.info, self.comments = images_list, seed, info, comments
        self.prompt, self.negative_prompt, self.width, self.height = p.prompt, p.negative_prompt, p.width, p.height
        self.all_prompts, self.all_seeds = p.all_prompts, p.all_seeds
        self.infotexts = infotexts or [info]
        self.index_of_first_image = 0
        self.extra_generation_params = p.extra_generation_params

    def js(self):
        return json.dumps({"prompt": self.prompt, "all_prompts": self.all_prompts, "seed": self.seed,
                           "all_seeds": self.all_seeds, "width": self.width, "height": self.height,
                           "infotexts": self.infotexts, "index_of_first_image": 0,
                           "extra_generation_params": {k: str(v) for k, v in self.extra_generation_params.items()}})


def create_infotext(p, all_prompts, all_seeds, all_subseeds=None, index=0):
    """The text under picture `index`. Extra parameters may be None, a value, a list by picture, or a function."""
    params = {"Steps": p.steps, "Sampler": p.sampler_name, "CFG scale": p.cfg_scale, "Seed": all_seeds[index],
              "Size": f"{p.width}x{p.height}", "Model": "demo", **p.extra_generation_params, "Version": "devhost"}
    for key, value in params.items():
        try:
            if isinstance(value, list):
                params[key] = value[index]
            elif callable(value):
                params[key] = value(p=p, index=index, all_prompts=all_prompts, all_seeds=all_seeds)
        except Exception:
            errors.report(f'Error creating infotext for key "{key}"', exc_info=True)
            params[key] = None
    line = ", ".join(k if k == v else f"{k}: {infotext_utils.quote(v)}" for k, v in params.items() if v is not None)
    negative = f"\nNegative prompt: {p.negative_prompt}" if p.negative_prompt else ""
    return f"{all_prompts[index]}{negative}\n{line}"


def process_images(p):
    """Puts the request's override_settings in place, generates, puts the old settings back."""
    if p.scripts is not None:
        p.scripts.before_process(p)
    stored = {key: opts.data[key] for key in p.override_settings if key in opts.data}
    try:
        p.override_settings.pop("sd_model_checkpoint", None)
        for key, value in p.override_settings.items():
            opts.set(key, value, is_api=True, run_callbacks=False)
        sd_models.reload_model_weights()
        return process_images_inner(p)
    finally:
        if p.override_settings_restore_afterwards:
            devhost_face.restore_options(stored)


def process_images_inner(p):
    """One request: n_iter batches of batch_size pictures."""
    seed = get_fixed_seed(p.seed)
    p.setup_prompts()
    p.all_seeds = [seed + i for i in range(len(p.all_prompts))]
    p.all_subseeds = list(p.all_seeds)
    if p.scripts is not None:
        p.scripts.process(p)

    pictures, infotexts = [], []
    with devhost_face.no_grad(), devices.autocast():
        p.init(p.all_prompts, p.all_seeds, p.all_subseeds)
        if state.job_count == -1:
            state.job_count = p.n_iter
        for n in range(p.n_iter):
            p.iteration = n
            state.skipped = False
            if state.interrupted or state.stopping_generation:
                break
            batch = slice(n * p.batch_size, (n + 1) * p.batch_size)
            p.prompts, p.seeds, p.subseeds = p.all_prompts[batch], p.all_seeds[batch], p.all_subseeds[batch]
            about = {"batch_number": n, "prompts": p.prompts, "seeds": p.seeds, "subseeds": p.subseeds}
            if p.scripts is not None:
                p.scripts.before_process_batch(p, **about)
                p.scripts.process_batch(p, **about)
            batch_pictures = p.sample(p.prompts, p.seeds).float().cpu()
            state.nextjob()
            if p.scripts is not None:
                p.scripts.postprocess_batch(p, batch_pictures, batch_number=n)
                args = scripts.PostprocessBatchListArgs(list(batch_pictures))
                p.scripts.postprocess_batch_list(p, args, batch_number=n)
                batch_pictures = args.images
            for i, picture in enumerate(batch_pictures):
                p.batch_index = i
                image = Image.fromarray((255 * picture).byte().movedim(0, 2).numpy())
                if getattr(p, "image_mask", None) is not None:
                    image = Image.composite(image, p.old, p.image_mask.convert("L").resize(image.size))
                if p.scripts is not None:
                    args = scripts.PostprocessImageArgs(image)
                    p.scripts.postprocess_image(p, args)
                    image = args.image
                text = create_infotext(p, p.prompts, p.seeds, index=i)
                image.info["parameters"] = text
                if opts.samples_save and not p.do_not_save_samples:
                    images.save_image(image, p.outpath_samples, info=text, seed=p.seeds[i])
                infotexts.append(text)
                pictures.append(image)

    devices.torch_gc()
    info = create_infotext(p, p.all_prompts, p.all_seeds)
    processed = Processed(p, pictures, seed, info, infotexts, comments="".join(f"{c}\n" for c in p.comments))
    if p.scripts is not None:
        p.scripts.postprocess(p, processed)
    return processed
