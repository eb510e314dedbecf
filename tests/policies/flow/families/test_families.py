"""Every family on a random checkpoint, held to diffusers' own pipeline."""

from dataclasses import replace

import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from policies.flow.tiny_families import FAMILIES, VARIANTS
from small_flow import KEY, asked, small
from torch.testing import assert_close

from tandem import rng
from tandem.data.images import show
from tandem.dynamics.kernels import ode
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.sampling import start_noise

STEPS = 3
TEXTS = ("red", "a green square on grey")
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


@pytest.mark.parametrize("name", FAMILIES | VARIANTS)
def test_it_paints_what_its_own_pipeline_paints(name, tmp_path, monkeypatch):
    """By the folder's own noise levels, from the same noise, with and without guidance."""
    family = (FAMILIES | VARIANTS)[name]
    torch.manual_seed(0)
    pipeline = family.pipeline()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(tmp_path)
    adapter = family.make(resolution=family.high, width=family.wide)
    negative = "ugly" if family.negative else ""
    policy = small(path=str(tmp_path), adapter=adapter, negative_prompt=negative)
    levels, _ = adapter.own_levels(STEPS, adapter.tokens[0])
    keys = rng.key(KEY, torch.arange(2), torch.zeros(2, dtype=torch.int64))
    starts = start_noise(keys, adapter.latent_shape)
    # What the encoder of Qwen-Image-Edit is shown, whatever its size.
    monkeypatch.setattr(edit_plus, "CONDITION_IMAGE_SIZE", family.high * family.wide)
    shown = torch.randint(0, 256, (2, family.shows, family.high, family.wide, 3), dtype=torch.uint8)
    prompts = [
        replace(prompt, images=tuple(map(show, pictures)))
        for prompt, pictures in zip(asked(TEXTS), shown, strict=True)
    ]
    size = {"height": family.high, "width": family.wide}
    for scale in (1.0, 3.0) if family.scale else (1.0,):
        sampling = FlowSampling(
            steps=STEPS, kernel=ode, schedule=lambda *_: levels, guidance_scale=scale
        )
        rollout = policy.sample(prompts, 1, key=KEY, slots=range(2), sampling=sampling)
        with torch.no_grad():
            latents, pictures = family.painted(
                pipeline, TEXTS, starts, scale=scale, steps=STEPS, size=size, images=[*shown]
            )
        assert latents.std() > 0.1
        assert_close(rollout.sample.x0, latents, atol=1e-5, rtol=1e-5)
        pixels = (255 * pictures.movedim(-3, -1)).round()
        assert (torch.stack(rollout.outputs) - pixels).abs().max() <= 1
