"""Every preset improves the embedded models. Minutes, not seconds: `pytest -m slow`."""

import json
from pathlib import Path

import pytest
import torch
from matrix import OF_EPISODES, OF_PAIRS, ticks

import tandem
from tandem.config import build
from tandem.dynamics.kernels import ode
from tandem.launch.answers import configuration, load_policy
from tandem.policies.flow.records import FlowSampling

TRAINED = {(model, preset) for model, preset, _ in ticks()}
GIVEN = {*OF_PAIRS, "sft"}  # these sample nothing
BUDGET = {"tiny_lm": 30.0, "tiny_flow": 80.0}  # CPU-seconds of training
ITERATIONS = {"ppo": 40}  # instead of 60: a critic and four epochs cost more
UNTRIED = {"dance_grpo"}  # on texts, although nothing in it is specific to images
TAUGHT = "diffusion_opd"
OF_FEW_STEPS = {"dmd2", "tdm"}  # these learn to paint what many steps paint
BY_TEACHER = {
    "gkd",
    "minillm",
    "opd",
    "sdft",
    "sdpo",
}  # these learn from another model, not from the reward
HARDLY = {"passk"}  # hardly learns there, as its recipe says
WITHOUT_NOISE = {"dpo_online"}  # tuned on whole pictures
OF_PATCHES = (  # few steps were tuned on a transformer, with a reward tolerant of its edges
    "reward=nearest_rendering", "~model.adapter.channels",
    "model.adapter={_target_:tandem.policies.flow.families.tiny_flow.TinyFlow,num_layers:3}",
)  # fmt: skip
ITS_START = ("schedule=cosine", "schedule.final=0.05", "iterations=300", "optimizer.lr=1.2e-2")
# Evaluations take place at both ends only, outside of the budget.
ENDS = ("evaluation.every=1000", "evaluation.pass_at=[1]")


def sample(model: str) -> list[str]:
    others = {*GIVEN, *OF_EPISODES}
    return sorted(preset for at, preset in TRAINED if at == model and preset not in others)


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def train(folder: Path, *overrides: str, model: str = "tiny_lm") -> tuple[dict, dict]:
    """The evaluations before and after training; fails if training took too long."""
    tandem.train(f"model={model}", *overrides, *ENDS, f"run_dir={folder}")
    spent = [line["time/cpu"] for line in lines(folder, "timing.jsonl") if "time/train" in line]
    assert spent[-1] - spent[0] < BUDGET[model]
    evaluations = [line for line in lines(folder, "metrics.jsonl") if "eval/accuracy" in line]
    return evaluations[0], evaluations[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [name for name in sample("tiny_lm") if name not in UNTRIED | BY_TEACHER]
)
def test_sampled_accuracy_rises_by_three_tenths(tmp_path, algorithm):
    before, after = train(
        tmp_path, f"algorithm={algorithm}", "data=sort_letters",
        f"iterations={ITERATIONS.get(algorithm, 60)}", "prompts_per_step=32",
    )  # fmt: skip
    assert after["eval/accuracy"] >= before["eval/accuracy"] + 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [name for name in sample("tiny_flow") if name not in OF_FEW_STEPS | HARDLY | {TAUGHT}],
)
def test_the_reward_of_pictures_rises_by_eight_hundredths(tmp_path, algorithm):
    """Under the ODE, from one cached warm start for all of them."""
    dynamics = ("dynamics=ode",) if algorithm in WITHOUT_NOISE else ()
    chosen = (f"algorithm={algorithm}", *dynamics)
    before, after = train(tmp_path, *chosen, model="tiny_flow")
    assert after["eval/reward"] >= before["eval/reward"] + 0.08


