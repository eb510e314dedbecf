"""Likelihoods of answers and orders of unmasking: reference values, and enumeration."""

from functools import partial
from itertools import product

import pytest
import torch
from torch.testing import assert_close

from tandem.policies.masked.orders import (
    ORDERS,
    count_accepted,
    pick_first,
    spread_evenly,
)
from tandem.policies.masked.records import HiddenRows, States
from tandem.policies.masked.states import (
    counts_of,
    coupled_tokens,
    elbo,
    gauss_levels,
    hide_at_nodes,
    hide_count,
    hide_independently,
    hide_with_complement,
    merge_steps,
    path,
    spread_levels,
)

close = partial(assert_close, atol=1e-6, rtol=0)
LENGTH = 4


def rows_of(free, **others):
    """Rows in which all positions belong to the answer."""
    count = len(free)
    blank = torch.zeros_like(free, dtype=torch.int64)
    own = {
        "void": torch.zeros_like(free), "prompt": torch.zeros(count, 3, dtype=torch.bool),
        "when": blank, "key": torch.arange(count), "stratum": torch.zeros(count).long(),
        "place": torch.arange(count) / count,
    }  # fmt: skip
    return HiddenRows(free=free, **{**own, **others})


def logp_of(logits, answer):
    """The log p of an answer's tokens in every state: [N, L, V] -> [N, L]."""
    chosen = answer.expand(logits.shape[:-1])[..., None]
    return logits.log_softmax(-1).gather(-1, chosen)[..., 0]


def test_the_bound_is_the_reference_one_in_both_forms(axis):
    case = "masked_elbo"
    masks = axis(f"{case}/masks", torch.bool)
    logp = logp_of(axis(f"{case}/logits_per_state"), axis(f"{case}/answer_ids", torch.int64))
    close(logp, axis(f"{case}/logp_of_answer"))
    close((logp * masks).sum(1), axis(f"{case}/sum_of_masked"))
    for form, weight in (
        ("bernoulli", 1 / axis(f"{case}/levels")),
        ("count", LENGTH / masks.sum(1)),
    ):
        states = States(
            row=torch.zeros(3).long(), hidden=masks, weight=masks * weight[:, None] / 3, count=3
        )
        each = (states.weight * 3 * logp).sum(1)
        close(each, axis(f"{case}/elbo_{form}_each"))
        values = states.values(logp, 1)[0]
        close(values, axis(f"{case}/per_token_{form}"))
        close(values.sum(), axis(f"{case}/elbo_{form}"))
    close(-values.mean(), axis(f"{case}/mean_nll_per_token"))


def enumerate_masks(masks, levels, *, of):
    """The mean over all masks of every level of the value in each state."""
    logp = logp_of(axis_logits(of), of("answer_ids", torch.int64))
    free = torch.ones(1, LENGTH, dtype=torch.bool)
    orders = torch.tensor(list(product(range(LENGTH), repeat=LENGTH)))
    orders = orders[[len({*row.tolist()}) == LENGTH for row in orders]]
    noise = (orders[None].double() + 0.5) / LENGTH  # a state for each order of the positions
    means = []
    for level in levels:
        at = torch.full((1, len(orders)), level, dtype=torch.float64)
        _, weight = masks(free, noise, at, torch.tensor([[LENGTH]]), None)
        means.append((weight[0] * logp).sum())
    return torch.stack(means).mean()


def axis_logits(of):
    return of("logits")[None]


@pytest.mark.parametrize(
    ("case", "field", "masks", "levels"),
    [
        ("masked_elbo_tight", "elbo_by_enumeration", hide_count, [0.0, 0.25, 0.5, 0.75]),
        (
            "coupled_unbiased_tight",
            "mean_by_enumeration",
            hide_with_complement,
            [0.0, 0.2, 0.4, 0.6, 0.8],
        ),
    ],
)
def test_over_all_masks_a_model_that_ignores_its_state_gives_log_p(
    axis, case, field, masks, levels
):
    found = enumerate_masks(masks, levels, of=lambda name, *kind: axis(f"{case}/{name}", *kind))
    close(found, axis(f"{case}/{field}"))
    close(found, axis(f"{case}/log_p"))


