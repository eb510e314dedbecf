"""Low-rank adapters of a flow: training, the reference, and saving."""

from dataclasses import replace

import pytest
import torch
from small_flow import NOTHING, gap_to_sampler, gradients_of, sample_rows, small
from torch.testing import assert_close

from tandem import rng
from tandem.policies.flow.policy import SAME
from tandem.policies.lora import Lora

NEEDS = frozenset({"ref_logp", "kl_to_ref"})
LORA = Lora(r=4, alpha=8, target_modules="attention")


@pytest.fixture
def adapted():
    """Adapters with random values; the second factor of new ones is 0."""
    policy = small(NEEDS, lora=LORA)
    with torch.no_grad():
        for number, parameter in enumerate(policy.trainable().values()):
            parameter += 0.2 * rng.normal(rng.key(number), tuple(parameter.shape))
    return policy


def test_only_adapters_are_trained_and_kept(adapted):
    assert adapted.weights() and all(".lora_" in name for name in adapted.weights())
    places = {name.split(".lora_")[0].split(".attn.")[1] for name in adapted.weights()}
    assert {"to_q", "to_out.0", "add_k_proj"} <= places


def test_new_adapters_change_nothing_and_come_from_the_seed():
    before = torch.random.get_rng_state()
    one, same, other = (small(lora=LORA, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    rollout = sample_rows(small())
    assert gap_to_sampler(one, rollout) < SAME
    for name, weight in one.weights().items():
        assert torch.equal(weight, same.weights()[name])
    assert any(not torch.equal(w, other.weights()[name]) for name, w in one.weights().items())


def test_the_reference_is_the_base_and_no_copy(adapted):
    rollout = sample_rows(adapted)
    ref_logp = adapted.complete(rollout, NEEDS).ref_logp
    base = small()
    assert torch.equal(ref_logp, base.evidence(rollout, NOTHING).logp.detach())
    assert (adapted.evidence(rollout, NOTHING).logp - ref_logp).abs().max() > 1e-4
    assert adapted.model.frozen is None
    assert gap_to_sampler(adapted, rollout) < SAME


def test_parts_that_ask_the_reference_in_between_have_the_same_gradient(adapted):
    rollout = sample_rows(adapted)
    found = []
    for rows in (64, 11):
        adapted.forward_pass.max_rows = rows
        said = adapted.evidence(rollout, NEEDS)
        found.append(gradients_of(adapted, (said.logp + 50 * said.transition.kl_to_ref).sum()))
    assert any(gradient.abs().max() > 0.1 for gradient in found[0].values())
    for name, gradient in found[0].items():
        assert_close(found[1][name], gradient, atol=1e-4, rtol=1e-3)


def test_what_is_saved_is_merged_and_the_adapter_lies_beside_it(adapted, tmp_path):
    from diffusers import SD3Transformer2DModel

    rollout = sample_rows(adapted)
    logp = adapted.evidence(rollout, NOTHING).logp
    adapted.save(tmp_path / "own")
    merged = small(path=str(tmp_path / "own"))
    assert_close(merged.evidence(rollout, NOTHING).logp, logp, atol=1e-5, rtol=1e-5)
    assert all("lora" not in name for name in merged.weights())

    small().save(tmp_path / "base")
    plain = SD3Transformer2DModel.from_pretrained(tmp_path / "base", subfolder="transformer")
    file = "pytorch_lora_weights.safetensors"
    plain.load_lora_adapter(tmp_path / "own" / "lora", prefix="transformer", weight_name=file)
    merged.model.field.network = merged.model.field.run = plain.eval()
    assert_close(merged.evidence(rollout, NOTHING).logp, logp, atol=1e-5, rtol=1e-5)
    # Saving left the training copy as it was.
    assert torch.equal(adapted.evidence(rollout, NOTHING).logp, logp)


def test_every_linear_layer_of_the_blocks_can_have_one():
    policy = small(lora=replace(LORA, target_modules="all-linear"))
    names = " ".join(policy.weights())
    assert "ff.net.0.proj" in names and "norm1.linear" in names
    assert "proj_out" not in names and "time_text" not in names


def test_layers_that_do_not_exist_are_one_line():
    with pytest.raises(ValueError, match=r"model\.lora does not fit this model") as caught:
        small(lora=replace(LORA, target_modules=["no_such_layer"]))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error:bfloat16 weights")
def test_adapters_stay_wide_in_a_narrow_model():
    policy = small(dtype="bfloat16", lora=LORA)
    assert {p.dtype for p in policy.trainable().values()} == {torch.float32}
    assert sample_rows(policy, 2).sample.x0.isfinite().all()