@pytest.mark.slow
def test_every_pair_comes_out_right_from_four_of_five_warm_starts_and_is_taught_on(tmp_path):
    """Including pairs that were never shown, such as a blue circle."""
    folders = [tmp_path / str(seed) for seed in range(5)]
    ends = [
        train(folder, "algorithm=nft", f"seed={seed}", model="tiny_flow")[1]
        for seed, folder in enumerate(folders)
    ]
    worst = [
        min(share for name, share in end.items() if name.startswith("eval/accuracy/"))
        for end in ends
    ]
    assert sorted(worst)[1] >= 0.9
    teacher = f"algorithm.teachers.folders={{others: {folders[0]}}}"
    student = (f"algorithm={TAUGHT}", teacher, "seed=1")
    before, after = train(tmp_path / "student", *student, model="tiny_flow")
    assert after["eval/reward"] >= before["eval/reward"] + 0.08


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "steps", "left"), [("dmd2", 1, 0.3), ("tdm", 2, 0.75)])
def test_few_steps_come_to_paint_what_fifty_do(tmp_path, algorithm, steps, left):
    """By the energy distance of their images, which does not use rewards."""
    start, end = tmp_path / "start", tmp_path / "end"
    train(start, "algorithm=sft", *OF_PATCHES, *ITS_START, model="tiny_flow")
    own = (f"algorithm={algorithm}", *OF_PATCHES, "warm_start=null", f"continue_from={start}")
    train(end, *own, model="tiny_flow")
    many, again = (paint(start, 50, key) for key in (1, 2))
    before, after = (energy_distance(many, paint(x, steps, 2)) for x in (start, end))
    assert 10 * energy_distance(many, again) < before
    assert after < left * before


@torch.no_grad()
def paint(folder: Path, steps: int, key: int) -> torch.Tensor:
    """Images from that many steps of the ODE, 48 per prompt: [prompts, 48, D]."""
    cfg = configuration(folder)
    policy, prompts = load_policy(folder, cfg), build(cfg.data).eval
    schedule = policy.sampling.schedule
    sampling = FlowSampling(steps=steps, kernel=ode, schedule=schedule)
    rows = policy.sample(prompts, 48, key=key, slots=range(len(prompts)), sampling=sampling)
    return rows.sample.x0.view(len(prompts), 48, -1)


def energy_distance(one: torch.Tensor, two: torch.Tensor) -> float:
    """2 E|x - y| - E|x - x'| - E|y - y'|, of each prompt, and the mean over prompts."""
    count = one.shape[1]
    pairs = count * (count - 1)
    within = sum(torch.cdist(x, x).sum((1, 2)) / pairs for x in (one, two))
    return float((2 * torch.cdist(one, two).mean((1, 2)) - within).mean())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(GIVEN - {"sft"}))
def test_pairs_are_told_apart_and_answers_stay_right(tmp_path, algorithm):
    before, after = train(tmp_path, f"algorithm={algorithm}", "data=sort_pairs")
    # Without a reference the initial model already ranks most pairs correctly.
    assert after["eval/pair_accuracy"] >= min(before["eval/pair_accuracy"] + 0.15, 0.99)
    assert after["eval/greedy_accuracy"] >= before["eval/greedy_accuracy"] - 0.05


@pytest.mark.slow
def test_demonstrations_make_clean_answers_likelier(tmp_path):
    """Held-out answers, after noisy demonstrations."""
    short = ("algorithm=sft", "data=sort_letters", "schedule=constant", "warm_start=null")
    start, end = (
        negative_log_likelihood(tmp_path / str(iterations), *short, f"iterations={iterations}")
        for iterations in (1, 60)
    )
    assert end < 0.7 * start


def negative_log_likelihood(folder: Path, *overrides: str) -> float:
    """Nats per token of the right answers to the held-out prompts."""
    tandem.train(*overrides, "evaluation.every=null", f"run_dir={folder}")
    cfg = configuration(folder)
    policy, prompts = load_policy(folder, cfg), build(cfg.data).eval
    rows = policy.encode(prompts, key=0, slots=range(len(prompts)))
    with torch.no_grad():
        logp = policy.evidence(rows, frozenset()).logp
    return float(-logp.sum() / rows.mask.sum())
