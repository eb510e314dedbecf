"""Sharded weights: one verdict for all ranks."""

import math

import pytest
import torch
from two_ranks import on_both

from tandem import distributed
from tandem.settings.guards import Guards
from tandem.stop import Stop


def verdict() -> tuple[str, str]:
    """For whole weights, and after the second rank has a NaN."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    network = torch.nn.Linear(3, 4)
    fully_shard(network, mesh=init_device_mesh("cpu", (2,)))
    said = []
    for broken in (False, True):
        if broken and distributed.rank() == 1:
            network.weight.to_local().data[0, 0] = torch.nan
        try:
            Guards().check_weights(network.parameters(), 3, 0.1)
            said.append("")
        except Stop as stop:
            said.append(str(stop))
    return tuple(said)


@pytest.mark.system
def test_a_rank_whose_part_is_broken_stops_all():
    for before, after in on_both(verdict):
        assert before == ""
        assert after.startswith("iteration 3: the optimizer step made weights that are not finite")


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
def test_only_a_weight_that_is_not_finite_stops_a_run(broken):
    """The first weight is finite in float32, but its square is not."""
    Guards().check_weights([torch.tensor([-1e30, 2.0])], 3, 0.1)
    with pytest.raises(Stop, match="not finite"):
        Guards().check_weights([torch.ones(2), torch.tensor([1e30, broken])], 3, 0.1)


def test_a_rank_without_a_part_of_a_small_weight_judges_the_others():
    Guards().check_weights([torch.zeros(0, 3), torch.ones(2)], 3, 0.1)
    Guards().check_weights([torch.zeros(0)], 3, 0.1)
    with pytest.raises(Stop, match="not finite"):
        Guards().check_weights([torch.zeros(0), torch.tensor([1.0, math.nan])], 3, 0.1)
