"""Every family on a random checkpoint, held to diffusers' own pipeline."""

import pytest
import torch
from policies.flow.tiny_families import FAMILIES, SIDE
from small_flow import KEY, asked, small
from torch.testing import assert_close

from tandem import rng
from tandem.dynamics.kernels import ode
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.sampling import start_noise

STEPS = 3
TEXTS = ("red", "a green square on grey")
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


@pytest.mark.parametrize("name", FAMILIES)
def test_it_paints_what_its_own_pipeline_paints(name, tmp_path):
    """By the folder's own noise levels, from the same noise, with and without guidance."""
    family = FAMILIES[name]
    torch.manual_seed(0)
    pipeline = family.pipeline()
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(tmp_path)
    adapter = family.make(width=family.wide)
    negative = "ugly" if family.negative else ""
    policy = small(path=str(tmp_path), adapter=adapter, negative_prompt=negative)
    levels, _ = adapter.own_levels(STEPS, adapter.tokens[0])
    keys = rng.key(KEY, torch.arange(2), torch.zeros(2, dtype=torch.int64))
    starts = start_noise(keys, adapter.latent_shape)
    size = {"height": SIDE, "width": family.wide}
    for scale in (1.0, 3.0) if family.scale else (1.0,):
        sampling = FlowSampling(
            steps=STEPS, kernel=ode, schedule=lambda *_: levels, guidance_scale=scale
        )
        rollout = policy.sample(asked(TEXTS), 1, key=KEY, slots=range(2), sampling=sampling)
        with torch.no_grad():
            own = family.painted(pipeline, TEXTS, starts, scale=scale, steps=STEPS, size=size)
        latents, shown = own
        assert latents.std() > 0.1
        assert_close(rollout.sample.x0, latents, atol=1e-5, rtol=1e-5)
        pixels = (255 * shown.movedim(-3, -1)).round()
        assert (torch.stack(rollout.outputs) - pixels).abs().max() <= 1
