"""Values of answers against all masks one by one, for a model that is a table of all answers.

Its conditionals are exact, so a bound on log p is log p itself.
"""

from functools import partial
from itertools import permutations, product
from math import comb, sqrt
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from tandem.policies.masked import states
from tandem.policies.masked.records import HiddenRows
from tandem.policies.masked.states import coupled_tokens, elbo, merged_path, one_step, path

LENGTH, TOKENS = 4, 3
ANSWERS = list(product(range(TOKENS), repeat=LENGTH))
SAID = (2, 0, 1, 1)
ORDERS = list(permutations(range(LENGTH)))
close = partial(assert_close, atol=1e-9, rtol=0)


def table():
    """A logit for every answer."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(len(ANSWERS), generator=generator, dtype=torch.float64).requires_grad_()


def conditional(logits, place, hidden):
    """log p of the token at a position, given the visible ones."""
    fits = [all(z[j] == SAID[j] for j in range(LENGTH) if j not in hidden) for z in ANSWERS]
    right = [fit and z[place] == SAID[place] for fit, z in zip(fits, ANSWERS, strict=True)]
    return logits[right].logsumexp(0) - logits[fits].logsumexp(0)


def ask(logits, hidden):
    """The table's log p of the masked positions in each state, 0 elsewhere: [N, L] -> [N, L]."""
    known = {}
    for state in {tuple(row) for row in hidden.tolist()}:
        places = [i for i in range(LENGTH) if state[i]]
        said = {i: conditional(logits, i, places) for i in places}
        known[state] = torch.stack([said.get(i, 0 * logits[0]) for i in range(LENGTH)])
    return torch.stack([known[tuple(row)] for row in hidden.tolist()])


def rows_of(lengths, place, **others):
    """Rows whose first positions, as many as given, belong to the answer."""
    count, position = len(lengths), torch.arange(LENGTH)
    free = position < torch.tensor(lengths)[:, None]
    none = torch.zeros(count, dtype=torch.int64)
    own = {
        "void": ~free, "prompt": torch.zeros(count, 2, dtype=torch.bool),
        "when": none[:, None].expand(-1, LENGTH), "key": torch.arange(count), "stratum": none,
    }  # fmt: skip
    return HiddenRows(
        free=free, place=torch.tensor(place, dtype=torch.float64), **{**own, **others}
    )


def noise_is(monkeypatch, masks, levels=0.0):
    """`masks` [B, L]: the noise of each row in every state; `levels`: the noise of a stratum."""

    def uniform(key, shape=()):
        rows, purpose = key
        if purpose == "levels":
            return torch.full((len(rows),), levels, dtype=torch.float64)
        noise = torch.tensor(masks, dtype=torch.float64)[rows]
        return noise if len(shape) == 1 else noise[:, None].expand(-1, *shape)

    own = SimpleNamespace(key=lambda *parts: parts, uniform=uniform)
    monkeypatch.setattr(states, "rng", own)


def subsets(length):
    chosen = product([False, True], repeat=length)
    return [[i for i in range(length) if row[i]] for row in chosen if any(row)]


def of_all_masks(logits, length, behind, weigh):
    """For each position the sum over all masks that hide it; `behind`: always hidden positions."""
    want = [0.0] * LENGTH
    for mask in subsets(length):
        for place in mask:
            said = conditional(logits, place, [*mask, *behind]).item()
            want[place] += said * weigh(len(mask)) / comb(length, len(mask))
    return torch.tensor(want, dtype=torch.float64)


def every_noise(masks, length):
    """Noises, their levels, the weight of each, and the arguments of `elbo`."""
    nodes = [0.5 - sqrt(1 / 12), 0.5 + sqrt(1 / 12)]  # exact of polynomials of degree 3
    if masks == "independent":
        least = 1e-3
        chosen = [[0.0 if x else 1.0 for x in row] for row in product([0, 1], repeat=LENGTH)]
        both = list(product(chosen, nodes))
        share = [t ** row.count(0.0) * (1 - t) ** row.count(1.0) / 2 for row, t in both]
        place = [(t - least) / (1 - least) for _, t in both]
        return [row for row, _ in both], place, share, {"least": least}
    counts = length if masks == "counted" else length + 1
    both = list(product(ORDERS, range(counts)))
    share = [1 / len(both)] * len(both)
    return [[i / LENGTH for i in row] for row, _ in both], [n / counts for _, n in both], share, {}