def test_levels_and_counts_are_stratified_as_published(axis):
    rows, offset = int(axis("stratified_levels/rows")), axis("stratified_levels/offset")
    base = ((torch.arange(rows) + offset) / rows).frac()
    free = torch.ones(rows, 1, dtype=torch.bool)
    least = axis("stratified_levels/least")
    noise = torch.zeros(rows, 1, 1, dtype=torch.float64)
    _, weight = hide_independently(free, noise, base[:, None], torch.ones(rows, 1), float(least))
    close(1 / weight[:, 0, 0], axis("stratified_levels/levels"))
    case = "stratified_counts"
    number, most, start = (int(axis(f"{case}/{name}")) for name in ("rows", "length", "start"))
    level = (start / (most + 1) + torch.arange(number).double() / number).frac()
    assert counts_of(level, most).tolist() == axis(f"{case}/n_masked", torch.int64).tolist()


def test_levels_of_a_group_lie_in_even_parts_whatever_rows_are_beside():
    rows = rows_of(torch.ones(6, LENGTH, dtype=torch.bool))
    levels = spread_levels(rows, 2)
    assert sorted((levels * 12).floor().flatten().tolist()) == list(range(12))
    alone = spread_levels(rows_of(rows.free[:1]), 2)
    assert_close(levels[:1], alone)


@pytest.mark.parametrize("points", [1, 2, 3])
def test_nodes_are_those_of_gauss_and_legendre(axis, points):
    levels, weights = gauss_levels(int(axis(f"sdmc_gauss_{points}/points")))
    close(levels, axis(f"sdmc_gauss_{points}/levels"))
    close(weights, axis(f"sdmc_gauss_{points}/weights"))


def test_a_node_hides_a_fixed_count_and_weighs_by_the_share_of_it():
    free = torch.ones(1, 10, dtype=torch.bool)
    levels, weights = gauss_levels(2)
    hidden, weight = hide_at_nodes(free, torch.rand(1, 2, 10), levels, weights)
    assert hidden.sum(-1).tolist() == [[2, 8]]
    assert_close(weight.amax(-1)[0], weights / torch.tensor([0.2, 0.8]))
    levels = torch.tensor([0.2, 0.8], dtype=torch.float64)
    _, whole = hide_at_nodes(free, torch.rand(1, 2, 10), levels, weights)
    assert_close(whole.amax(-1)[0], weights / levels)


@pytest.mark.parametrize("length", [1, 2, 5, 9])
@pytest.mark.parametrize("points", [1, 2, 3])
def test_positions_weigh_1_each_over_the_nodes_however_short_the_answer(length, points):
    free = torch.ones(1, length, dtype=torch.bool)
    _, weight = hide_at_nodes(free, torch.rand(1, points, length), *gauss_levels(points))
    assert_close(weight.sum(), torch.tensor(float(length), dtype=torch.float64))


def test_a_mask_and_its_complement_are_the_reference_ones(axis):
    case = "coupled_unbiased"
    mask = axis(f"{case}/mask", torch.bool)
    noise = torch.where(mask, 0.1, 0.9)[None, None].double()
    level = torch.tensor([[0.4]])  # two of four, among the counts 0 to 4
    free = torch.ones(1, LENGTH, dtype=torch.bool)
    hidden, weight = hide_with_complement(free, noise, level, torch.tensor([[LENGTH]]), None)
    assert hidden[0, 1].tolist() == axis(f"{case}/complement", torch.bool).tolist()
    both = torch.stack([axis(f"{case}/logits_{x}") for x in ("mask", "complement")])
    logp = logp_of(both, axis(f"{case}/answer_ids", torch.int64))
    close((weight[0] * logp).sum(0), axis(f"{case}/per_token"))
    close((weight[0] * logp).sum(), axis(f"{case}/elbo"))
    unweighted = elbo(rows_of(free), weighted=False)
    assert unweighted.weight.sum(0).tolist() == [1] * LENGTH
    close((hidden[0] * logp).sum(0), axis(f"{case}/per_token_unweighted"))


