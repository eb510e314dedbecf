from functools import partial

import pytest
import torch
from ladder import FEW
from safetensors.torch import load_file
from small_language import NOTHING, questions, small, small_experts, train_briefly
from torch.testing import assert_close

from tandem import train
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.lora import Lora, merged_weights, places_of

LORA = Lora(r=4, alpha=8)
REFERENCE = frozenset({"ref_logp"})


@pytest.fixture
def adapted(learned):
    """A trained base with trained adapters."""
    base = small()
    base.load_weights(learned)
    model, tokenizer = base.network, base.chat.tokenizer
    return train_briefly(small(REFERENCE, build=lambda: (model, tokenizer), lora=LORA))


def show(policy):
    return policy.encode(questions(), key=0, slots=range(8))


def test_only_adapters_are_trained_and_kept(adapted):
    assert adapted.weights()
    assert all(".lora_" in name for name in adapted.weights())
    assert all(p.dtype == torch.float32 for p in adapted.trainable().values())


def test_the_reference_is_the_base(adapted, policy):
    rollout = show(adapted)
    complete = adapted.complete(rollout, REFERENCE)
    base = policy.scorer.in_parts(rollout.sample, rollout.mask).logp
    assert_close(complete.ref_logp, base, atol=0, rtol=0)
    assert (adapted.evidence(rollout, NOTHING).logp - base).abs().max() > 0.1
    assert adapted.reference is None


def test_new_adapters_change_nothing_and_come_from_the_seed():
    before = torch.random.get_rng_state()
    first, again, other = (small(lora=LORA, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    rollout = show(first)
    untouched = small()
    assert_close(
        first.evidence(rollout, NOTHING).logp,
        untouched.evidence(rollout, NOTHING).logp,
        atol=1e-6,
        rtol=0,
    )
    for name, weight in first.weights().items():
        assert torch.equal(weight, again.weights()[name])
    assert any(not torch.equal(w, other.weights()[name]) for name, w in first.weights().items())


def test_the_sampler_sees_the_adapters(adapted):
    rollout = adapted.sample(questions(), 4, key=1, slots=range(8))
    again = adapted.evidence(rollout, NOTHING).logp
    assert_close(again, rollout.behaviour_logp, atol=5e-6, rtol=0)


def test_what_is_saved_is_merged_and_the_adapter_lies_beside_it(adapted, policy, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    rollout = show(adapted)
    before = adapted.evidence(rollout, NOTHING).logp
    weights = {name: weight.clone() for name, weight in adapted.weights().items()}
    adapted.save(tmp_path)

    merged = small(path=str(tmp_path))
    assert_close(merged.evidence(rollout, NOTHING).logp, before, atol=2e-5, rtol=0)
    assert merged.network.state_dict().keys() == policy.network.state_dict().keys()

    policy.save(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    beside = PeftModel.from_pretrained(base, tmp_path / "lora").get_base_model()
    logits = beside(input_ids=rollout.sample.tokens).logits
    want = adapted.network(input_ids=rollout.sample.tokens).logits
    assert_close(logits, want, atol=2e-5, rtol=0)

    for name, weight in adapted.weights().items():  # saving left the training copy as it was
        assert torch.equal(weight, weights[name])
    assert_close(adapted.evidence(rollout, NOTHING).logp, before, atol=0, rtol=0)


def test_adapters_of_experts_are_merged_into_their_weights(tmp_path):
    policy = train_briefly(small(build=small_experts, lora=LORA), steps=3)
    rollout = show(policy)
    adapted = policy.evidence(rollout, NOTHING).logp
    policy.save(tmp_path)
    merged = small(path=str(tmp_path))
    assert_close(merged.evidence(rollout, NOTHING).logp, adapted, atol=2e-5, rtol=0)
    assert "model.layers.*.mlp.experts" in places_of(policy.network)
    assert not any("base_layer" in place for place in places_of(policy.network))
    assert (adapted - small(build=small_experts).evidence(rollout, NOTHING).logp).abs().max() > 0.1


def test_the_adapters_are_kept_where_merging_fails(adapted, tmp_path):
    factor = next(iter(adapted.trainable().values()))
    factor.data = factor.data[:, :3]
    with pytest.raises(RuntimeError):
        adapted.save(tmp_path)
    assert (tmp_path / "lora" / "adapter_model.safetensors").is_file()


def test_merging_adds_the_product_of_the_two_factors(adapted):
    merged = merged_weights(adapted.network.get_base_model())
    weights = adapted.network.get_base_model().state_dict()
    name = "model.layers.0.self_attn.q_proj"
    factors = (weights[f"{name}.lora_{x}.default.weight"] for x in "BA")
    change = 2 * torch.matmul(*factors)  # alpha / r
    assert_close(merged[f"{name}.weight"], weights[f"{name}.base_layer.weight"] + change)


def test_recomputed_activations_reach_the_adapters(learned):
    gradients = []
    for recompute in (False, True):
        policy = small(lora=LORA, gradient_checkpointing=recompute)
        train_briefly(policy, steps=2)
        policy.evidence(show(policy), NOTHING).logp.sum().backward()
        gradients.append([p.grad for p in policy.trainable().values()])
    for got, want in zip(*gradients, strict=True):
        assert want.any()
        assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_layers_that_do_not_exist_are_one_line():
    with pytest.raises(ValueError, match=r"model\.lora does not fit this model") as caught:
        small(lora=Lora(r=4, alpha=8, target_modules=["no_such_layer"]))
    assert str(caught.value).endswith("name the layers to adapt in model.lora.target_modules")
    assert "\n" not in str(caught.value)


def test_adapters_on_tied_embeddings_are_refused():
    with pytest.raises(ValueError, match="weights are tied"):
        small(lora=Lora(r=4, alpha=8, target_modules=["q_proj", "embed_tokens"]))


def test_new_adapters_of_a_run_come_from_its_seed(tmp_path):
    words = ["algorithm=sft", "model.build.seed=0", "seed=3", "optimizer.lr=0", "warm_start=null"]
    lora = "model.lora={r: 2, alpha: 4, target_modules: [q_proj]}"
    short = ["iterations=1", "prompts_per_step=2", "evaluation.every=null", "trainer=cpu"]
    train(*words, *FEW, lora, *short, f"run_dir={tmp_path}")
    saved = load_file(tmp_path / "model" / "lora" / "adapter_model.safetensors")
    lora = Lora(r=2, alpha=4, target_modules=["q_proj"])
    policy = small(build=partial(tiny_lm, seed=0), lora=lora, seed=3)
    policy.network.save_pretrained(str(tmp_path / "new"), save_embedding_layers=False)
    new = load_file(tmp_path / "new" / "adapter_model.safetensors")
    assert {name: x.tolist() for name, x in saved.items()} == {
        n: x.tolist() for n, x in new.items()
    }
