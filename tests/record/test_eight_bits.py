"""`optimizer=adamw_8bit`: refused by name if its extra is missing, and resumed bit for bit."""

import sys
from functools import partial

import pytest
import torch
from torch import nn

from tandem.config import build, check, compose
from tandem.record.checkpoint import read
from tandem.record.optimizer_state import load_optimizer_state, optimizer_state
from tandem.record.publishing import publish

WORDS = ["optimizer=adamw_8bit", "model=tiny_lm"]


def test_without_its_package_it_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ValueError, match=r'pip install -e "\.\[8bit\]"$') as caught:
        check(compose(WORDS))
    assert "\n" not in str(caught.value)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64))


def train(net, optimizer, steps):
    for step in steps:
        inputs = torch.linspace(-1, 1, 256).view(4, 64) * (1 + step)
        optimizer.zero_grad()
        net(inputs).square().sum().backward()
        optimizer.step()


def test_its_state_goes_through_a_checkpoint_without_a_bit_lost(tmp_path):
    pytest.importorskip("bitsandbytes")
    make = partial(build(compose(WORDS).optimizer), lr=1e-3)
    straight, resumed = network(), network()
    first = make(straight.parameters())
    second = make(resumed.parameters())
    train(straight, first, range(5))
    names = dict(straight.named_parameters())
    state = first.state[names["0.weight"]]
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8
    tensors, words = optimizer_state(first, names)
    folder = publish(tmp_path, 1, {"optimizer": tensors}, {"optimizer": words}, keep=1)
    tensors, words = read(folder)
    resumed.load_state_dict(straight.state_dict())
    loaded = tensors["optimizer"], words["optimizer"]
    load_optimizer_state(second, dict(resumed.named_parameters()), *loaded)
    train(straight, first, range(5, 10))
    train(resumed, second, range(5, 10))
    for name, parameter in names.items():
        assert torch.equal(parameter, resumed.get_parameter(name)), name
    assert not torch.equal(straight[0].weight, network()[0].weight)
