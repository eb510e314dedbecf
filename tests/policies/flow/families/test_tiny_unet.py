"""The embedded U-Net: its predictions, its embedding of words, and its use in a policy."""

import pytest
import torch
from small_flow import KEY, make_prompts, sample_rows, small
from torch.testing import assert_close

from tandem.dynamics.kernels import ode
from tandem.policies.flow.families.tiny_flow import TinyFlow, TinyUNetFlow, read

SMALL = (16, 16)


def make_network(seed=0):
    adapter = TinyUNetFlow(seed=seed, channels=SMALL)
    network = adapter.load(None, torch.float32)
    with torch.no_grad():  # unlike new blocks, these add something
        for block in (*network.down_blocks, *network.middle_blocks, *network.up_blocks):
            block.second.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
    return adapter, network


def at(adapter, network, x, level, text="red circle"):
    condition = {name: value.expand(len(x), *value.shape) for name, value in read(text).items()}
    return adapter.velocity(network, x, torch.full((len(x),), level), condition)


def unfold(cells):
    return torch.nn.functional.pixel_shuffle(cells, 2)


def test_it_has_the_size_it_is_known_for_and_is_a_function_of_its_seed():
    network = TinyUNetFlow(seed=0).load(None, torch.float32)
    assert sum(p.numel() for p in network.parameters()) == 224_684
    (_, one), (_, same), (_, other) = make_network(1), make_network(1), make_network(2)
    assert torch.equal(one.enter.weight, same.enter.weight)
    assert not torch.equal(one.enter.weight, other.enter.weight)


def test_a_step_to_no_noise_lands_on_the_picture_that_it_predicts():
    adapter, network = make_network()
    x, pictures = torch.randn(3, 3, 16, 16), []
    network.leave.register_forward_hook(lambda _, given, out: pictures.append(out))
    velocity = at(adapter, network, x, 0.3)
    assert_close(x - 0.3 * velocity, unfold(pictures[0]), atol=1e-5, rtol=0)
    # Below 0.05 the error of an image is not amplified further.
    assert_close(at(adapter, network, x, 0.01) * 0.05, x - unfold(pictures[1]))


def test_no_pair_of_words_is_more_than_the_sum_of_the_two():
    _, network = make_network()
    said = {
        text: network.read_words(read(text)["pooled"])
        for text in ("red circle", "blue square", "red square", "blue circle")
    }
    assert_close(
        said["blue circle"] - said["blue square"],
        said["red circle"] - said["red square"],
        atol=1e-5,
        rtol=0,
    )
    assert not torch.allclose(said["blue circle"], said["blue square"], atol=0.1)


def test_blocks_that_are_run_again_in_backward_give_the_same_gradient():
    gradients = []
    for again in (False, True):
        adapter, network = make_network()
        if again:
            network.enable_gradient_checkpointing()
        at(adapter, network, torch.randn(2, 3, 16, 16).fill_(0.3), 0.5).square().sum().backward()
        gradients.append(network.enter.weight.grad)
    assert torch.equal(*gradients) and gradients[0].abs().max() > 0


def test_it_is_saved_and_read_back_and_is_no_transformer(tmp_path):
    adapter, network = make_network()
    adapter.save(network, tmp_path)
    again = TinyUNetFlow(seed=5, channels=SMALL).load(str(tmp_path), None)
    for name, weight in network.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    with pytest.raises(ValueError, match="is a TinyUNet, but the chosen model needs a SD3Tr"):
        TinyFlow().load(str(tmp_path), None)


def test_a_policy_samples_the_same_pictures_alone_and_among_others():
    policy = small(adapter=TinyUNetFlow(channels=SMALL), sampling={"kernel": ode})
    together = sample_rows(policy, 2)
    alone = policy.sample(make_prompts()[1:2], 2, key=KEY, slots=[1])
    assert_close(together.sample.x0[2:4], alone.sample.x0, atol=1e-5, rtol=0)
