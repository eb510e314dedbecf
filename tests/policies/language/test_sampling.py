import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tandem import rng
from tandem.policies.language.records import Sampling
from tandem.policies.language.sampling import IN_CACHE, distribution, draw, entropy_of
from tandem.types import concat

PLAIN = Sampling(max_new_tokens=1)


def chi_square(tokens, bins, probability):
    """Sum of (seen - expected)^2 / expected. bins: token -> bin; probability: of each token."""
    seen = torch.bincount(bins[tokens], minlength=int(bins.max()) + 1).double()
    mass = torch.zeros(len(seen), dtype=torch.float64).index_add(0, bins, probability.double())
    expected = mass * len(tokens)
    return ((seen - expected) ** 2 / expected).sum().item(), len(seen) - 1


def draw_tokens(logits, rows):
    return draw(logits.expand(rows, -1), rng.key(1, torch.arange(rows)), PLAIN).token


def test_a_small_vocabulary_is_drawn_from_its_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    statistic, freedom = chi_square(
        draw_tokens(logits, 20_000), torch.arange(5), logits.softmax(-1)
    )
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("scale", [0.0, 3.0])
def test_a_large_vocabulary_is_drawn_from_its_softmax(scale):
    torch.manual_seed(0)
    logits = scale * torch.randn(4200)  # 66 blocks, the last one short
    order = logits.argsort(stable=True)
    mass = logits.softmax(-1)[order].cumsum(0)
    bins = torch.empty(4200, dtype=torch.int64)
    bins[order] = (40 * mass).long().unique(return_inverse=True)[1]  # of similar mass, none empty
    statistic, freedom = chi_square(draw_tokens(logits, 2000), bins, logits.softmax(-1))
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def test_the_noise_of_a_block_is_not_that_of_a_token():
    """With shared noise token 0 would be 68 times as frequent."""
    tokens = draw_tokens(torch.zeros(68 * 64), 6000)
    assert (tokens < 64).sum() > 60
    assert (tokens == 0).sum() < 9


@pytest.mark.parametrize("scale", [1.0, 6.0])
@pytest.mark.parametrize(("vocabulary", "slack"), [(1000, 1.0), (5000, 1.25)])
def test_two_close_policies_part_on_few_tokens(scale, vocabulary, slack):
    torch.manual_seed(0)
    first = scale * torch.randn(1000, vocabulary)
    second = first + 0.1 * torch.randn_like(first)
    keys = rng.key(3, torch.arange(1000))
    parted = (draw(first, keys, PLAIN).token != draw(second, keys, PLAIN).token).float().mean()
    distance = (first.softmax(-1) - second.softmax(-1)).abs().sum(-1) / 2
    bound = (2 * distance / (1 + distance)).mean().item()
    assert 0 < parted < slack * bound + 2 * math.sqrt(bound / 1000)


@pytest.mark.parametrize("vocabulary", [IN_CACHE // 4, IN_CACHE // 4 + 1, IN_CACHE + 1])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_rows_that_share_a_draw_change_nothing(vocabulary, temperature):
    torch.manual_seed(0)
    logits, keys = 3 * torch.randn(6, vocabulary), rng.key(2, torch.arange(6))
    sampling = replace(PLAIN, temperature=temperature)
    together = draw(logits, keys, sampling)
    alone = concat([draw(logits[[row]], keys[[row]], sampling) for row in range(6)])
    for name in ("token", "logp", "entropy"):
        assert torch.equal(getattr(together, name), getattr(alone, name))


def test_the_noise_of_a_token_is_its_own():
    keys = rng.key(4, torch.arange(500))
    logits = torch.randn(500, 50)
    chosen = draw(logits, keys, PLAIN).token
    without_another = logits.clone()
    another = (chosen + 1) % 50
    without_another.scatter_(1, another[:, None], -torch.inf)
    assert_close(draw(without_another, keys, PLAIN).token, chosen)


def test_worked_example_of_truncation():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    top_p = distribution(logits, Sampling(max_new_tokens=1, top_p=0.7)).exp()
    assert_close(top_p, torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    top_k = distribution(logits, Sampling(max_new_tokens=1, top_k=3)).exp()
    assert_close(top_k, torch.tensor([[0.5, 0.3, 0.15, 0.0]]) / 0.95)


def test_worked_example_of_entropy_and_temperature():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    drawn = draw(logits, rng.key(0, torch.arange(1)), PLAIN)
    assert_close(drawn.entropy, torch.tensor([0.832396]), atol=1e-6, rtol=0)
    halved = distribution(2 * logits, Sampling(max_new_tokens=1, temperature=2.0))
    assert_close(halved, logits.log_softmax(-1))


def test_entropy_is_that_of_the_whole_distribution(vectors):
    logp = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64).log_softmax(-1)
    assert_close(logp.exp()[0], vectors["entropy/p"], atol=1e-6, rtol=0)
    assert_close(entropy_of(logp)[0], vectors["entropy/[2,1,0]"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_has_the_value_and_the_gradient_of_its_formula_bit_for_bit(dtype):
    logits, weight = torch.randn(5, 40, dtype=dtype), torch.randn(5, dtype=dtype)
    logits[:, [3, 7]] = -torch.inf
    logits[1] = torch.tensor([0.0] + [-torch.inf] * 39)  # no other token has mass

    def learn(formula):
        own = logits.clone().requires_grad_()
        logp = own.log_softmax(-1)
        chosen, entropy = logp[:, 0], formula(logp)
        ((weight * entropy).sum() + 0.7 * chosen.sum()).backward()
        return entropy.detach(), own.grad

    def by_autograd(logp):
        return -(logp.exp() * logp.clamp_min(-1e30)).sum(-1)

    got, want = learn(entropy_of), learn(by_autograd)
    assert all(x.isfinite().all() for x in got)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_entropy_of_a_truncated_distribution_is_finite():
    drawn = draw(
        torch.zeros(3, 8), rng.key(0, torch.arange(3)), Sampling(max_new_tokens=1, top_k=2)
    )
    # Ties with the k-th likeliest stay.
    assert_close(drawn.entropy, torch.full((3,), math.log(8)))
    one = torch.tensor([[5.0, 0.0, 0.0]])
    drawn = draw(one, rng.key(0, torch.arange(1)), Sampling(max_new_tokens=1, top_k=1))
    assert_close(drawn.entropy, torch.zeros(1))


def test_temperature_zero_takes_the_likeliest_token():
    logits = torch.randn(100, 30)
    greedy = Sampling(max_new_tokens=1, temperature=0.0)
    drawn = draw(logits, rng.key(0, torch.arange(100)), greedy)
    assert_close(drawn.token, logits.argmax(-1))
    assert_close(drawn.logp, logits.log_softmax(-1).max(-1).values)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"max_new_tokens": 0}, "rollout.max_new_tokens is 0; it must be at least 1"),
        ({"temperature": -1.0}, "rollout.temperature is -1.0"),
        ({"top_p": 0.0}, "rollout.top_p is 0.0"),
        ({"stop": [""]}, "rollout.stop"),
        ({"stop": ["\\n\\n"]}, "has line ends as two characters"),
    ],
)
def test_impossible_numbers_are_named(wrong, line):
    with pytest.raises(ValueError, match=line.replace(".", r"\.")):
        Sampling(**{"max_new_tokens": 1} | wrong)
