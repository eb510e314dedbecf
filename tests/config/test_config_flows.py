"""Compositions of flows that are refused, each with its line, and the values of units."""

import shlex

import pytest
import torch
from gate import each

from tandem.config import ConfigError, check, compose

WRONG = {
    "algorithm=gardo algorithm.kl.kl_target=0.1": (
        "algorithm.kl.kl_target=0.1 steers the mean KL of all samples, and "
        "algorithm/kl/gate=most_uncertain applies it to a part; set "
        "algorithm.kl.kl_target=null, or ~algorithm/kl/gate"
    ),
    "dynamics.kernel.noise_level=0": "dynamics.kernel.noise_level=0.0: must be positive",
    "dynamics=cps dynamics.kernel.noise_level=1.2": (
        "dynamics.kernel.noise_level=1.2: must be above 0, and 1 at most"
    ),
    "dynamics.schedule.shift=0": "dynamics.schedule.shift=0.0: must be positive",
    "algorithm=mix_grpo dynamics.stochastic.stride=0": (
        "dynamics.stochastic.stride=0: must be positive"
    ),
    "algorithm=mix_grpo dynamics.stochastic.stay.iterations=0": (
        "dynamics.stochastic.stay.iterations=0: must be positive"
    ),
    "algorithm=nft dynamics/solver=dpm_solver dynamics.solver.order=0": (
        "dynamics.solver.order=0: must lie in 1 ... 3"
    ),
    "evaluation/solver=dpm_solver evaluation.solver.order=4": (
        "evaluation.solver.order=4: must lie in 1 ... 3"
    ),
    "evaluation/solver=unipc evaluation.solver.order=0": (
        "evaluation.solver.order=0: must be at least 1"
    ),
    "model/ema=linear model.ema.decay=1.1": "model.ema.decay=1.1: must lie in 0 ... 1",
    "model/ema=linear model.ema.start=-1": "model.ema.start=-1.0: must lie in 0 ... 1",
    "algorithm=flow_dppo algorithm.loss.most=0": "algorithm.loss.most=0.0: must be positive",
    "algorithm=flow_grpo algorithm.advantage.of.eps=-1": (
        "algorithm.advantage.of.eps=-1.0: must not be negative"
    ),
    "algorithm.loss.clip_low=1e-7": (
        "algorithm.loss.clip_low=1e-07: below the rounding of a float32 ratio; set it to 5e-07 "
        "or more, or to 0"
    ),
    "algorithm.loss.clip_high=4.9e-7": (
        "algorithm.loss.clip_high=4.9e-07: below the rounding of a float32 ratio; set it to "
        "5e-07 or more, or to 0"
    ),
    "rollout.storage=float8": (
        "rollout.storage: expected 'float32' or 'bfloat16' or 'float16', got 'float8'"
    ),
    "algorithm=nft rollout.shared_noise=true": (
        "rollout.shared_noise=true on dynamics=ode: the samples of a prompt start from the same "
        "noise and take no random step, so all are equal; set rollout.shared_noise=false"
    ),
    "rollout.guidance_scale=0.5": "rollout.guidance_scale=0.5: must be at least 1",
    "evaluation.guidance_scale=0.5": "evaluation.guidance_scale=0.5: must be at least 1",
    "dynamics.kernel.noise_level=much": "dynamics.kernel.noise_level: expected float, got 'much'",
    "algorithm=mix_grpo reward=[colour_share,nearest_rendering] reward.colour_share.weight=.5": (
        "reward.colour_share.weight=0.5: by_part compares each reward separately and ignores "
        "weights of the sum; set it to 1, and "
        "algorithm.advantage.of.weights={colour_share:0.5,...}"
    ),
    "algorithm=mix_grpo reward=[colour_share,nearest_rendering] "
    "algorithm.advantage.of.weights={colour_share:1}": (
        "algorithm.advantage.of.weights: nearest_rendering is trained and has no weight; add "
        "nearest_rendering:1, or set reward.nearest_rendering.weight=0"
    ),
    "reward=[nearest_rendering,exact_match]": (
        "reward.exact_match reads texts, but model=tiny_flow makes pictures; choose a reward of "
        "pictures"
    ),
    "data=text data.path=a.txt": (
        "the warm start [algorithm=sft, schedule=cosine, schedule.final=0.05] needs "
        "demonstrations, and data=text has none; set warm_start=null, or continue_from=RUN"
    ),
    "algorithm=sft data=text data.path=a.txt": (
        "algorithm=sft learns from rows of data, and data=text has only prompts; set other "
        "data, or another algorithm"
    ),
    "rollout.steps=1": (
        "rollout.steps=1: a rollout of 1 step has no stochastic step, because the last one follows "
        "the ODE; use 2 steps or more"
    ),
    "algorithm=mix_grpo rollout.steps=4": (
        "rollout.steps=4 dynamics.stochastic.length=4: a window of 4 steps does not fit before "
        "the last of 4 steps; choose a length of 1 to 3"
    ),
    "dynamics/stochastic=random_steps dynamics.stochastic.sde_steps=[9]": (
        "rollout.steps=10: sde_steps=[9]: of 10 steps only 0 to 8 can be stochastic; the "
        "last one follows the ODE"
    ),
    "dynamics/schedule=linear_dynamic_shift dynamics.schedule.max_tokens=256": (
        "dynamics.schedule of rollout.steps=10: float division by zero"
    ),
    "dynamics/schedule=qwen_image dynamics.schedule.terminal=1.5": (
        "dynamics.schedule of rollout.steps=10: terminal=1.5 with 10 steps; it must lie in "
        "(0, 1), and needs at least 2 steps"
    ),
    "dynamics.schedule.shift=1e30": (
        "dynamics/schedule=linear_shift for rollout.steps=10 returned the noise levels "
        f"{[*[1.0] * 10, 0.0]}, not 11 (steps + 1) that fall strictly from 1 to exactly 0; correct "
        "the function or its numbers"
    ),
    "dynamics/schedule=diffusers_default dynamics.schedule.train_steps=0": (
        "dynamics.schedule.train_steps=0: must be positive"
    ),
    "evaluation.pass_at=[1] evaluation.threshold=null": (
        "evaluation.pass_at=[1] needs to know which pictures are correct; set "
        "evaluation.threshold, or evaluation.pass_at=[]"
    ),
}


