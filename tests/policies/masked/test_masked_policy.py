"""A masked-diffusion policy: sampling, and the log-probabilities of its samples."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from gate import each
from policies.masked.small_masked import NOTHING, POSITIONS, make_rollout, sampling, small_masked
from policies.small_language import questions
from torch.testing import assert_close

from tandem.advantages.shaping import overlong
from tandem.data.records import prompt_ids
from tandem.experience import Experience, select_rows
from tandem.policies.masked.records import HiddenRows
from tandem.policies.masked.states import (
    coupled_tokens,
    elbo,
    merged_path,
    one_step,
    path,
    spread_levels,
)
from tandem.progress import PROGRESS
from tandem.types import Scores, concat, take

ORDERS = ("random", "confidence", "entropy", "margin")
STEPS = ({}, {"steps": 4}, {"block_length": 3, "steps": 2}, {"steps": 1})
OWN_STATES = [elbo, partial(elbo, masks="independent", states=3), one_step, coupled_tokens]


def test_it_is_the_model_of_the_published_numbers():
    from tandem.policies.masked.tiny_masked import tiny_masked

    model, tokenizer = tiny_masked(seed=0)
    assert sum(p.numel() for p in model.parameters()) == 308_640
    assert model.config.mask_token_id == tokenizer.mask_token_id == 39


@pytest.mark.parametrize(("order", "steps"), each(3, product(ORDERS, STEPS)))
def test_a_path_is_replayed_exactly(order, steps):
    policy = small_masked()
    rollout = make_rollout(policy, unmask_order=order, **steps)
    assert rollout.mask.any() and rollout.behaviour_logp[rollout.mask].lt(0).all()
    evidence = policy.evidence(rollout, frozenset({"entropy"}))
    assert_close(evidence.logp, rollout.behaviour_logp, atol=1e-6, rtol=0)
    assert_close(evidence.entropy, rollout.entropy, atol=1e-5, rtol=0)


def test_a_path_is_replayed_at_the_temperature_it_was_sampled_at():
    policy = small_masked()
    rollout = make_rollout(policy, temperature=0.7)
    assert_close(policy.logp(rollout), rollout.behaviour_logp, atol=1e-6, rtol=0)


def test_an_entropy_bound_writes_more_than_one_position_a_step():
    policy = small_masked(partial(path, trailing="counted"))
    rollout = make_rollout(policy, entropy_bound=5.0)
    assert 0 < rollout.sample.when.max() < POSITIONS - 1
    assert_close(policy.logp(rollout), rollout.behaviour_logp, atol=1e-6, rtol=0)


def test_every_step_of_unmasking_is_progress(monkeypatch):
    reports = []
    monkeypatch.setattr(PROGRESS, "report", lambda: reports.append("report"))
    make_rollout(small_masked(), block_length=2, steps=6)
    assert len(reports) == 6


def test_blocks_are_filled_from_left_to_right():
    policy = small_masked()
    when = make_rollout(policy, block_length=2, steps=6).sample.when
    assert torch.equal(when // 2, torch.arange(3).repeat_interleave(2).expand_as(when))


def test_rows_of_a_group_share_noise_levels_that_each_iteration_draws_anew():
    policy = small_masked()
    prompts = questions(("dbca", "fa"))
    first, again, later = (policy.sample(prompts, 2, key=k, slots=[0, 1]) for k in (7, 7, 8))
    strata = [rollout.sample.stratum.tolist() for rollout in (first, again, later)]
    assert strata[0] == strata[1] and {*strata[0]}.isdisjoint(strata[2])
    (a, b, c, d) = strata[0]
    assert a == b != c == d


def test_neither_company_nor_cuts_move_a_token():
    policy = small_masked()
    whole = make_rollout(policy)
    cut = make_rollout(policy, max_rows=2)
    assert torch.equal(whole.sample.tokens, cut.sample.tokens)
    alone = policy.sample(questions(("dbca", "fa"))[1:], 3, key=7, slots=[1])
    assert whole.outputs[3:] == alone.outputs
    assert torch.equal(whole.sample.when[3:], alone.sample.when)


def test_answers_hold_no_token_that_hides_or_pads():
    policy = small_masked(partial(path, trailing="counted"))
    rollout = make_rollout(policy, size=8)
    length = rollout.sample.prompt_length
    answers = [row[n : n + POSITIONS] for row, n in zip(rollout.sample.tokens, length, strict=True)]
    assert not torch.isin(torch.stack(answers), torch.tensor([0, 39])).any()


def test_what_is_behind_the_end_is_counted_or_not():
    policy = small_masked()
    rollout = make_rollout(policy, size=16)
    ended = ~rollout.truncated
    assert ended.sum() > 0 and (rollout.length[ended] <= POSITIONS).all()
    assert torch.equal(rollout.mask.sum(1), rollout.length)
    counted = make_rollout(small_masked(partial(path, trailing="counted")), size=16)
    assert counted.mask.all() and counted.outputs == rollout.outputs
    assert torch.equal(counted.length, rollout.length) and (counted.length < POSITIONS).any()


def test_the_length_of_an_answer_is_its_own_where_all_positions_are_trained():
    rollout = make_rollout(small_masked(partial(path, trailing="counted")), size=16)
    scores = Scores(total=torch.zeros(32), parts={}, scored=torch.ones(32, dtype=torch.bool))
    shaped, _ = overlong(scores, rollout, limit=POSITIONS, buffer=POSITIONS)
    assert_close(shaped.total, -rollout.length / POSITIONS)


def test_rows_of_short_answers_keep_every_position_that_is_trained():
    rollout = make_rollout(small_masked(partial(path, trailing="counted")), size=16)
    zeros = torch.zeros(32)
    scores = Scores(total=zeros, parts={}, scored=zeros == 0)
    own = Experience(rollout=rollout, scores=scores, advantages=zeros[:, None].expand(32, 6))
    short = rollout.length.argmin()[None]
    assert rollout.length[short] < POSITIONS
    assert select_rows(own, short).rollout.mask.shape == (1, POSITIONS)


@pytest.mark.parametrize("likelihood", [path, *OWN_STATES])
def test_rows_say_the_same_in_any_company(likelihood):
    policy = small_masked(likelihood)
    rollout = make_rollout(policy)
    whole = policy.logp(rollout)
    for rows in (torch.tensor([4]), torch.tensor([5, 0, 2])):
        part = take(rollout, rows)
        assert_close(policy.logp(part), whole[rows], atol=1e-5, rtol=1e-5)
    wider = concat([rollout, ask_wide(policy)])
    assert_close(policy.logp(wider)[:6], whole, atol=1e-5, rtol=1e-5)


def test_a_pass_is_as_wide_as_its_longest_row():
    policy = small_masked()
    short = take(make_rollout(policy), torch.tensor([3, 4, 5])).sample
    read = short.prompt_length + POSITIONS
    states = policy.scorer.states(short.tokens, read)
    assert states.shape[1] == read.max() < short.tokens.shape[1]


def test_rows_that_are_alike_are_read_once():
    policy = small_masked(partial(one_step, p_mask_prompt=0.0))
    rollout, read, states = make_rollout(policy), [], policy.scorer.states
    policy.scorer.states = lambda tokens, *more: read.append(len(tokens)) or states(tokens, *more)
    alone = torch.cat([policy.logp(take(rollout, torch.tensor([row]))) for row in range(6)])
    assert_close(policy.logp(rollout), alone, atol=1e-5, rtol=1e-5)
    assert read == [1, 1, 1, 1, 1, 1, 2]  # three answers to each of two prompts, all of them hidden


def ask_wide(policy):
    """A row with a longer prompt."""
    return policy.sample(questions(("jihgfedcba",)), 1, key=9, slots=[2])


@pytest.mark.parametrize("likelihood", OWN_STATES)
def test_the_noise_is_shared_until_an_epoch_renews_it(likelihood):
    policy = small_masked(likelihood, needs=frozenset({"old_logp", "ref_logp"}))
    rollout = make_rollout(policy)
    assert rollout.behaviour_logp is None
    filled = policy.complete(rollout, frozenset({"old_logp", "ref_logp"}))
    assert torch.equal(policy.evidence(filled, NOTHING).logp, filled.old_logp)
    again = policy.resample_noise(filled, 1)
    assert_close(policy.evidence(again, NOTHING).logp, again.old_logp)
    assert (again.old_logp - filled.old_logp).abs().max() > 1e-3
    assert (again.ref_logp - filled.ref_logp).abs().max() > 1e-3


def test_the_old_policy_of_an_epoch_is_that_of_the_iteration():
    policy = small_masked(elbo, needs=frozenset({"old_logp"}))
    filled = policy.complete(make_rollout(policy), frozenset({"old_logp"}))
    before = policy.resample_noise(filled, 1).old_logp
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.05)
    live = {name: x.clone() for name, x in policy.weights().items()}
    again = policy.resample_noise(filled, 1)
    assert torch.equal(again.old_logp, before)
    assert all(torch.equal(x, live[name]) for name, x in policy.weights().items())
    assert (policy.logp(again) - before).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("likelihood", "epochs", "kept"),
    [(elbo, 2, True), (elbo, 1, False), (path, 2, False), (merged_path, 2, False)],
)
def test_weights_are_kept_only_for_the_noise_of_another_epoch(likelihood, epochs, kept):
    needs = frozenset({"old_logp"})
    policy = small_masked(likelihood, needs=needs, epochs=epochs)
    policy.complete(make_rollout(policy), needs)
    assert bool(policy.sampled) == kept


def test_a_merged_path_is_asked_once_for_all_epochs():
    policy = small_masked(merged_path, needs=frozenset({"old_logp"}))
    filled = policy.complete(make_rollout(policy), frozenset({"old_logp"}))
    assert policy.resample_noise(filled, 1) is filled


def test_new_noise_moves_no_weight_where_nobody_asks_the_old_policy(monkeypatch):
    policy = small_masked(elbo, needs=frozenset({"ref_logp"}))
    monkeypatch.setattr("tandem.policies.masked.policy.swap_weights", pytest.fail)
    nothing = make_rollout(policy)
    assert not torch.equal(policy.resample_noise(nothing, 1).sample.key, nothing.sample.key)
    filled = policy.complete(nothing, frozenset({"ref_logp"}))
    assert (policy.resample_noise(filled, 1).ref_logp - filled.ref_logp).abs().max() > 1e-3


def test_a_merged_path_is_the_path_where_each_step_stands_alone():
    policy = small_masked()
    rollout = make_rollout(policy, steps=3)
    merged = small_masked(partial(merged_path, shrink=1))
    assert_close(merged.logp(rollout), policy.logp(rollout))
    coarse = small_masked(partial(merged_path, shrink=3))
    assert (coarse.logp(rollout) - policy.logp(rollout)).abs().max() > 1e-3
    all_hidden = small_masked(partial(one_step, p_mask_prompt=0.0, trailing="shown"))
    counted = small_masked(partial(merged_path, shrink=99, trailing="counted"))
    assert_close(
        counted.logp(make_rollout(counted)),
        small_masked(partial(one_step, p_mask_prompt=0.0, trailing="counted")).logp(
            make_rollout(counted)
        ),
    )
    assert all_hidden.describe(request_of(all_hidden)).provides.isdisjoint({"behaviour_logp"})


def request_of(policy):
    from tandem.policies.request import Request

    return Request(sampling=policy.sampling, likelihood=policy.states_of)


def test_demonstrations_are_filled_up_with_ends():
    policy = small_masked(partial(elbo, masks="independent", trailing="counted"))
    rollout = policy.encode(questions(("dbca", "fa")), key=3, slots=[0, 1])
    assert rollout.mask.all() and rollout.outputs == ("abcd", "af")
    row = rollout.sample.tokens[1]
    (shown,) = policy.chat.encode_answers(["af"], questions(("fa",)))
    assert row[3:].tolist()[:6] == [*shown, 1, 1, 1]
    assert policy.admit_answered(questions(("jihgfedcba",)))[1][0][1].startswith("has an answer of")
    strange = [replace(question, answer="aZ") for question in questions(("ba",))]
    assert policy.admit_answered(strange)[1][0][1].startswith("has an answer with 'Z'")
    padded = [replace(question, answer="ab<pad>") for question in questions(("ba",))]
    refused = "has an answer with '<pad>', of probability 0 for this model"
    assert policy.admit_answered(padded)[1][0][1] == refused


def test_a_sample_tells_the_steps_it_was_unmasked_in():
    policy = small_masked(partial(path, trailing="counted"))
    rollout = make_rollout(policy, steps=3)
    lines = policy.describe_steps(rollout, 0)
    assert len(lines) == 3 and all(len(line) == POSITIONS for line in lines)
    assert [line.count("░") for line in lines] == [4, 2, 0]
    assert lines[-1].startswith(rollout.outputs[0])
    when = rollout.sample.when[0].tolist()
    assert [one == "░" for one in lines[0]] == [step > 0 for step in when]


def test_demonstrations_have_the_levels_of_their_slots_whichever_rank_shows_them():
    policy = small_masked(elbo)
    shown = questions(("dbca", "fa", "gb"))
    whole = policy.encode(shown, key=3, slots=[0, 1, 2])
    part = policy.encode(shown[1:], key=3, slots=[1, 2])
    assert_close(policy.logp(part), policy.logp(whole)[1:], atol=1e-5, rtol=1e-5)


def test_levels_are_spread_over_slots_that_are_ids_of_prompts():
    ids = prompt_ids("held out", torch.arange(8))  # 62 bits: a float64 of that size has no fraction
    rollout = small_masked(elbo).encode(questions(["ba"] * 8), key=3, slots=ids)
    levels = spread_levels(HiddenRows.of(rollout.sample, rollout.mask), 1)
    assert levels.unique().numel() == 8 and levels.amax() - levels.amin() > 0.3


def test_a_row_without_a_step_passes_and_says_nothing():
    policy = small_masked(elbo)
    rollout = make_rollout(policy)
    empty = replace(rollout, mask=torch.zeros_like(rollout.mask))
    logp = policy.evidence(empty, NOTHING).logp
    assert logp.requires_grad and not logp.any()


def test_what_a_row_costs_is_what_its_passes_read():
    policy = small_masked(partial(path, trailing="counted"))
    rollout = make_rollout(policy, steps=2)
    read = rollout.sample.prompt_length + POSITIONS
    assert torch.equal(policy.row_cost(rollout), 2 * read)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"block_length": 4}, "does not divide"),
        ({"steps": 9}, "rollout.steps=9"),
        ({"stop": ["x"]}, "rollout.stop"),
        ({"steps": 3, "entropy_bound": 0.1}, "set rollout.steps=null"),
    ],
)
def test_impossible_plans_are_refused(numbers, said):
    with pytest.raises(ValueError, match=said):
        sampling(**numbers)
