"""Decay schedules of moving averages: the reference rows, and the bounds that they keep."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.dynamics import decays

EMA = {
    "constant": decays.constant,
    "power": decays.power,
    "linear": decays.linear,
    "piecewise_linear": decays.piecewise_linear,
    "cosine": decays.cosine,
    "warmup_cosine": decays.warmup_cosine,
}
RAMPS = {
    "crd_old": partial(decays.piecewise_linear, flat=0, start=0.25, slope=0.005, decay=0.999),
    "crd_sampling_and_nft_type2": partial(
        decays.piecewise_linear, flat=75, start=0.0, slope=0.0075, decay=0.999
    ),
    "nft_type1": partial(decays.piecewise_linear, flat=0, start=0.0, slope=0.001, decay=0.5),
}


@pytest.mark.parametrize("name", EMA)
def test_the_six_schedules_are_the_reference_ones(flow, name):
    got = [EMA[name](count) for count in flow(f"ema.{name}/steps", torch.int64).tolist()]
    want = flow(f"ema.{name}/decay")
    assert_close(torch.tensor(got, dtype=torch.float64), want, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", RAMPS)
def test_snapshot_ramps_are_piecewise_linear(flow, name):
    got = [RAMPS[name](count) for count in flow(f"decay.{name}/steps", torch.int64).tolist()]
    want = flow(f"decay.{name}/value")
    assert_close(torch.tensor(got, dtype=torch.float64), want, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [*EMA, *RAMPS])
def test_a_decay_never_falls_nor_leaves_its_end(name):
    schedule = {**EMA, **RAMPS}[name]
    values = [schedule(count) for count in range(3000)]
    assert values == sorted(values)
    assert min(values) >= 0 and max(values) <= 0.999


def test_a_warm_up_rises_to_the_start_of_its_cosine():
    schedule = partial(decays.warmup_cosine, start=0.5)
    assert [schedule(count) for count in (0, 50, 100, 1000)] == pytest.approx([0, 0.25, 0.5, 0.995])
