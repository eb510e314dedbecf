"""The fused layers of adapters: what peft computes, in less memory."""

import copy

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.testing import assert_close

from tandem.policies.low_rank import LowRankLinear, fuse_adapters
from tandem.policies.memory.tracker import Peak

BITS = {"atol": 0, "rtol": 0}
ROUNDED = {"atol": 0, "rtol": 1e-5}  # a scale that is no power of two is rounded elsewhere


def adapted(dtype, *, alpha=64, device="cpu", width=64):
    """Two networks of two adapted layers with the same weights: peft's, and the fused one."""
    torch.manual_seed(0)
    with torch.device(device):
        plain = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, 32)).to(dtype)
    asked = LoraConfig(
        r=8, lora_alpha=alpha, lora_dropout=0.0, target_modules=["0", "2"], init_lora_weights=False
    )
    own = inject_adapter_in_model(asked, plain)
    for name, weight in own.named_parameters():
        weight.requires_grad_("lora_" in name)
        if "lora_" in name:
            weight.data = weight.data.float()
    fused = copy.deepcopy(own)
    fuse_adapters(fused)
    return own, fused


def output_and_gradients(network, x):
    leaf = x.clone().requires_grad_(True)
    network(leaf).float().square().sum().backward()
    trained = [weight.grad for weight in network.parameters() if weight.requires_grad]
    return [network(x).detach(), leaf.grad, *trained]


@pytest.mark.parametrize(
    ("alpha", "within"), [(64, BITS), (50, ROUNDED)], ids=["scale_8", "scale_6.25"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_layer_gives_the_numbers_of_peft(dtype, alpha, within):
    networks = adapted(dtype, alpha=alpha)
    x = torch.randn(3, 7, 64).to(dtype)
    theirs, ours = (output_and_gradients(network, x) for network in networks)
    for want, got in zip(theirs, ours, strict=True):
        scale = want.abs().max()  # entries near 0 are differences of large numbers
        assert_close(got / scale, want / scale, **(within | {"atol": within["rtol"]}))


def test_under_autocast_it_computes_in_the_dtype_of_autocast():
    networks = adapted(torch.bfloat16)
    x = torch.randn(3, 7, 64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        theirs, ours = (output_and_gradients(network, x) for network in networks)
    for want, got in zip(theirs, ours, strict=True):
        assert_close(got, want, **BITS)


def test_adapters_are_switched_off_and_merged_as_those_of_peft():
    for network in adapted(torch.float32):
        x = torch.randn(2, 64)
        with_adapters = network(x)
        layers = [network[0], network[2]]
        for layer in layers:
            layer.enable_adapters(False)
        bare = network[2].base_layer(network[1](network[0].base_layer(x)))
        assert torch.equal(network(x), bare)
        for layer in layers:
            layer.enable_adapters(True)
            layer.merge()
        assert_close(network(x), with_adapters)
        assert not torch.equal(with_adapters, bare)


def test_layers_that_share_an_input_keep_it_once_in_its_own_dtype():
    """The bytes of activations of one layer per output, on the meta device."""
    rows, width = 64, 1024
    sizes = []
    for network in adapted(torch.bfloat16, device="meta", width=width):
        heads = nn.ModuleList(copy.deepcopy(network[0]) for _ in range(3))
        x = torch.empty(rows, width, device="meta", dtype=torch.bfloat16, requires_grad=True)
        with Peak([x, *heads.parameters()]) as peak:
            kept = [head(x) for head in heads]
        sizes.append(peak.now - sum(out.nbytes for out in kept))
    own, fused = sizes
    low = 3 * rows * 8 * 4  # bytes of x A^T
    assert (own, fused) == (3 * rows * width * 4 + low, low)


def test_layers_of_other_kinds_stay_as_they_are():
    network = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    asked = LoraConfig(r=2, target_modules=["0", "1"], lora_dropout=0.0)
    network = inject_adapter_in_model(asked, network)
    kind = type(network[0])
    fuse_adapters(network)
    assert (type(network[0]), type(network[1])) == (kind, LowRankLinear)
