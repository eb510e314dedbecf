"""The transformer of Stable Diffusion 3 without the queries that its last block discards."""

import copy

import pytest
import torch
from tiny_sd3 import pipeline
from torch.testing import assert_close

from tandem.policies.flow.families.sd3_transformer import velocity, without_unread_queries


@pytest.fixture(params=["rms_norm", None], ids=["3.5", "3"])  # SD 3 normalises nothing
def network(request):
    torch.manual_seed(0)
    config = {**pipeline().transformer.config, "qk_norm": request.param}
    return type(pipeline().transformer).from_config(config).eval()


def ask(network):
    """Velocities, and the gradient of every weight."""
    generator = torch.Generator().manual_seed(1)
    x, states, pooled = (
        torch.randn(shape, generator=generator) for shape in ((3, 4, 8, 8), (3, 40, 32), (3, 64))
    )
    sigma = torch.tensor([1.0, 0.6, 0.1])
    found = velocity(network, x, sigma, {"states": states, "pooled": pooled})
    found.square().mean().backward()
    return found.detach(), {name: p.grad for name, p in network.named_parameters()}


def test_velocities_and_gradients_are_those_of_diffusers(network):
    theirs, gradients = ask(copy.deepcopy(network))
    ours, own = ask(without_unread_queries(network))
    assert_close(ours, theirs)
    # DDP waits for every gradient, including those of queries that are not computed.
    assert own.keys() == gradients.keys() and None not in own.values()
    assert_close(own, gradients)


def test_the_text_of_the_last_block_is_not_projected_to_queries(network):
    calls = []
    for place, block in enumerate(without_unread_queries(network).transformer_blocks):
        block.attn.add_q_proj.register_forward_hook(lambda *_, place=place: calls.append(place))
    ask(network)
    assert calls == [0]
