"""Named averages and older states of the weights."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_flow import sample_rows, small
from torch import nn
from torch.testing import assert_close

from tandem.dynamics.decays import EmaSchedule, constant, power
from tandem.policies.flow.snapshots import Snapshots
from tandem.policies.lora import Lora


def shift(policy, by):
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter += by


def average(schedule=constant, **numbers):
    return EmaSchedule(decay=partial(schedule, **numbers))


COPIED = EmaSchedule(decay=lambda count: 0.0, every="iteration", counts="iteration")


def test_an_average_is_the_sum_that_its_decays_say():
    weight = nn.Parameter(torch.tensor([1.0]))
    snapshots = Snapshots({"w": weight}, {"ema": average(power, decay=0.9, warmup=2)})
    want, values, kept = 1.0, [1.0, 3.0, -2.0], [1 / 2, 2 / 3, 3 / 4]
    for value, decay in zip(values, kept, strict=True):
        weight.data.fill_(value)
        snapshots.follow("update")
        want = decay * want + (1 - decay) * value
    assert_close(snapshots.weights["ema"]["w"], torch.tensor([want]))


def test_the_average_of_narrow_weights_does_not_stand_still():
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    snapshots = Snapshots({"w": weight}, {"ema": average(decay=0.995)})
    weight.data.fill_(2)
    for _ in range(2000):
        snapshots.follow("update")
    assert snapshots.weights["ema"]["w"].item() > 1.999


def test_a_copy_is_the_live_weights_until_the_next_update():
    weight = nn.Parameter(torch.zeros(1))
    snapshots = Snapshots({"w": weight}, {"old": COPIED})
    for value in (1.0, 2.0):
        assert snapshots.is_live("old")
        weight.data.fill_(value)
        snapshots.follow("update")
        assert not snapshots.is_live("old")
        assert snapshots.weights["old"]["w"].item() == value - 1
        snapshots.follow("iteration")
    assert snapshots.counts == {"update": 2, "iteration": 2}


def test_a_ramp_counts_updates_and_follows_after_iterations():
    counts = []
    ramp = EmaSchedule(decay=lambda count: counts.append(count) or 0.5, every="iteration")
    weight = nn.Parameter(torch.ones(1))
    snapshots = Snapshots({"w": weight}, {"old": ramp})
    weight.data.fill_(2)
    for event in ("update", "update", "iteration", "update", "iteration"):
        snapshots.follow(event)
    assert counts == [2, 3]
    assert snapshots.weights["old"]["w"].item() == 1.75
    assert not snapshots.is_live("old")


def on_another_device(snapshots):
    """Moving a module moves its parameters alone."""
    snapshots.live = {
        name: nn.Parameter(torch.empty_like(p, device="meta")) for name, p in snapshots.live.items()
    }


@pytest.mark.parametrize("used", ["blended", "put into the network"])
def test_a_snapshot_follows_the_weights_to_their_device(used):
    snapshots = Snapshots({"w": nn.Parameter(torch.ones(1))}, {"ema": average()})
    on_another_device(snapshots)
    snapshots.current.clear()
    if used == "blended":
        snapshots.follow("update")
    else:
        with snapshots.use("ema"):
            pass
    assert snapshots.weights["ema"]["w"].device.type == "meta"


def test_pictures_are_sampled_under_a_snapshot_and_the_live_weights_come_back():
    policy = small(ema=partial(constant, decay=1.0))
    before = sample_rows(policy).sample.x0
    shift(policy, 0.02)
    policy.notify("update")
    of_ema = replace(policy.sampling, weights="ema")
    after, held = sample_rows(policy).sample.x0, {n: w.clone() for n, w in policy.weights().items()}
    assert torch.equal(sample_rows(policy, sampling=of_ema).sample.x0, before)
    assert not torch.equal(after, before)
    assert all(torch.equal(w, held[name]) for name, w in policy.weights().items())
    with pytest.raises(ValueError, match="there is no snapshot 'old'; choose one of \\['ema'\\]"):
        sample_rows(policy, sampling=replace(of_ema, weights="old"))


def test_an_average_follows_every_update_of_an_optimiser():
    policy = small(ema=partial(constant, decay=0.5))
    name, weight = next(iter(policy.trainable().items()))
    before = weight.detach().clone()
    shift(policy, 0.02)
    policy.notify("update")
    assert_close(policy.model.snapshots.weights["ema"][name], (before + weight) / 2)


def test_snapshots_are_part_of_the_state():
    make = partial(
        small,
        frozenset({"old_error"}),
        ema=partial(power, decay=0.9),
        snapshots={"old": COPIED, "fast": average()},
    )
    policy, again = make(), make()
    for by in (0.02, 0.01):
        shift(policy, by)
        policy.notify("update")
    policy.notify("iteration")
    again.load_weights(policy.weights())
    again.load_state({name: value.clone() for name, value in policy.state().items()})
    for other in (policy, again):
        assert other.model.snapshots.is_live("old") and not other.model.snapshots.is_live("ema")
        shift(other, 0.01)
        other.notify("update")
    assert again.model.snapshots.counts == {"update": 3, "iteration": 1}
    assert again.model.snapshots.weights.keys() == {"old", "ema"}  # the fast one is not read
    for name, kept in policy.model.snapshots.weights.items():
        assert all(torch.equal(kept[n], again.model.snapshots.weights[name][n]) for n in kept)


def test_the_live_weights_sample_until_a_snapshot_takes_over():
    slow = {"fast": average(decay=1.0)}
    policy = small(snapshots=slow, sampling={"weights": "fast", "weights_from": 2})
    before = sample_rows(policy).sample.x0
    shift(policy, 0.02)
    policy.notify("update")
    assert not torch.equal(sample_rows(policy).sample.x0, before)
    policy.notify("update")
    assert torch.equal(sample_rows(policy).sample.x0, before)


@pytest.mark.parametrize("lora", [None, Lora(r=2, alpha=4, target_modules="attention")])
def test_the_average_is_saved_beside_the_live_weights_as_a_whole_model(tmp_path, lora):
    policy = small(ema=partial(constant, decay=0.5), lora=lora)
    shift(policy, 0.1)
    policy.notify("update")
    policy.save(tmp_path)
    of_ema = replace(policy.sampling, weights="ema")
    want, live = sample_rows(policy, sampling=of_ema), sample_rows(policy)
    for folder, rollout in ((tmp_path / "ema", want), (tmp_path, live)):
        again = sample_rows(small(path=str(folder))).sample.x0
        assert_close(again, rollout.sample.x0, atol=1e-4, rtol=1e-4)
    assert (want.sample.x0 - live.sample.x0).abs().max() > 0.01