def test_a_token_of_coupled_grpo_is_the_reference_one(axis):
    case = "coupled_grpo_logp"
    ratio = float(axis(f"{case}/ratio"))
    rows = rows_of(torch.ones(1, LENGTH, dtype=torch.bool))
    states = coupled_tokens(rows, low=ratio, high=ratio)
    assert_close(states.hidden[1] ^ states.hidden[2], states.hidden[0])
    mask = axis(f"{case}/mask", torch.bool)
    ones = torch.ones(LENGTH, dtype=torch.bool)
    own = States(
        row=torch.zeros(3).long(), hidden=torch.stack([ones, mask, ~mask]), count=3,
        weight=weights_like(states, torch.stack([ones, mask, ~mask])),
    )  # fmt: skip
    logits = torch.stack([axis(f"{case}/logits_{x}") for x in ("full", "mask", "complement")])
    logp = logp_of(logits, axis(f"{case}/answer_ids", torch.int64))
    close(own.values(logp, 1)[0], axis(f"{case}/per_token"))


def weights_like(states, hidden):
    """The weight of each state, at other positions."""
    return hidden * states.weight.amax(1, keepdim=True)


def test_a_path_scores_each_token_at_the_state_that_wrote_it(axis):
    case = "path_logp"
    when = axis(f"{case}/revealed_at_step", torch.int64)
    rows = rows_of(torch.ones_like(when, dtype=torch.bool), when=when)
    states = path(rows)
    assert len(states.row) == 5  # the first row took no step 2 ... its three steps are two
    logits = axis(f"{case}/logits_step_row_position")
    tokens = axis(f"{case}/tokens", torch.int64)
    step = torch.stack(
        [when[row][weight != 0][0] for row, weight in zip(states.row, states.weight, strict=True)]
    )
    said = logp_of(logits[step, states.row], tokens[states.row])
    close(states.values(said, 2), axis(f"{case}/logp"))
    shown = axis(f"{case}/mask_shown_at_step_1", torch.bool)
    assert torch.equal(states.hidden[step == 1], shown)


def test_merged_steps_read_the_state_that_the_first_of_them_began_with(axis):
    when = axis("trace_shrink/when", torch.int64)
    shrink = int(axis("trace_shrink/shrink"))
    read = merge_steps(when[None], shrink)[0]
    assert read.tolist() == axis("trace_shrink/state_read_from", torch.int64).tolist()
    label = axis("trace_shrink/group_label", torch.int64)
    assert [int(when[read == one].max()) for one in read] == label.tolist()


def test_orders_write_the_positions_that_the_reference_writes(axis):
    case = "unmask_order"
    logp = axis(f"{case}/logits").log_softmax(-1)
    token = axis(f"{case}/candidates", torch.int64)
    hidden = axis(f"{case}/hidden", torch.bool)
    count = torch.tensor([int(axis(f"{case}/k"))])
    for name, sign in (("confidence", 1), ("entropy", -1), ("margin", 1)):
        priority = ORDERS[name].priority(logp, token, torch.arange(len(token)))
        close(sign * priority[hidden], axis(f"{case}/{name}")[hidden])
        first = pick_first(priority[None], hidden[None], count)[0]
        assert first.nonzero()[:, 0].tolist() == sorted(axis(f"{case}/by_{name}").tolist())


def test_positions_are_spread_over_the_steps_as_published(axis):
    hidden, steps = int(axis("steps_of_k/hidden")), int(axis("steps_of_k/steps"))
    assert spread_evenly(hidden, steps) == axis("steps_of_k/k", torch.int64).tolist()


def test_entropies_are_accepted_up_to_a_bound(axis):
    entropy, bound = axis("entropy_bound/sorted_entropy"), float(axis("entropy_bound/bound"))
    assert int(count_accepted(entropy, bound)) == int(axis("entropy_bound/accepted"))
    assert int(count_accepted(entropy, 2.0)) == 3