@pytest.mark.parametrize(("length", "trailing"), [(4, "hidden"), (3, "hidden"), (3, "shown")])
@pytest.mark.parametrize("masks", ["counted", "coupled", "independent"])
def test_a_bound_of_exact_conditionals_is_log_p_and_so_is_its_gradient(
    masks, length, trailing, monkeypatch
):
    noise, place, share, numbers = every_noise(masks, length)
    noise_is(monkeypatch, noise)
    logits, rows = table(), rows_of([length] * len(noise), place)
    drawn = elbo(rows, masks=masks, trailing=trailing, **numbers)
    values = drawn.values(ask(logits, drawn.hidden), len(noise))
    value = (values * torch.tensor(share, dtype=torch.float64)[:, None]).sum(0)
    behind = list(range(length, LENGTH)) if trailing == "hidden" else []
    # The weights of counts are float32.
    close = partial(assert_close, atol=1e-9, rtol=0)
    close(value.detach(), of_all_masks(logits, length, behind, lambda n: 1 / n))
    log_p = sum(  # one after another
        conditional(logits, i, [*range(i, length), *behind]) for i in range(length)
    )
    close(value.sum(), log_p)
    if length == LENGTH:
        mine = ANSWERS.index(SAID)
        close(log_p, logits.log_softmax(0)[mine])
        want = -logits.softmax(0).detach()
        want[mine] += 1
        close(torch.autograd.grad(value.sum(), logits)[0], want)


GAUSS = {
    1: [(0.5, 1.0)],
    2: [(0.5 - sqrt(1 / 12), 0.5), (0.5 + sqrt(1 / 12), 0.5)],
    3: [(0.5 - sqrt(3 / 20), 5 / 18), (0.5, 8 / 18), (0.5 + sqrt(3 / 20), 5 / 18)],
}


@pytest.mark.parametrize("length", [4, 3])
@pytest.mark.parametrize("points", GAUSS)
def test_fixed_levels_are_the_sum_over_their_masks(points, length, monkeypatch):
    noise_is(monkeypatch, [[i / LENGTH for i in row] for row in ORDERS])
    logits, rows = table(), rows_of([length] * len(ORDERS), [0.0] * len(ORDERS))
    drawn = elbo(rows, masks="counted", levels="gauss", states=points)
    value = drawn.values(ask(logits, drawn.hidden), len(ORDERS)).mean(0)
    counts = [(max(round(t * length), 1), weight) for t, weight in GAUSS[points]]

    def weigh(n):
        return sum(weight * length / n for count, weight in counts if count == n)

    close(value.detach(), of_all_masks(logits, length, [*range(length, LENGTH)], weigh))


LENGTHS = [4, 3, 2, 1, 0]


@pytest.mark.parametrize("trailing", ["hidden", "shown"])
def test_values_of_tokens_are_those_of_a_loop_over_positions(trailing, monkeypatch):
    """Everything masked in one pass, and the same with a mask and its complement."""
    noise = torch.rand(5, LENGTH, generator=torch.Generator().manual_seed(1)).tolist()
    noise_is(monkeypatch, noise, levels=0.6)
    logits, rows, level = table().detach(), rows_of(LENGTHS, [0.0] * 5), 0.2 + 0.6 * 0.6
    got = {
        of: drawn.values(ask(logits, drawn.hidden), 5)
        for of, drawn in {
            "one": one_step(rows, trailing=trailing, p_mask_prompt=0.0),
            "three": coupled_tokens(rows, trailing=trailing),
        }.items()
    }
    for row, length in enumerate(LENGTHS):
        behind = list(range(length, LENGTH)) if trailing == "hidden" else []
        mask = [i for i in range(length) if noise[row][i] < level]
        rest = [i for i in range(length) if i not in mask]
        for place in range(LENGTH):
            one = three = 0.0
            if place < length:
                one = conditional(logits, place, [*range(length), *behind]).item()
                own, share = (mask, level) if place in mask else (rest, 1 - level)
                three = (one + conditional(logits, place, [*own, *behind]).item() / share) / 2
            assert got["one"][row, place].item() == pytest.approx(one, abs=1e-9)
            assert got["three"][row, place].item() == pytest.approx(three, abs=1e-9)


@pytest.mark.parametrize("shrink", [1, 2, 3])
def test_a_merged_path_is_a_loop_over_the_steps_of_each_row(shrink):
    when = torch.tensor([[5, 0, 2, 7], [1, 1, 0, 3], [0, 4, 2, 4], [6, 5, 4, 3], [0, 1, 2, 3]])
    logits, rows = table().detach(), rows_of(LENGTHS, [0.0] * 5, when=when)
    for drawn in [merged_path(rows, shrink=shrink), *([path(rows)] if shrink == 1 else [])]:
        got = drawn.values(ask(logits, drawn.hidden), 5)
        for row, length in enumerate(LENGTHS):
            steps = sorted({*when[row].tolist()})
            for place in range(LENGTH):
                number = steps.index(when[row, place].item())
                begun = steps[number - number % shrink]
                hidden = [i for i in range(LENGTH) if when[row, i] >= begun]
                want = conditional(logits, place, hidden).item() if place < length else 0.0
                assert got[row, place].item() == pytest.approx(want, abs=1e-9)
