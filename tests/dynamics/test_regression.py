"""The noise levels of training on images: the reference's levels, their candidates and noise."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem import rng
from tandem.config import ConfigError, check, compose
from tandem.dynamics.path import x0_from_velocity
from tandem.dynamics.regression import (
    Regression,
    by_index,
    by_time,
    discrete,
    discrete_with_init,
    discrete_without_init,
    energy,
    logit_normal,
    shifted,
    uniform,
)
from tandem.dynamics.schedules import linear_shift
from tandem.dynamics.weighting import by_sigma, by_sigma_squared, ghuber, huber, plain
from tandem.policies.flow.teachers import VelocityTeachers

CLOSE = {"atol": 1e-6, "rtol": 0}
TEN = linear_shift(10, 0, shift=3.0).double()
STRATEGIES = (discrete, discrete_with_init, discrete_without_init)


def quantiles(flow):
    return flow("time.logit_normal/strat_quantiles")[None]


def range_of(flow):
    """Flow-Factory's range and shift in sigma: the range from the other end, the shift inverted."""
    start, end = flow("time.logit_normal/range").tolist()
    return {"low": 1 - end, "high": 1 - start}, 1 / flow("time.logit_normal/shift").item()


def test_logit_normal_levels_are_the_reference_ones(flow):
    """Flow-Factory's quantiles run toward data, so u here is 1 - u there."""
    u, (span, back) = quantiles(flow), range_of(flow)
    for shift, name in ((1.0, "ff_shift1"), (back, "ff")):
        got = logit_normal(1 - u, TEN, **span, shift=shift)[0]
        assert_close(got, flow(f"time.logit_normal/{name}") / 1000, **CLOSE)
    toward_noise = logit_normal(u, TEN, shift=1 / back)[0]
    assert_close(toward_noise, flow("time.logit_normal/toward_noise") / 1000, **CLOSE)


def test_uniform_levels_are_the_reference_ones(flow):
    u, (span, back) = quantiles(flow), range_of(flow)
    for shift, name in ((1.0, "ff_shift1"), (back, "ff_shift3")):
        got = uniform(1 - u, TEN, **span, shift=shift)[0]
        assert_close(got, flow(f"time.uniform/{name}") / 1000, **CLOSE)


def test_discrete_levels_are_the_reference_ones(flow):
    """Its edges end at M, which it never draws, and ours at M + 1; the draws are equal."""
    schedule = torch.cat([flow("time.discrete/timesteps") / 1000, torch.zeros(1)])
    assert_close(schedule, TEN, **CLOSE)
    start, end = flow("time.discrete/range").tolist()
    among = partial(by_time, low=1 - end, high=1 - start)
    assert among(schedule).tolist() == flow("time.discrete/valid").long().tolist()
    got = discrete(flow("time.discrete/u")[None], schedule, among=among)[0]
    assert_close(got, schedule[flow("time.discrete/ff_indices").long()])
    edges = flow("time.discrete/boundaries").long()
    ours = [edge * 9 // 4 for edge in range(5)]
    assert edges.tolist()[:-1] == ours[:-1] and (edges[-1], ours[-1]) == (8, 9)


def test_what_a_range_of_time_keeps_is_what_the_reference_keeps(flow):
    for end in (0.3, 0.9, 0.99):
        valid = flow(f"time.discrete/range_{end}_valid".replace("0.", "0p")).long()
        assert by_time(TEN, low=1 - end).tolist() == valid.tolist()
        assert by_index(TEN, end=end).tolist() == list(range(int(10 * end)))


@pytest.mark.parametrize("schedule", [TEN, TEN.float()], ids=["float64", "float32"])
def test_an_edge_of_a_range_is_inside(schedule):
    assert by_time(schedule, low=0.25, high=0.923077).tolist() == list(range(2, 10))
    assert by_index(schedule, start=0.7, end=1.0).tolist() == [7, 8, 9]  # 10 x 0.7 is below 7
    assert by_index(linear_shift(100, 0), start=0.0, end=0.29)[-1] == 28  # and so is 100 x 0.29


def draw(strategy, count, among=by_index, rows=500):
    """The indices of many draws: [rows, count]"""
    u = (torch.arange(rows, dtype=torch.float64)[:, None] + 0.5) / rows
    u = torch.cat([u.roll(7 * column) for column in range(count)], 1)
    levels = strategy(u, TEN, among=among)
    return (levels[..., None] == TEN).int().argmax(-1)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 9, 12, 20])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda f: f.__name__)
def test_every_candidate_is_drawn(strategy, count):
    """All of the first nine steps, evenly; none twice unless fewer exist than are requested."""
    index = draw(strategy, count)
    assert index.shape[1] == count
    with_init = strategy is discrete_with_init
    if with_init:
        assert (index[:, 0] == 0).all()
        index = index[:, 1:]
    candidates = set(range(strategy is not discrete, 9))
    if index.numel():
        assert set(index.flatten().tolist()) == candidates
    for row in index[:50].tolist():
        times = [row.count(i) for i in candidates]
        assert max(times) - min(times) <= (1 if len(row) <= len(candidates) else 2)
        assert max(times) <= -(-len(row) // len(candidates))


def test_a_whole_schedule_is_drawn_once_each():
    """As many levels as steps gives each step once, for any u, as in DiffusionNFT."""
    assert (draw(discrete, 9) == torch.arange(9)).all()
    assert (draw(discrete_without_init, 8) == torch.arange(1, 9)).all()
    assert (draw(discrete_with_init, 9) == torch.arange(9)).all()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda f: f.__name__)
