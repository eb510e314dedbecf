import itertools
import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing

from tandem import rng
from tandem.evaluation.evaluate import choose_held_out, evaluate
from tandem.evaluation.prompt_metrics import pass_at
from tandem.evaluation.settings import Answers
from tandem.policies.language.records import Sampling
from tandem.rewards import Reward, Rewards
from tandem.types import Prompt, Rollout

SETTINGS = Answers(every=1, prompts=None, samples=4, temperatures=(1.0, 0.3), pass_at=(1, 8, 64))
SKILL = {"easy": 0.9, "hard": 0.1}  # chance of a right answer at T = 1
KEY = rng.key(0, "eval")


class Skilled:
    """Answers right, wrong, or with a question mark that no reward can score, by keyed chance."""

    def __init__(self, unclear: float = 0.0) -> None:
        self.sampling = Sampling(max_new_tokens=9, max_rows=64)
        self.unclear = unclear
        self.asked: list[tuple[float, int, int]] = []  # temperature, prompts, samples of each

    def ready(self) -> None:
        self.asked.clear()

    def summon_full_params(self, sampling):
        return nullcontext()

    def sample(self, prompts, group_size, *, key, slots, sampling) -> Rollout:
        self.asked.append((sampling.temperature, len(prompts), group_size))
        group = torch.tensor(slots).repeat_interleave(group_size)
        owners = tuple(p for p in prompts for _ in range(group_size))
        chance = rng.uniform(rng.key(key, group, torch.arange(group_size).repeat(len(prompts))))
        outputs = tuple(
            map(self.answer, chance.tolist(), owners, [sampling.temperature] * len(owners))
        )
        length = torch.tensor([len(output) for output in outputs])
        return Rollout(
            sample=None, outputs=outputs, prompts=owners, group=group, length=length,
            mask=torch.arange(9) < length[:, None], truncated=length == 1,
        )  # fmt: skip

    def answer(self, chance: float, prompt: Prompt, temperature: float) -> str:
        skill = SKILL[prompt.source]
        if temperature == 0:
            return "right" if skill > 0.5 else "wrong"
        if chance < self.unclear:
            return "?"
        return "right" if chance < skill ** max(temperature, 0.5) else "wrong"

    def describe_prompt(self, prompt: Prompt) -> str:
        return f"<{prompt.text}>"

    def describe_steps(self, rollout, row):
        return ()


def judge(output: str, prompt: Prompt) -> float | None:
    return None if output == "?" else float(output == prompt.answer)


def rewards() -> Rewards:
    return Rewards({"exact": Reward(judge, weight=2.0), "short": Reward(lambda o, p: -len(o))})


def prompts(count: int = 20) -> list[Prompt]:
    sources = ["easy", "hard"]
    return [
        Prompt(id=100 + i, source=sources[i % 2], text=str(i), answer="right") for i in range(count)
    ]


def run(policy=None, asked=None, settings=SETTINGS, *, full=False, stop=lambda: False, judges=None):
    return evaluate(
        policy or Skilled(), judges or rewards(), asked or prompts(), settings,
        key=KEY, full=full, stop=stop,
    )  # fmt: skip