def words_of(line):
    """A command line on the embedded flow; its default is an algorithm with random steps."""
    own = [] if "algorithm=" in line else ["algorithm=tempflow_grpo"]
    return ["model=tiny_flow", "~recipe", *own, *shlex.split(line)]


def test_the_steps_of_a_chain_are_named_by_the_key_of_its_painter():
    words = ["model=tiny_chain", "algorithm=grpo", "~recipe", "rollout.picture.steps=1"]
    with pytest.raises(ConfigError, match=r"^rollout\.picture\.steps=1: a rollout of 1 step has"):
        check(compose(words))


@pytest.mark.parametrize(("line", "answer"), each(2, WRONG.items()))
def test_a_contradictory_line_is_answered_by_the_check(line, answer):
    cfg = compose(words_of(line))
    with pytest.raises(ConfigError) as refused:
        check(cfg)
    assert str(refused.value) == answer


@pytest.mark.parametrize(
    "line",
    [
        "rollout.steps=2",
        "rollout.steps=1 algorithm=dpo_online dynamics=ode",
        "algorithm=mix_grpo rollout.steps=5",
        "data=text data.path=a.txt warm_start=null",
        "data=text data.path=a.txt continue_from=runs/mine",
        "algorithm.loss.clip_low=0",
        "algorithm.loss.clip_low=5e-7",
        "rollout.shared_noise=true",
        "rollout.shared_noise=true algorithm=mix_grpo",
        "rollout.shared_noise=true algorithm=nft algorithm/advantage=batch_relative group_size=1",
        "rollout.shared_noise=true algorithm=nft dynamics=flow_sde",
        "rollout.shared_noise=true algorithm=sft dynamics=ode",
        "dynamics=cps dynamics.kernel.noise_level=1",
        "dynamics.kernel.noise_level=1.2",
        "model/ema=linear model.ema.decay=1 model.ema.start=0",
        "algorithm=sft algorithm.objective=denoising algorithm/kl=regressed algorithm.kl.coef=.1",
    ],
)
def test_what_makes_sense_passes(line):
    check(compose(words_of(line)))


def flow(*line):
    return compose(words_of(shlex.join(line)))