def test_levels_of_no_step_are_refused(strategy):
    u = torch.full((2, 3), 0.5, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"no step .* widen algorithm\.timestep_sampling\.levels\.among"
    ):
        strategy(u, TEN, among=partial(by_time, low=0.5, high=0.51))
    if strategy is not discrete:  # the only step is the first
        with pytest.raises(ValueError, match="no step"):
            strategy(u, TEN, among=partial(by_time, low=0.99))
    one = discrete_with_init(u[:, :1], TEN, among=partial(by_time, low=0.99))
    assert one.tolist() == [[1.0], [1.0]]


def test_a_shift_above_1_is_toward_noise():
    u = rng.uniform(rng.key("u"), (4096, 1))
    for strategy in (uniform, logit_normal):
        toward_data, none, toward_noise = (
            strategy(u, TEN, shift=shift).mean().item() for shift in (1 / 3, 1.0, 3.0)
        )
        assert toward_data < none - 0.1 < none + 0.1 < toward_noise
        assert none == pytest.approx(0.5, abs=0.02)
        assert toward_data == pytest.approx(1 - toward_noise, abs=0.02)
    assert_close(shifted(shifted(u, 3.0), 1 / 3), u)
    assert logit_normal(u, TEN, mean=1.0).mean() > 0.65


@pytest.mark.parametrize("strategy", [uniform, logit_normal], ids=lambda f: f.__name__)
def test_levels_stay_in_their_range(strategy):
    ends = torch.tensor([[2.0**-54, 0.5, 1 - 2.0**-53]], dtype=torch.float64)
    got = strategy(ends, TEN, low=0.2, high=0.9)
    assert ((got >= 0.2) & (got <= 0.9)).all() and (got.diff() > 0).all()
    for low, high in ((0.5, 0.5), (-0.1, 0.5), (0.5, 1.1)):
        with pytest.raises(ValueError, match="0 <= low < high <= 1"):
            strategy(ends, TEN, low=low, high=high)


WEIGHTINGS = {
    "Uniform": plain,
    "t": by_sigma,
    "t**2": by_sigma_squared,
    "huber": huber,
    "ghuber": ghuber,
}


@pytest.mark.parametrize("weighting", WEIGHTINGS.values(), ids=WEIGHTINGS)
def test_no_error_is_the_best_there_is_and_has_no_slope(weighting):
    error = torch.zeros(3, 2, 5, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)[:, None].expand(3, 2)
    value = weighting(sigma, energy(error))
    (slope,) = torch.autograd.grad(value.sum(), error)
    assert not value.any() and not slope.any()
    assert (weighting(sigma, energy(error + 0.1))[1:] > 0).all()
    assert_close(ghuber(sigma, energy(error + 0.1), p=1.0), by_sigma(sigma, energy(error + 0.1)))


def regression(**numbers):
    return Regression(levels=uniform, weighting=plain, **numbers)


def test_levels_and_noise_are_a_function_of_the_key():
    keys = rng.key("rows", torch.tensor([3, 1, 3]))
    x0 = rng.normal(rng.key("x0"), (3, 2, 4))
    x, sigma, truth = regression(count=5).add_noise(x0, keys, TEN)
    assert sigma.shape == (3, 5) and x.shape == truth.shape == (3, 5, 2, 4)
    assert torch.equal(sigma[0], sigma[2]) and not (sigma[0] == sigma[1]).any()
    noise = truth + x0[:, None]
    assert_close(noise[0], noise[2])
    assert len(noise[0].flatten().unique()) == 40, "levels have noise of their own"
    alone = regression(count=5).add_noise(x0[1:2], keys[1:2], TEN)
    assert_close(alone, (x[1:2], sigma[1:2], truth[1:2]))
    for level in range(5):  # the velocity determines the image
        assert_close(x0_from_velocity(x[:, level], truth[:, level], sigma[:, level]), x0)


def test_strata_hold_one_level_each_in_random_order():
    keys = rng.key("rows", torch.arange(2000))
    sigma = regression(count=4, stratified=True).sigma(keys, TEN)
    part = (4 * sigma).long()
    assert (part.sort(1).values == torch.arange(4)).all()
    assert_close(part.double().mean(0), torch.full((4,), 1.5).double(), atol=0.1, rtol=0)
    loose = (4 * regression(count=4).sigma(keys, TEN)).long()
    assert (loose.sort(1).values == torch.arange(4)).all(1).float().mean() < 0.2  # 4! / 4^4


@pytest.mark.parametrize("name", ["count", "guidance_scale", "ref_guidance_scale"])
def test_numbers_below_one_are_refused(name):
    key = f"algorithm.timestep_sampling.{name}"
    with pytest.raises(ConfigError, match=f"{key}=0(.0)?: must be at least 1"):
        check(compose(["model=tiny_flow", "algorithm=nft", f"{key}=0"]))


def test_a_part_of_the_steps_is_what_it_is_by_hand():
    """0.29 of 100 steps are 29, for levels and for teachers; a float product is smaller."""
    assert int(100 * 0.29) == 28
    assert by_index(linear_shift(100, 0), end=0.29).tolist() == list(range(29))
    assert VelocityTeachers(folders={"others": "x"}, fraction=0.29).compared_steps(100) == range(29)