@pytest.mark.parametrize("correct", range(8))
@pytest.mark.parametrize("k", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(correct, k):
    tries = [True] * correct + [False] * (7 - correct)
    subsets = list(itertools.combinations(tries, k))
    want = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at(7, correct, k) == pytest.approx(want, abs=1e-15)


def test_pass_at_more_than_was_tried_is_unknown():
    assert math.isnan(pass_at(7, 7, 8))


def test_the_numbers_are_those_of_the_answers():
    """Recounted from the texts, sample by sample."""
    policy, asked = Skilled(), prompts()
    answers = {
        p.id: policy.sample([p], 4, key=KEY, slots=[p.id], sampling=policy.sampling).outputs
        for p in asked
    }
    right = {p.id: answers[p.id].count("right") / 4 for p in asked}
    found = run(policy, asked)
    assert found.prompts["eval/accuracy"] == list(right.values())
    assert set(found.prompts) == {
        *("eval/greedy_accuracy", "eval/accuracy", "eval/reward", "eval/accuracy_t0.3"),
        *("eval/reward_exact", "eval/reward_short"),
    }
    assert found.prompts["eval/reward_exact"] == found.prompts["eval/accuracy"]
    got = found.metrics
    assert got["eval/greedy_accuracy"] == 0.5
    assert got["eval/accuracy"] == pytest.approx(sum(right.values()) / 20)
    for source in ("easy", "hard"):
        shares = [right[p.id] for p in asked if p.source == source]
        assert got[f"eval/accuracy/{source}"] == pytest.approx(sum(shares) / 10)
    assert got["eval/length"] == 5.0
    assert got["eval/truncated"] == 0.0
    assert got["eval/missing"] == 0.0
    assert got["eval/reward"] == pytest.approx(2 * got["eval/accuracy"] - 5)
    assert got["eval/accuracy_t0.3"] > got["eval/accuracy"]
    assert not any("pass@" in name for name in got)


def test_both_ends_of_a_run_count_tries_from_the_same_samples():
    policy = Skilled()
    got = run(policy, full=True).metrics
    assert got["eval/pass@1"] == pytest.approx(got["eval/accuracy"])
    assert got["eval/pass@1"] < got["eval/pass@8"] < got["eval/pass@64"]
    assert got["eval/pass@64/easy"] == 1.0
    sources = (got["eval/pass@64/easy"] + got["eval/pass@64/hard"]) / 2
    assert got["eval/pass@64"] == pytest.approx(sources)
    samples = {0.0: 0, 1.0: 0, 0.3: 0}
    for temperature, asked, of_each in policy.asked:
        samples[temperature] += asked * of_each
    assert samples == {0.0: 20, 1.0: 20 * 64, 0.3: 20 * 4}
    assert {of_each for t, _, of_each in policy.asked if t == 1.0} == {64}  # one prefill for all 64


def test_a_missing_score_is_left_out_and_counted():
    policy, judges = Skilled(unclear=0.05), rewards()
    got = run(policy, judges=judges, full=True)
    clear, unclear = Skilled(), 0
    right, known = [], []
    for p in prompts():
        said = policy.sample([p], 64, key=KEY, slots=[p.id], sampling=clear.sampling).outputs
        right.append(said.count("right"))
        known.append(64 - said.count("?"))
        unclear += said.count("?")
    assert unclear > 0
    assert got.metrics["eval/missing"] == unclear
    want = sum(r / k for r, k in zip(right, known, strict=True)) / 20
    assert got.metrics["eval/accuracy"] == pytest.approx(want)
    assert got.metrics["eval/truncated"] == pytest.approx(unclear / (20 * 64))
    complete = [i for i, k in enumerate(known) if k == 64]
    want = sum(pass_at(64, right[i], 64) for i in complete) / len(complete)
    assert got.metrics["eval/pass@64"] == pytest.approx(want)
    assert list(got.faults) == ["exact: gave none"]
    assert got.faults["exact: gave none"] > unclear  # the second temperature misses some too
    assert judges.pop_faults() == {}  # training's own count starts at nothing


def test_a_prompt_nobody_can_judge_is_no_zero():
    got = run(Skilled(unclear=1.0)).metrics
    assert math.isnan(got["eval/accuracy"])
    assert got["eval/missing"] == 80
    assert got["eval/greedy_accuracy"] == 0.5


def test_another_reward_part_and_threshold_can_say_what_is_correct():
    settings = replace(SETTINGS, metric="short", threshold=-5.0)
    assert run(settings=settings).metrics["eval/accuracy"] == 1.0


def test_noise_belongs_to_the_prompt_not_to_its_place():
    every = run(settings=replace(SETTINGS, rows=99))
    few = run(asked=prompts()[7:3:-1], settings=replace(SETTINGS, rows=99))
    outputs = {(r["kind"], r["prompt"]): r["output"] for r in every.rows}
    assert len(few.rows) == 8
    assert all(outputs[r["kind"], r["prompt"]] == r["output"] for r in few.rows)
    assert run().metrics == run().metrics


def test_the_table_shows_greedy_and_sampled_answers_of_the_first_prompts():
    rows = run(settings=replace(SETTINGS, rows=3)).rows
    assert [(r["kind"], r["prompt"]) for r in rows] == [
        (kind, f"<{i}>") for kind in ("greedy", "eval") for i in range(3)
    ]
    assert rows[0] == {
        "kind": "greedy", "source": "easy", "prompt": "<0>", "output": "right", "answer": "right",
        "reward": -3.0, "parts": {"exact": 1.0, "short": -5.0}, "length": 5, "truncated": False,
    }  # fmt: skip


def test_it_stops_between_batches_when_told_to():
    policy = Skilled()
    assert run(policy, full=True, stop=lambda: len(policy.asked) == 3) is None
    assert len(policy.asked) == 3


def test_a_choice_of_prompts_is_the_same_every_time_and_mixed():
    chosen = choose_held_out(prompts(), 8)
    assert chosen == choose_held_out(prompts(), 8)
    assert len({p.id for p in chosen}) == 8
    assert {p.source for p in chosen} == {"easy", "hard"}
    assert choose_held_out(prompts(), None) == choose_held_out(prompts(), 99) == prompts()


@pytest.mark.parametrize("temperatures", [(), (1.0, 0.0)])
def test_temperatures_must_sample(temperatures):
    with pytest.raises(ValueError, match="greedy answers are always measured"):
        replace(SETTINGS, temperatures=temperatures)


def _on_rank(rank: int, port: int, result) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    policy = Skilled()
    odd = prompts(19)
    measured = run(policy, odd, full=True)
    # One rank is told to stop: the other must neither wait for it nor use half of the answers.
    stopped = run(asked=odd, stop=lambda: rank == 1)
    asked = sum(n for t, n, _ in policy.asked if t == 0)
    result[rank] = measured.metrics, list(measured.rows), asked, stopped
    dist.destroy_process_group()


@pytest.mark.system
def test_ranks_share_the_prompts_and_agree(free_port):
    result = multiprocessing.get_context("fork").Manager().dict()
    multiprocessing.start_processes(_on_rank, (free_port, result), nprocs=2, start_method="fork")
    want = run(asked=prompts(19), full=True)
    assert result[0] == (want.metrics, want.rows, 10, None)
    assert result[1] == (want.metrics, want.rows, 9, None)
    assert len(want.rows) == 2 * 16


def test_a_dataset_is_right_by_its_own_reward_and_reported_under_its_heading():
    def halves(prompt):
        own = int(prompt.id) % 4 < 2
        headings = ("a", "a/both") if own else "b"
        rewards = ("exact",) if own else ("never", "exact")
        return replace(prompt, rewards=rewards, fields={"reported_with": headings})

    never = Reward(lambda output, prompt: None if output == "?" else 0.0)
    judges = Rewards({"exact": Reward(judge), "never": never})
    found = run(asked=[halves(prompt) for prompt in prompts()], judges=judges).metrics
    alone = run(asked=[p for p in prompts() if p.id % 4 < 2], judges=judges).metrics
    assert found["eval/accuracy/a"] == found["eval/accuracy/a/both"] == alone["eval/accuracy"] > 0
    assert found["eval/accuracy/b"] > 0  # by the first reward of all, which judges it too
    assert found["eval/missing"] == 0
    other = {"b": ("never",), "a": ("exact",)}
    asked = [replace(p, rewards=other["a" if p.id % 4 < 2 else "b"]) for p in prompts()]
    apart = run(asked=asked, judges=judges)
    assert apart.metrics["eval/missing"] == 0
    assert apart.metrics["eval/accuracy"] == pytest.approx(alone["eval/accuracy"] / 2)
    assert apart.faults == {}


def test_a_prompt_counts_once_under_a_name_however_often_it_has_it():
    """Its own source is such a name, and a list may repeat one."""

    class Knows(Skilled):
        def answer(self, chance, prompt, temperature):
            return "right" if prompt.id == 100 else "wrong"

    fields = {"reported_with": ("easy", "all", "all")}
    asked = [replace(p, source="easy", fields=fields if p.id == 100 else {}) for p in prompts(3)]
    asked[1] = replace(asked[1], fields={"reported_with": "all"})
    found = run(Knows(), asked).metrics
    assert found["eval/accuracy/easy"] == pytest.approx(1 / 3)
    assert found["eval/accuracy/all"] == pytest.approx(1 / 2)