@pytest.mark.parametrize(
    ("line", "unit"),
    [
        ("", 0.13),
        ("dynamics=dance_sde", 0.13),
        ("dynamics=cps", 0.013),
        ("dynamics=cps dynamics/logp=gaussian", 0.13),
        ("dynamics/logp=unscaled", 0.013),
    ],
)
def test_the_unit_of_a_clip_is_that_of_the_log_probability(line, unit):
    cfg = flow(*line.split())
    assert cfg.dynamics.clip_scale == pytest.approx(unit * cfg.model.latent_size**-0.5)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("model=sd3_5_medium model.adapter.width=768", 16 * 64 * 96),
        ("model=flux2_klein model.adapter.width=768", 128 * 32 * 48),
        ("model=sana_1_6b model.adapter.width=768", 32 * 32 * 24),
        ("model=wan2_2_5b model.adapter.resolution=640 model.adapter.width=null", 48 * 31 * 40**2),
        ("model=ltx_video", 128 * 21 * 16 * 22),
        ("model=ltx_2", (128 + 3) * 16 * 16 * 24),  # 3 channels hold 126 tokens of sound
    ],
)
def test_the_size_of_a_latent_counts_a_width_where_there_is_one(line, wanted):
    assert compose([*line.split(), "data.path=a.txt"]).model.latent_size == wanted


def test_a_sequence_clip_is_that_of_a_mean_over_the_steps_of_a_picture():
    assert compose(["algorithm=gspo", "~recipe"]).algorithm.loss.clip_low == pytest.approx(3e-4)
    for name, times in {"gspo": 3, "gspo_token": 3, "luspo": 20}.items():
        cfg = flow(f"algorithm={name}", "rollout.steps=16")
        one = 0.2 * cfg.dynamics.clip_scale / 4  # PPO's clip, of the mean of 16 independent steps
        assert cfg.algorithm.loss.clip_low == pytest.approx(times / 3 * one, rel=1e-3)


def test_numbers_of_ratios_of_finished_pictures_do_not_depend_on_the_sampler():
    """Velocity errors are the same for any sampler; `dynamics=ode` has no random steps at all."""
    numbers = {"sapo": {"width": 1.0}, "gspo": {"clip_low": 3e-4}}
    for loss, wanted in numbers.items():
        cfg = flow("algorithm=awm", f"algorithm/loss={loss}", "dynamics=cps")
        assert {name: cfg.algorithm.loss[name] for name in wanted} == pytest.approx(wanted)
    assert cfg.guards.first_update_ratio == 1e-4


def test_a_cap_on_the_ratio_is_as_far_from_1_as_its_unit_says():
    assert compose(["algorithm=cispo", "~recipe"]).algorithm.loss.ratio_max == 5
    cfg = flow("algorithm=cispo")
    assert cfg.algorithm.loss.ratio_max == pytest.approx(1 + 4 * cfg.dynamics.clip_scale)


def test_the_loss_of_a_critic_stands_in_the_unit_of_the_ratio_beside_it():
    assert compose(["algorithm=ppo", "~recipe"]).algorithm.critic.coef == pytest.approx(0.1)
    cfg = flow("algorithm=ppo")
    assert cfg.algorithm.critic.coef == pytest.approx(0.1 * 0.13 * cfg.model.latent_size**-0.5)


def test_no_flow_algorithm_clips_below_what_a_ratio_can_resolve_at_the_size_of_stable_diffusion():
    for name in ("gspo", "gspo_token", "luspo", "grpo_guard", "dance_grpo", "flow_grpo", "dapo"):
        check(compose(["model=sd3_5_large", f"algorithm={name}", "~recipe", "data.path=a.txt"]))


def solver(*line):
    kept = check(flow("algorithm=dpo_online", *line)).evaluation.solver
    return None if kept is None else kept.func.__name__


def test_pictures_are_evaluated_by_the_solver_that_trains_unless_another_is_chosen():
    by_heun = ("dynamics=ode", "dynamics/solver=heun")
    assert solver() is None
    assert solver(*by_heun) == "heun"
    assert solver(*by_heun, "evaluation/solver=unipc") == "unipc"
    assert solver(*by_heun, "evaluation/solver=euler") is None


def test_only_where_a_model_or_reward_says_so_is_a_picture_right():
    assert flow().evaluation.threshold == 0.5
    stable = compose(["model=sd3_5_medium", "data.path=a.txt"])
    assert check(stable).evaluation.threshold is None


def test_a_configuration_is_checked_alike_where_a_caller_computes_no_gradients():
    with torch.no_grad():
        assert check(flow("dynamics=flow_sde")).choices["dynamics"] == "flow_sde"
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("data", ["image_folder", "jsonl"])
@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_a_model_of_films_learns_from_no_files(algorithm, data):
    line = f"model=wan2_1_1_3b algorithm={algorithm} data={data} data.path=there"
    with pytest.raises(ConfigError, match=rf"makes films, which data={data} has none of; set an"):
        check(compose(line.split()))
    sampled = f"model=wan2_1_1_3b algorithm=flow_grpo data={data} data.path=there"
    check(compose(sampled.split()))
