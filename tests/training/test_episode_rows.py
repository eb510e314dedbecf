"""Rewards of episodes, move by move, as rewards of steps, and their metrics."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close
from two_ranks import on_both

from tandem import distributed
from tandem.advantages.temporal import gae, return_to_go, scored_steps, step_rewards
from tandem.metrics import merge_metrics, reduce_metrics
from tandem.rewards import Reward, Rewards
from tandem.rewards.episode import episode
from tandem.rewards.text import exact_match
from tandem.training.episode_rows import episode_metrics, spread_over_moves
from tandem.types import Prompt, Rollout, Scores, take


def row(rewards, *, end="over", lost=None):
    turns = [{"role": "assistant", "content": "7", "reward": r} for r in rewards]
    told = {"turns": turns, "end": end, "lost": lost, "attempts": 1, "counts": {"calls": 1.0}}
    return Prompt(id=0, source="x", text=">", answer="7", episode=told)


def rollout():
    """Two moves with an observation between them, and one move."""
    turn = torch.tensor([[1, 1, 0, 2, 2], [1, 1, 0, 0, 0]])
    feedback = torch.tensor([[0.0, 0.25, 0, 0, 1.0], [0, 0.5, 0, 0, 0]])
    prompts = (row([0.25, 1.0]), row([0.5]))
    return Rollout(
        sample=torch.zeros(2), outputs=("7", "8"), prompts=prompts, mask=turn > 0,
        group=torch.tensor([0, 0]), length=torch.tensor([5, 2]),
        truncated=torch.zeros(2, dtype=torch.bool), turn=turn, feedback=feedback,
    )  # fmt: skip


def score_rows(rows, *, weight=1.0, beside=None):
    components = {"episode": Reward(episode, weight=weight)}
    if beside is not None:
        components["exact_match"] = Reward(exact_match, weight=beside)
    rewards = Rewards(components)
    scores = rewards(rows.outputs, rows.prompts)
    return spread_over_moves(scores, rows, rewards), rewards


def test_feedback_stands_on_its_move_and_the_rest_on_the_last():
    scores, _ = score_rows(rollout(), weight=2.0, beside=0.5)
    want = torch.tensor([[0.0, 0.5, 0, 0, 2.5], [0, 1.0, 0, 0, 0]])
    assert_close(scores.per_step, want)
    assert_close(scores.total, want.sum(1))


def test_returns_pass_observations_unchanged():
    rows = rollout()
    scores, _ = score_rows(rows)
    got = return_to_go(step_rewards(scores, rows), scored_steps(scores, rows), gamma=0.5)
    assert_close(got[0], torch.tensor([0.5 * (0.25 + 0.25), 0.5, 0, 0.5, 1.0]), atol=1e-6, rtol=0)


def test_without_a_reward_of_moves_scores_are_as_they_were():
    rows = rollout()
    rewards = Rewards({"exact_match": Reward(exact_match)})
    scores = rewards(rows.outputs, rows.prompts)
    assert spread_over_moves(scores, rows, rewards) is scores


def test_what_was_given_to_a_prompt_that_it_does_not_judge_is_spread_over_no_move():
    rows = rollout()
    other = replace(rows.prompts[1], rewards=("exact_match",))
    scores, _ = score_rows(replace(rows, prompts=(rows.prompts[0], other)), beside=1.0)
    assert_close(scores.per_step[0], torch.tensor([0.0, 0.25, 0, 0, 2.0]))
    assert_close(scores.per_step[1], torch.zeros(5))  # "8" is wrong, and the 0.5 is not added again


def test_a_lost_episode_is_missing_and_never_0():
    """No reward scores it, and its reason is counted with those of rewards."""
    rows = rollout()
    rows = replace(rows, prompts=(rows.prompts[0], row([0.5], end="lost", lost="act raised X")))
    scores, rewards = score_rows(rows, beside=1.0)
    assert scores.scored.tolist() == [True, False]
    assert math.isnan(scores.parts["episode"][1])
    assert rewards.pop_faults() == {"environment: act raised X": 1}
    assert scores.per_step[1].eq(0).all()


def test_the_metrics_of_episodes():
    got = reduce_metrics(episode_metrics(rollout()))
    want = {
        "turns_mean": 1.5, "turns_max": 2, "observed": 1 / 7, "over": 1, "turn_limit": 0,
        "token_limit": 0, "lost": 0, "begun_again": 0, "calls": 1,
        "reward_by_turn/1": 0.375, "reward_by_turn/2": 1.0,
    }  # fmt: skip
    assert got == pytest.approx({f"environment/{name}": x for name, x in want.items()})


def test_a_rank_may_have_no_episode_of_a_dataset():
    """Its metrics of that dataset add nothing to those of the other ranks."""
    joined = episode_metrics(take(rollout(), torch.tensor([], dtype=torch.int64)))
    merge_metrics(joined, episode_metrics(rollout()))
    assert reduce_metrics(joined) == reduce_metrics(episode_metrics(rollout()))


def test_a_score_of_the_data_is_spread_over_nothing():
    rows = rollout()
    scores = Scores(total=torch.ones(2), parts={}, scored=torch.ones(2, dtype=torch.bool))
    assert spread_over_moves(scores, rows, Rewards({"e": Reward(episode)})) is scores


def test_the_advantages_of_a_critic_pass_what_the_world_says():
    """GAE of a row with a hole equals that of the row without it, and is 0 in the hole."""
    rows = rollout()
    scores, _ = score_rows(rows)
    values = torch.tensor([[0.1, 0.2, 9.0, 0.3, 0.4], [0.5, 0.6, 9.0, 9.0, 9.0]])
    rewards = step_rewards(scores, rows)
    got, _ = gae(rewards, values, rows.mask, gamma=0.9, lam=0.8)
    kept = torch.tensor([0, 1, 3, 4])
    whole = torch.ones(1, 4, dtype=torch.bool)
    want, _ = gae(rewards[:1, kept], values[:1, kept], whole, gamma=0.9, lam=0.8)
    assert_close(got[:1, kept], want)
    assert got[0, 2] == 0


def metrics_of_rank(rank_of_lost):
    """The metrics of a rank with events, and an environment, that the other rank does not have."""
    rows = rollout()
    if distributed.rank() == rank_of_lost:
        rows = replace(rows, prompts=(row([0.25, 1.0], end="lost", lost="it fell"), row([0.5])))
    else:
        calls = {**row([0.5]).episode, "counts": {"unparsed": 3.0}}
        rows = replace(rows, prompts=(replace(row([0.25]), episode=calls), row([0.5])))
    name = f"of_rank_{distributed.rank()}"
    told = [replace(p, episode={**p.episode, "environment": name}) for p in rows.prompts]
    return reduce_metrics(episode_metrics(replace(rows, prompts=tuple(told))))


@pytest.mark.system
def test_ranks_that_met_different_things_add_up_the_same_numbers():
    first, second = on_both(partial(metrics_of_rank, 1))
    assert first == second
    assert first["environment/lost_at_turn"] == 2.0
    assert first["environment/unparsed"] == 0.75
    assert first["environment/calls"] == 0.75
    assert [first[f"environment/of_rank_{rank}/turns_mean"] for rank in (0, 1)] == [1.5, 1.5]


def test_a_column_of_a_data_set_that_is_called_episode_is_a_column():
    prompt = Prompt(id=0, source="x", text=">", answer="7", fields={"episode": "S01E02"})
    assert Rewards({"exact_match": Reward(exact_match)})(["7"], [prompt]).total.tolist() == [1.0]


def test_what_a_world_says_of_rewards_is_no_reward():
    said = {"role": "user", "content": "x", "reward": 7.0}
    prompt = row([0.5])
    told = replace(prompt, episode={**prompt.episode, "turns": [said, *prompt.episode["turns"]]})
    assert episode("7", told) == 0.5
