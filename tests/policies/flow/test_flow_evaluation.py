"""Flow policies are evaluated with the ODE and with the training sampler, on the same noise."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from small_flow import KERNELS, small
from torch import distributed as dist
from torch import multiprocessing

from tandem import rng
from tandem.config import ConfigError, check, compose
from tandem.data.shapes import Pictures as Demonstrations
from tandem.data.shapes import shapes
from tandem.data.shapes_drawn import renderings
from tandem.dynamics.decays import EmaSchedule, constant
from tandem.dynamics.kernels import ode
from tandem.dynamics.steps import random_steps
from tandem.evaluation.evaluate import evaluate
from tandem.evaluation.image_collapse import MEASURES
from tandem.evaluation.settings import Pictures
from tandem.experience import Experience
from tandem.rewards import Reward, Rewards
from tandem.rewards.images import diversity, nearest_rendering
from tandem.settings.failures import save_failure
from tandem.types import Scores

SETTINGS = Pictures(
    every=1, prompts=None, samples=3, pass_at=(2,), threshold=0.5, rows=2, columns=2, steps=4,
    guidance_scale=1.0,
)  # fmt: skip
KEY = rng.key(0, "eval")
HELD_OUT = "blue circle"
PROMPTS = [
    prompt
    for prompt in shapes(
        demonstrations=Demonstrations(count=1), held_out=[HELD_OUT], seed=0
    ).eval  # four of the twelve, so that it is quick
    if prompt.text in ("red circle", "green square", HELD_OUT, "yellow triangle")
]


def brightness(output, prompt):
    return output.double().mean().item() / 255


def judges():
    near = partial(nearest_rendering, renderings=renderings())
    return Rewards({"near": Reward(near), "bright": Reward(brightness, weight=0.5)})


def measure_policy(policy, settings=SETTINGS, *, full=False, prompts=PROMPTS):
    return evaluate(
        policy, judges(), prompts, settings, key=KEY, full=full, stop=lambda: False
    )  # fmt: skip


def by_hand(policy, sampling, samples=3):
    """The images of each prompt, sampled one prompt at a time."""
    return {
        p.text: policy.sample([p], samples, key=KEY, slots=[p.id], sampling=sampling)
        for p in PROMPTS
    }


def test_without_a_threshold_no_picture_is_right_or_wrong():
    policy, settings = small(), replace(SETTINGS, pass_at=())
    judged = measure_policy(policy, settings).metrics
    unjudged = measure_policy(policy, replace(settings, threshold=None)).metrics
    left = {name: value for name, value in judged.items() if "accuracy" not in name}
    assert unjudged == left
    assert {"eval/accuracy", "eval/accuracy_sampled"} <= judged.keys() - left.keys()


def test_the_numbers_are_those_of_the_pictures_under_the_ode_and_as_trained():
    policy = small(sampling={"shared_noise": True})
    settings = replace(SETTINGS, metric="bright", threshold=0.49)
    got = measure_policy(policy, settings, full=True).metrics
    clean = replace(policy.sampling, kernel=ode, steps=4, shared_noise=False)
    for end, sampling in (("", clean), ("_sampled", policy.sampling)):
        seen = by_hand(policy, sampling)
        bright = {
            text: torch.stack(one.outputs).double().mean((1, 2, 3)) / 255
            for text, one in seen.items()
        }
        near = {text: scores_of(one) for text, one in seen.items()}
        reward = {text: near[text] + 0.5 * bright[text] for text in seen}
        right = {text: (one >= 0.49).double().mean().item() for text, one in bright.items()}
        assert got[f"eval/accuracy{end}"] == pytest.approx(sum(right.values()) / 4)
        assert 0 < got[f"eval/accuracy{end}"] < 1
        mean = torch.cat([*reward.values()]).mean().item()
        assert got[f"eval/reward{end}"] == pytest.approx(mean, abs=1e-6)
        mean = torch.cat([*bright.values()]).mean().item()
        assert got[f"eval/reward_bright{end}"] == pytest.approx(mean, abs=1e-6)
        spreads = [diversity(one.outputs, one.group).total.item() for one in seen.values()]
        assert got[f"eval/diversity{end}"] == pytest.approx(sum(spreads) / 4)
        held = got[f"eval/accuracy{end}/held_out"]
        assert held == got[f"eval/accuracy{end}/held_out_blue_circle"]
        assert held == pytest.approx(right[HELD_OUT])
        others = [value for text, value in right.items() if text != HELD_OUT]
        assert got[f"eval/accuracy{end}/shown"] == pytest.approx(sum(others) / 3)
        assert got[f"eval/reward{end}/held_out"] == pytest.approx(
            reward[HELD_OUT].mean().item(), abs=1e-6
        )
        assert got[f"eval/missing{end}"] == 0
    assert got["eval/pass@2"] >= got["eval/accuracy"]
    assert not any("length" in name or "greedy" in name for name in got)


def test_what_pictures_look_like_is_measured_under_the_ode():
    policy = small()
    got = measure_policy(policy).metrics
    seen = by_hand(policy, replace(policy.sampling, kernel=ode, steps=4))
    for name, measure in MEASURES.items():
        each = torch.stack([measure(picture) for one in seen.values() for picture in one.outputs])
        assert got[f"eval/{name}"] == pytest.approx(each.mean().item())
        assert f"eval/{name}_sampled" not in got
        assert each.std() > 0


def scores_of(rollout):
    near = nearest_rendering(list(rollout.outputs), list(rollout.prompts), renderings=renderings())
    return torch.tensor(near, dtype=torch.float64)


def test_evaluations_differ_by_the_weights_alone():
    """Not by the iteration, although it determines the random steps in training."""
    policy = small(sampling={"stochastic": partial(random_steps, num_sde_steps=2)}, steps=8)
    once = measure_policy(policy)
    policy.iteration = 7
    again = measure_policy(policy, prompts=PROMPTS[::-1])
    assert once.metrics == pytest.approx(again.metrics, abs=1e-7)
    assert len(once.rows) == 8
    for row, same in zip(once.rows, measure_policy(policy).rows, strict=True):
        assert torch.equal(row["output"], same["output"])
    chosen = {random_steps(8, iteration, 0, num_sde_steps=2) for iteration in (0, 7)}
    assert len(chosen) == 2  # otherwise the iteration would not matter anyway
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.01)
    moved = measure_policy(policy).metrics
    assert moved["eval/reward"] != once.metrics["eval/reward"]
    assert moved["eval/reward_sampled"] != once.metrics["eval/reward_sampled"]


@pytest.mark.parametrize("weights", ["live", "ema"])
def test_the_weights_are_those_of_evaluation_whichever_sample_in_training(weights):
    """Live, averaged and old weights differ; training samples with the old ones."""
    following = {"old": EmaSchedule(decay=partial(constant, decay=0.5))}
    policy = small(
        sampling={"weights": "old"}, snapshots=following, ema=partial(constant, decay=1.0)
    )
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.02)
    policy.notify("update")
    got = measure_policy(policy, replace(SETTINGS, weights=weights)).metrics
    rewards = {}
    for name in ("live", "ema", "old"):
        for end, kernel in (("", ode), ("_sampled", policy.sampling.kernel)):
            by = replace(policy.sampling, kernel=kernel, steps=5 if end else 4, weights=name)
            outputs = [one.outputs for one in by_hand(policy, by).values()]
            bright = torch.stack([picture for some in outputs for picture in some]).double()
            rewards[name, end] = bright.mean().item() / 255
    assert len(set(rewards.values())) == 6
    for end in ("", "_sampled"):
        assert got[f"eval/reward_bright{end}"] == pytest.approx(rewards[weights, end], abs=1e-6)


def test_the_table_has_the_first_pictures_of_the_first_prompts_of_both_kinds():
    rows = measure_policy(small()).rows
    kinds = [(row["kind"], row["prompt"]) for row in rows]
    first = [p.text for p in PROMPTS[:2]]
    assert kinds == [(k, p) for k in ("eval", "sampled") for p in first for _ in range(2)]
    policy = small()
    clean = by_hand(policy, replace(policy.sampling, kernel=ode, steps=4))
    assert all(
        torch.equal(row["output"], clean[row["prompt"]].outputs[i % 2])
        for i, row in enumerate(rows[:4])
    )


def test_a_policy_that_samples_by_the_ode_is_measured_once():
    got = measure_policy(small(sampling={"kernel": ode})).metrics
    assert "eval/accuracy" in got
    assert not any("_sampled" in name for name in got)


def test_one_picture_of_a_prompt_has_no_diversity():
    got = measure_policy(small(), replace(SETTINGS, samples=1)).metrics
    assert not any("diversity" in name for name in got)
    assert "eval/reward_sampled" in got


@pytest.mark.parametrize(
    "wrong", ["steps=0", "guidance_scale=0.5", "columns=0", "resolution=0", "frames=0"]
)
def test_numbers_below_one_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"evaluation.{wrong}: must be at least 1"):
        check(compose(["model=tiny_flow", f"evaluation.{wrong}"]))


def test_diversity_of_training_is_that_of_drawn_pictures():
    policy = small(sampling={"kernel": KERNELS["cps"]})
    rollout = policy.sample(PROMPTS, 3, key=1, slots=range(4))
    spread = diversity(rollout.outputs, rollout.group)
    want = torch.stack(rollout.outputs).double().div(127.5).view(4, 3, -1).std(1).mean()
    assert spread.total / spread.count == pytest.approx(want.item())


def test_a_failed_update_keeps_its_pictures(tmp_path):
    rollout = small().sample(PROMPTS[:2], 2, key=1, slots=range(2))
    total = torch.zeros(4)
    batch = Experience(
        rollout=rollout,
        scores=Scores(total=total, parts={}, scored=total.bool()),
        advantages=torch.zeros(rollout.mask.shape),
    )
    folder = save_failure(tmp_path, batch, {"iteration": 3, "update": 1, "rank": 0})
    kept = load_file(folder / "batch.safetensors")
    for row, output in enumerate(rollout.outputs):
        assert torch.equal(kept[f"output.{row}"], output)
    assert '"score": 0.0' in (folder / "batch.json").read_text()


def _on_rank(rank: int, port: int, result) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    result[rank] = measure_policy(small(), prompts=PROMPTS[:3]).metrics
    dist.destroy_process_group()


@pytest.mark.system
def test_ranks_see_the_pictures_of_one_another(free_port):
    result = multiprocessing.get_context("fork").Manager().dict()
    multiprocessing.start_processes(_on_rank, (free_port, result), nprocs=2, start_method="fork")
    want = measure_policy(small(), prompts=PROMPTS[:3]).metrics
    assert {f"eval/{name}" for name in MEASURES} < want.keys()
    assert result[0] == result[1] == pytest.approx(want)
