"""Evaluation at another resolution, for families that support it."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_flow import KEY, make_prompts, small
from tiny_sd3 import write_pipeline
from torch.testing import assert_close

from tandem import rng
from tandem.config import ConfigError, check, compose
from tandem.dynamics.kernels import ode
from tandem.dynamics.schedules import linear_dynamic_shift
from tandem.evaluation.evaluate import evaluate
from tandem.evaluation.settings import Pictures
from tandem.launch.answers import sampling_of
from tandem.policies.flow.families.sd3 import SD3
from tandem.policies.flow.sampling import start_noise
from tandem.rewards import Reward, Rewards

SHIFTED = partial(linear_dynamic_shift, base_tokens=4, max_tokens=64, base_shift=0.5, max_shift=4.0)
SETTINGS = Pictures(
    every=1, prompts=None, samples=2, pass_at=(), threshold=None, rows=2, columns=2, steps=5,
    guidance_scale=1.0, resolution=24,
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pipeline(tmp_path_factory.mktemp("sd3") / "source")


@pytest.fixture(scope="module")
def make(folder, tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("cache"))

    def make(resolution=16, **sampling):
        adapter = SD3(resolution=resolution, max_sequence_length=16)
        sampling = {"schedule": SHIFTED} | sampling
        return small(path=str(folder), adapter=adapter, cache_dir=cache, sampling=sampling)

    return make


def test_a_policy_of_another_size_paints_what_one_of_that_size_paints(make):
    """With the noise and the noise levels of that size, which follow from the number of tokens."""
    small_one, large = make(16), make(24)
    assert (small_one.adapter.tokens[0], large.adapter.tokens[0]) == (16, 36)
    clean = SETTINGS.noiseless(small_one.sampling)
    got, want = (
        policy.sample(make_prompts()[:2], 2, key=KEY, slots=range(2), sampling=sampling)
        for policy, sampling in ((small_one, clean), (large, replace(clean, resolution=None)))
    )
    assert got.outputs[0].shape == (24, 24, 3)
    assert_close(got.sample.x0, want.sample.x0, rtol=0, atol=0)
    assert all(map(torch.equal, got.outputs, want.outputs))
    assert not torch.equal(SHIFTED(5, 16), SHIFTED(5, 36))


def test_it_paints_what_diffusers_paints_at_that_size(make, folder):
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    policy = make(16)
    levels = SHIFTED(5, 36)
    keys = rng.key(KEY, torch.arange(2), torch.zeros(2, dtype=torch.int64))
    want = pipeline(
        prompt=[prompt.text for prompt in make_prompts()[:2]],
        latents=start_noise(keys, (4, 12, 12)),
        # The scheduler shifts what it is given by 3.
        sigmas=(levels / (3 - 2 * levels))[:-1].double().numpy(),
        guidance_scale=1.0,
        max_sequence_length=16,
        height=24,
        width=24,
        output_type="latent",
    ).images
    sampling = SETTINGS.noiseless(policy.sampling)
    got = policy.sample(make_prompts()[:2], 1, key=KEY, slots=range(2), sampling=sampling)
    assert_close(got.sample.x0, want, atol=2e-5, rtol=1e-4)


def test_rewards_see_the_size_of_each_way_to_sample(make):
    def side(output, prompt):
        return float(output.shape[0])

    policy = make(16)
    found = evaluate(
        policy, Rewards({"side": Reward(side)}), make_prompts()[:2], SETTINGS, key=KEY, full=False,
        stop=lambda: False,
    )  # fmt: skip
    assert found.metrics["eval/reward"] == 24
    assert found.metrics["eval/reward_sampled"] == 16  # as it is trained
    sizes = {(row["kind"], row["output"].shape) for row in found.rows}
    assert sizes == {("eval", (24, 24, 3)), ("sampled", (16, 16, 3))}
    rows = sampling_of(policy, SETTINGS, {"resolution": 32})
    painted = policy.sample(make_prompts()[:1], 1, key=KEY, slots=[0], sampling=rows)
    assert painted.outputs[0].shape == (32, 32, 3)


@pytest.mark.parametrize(("resolution", "complaint"), [(18, "multiple of 4"), (64, "at most 32")])
def test_a_size_that_the_model_cannot_have_is_refused_with_the_prompts(make, resolution, complaint):
    policy = make(16, kernel=ode)
    passes = replace(SETTINGS, resolution=resolution).passes(policy.sampling, full=False)
    with pytest.raises(ValueError, match=rf"evaluation\.resolution={resolution} .* {complaint}"):
        policy.admit(make_prompts(), [one.sampling for one in passes])


def test_a_family_of_one_size_says_so_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="only makes 16 x 16 pixels; set evaluation"):
        check(compose(["model=tiny_flow", "evaluation.resolution=32"]))
    check(compose(["model=tiny_flow", "evaluation.resolution=16"]))
    with pytest.raises(ConfigError, match=r"evaluation\.resolution=0: must be at least 1"):
        check(compose(["model=tiny_flow", "evaluation.resolution=0"]))
    with pytest.raises(ValueError, match=r"evaluation\.resolution=32: tiny_flow generates 16 x 16"):
        small().adapter.canvas(32)


@pytest.mark.parametrize("key", ["resolution", "frames"])
@pytest.mark.parametrize("model", ["tiny_flow", "sd3_5_medium", "tiny_chain"])
def test_the_size_of_training_is_not_that_of_the_rollout(model, key):
    sampler = "rollout.picture" if model == "tiny_chain" else "rollout"
    given = [f"model={model}", "data=shapes", f"{sampler}.{key}=8"]
    with pytest.raises(ConfigError, match=rf"{sampler}\.{key}=8 .*; set model\.adapter\.{key}"):
        check(compose(given))


def test_a_row_that_asks_for_a_size_gets_the_latents_of_a_policy_of_that_size(make):
    policy = make(16)
    tall = SD3(resolution=24, width=16, max_sequence_length=16)
    tall.load(str(policy.adapter.folder), torch.float32)
    assert policy.adapter.canvas((24, 16)) == tall.canvas(None) != policy.adapter.canvas(None)
    with pytest.raises(ValueError, match=r"a size like model\.adapter\.resolution=18 does not fit"):
        policy.adapter.canvas((18, 16))
