"""Training of networks other than the transformer of a flow policy."""

import pytest
import torch
from policies.flow import tiny_wan, tiny_z_image
from small_flow import NOTHING, gap_to_sampler, sample_rows, small, step_on
from tiny_sd3 import write_pipeline
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing import assert_close

from tandem.policies.flow.components import Components
from tandem.policies.flow.families.sd3 import SD3
from tandem.policies.flow.families.wan import Wan
from tandem.policies.flow.families.z_image import ZImage
from tandem.policies.flow.lora import add_adapters
from tandem.policies.flow.policy import SAME
from tandem.policies.lora import Lora

TEXTS = ("red", "a green square")
BOTH = ["transformer", "transformer_2"]
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pipeline(tmp_path_factory.mktemp("components") / "sd3")


def make(folder, needs=NOTHING, **options):
    options.setdefault("path", str(folder))
    adapter = SD3(resolution=32, max_sequence_length=16)
    return small(needs, steps=3, adapter=adapter, negative_prompt="ugly", **options)


def test_an_encoder_alone_learns_and_is_what_the_next_policy_reads_with(folder, tmp_path):
    """It trains alone, also under guidance; the transformer stays unchanged."""
    plain = make(folder, sampling={"guidance_scale": 2.0})
    policy = make(
        folder, frozenset({"ref_logp"}), target_components=["text_encoder"],
        sampling={"guidance_scale": 2.0},
    )  # fmt: skip
    assert {name.split(".")[0] for name in policy.trainable()} == {"text_encoder"}
    rollout = sample_rows(policy, 2, texts=TEXTS)
    assert_close(rollout.sample.x0, sample_rows(plain, 2, texts=TEXTS).sample.x0)
    assert gap_to_sampler(policy, rollout) < SAME
    gradients = step_on(policy, policy.evidence(rollout, NOTHING).logp.sum(), lr=30.0)
    assert max(x.abs().max() for x in gradients.values()) > 0
    done = policy.complete(rollout, frozenset({"ref_logp"}))
    with torch.no_grad():
        now = policy.evidence(rollout, NOTHING).logp
    assert_close(done.ref_logp, rollout.behaviour_logp, atol=SAME, rtol=0)
    assert (now - done.ref_logp).abs().max() > 100 * SAME
    policy.save(tmp_path / "model")
    again = make(tmp_path / "model", sampling={"guidance_scale": 2.0})
    ours, theirs = (sample_rows(one, 1, texts=TEXTS).sample.x0 for one in (policy, again))
    assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_trained_is_one_line(folder):
    there = "transformer, text_encoder, text_encoder_2"
    with pytest.raises(ValueError, match=f"names text_encodr, but model.path=.* has only {there}"):
        make(folder, target_components=["text_encodr"])
    with pytest.raises(ValueError, match=r"model.target_components=.*can only train transformer"):
        make(folder, target_components=[])
    with pytest.raises(ValueError, match=r"trains text_encoder, which model.lora does not support"):
        make(folder, target_components=["text_encoder"], lora=Lora(r=4, alpha=8))
    with pytest.raises(ValueError, match="this model can only train transformer; choose"):
        small(target_components=["text_encoder"])


@pytest.mark.parametrize("lora", [None, Lora(r=4, alpha=8)])
def test_the_only_network_may_be_named_and_is_saved(lora, tmp_path):
    policy = small(target_components=["transformer"], lora=lora)
    policy.save(tmp_path / "model")
    again = small(path=str(tmp_path / "model"))
    ours, theirs = (sample_rows(one, 1, texts=TEXTS).sample.x0 for one in (policy, again))
    assert_close(ours, theirs)


def test_a_frozen_transformer_gets_no_adapters(folder):
    policy = make(folder, target_components=["transformer"], lora=Lora(r=4, alpha=8))
    assert all(".lora_" in name for name in policy.trainable())


def test_adapters_are_saved_of_those_transformers_alone_that_have_them(tmp_path):
    network = Components({name: tiny_wan.transformer() for name in BOTH})
    network["transformer"].requires_grad_(False)
    add_adapters(network, Lora(r=4, alpha=8), own=Wan.lora_targets, seed=0)
    Wan(resolution=32, frames=5).save_lora(network, tmp_path)
    assert [path.parent.name for path in tmp_path.rglob("*.safetensors")] == BOTH[1:]


def test_weights_of_an_encoder_that_no_pass_uses_have_a_gradient_of_0(tmp_path):
    """Z-Image reads states before the last layer; DDP waits for the gradient of every weight."""
    tiny_z_image.pipeline().save_pretrained(tmp_path)
    adapter = ZImage(resolution=32, max_sequence_length=64)
    policy = small(steps=2, adapter=adapter, path=str(tmp_path), target_components=["text_encoder"])
    rollout = sample_rows(policy, 2, texts=TEXTS)
    gradients = step_on(policy, policy.evidence(rollout, NOTHING).logp.sum())
    last = {name: x for name, x in gradients.items() if ".layers.1." in name}
    assert last and not any(x.any() for x in last.values())
    assert any(x.any() for name, x in gradients.items() if ".layers.0." in name)


def modules_shared(policy):
    """Names of the networks that policy and reference have in common."""
    live, frozen = (
        dict(one.named_children()) for one in (policy.model.network, policy.model.frozen.network)
    )
    return {name for name in live if live[name] is frozen[name]}


def test_a_reference_shares_what_is_not_trained_unless_it_moves_by_itself(folder):
    own = {"target_components": ["text_encoder"]}
    reference = frozenset({"ref_logp"})
    assert modules_shared(make(folder, reference, **own)) == {"transformer"}
    moving = make(folder, reference, offload=frozenset({"reference"}), **own)
    assert modules_shared(moving) == set()


def test_a_critic_reads_a_transformer_that_is_named(folder):
    values = frozenset({"values"})
    plain, named = (
        make(folder, values, target_components=targets) for targets in (None, ["transformer"])
    )
    rollouts = [sample_rows(one, 2, texts=TEXTS) for one in (plain, named)]
    first, second = (
        one.complete(rollout, values).old_values
        for one, rollout in zip((plain, named), rollouts, strict=True)
    )
    assert_close(first, second)


def test_a_reference_beside_a_frozen_component_can_be_sharded(folder):
    policy = make(folder, frozenset({"ref_logp"}), target_components=["text_encoder"])
    policy.model.readers = ()  # trained encoders are refused; a second transformer is not
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        policy.model.shard(init_device_mesh("cpu", (1,)))
        assert modules_shared(policy) == set()
    finally:
        dist.destroy_process_group()
