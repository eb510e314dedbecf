"""Recomputed blocks, and feed-forward layers that process a sequence in tiles."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tandem.config import ConfigError, check, compose
from tandem.policies.activations import recompute_activations, tile_feed_forward


class WideMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.most = nn.Linear(4, 16), nn.Linear(16, 4), 0

    def forward(self, x, *, scale=1.0):
        self.most = max(self.most, x[..., 0].numel())
        return self.down(self.up(x).relu()) * scale


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([WideMLP()])

    def forward(self, x):
        return self.blocks[0](x, scale=2.0)


def test_a_layer_reads_a_tile_at_a_time_and_its_copy_reads_its_own_weights():
    whole, x = Network(), torch.randn(2, 5, 4)
    tiled = copy.deepcopy(whole)
    tile_feed_forward(tiled, 3)
    assert_close(tiled(x), whole(x), atol=1e-6, rtol=1e-6)
    assert (whole.blocks[0].most, tiled.blocks[0].most) == (10, 3)
    copied, before = copy.deepcopy(tiled), tiled(x)
    with torch.no_grad():
        copied.blocks[0].down.weight.zero_()
    assert_close(tiled(x), before, atol=0, rtol=0)
    assert (copied(x) - before).abs().max() > 0.01
    assert set(tiled.state_dict()) == set(whole.state_dict())


def test_layers_of_two_policies_are_tiled_once_by_the_smaller_number():
    whole, x = Network(), torch.randn(2, 5, 4)
    tiled = copy.deepcopy(whole)
    tile_feed_forward(tiled, 5)
    tile_feed_forward(tiled, 3)
    assert_close(tiled(x), whole(x), atol=1e-6, rtol=1e-6)
    assert tiled.blocks[0].most == 3


@pytest.mark.parametrize(("width", "warns"), [(16, True), (1, False)])
def test_blocks_that_stay_whole_are_a_warning_that_names_their_share(width, warns, recwarn):
    network = Network()
    network.blocks.append(nn.Linear(width, width))  # a block that computes all by itself
    tile_feed_forward(network, 3)
    said = [str(one.message) for one in recwarn if "mlp_tile" in str(one.message)]
    want = "model.mlp_tile=3: 1 of 2 blocks of Network, with 65% of the weights, have no feed-"
    assert len(said) == warns and all(one.startswith(want) for one in said)


def test_a_network_without_such_layers_says_so():
    network = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(
        ValueError, match=r"^model\.mlp_tile=3: Sequential has no feed-forward layer"
    ):
        tile_feed_forward(network, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("model.liger=true model.mlp_tile=8", "model.liger=true replaces feed-forward layers"),
        ("model.mlp_tile=0", "model.mlp_tile=0"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_a_weight_is_read(words, said):
    with pytest.raises(ConfigError, match=said):
        check(compose(words.split()))


def test_a_network_without_blocks_cannot_be_recomputed():
    with pytest.raises(ValueError, match="gradient_checkpointing=true: Sequential has no list of"):
        recompute_activations(nn.Sequential(nn.Linear(2, 2)))
