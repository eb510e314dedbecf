"""Recipes of papers: their commands compose, have the papers' numbers, and are on their page."""

from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hydra.utils import instantiate
from torch.testing import assert_close

from benchmarks.published import PAPERS
from tandem.config import check, compose
from tandem.policies.flow.solvers import noise_levels

ROOT = Path(__file__).resolve().parent.parent
GIVEN = ("model.path=models/its", "data.path=prompts")


def test_the_page_has_every_command_and_no_other_recipe_lies_beside_them():
    page = (ROOT / "docs" / "published.md").read_text()
    words = {word for paper in PAPERS for word in paper.command}
    assert all(" ".join(paper.command) in page for paper in PAPERS)
    there = {f"recipe=papers/{p.stem}" for p in (ROOT / "conf/recipe/papers").glob("*.yaml")}
    assert there == {word for word in words if word.startswith("recipe=")}


def test_a_command_of_one_device_shards_nothing():
    assert all("trainer=fsdp2" not in paper.on(1) for paper in PAPERS)
    assert PAPERS[0].on(8)[-2:] == ("trainer=fsdp2", "trainer.devices=8")
    page = (ROOT / "docs" / "published.md").read_text()
    assert not any("trainer=fsdp2" in row for row in page.splitlines() if "| 1 x " in row)


def numbers(words):
    cfg = compose([*words, *GIVEN])
    check(cfg)
    return cfg


def of_recipe(name):
    (paper,) = (p for p in PAPERS if f"recipe=papers/{name}" in p.words)
    return numbers(paper.command)


def test_one_of_them_has_the_numbers_of_its_paper():
    cfg = of_recipe("nft_ocr_sd3_5_medium")
    old = cfg.algorithm.ema.old.decay
    assert (cfg.algorithm.loss.beta, cfg.num_minibatches, cfg.prompts_per_step) == (0.1, 2, 48)
    assert (old.flat, old.start, old.slope, old.decay) == (75, 0.0, 0.0075, 0.999)
    assert cfg.algorithm.kl.coef == 1e-4 and cfg.optimizer.lr == 3e-4 and cfg.group_size == 24
    assert cfg.optimizer.weight_decay == 1e-4 and cfg.model.adapter.max_sequence_length == 128


def test_diffusion_nft_samples_and_trains_the_levels_of_sd3s_own_scheduler():
    cfg = of_recipe("nft_ocr_sd3_5_medium")
    schedule, solver = instantiate(cfg.dynamics.schedule), instantiate(cfg.dynamics.solver)
    own = FlowMatchEulerDiscreteScheduler(shift=3.0)
    own.set_timesteps(cfg.rollout.steps)
    levels = noise_levels(solver, schedule(cfg.rollout.steps, 1024))
    assert_close(levels, own.sigmas, atol=1e-3, rtol=0)


def test_rewards_that_a_paper_adds_have_its_units():
    cfg = of_recipe("nft_multi_sd3_5_medium")
    clip = cfg.reward.clip_score
    assert clip.weight * clip.function.factor == pytest.approx(1)  # the cosine
    assert cfg.reward.pickscore.function.divisor == 26


def test_flow_grpos_noise_for_video_is_the_second_level_times_the_level():
    cfg = of_recipe("flow_grpo_ocr_wan2_1_1_3b")
    levels = instantiate(cfg.dynamics.schedule)(cfg.rollout.steps, 1024)
    sigma, after = levels[3:4], levels[4:5]
    step = instantiate(cfg.dynamics.kernel)(torch.zeros(1, 1), torch.zeros(1, 1), sigma, after)
    assert_close(step.std, levels[1] * sigma * (sigma - after).sqrt(), atol=0, rtol=1e-5)


def test_the_video_reward_reads_two_frames_per_second_in_pairs():
    video, frames_per_second = of_recipe("dance_grpo_vq_hunyuan_video"), 8
    seconds = video.model.adapter.frames / frames_per_second
    assert video.reward.video_align.function.frames == 2 * round(2 * seconds / 2)


def test_runs_of_several_updates_per_rollout_have_as_many_rollouts_as_there():
    video, image = (
        of_recipe("dance_grpo_vq_hunyuan_video"),
        of_recipe("flow_grpo_unified_reward_qwen_image"),
    )
    assert (video.iterations, video.num_minibatches) == (202, 2)
    assert image.iterations == 3 * 10_000 // image.prompts_per_step
    assert image.dynamics.schedule._target_.endswith("linear_shift")
    assert image.dynamics.schedule.shift == 3 and image.model.adapter.resolution == 720
    assert image.algorithm.advantage.of.scale._target_.endswith("unbiased_std")


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS, ids=lambda p: f"{p.task} {p.model} {p.words[0]}")
def test_every_command_composes_and_binds(paper):
    cfg = numbers(paper.command)
    recipe = [word for word in paper.words if word.startswith("recipe=")]
    assert not recipe or recipe == [f"recipe={cfg.choices.recipe}"]


# From config/grpo.py of yifan123/flow_grpo: function -> coefficient of the KL, clip, noise.
FLOW_GRPO = {
    ("OCR", "sd3_5_medium"): (0.04, 1e-4, 0.7),
    ("GenEval", "sd3_5_medium"): (0.04, 1e-4, 0.7),
    ("PickScore", "sd3_5_medium"): (0.01, 1e-4, 0.7),
    ("PickScore", "flux1_dev"): (0.0, 1e-4, 0.9),
    ("GenEval", "flux1_dev"): (0.0, 1e-5, 0.8),
    ("OCR", "wan2_1_1_3b"): (0.004, 1e-3, 0.98276),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", FLOW_GRPO, ids=" ".join)
def test_flow_grpos_have_its_numbers(place):
    (paper,) = (
        p for p in PAPERS if (p.task, p.model) == place and "algorithm=flow_grpo" in p.words
    )
    cfg, (kl, clip, noise) = numbers(paper.command), FLOW_GRPO[place]
    assert cfg.algorithm.kl.coef == kl
    assert cfg.algorithm.loss.clip_low == pytest.approx(clip, rel=0.05)
    assert cfg.dynamics.kernel.noise_level == noise
