import json

import pytest
import torch
from torch import Tensor, nn

from tandem.record.optimizer_state import load_optimizer_state, optimizer_state

OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.98)),
    "adamw_fused": lambda groups: torch.optim.AdamW(groups, lr=3e-3, fused=True),
    "adam_amsgrad": lambda groups: torch.optim.Adam(groups, lr=3e-3, amsgrad=True),
    "adam_tensor_lr": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(3e-3), foreach=False),
    "sgd_momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2),
}


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def groups_of(net: nn.Module) -> list[dict]:
    named = dict(net.named_parameters())
    decayed = [p for name, p in named.items() if name.endswith("weight")]
    return [
        {"params": decayed, "weight_decay": 0.1},
        {"params": [named["0.bias"], named["2.bias"]]},
    ]


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        inputs = torch.linspace(-1, 1, 20).view(4, 5) * (1 + step)
        optimizer.zero_grad()
        net(inputs.to(net[0].weight.dtype)).square().sum().backward()
        optimizer.step()


def through_the_file(tensors: dict[str, Tensor], state: dict) -> tuple[dict[str, Tensor], dict]:
    return {name: x.cpu().clone() for name, x in tensors.items()}, json.loads(json.dumps(state))


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_updates_after_a_round_trip_are_bit_identical(build, dtype):
    straight, resumed = network(dtype), network(dtype)
    first, second = build(groups_of(straight)), build(groups_of(resumed))
    train(straight, first, range(5))
    saved = through_the_file(*optimizer_state(first, dict(straight.named_parameters())))
    resumed.load_state_dict(straight.state_dict())
    load_optimizer_state(second, dict(resumed.named_parameters()), *saved)
    train(straight, first, range(5, 10))
    train(resumed, second, range(5, 10))
    for name, parameter in straight.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name
    assert first.state_dict()["param_groups"] == second.state_dict()["param_groups"]


def test_moments_of_another_dtype_than_the_weights_keep_theirs():
    net = network(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    names = dict(net.named_parameters())
    moment = torch.full((7,), 1 / 3)
    saved = (
        {"momentum_buffer/0.bias": moment},
        {"state": {"0.bias": {}}, "groups": [{"params": list(names), "fields": {"lr": 0.1}}]},
    )
    load_optimizer_state(optimizer, names, *saved)
    assert torch.equal(optimizer.state[names["0.bias"]]["momentum_buffer"], moment)


def test_a_learning_rate_that_was_scheduled_comes_back():
    net = network()
    names = dict(net.named_parameters())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1.0)
    optimizer.param_groups[0]["lr"] = 0.1 + 0.2
    saved = through_the_file(*optimizer_state(optimizer, names))
    fresh = torch.optim.AdamW(net.parameters(), lr=1.0)
    load_optimizer_state(fresh, names, *saved)
    assert fresh.param_groups[0]["lr"] == 0.1 + 0.2


def test_an_optimizer_of_other_groups_is_refused():
    net = network()
    names = dict(net.named_parameters())
    saved = optimizer_state(torch.optim.SGD(groups_of(net), lr=0.1), names)
    with pytest.raises(ValueError, match="groups of \\[2, 2\\] parameters, this one of \\[4\\]"):
        load_optimizer_state(torch.optim.SGD(net.parameters(), lr=0.1), names, *saved)


def test_a_parameter_without_a_name_is_refused():
    net = network()
    names = {"0.weight": net[0].weight}
    with pytest.raises(ValueError, match="3 parameters of the optimizer have no name"):
        optimizer_state(torch.optim.SGD(net.parameters(), lr=0.1), names)
