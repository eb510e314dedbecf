"""Averages and older states of the weights, by name."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_flow import sampled, small
from torch import nn
from torch.testing import assert_close

from tandem.dynamics.decays import constant, power
from tandem.policies.flow.snapshots import Snapshots
from tandem.policies.lora import Lora


def shifted(policy, by):
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter += by


def test_an_average_is_the_sum_that_its_decays_say():
    weight = nn.Parameter(torch.tensor([1.0]))
    snapshots = Snapshots({"w": weight})
    values = [1.0, 3.0, -2.0]
    for value in values:
        weight.data.fill_(value)
        snapshots.blend("ema", partial(power, decay=0.9, warmup=2))
    want, kept = values[0], [1 / 2, 2 / 3, 3 / 4]
    for value, decay in zip(values, kept, strict=True):
        want = decay * want + (1 - decay) * value
    assert_close(snapshots.weights["ema"]["w"], torch.tensor([want]))


def test_the_average_of_narrow_weights_does_not_stand_still():
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    snapshots = Snapshots({"w": weight})
    snapshots.blend("ema", partial(constant, decay=0.995))
    weight.data.fill_(2)
    for _ in range(2000):
        snapshots.blend("ema", partial(constant, decay=0.995))
    assert snapshots.weights["ema"]["w"].item() > 1.999


def on_another_device(snapshots):
    """What moves a module moves its parameters alone."""
    snapshots.live = {
        name: nn.Parameter(torch.empty_like(p, device="meta")) for name, p in snapshots.live.items()
    }


@pytest.mark.parametrize("used", ["blended", "put into the network"])
def test_a_snapshot_follows_the_weights_to_their_device(used):
    snapshots = Snapshots({"w": nn.Parameter(torch.ones(1))})
    snapshots.begin("ema")
    on_another_device(snapshots)
    if used == "blended":
        snapshots.blend("ema", constant)
    else:
        with snapshots.under("ema"):
            pass
    assert snapshots.weights["ema"]["w"].device.type == "meta"


def test_pictures_are_sampled_under_a_snapshot_and_the_live_weights_come_back():
    policy = small()
    before = sampled(policy).sample.x0
    policy.blend("ema", constant)
    shifted(policy, 0.02)
    of_ema = replace(policy.sampling, weights="ema")
    after, held = sampled(policy).sample.x0, {n: w.clone() for n, w in policy.weights().items()}
    assert torch.equal(sampled(policy, sampling=of_ema).sample.x0, before)
    assert not torch.equal(after, before)
    assert all(torch.equal(w, held[name]) for name, w in policy.weights().items())
    with pytest.raises(ValueError, match="no snapshot is called 'old'; there are \\['ema'\\]"):
        sampled(policy, sampling=replace(of_ema, weights="old"))


def test_an_average_follows_every_update_of_an_optimiser():
    policy = small(ema=partial(constant, decay=0.5))
    name, weight = next(iter(policy.trainable().items()))
    before = weight.detach().clone()
    shifted(policy, 0.02)
    policy.updated()
    assert_close(policy.model.snapshots.weights["ema"][name], (before + weight) / 2)


def test_snapshots_are_part_of_the_state():
    policy, again = small(), small()
    policy.blend("ema", constant)
    shifted(policy, 0.02)
    policy.blend("ema", constant)
    state = {name: value.clone() for name, value in policy.state().items()}
    again.load_state(state)
    for other in (policy, again):
        shifted(other, 0.01)
        other.load_weights(policy.weights())
        other.blend("ema", power)
    assert again.model.snapshots.counts == {"ema": 3}
    kept = policy.model.snapshots.weights["ema"]
    assert all(torch.equal(kept[n], w) for n, w in again.model.snapshots.weights["ema"].items())
    small().load_state(small().state())


@pytest.mark.parametrize("lora", [None, Lora(r=2, alpha=4, target_modules="attention")])
def test_the_average_is_saved_beside_the_live_weights_as_a_whole_model(tmp_path, lora):
    policy = small(ema=partial(constant, decay=0.5), lora=lora)
    shifted(policy, 0.1)
    policy.updated()
    policy.save(tmp_path)
    of_ema = replace(policy.sampling, weights="ema")
    want, live = sampled(policy, sampling=of_ema), sampled(policy)
    for folder, rollout in ((tmp_path / "ema", want), (tmp_path, live)):
        again = sampled(small(path=str(folder))).sample.x0
        assert_close(again, rollout.sample.x0, atol=1e-4, rtol=1e-4)
    assert (want.sample.x0 - live.sample.x0).abs().max() > 0.01
