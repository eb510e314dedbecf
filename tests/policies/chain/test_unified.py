"""A chain of one transformer for the text and the image."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from chain_policy import SMALL, grpo, load_chain, small, unified
from policies.chain.test_chain import OLD, experience_of, outcome_of, sample_rows, with_kl
from torch.testing import assert_close

from tandem.losses.segments import Segment
from tandem.policies.chain.unified import UnifiedPolicy
from tandem.policies.flow.families.tiny_unified import TinyUnified, attention_of
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.lora import Lora
from tandem.training.lightning_hooks import LightningHooks
from tandem.types import SEGMENTS

ALONE = {"text": "picture", "picture": "text"}  # the other one, frozen


def gradients(policy):
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in policy.trainable().items()
    }


def test_every_weight_has_one_name_and_is_in_one_group():
    policy = unified()
    named, grouped = policy.trainable(), [p for own in policy.groups().values() for p in own]
    assert len({*named.values()}) == len(named) == len(grouped) == len({*grouped})
    assert {*named.values()} == {*grouped} == {*policy.parameters()}
    assert list(policy.groups()) == ["shared", *SEGMENTS]
    assert policy.groups()["text"] == [policy.text.network.lm_head.weight]
    assert not any("layers" in name for name in policy.own_weights("picture"))


def test_the_gradient_of_a_shared_weight_is_the_sum_of_those_of_the_segments():
    """Compared with two separate backward passes, each with its own graph."""
    algorithm = with_kl(grpo(picture=Segment(weight=3.0, clip_scale=1e-3)))
    policy = unified(algorithm)
    with torch.no_grad():  # away from the reference, so that its KL has a gradient
        for parameter in policy.trainable().values():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.manual_seed(0)))
    rows = experience_of(algorithm, policy.complete(sample_rows(policy), OLD | algorithm.needs))
    outcome_of(algorithm, policy, rows).loss.backward()
    both, apart = gradients(policy), {}
    for name in SEGMENTS:
        policy.zero_grad()
        mine = replace(algorithm, segments={k: x if k == name else Segment(weight=0.0)
                                            for k, x in algorithm.segments.items()})  # fmt: skip
        outcome_of(mine, policy, rows).loss.backward()
        apart[name] = gradients(policy)
    moved = set()
    for name, whole in both.items():
        parts = [apart[segment][name] for segment in SEGMENTS]
        assert_close(whole, sum(parts), rtol=1e-4, atol=1e-7)
        moved.add(tuple(bool(part.any()) for part in parts))
    assert moved == {(True, True), (True, False), (False, True)}


@pytest.mark.parametrize("name", SEGMENTS)
def test_with_the_other_segment_frozen_it_learns_as_if_it_were_alone(name):
    algorithm = with_kl(grpo(**{ALONE[name]: Segment(weight=0.0)}))
    policy = unified(algorithm)
    head = {*unified().own_weights(ALONE[name])}
    assert {*unified().trainable()} - {*policy.trainable()} == {f"{ALONE[name]}.{x}" for x in head}
    rows = experience_of(algorithm, policy.complete(sample_rows(policy), OLD | algorithm.needs))
    outcome_of(algorithm, policy, rows).loss.backward()
    frozen = gradients(policy)
    policy.zero_grad()
    own = algorithm.training_objective  # of that segment, as in a policy of one kind
    rows = replace(rows, weights=own.weigh(rows))
    own.of[name](policy, rows).loss.backward()
    for key, gradient in gradients(policy).items():
        assert_close(frozen[key], gradient, rtol=1e-5, atol=1e-9)
    assert any(frozen[f"text.model.{key}"].any() for key, _ in policy.layers.named_parameters())


def test_one_frozen_copy_of_the_layers_is_the_reference_of_both():
    policy = unified(with_kl(grpo()))
    reference, frozen = policy.text.reference.model, policy.picture.model.frozen.network
    assert frozen.layers is reference.get_decoder()
    assert frozen.layers is not policy.layers and not {*frozen.parameters()} & {
        *policy.parameters()
    }
    assert not any(p.requires_grad for p in [*frozen.parameters(), *reference.parameters()])
    needs = frozenset({"ref_logp", "kl_to_ref", "transition"})
    before = policy.complete(sample_rows(policy), OLD | needs)
    with torch.no_grad():
        assert_close(
            policy.evidence(before, needs).transition.kl_to_ref.abs().max(), torch.zeros(())
        )
        for parameter in policy.groups()["shared"]:
            parameter.mul_(1.1)
        said = policy.evidence(before, needs)
    tokens = (before.segment == 0) & before.mask
    assert said.transition.kl_to_ref[:, :3].min() > 0
    assert (said.logp - before.ref_logp)[tokens].abs().max() > 1e-3
    again = policy.complete(replace(before, ref_logp=None), OLD | needs)
    assert torch.equal(again.ref_logp, before.ref_logp)


def test_layers_recomputed_for_images_share_the_prompts_of_texts():
    """A recomputed block would append its keys and values to the cache of the prompt again."""
    algorithm, learnt = grpo(), []
    for recomputes in (False, True):
        build = partial(tiny_lm, seed=0, reads="words", tied=False, **SMALL)
        text = LanguagePolicy(build=build, packing=False, share_prompts=True)
        picture = FlowPolicy(
            adapter=TinyUnified(seed=0), latent_size=768, gradient_checkpointing=recomputes
        )
        policy = load_chain(UnifiedPolicy(text=text, picture=picture), algorithm)
        assert policy.text.scorer.shares
        rows = experience_of(algorithm, policy.complete(sample_rows(policy), OLD | algorithm.needs))
        outcome_of(algorithm, policy, rows).loss.backward()
        learnt.append(gradients(policy))
    assert_close(*learnt, rtol=1e-4, atol=1e-7)


def test_adapters_in_the_layers_write_and_paint():
    algorithm = with_kl(grpo())
    policy = unified(algorithm, lora=Lora(r=2, alpha=4))
    shared = policy.groups()["shared"]
    assert policy.text.reference is None and policy.picture.model.frozen is not None
    assert all(".lora_" in n for n, p in policy.trainable().items() if any(p is x for x in shared))
    rows = experience_of(algorithm, policy.complete(sample_rows(policy), OLD | algorithm.needs))
    outcome_of(algorithm, policy, rows).loss.backward()
    assert any(p.grad.any() for p in shared)


def test_a_rate_of_a_head_that_does_not_learn_is_refused_by_its_key():
    def groups_of(lora, **text):
        hooks = LightningHooks(make_stream=None, inputs=None)
        hooks.algorithm = grpo(text=Segment(lr=3e-4, **text))
        hooks.policy = unified(hooks.algorithm, lora=lora)
        hooks.optimizer = partial(torch.optim.SGD, lr=1e-2)
        return [group["lr"] for group in hooks.configure_optimizers().param_groups]

    assert groups_of(None) == [1e-2, 3e-4, 1e-2]
    assert groups_of(None, weight=0.0) == [1e-2, 1e-2], "the rate of a frozen segment is no fault"
    with pytest.raises(ValueError, match=r"algorithm\.segments\.text\.lr=0\.0003: .* set .*=null"):
        groups_of(Lora(r=2, alpha=4))


def test_recomputed_blocks_have_the_gradients_of_kept_ones(monkeypatch):
    found, calls = [], []
    for recompute in (False, True):
        policy = unified()
        network = policy.picture.model.network
        if recompute:
            network.enable_gradient_checkpointing()
            block = type(network.layers.layers[0].mlp)
            own = block.forward

            def counted(self, x, own=own):
                calls.append(1)
                return own(self, x)

            monkeypatch.setattr(block, "forward", counted)
        x, sigma = torch.ones(2, 3, 16, 16), torch.full((2,), 0.5)
        tokens = torch.tensor([[3, 7, 0, 0]] * 2)
        network(x, sigma, tokens, tokens > 0).square().sum().backward()
        assert not network.layers.training
        found.append(gradients(policy))
    assert len(calls) == 2 * len(network.layers.layers)  # forward, and again in backward
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


def test_words_see_what_is_before_them_and_patches_all_but_padding():
    seen = torch.tensor([[True, False]])
    sees = attention_of(seen, 2, torch.float32)[0, 0] == 0
    assert sees.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 1], [1, 0, 1, 1]]


def test_what_follows_the_words_of_a_text_does_not_paint():
    network = unified().picture.model.network
    x, sigma = torch.randn(1, 3, 16, 16), torch.full((1,), 0.5)
    seen = torch.tensor([[True, True, False, False]])
    one, other = (torch.tensor([[3, 7, pad, pad]]) for pad in (0, 5))
    assert torch.equal(network(x, sigma, one, seen), network(x, sigma, other, seen))
    assert not torch.equal(network(x, sigma, one, seen), network(x, sigma, one.flip(1), seen))


def test_layers_that_let_go_of_the_mask_are_refused(monkeypatch):
    from transformers import Qwen3Model

    own = Qwen3Model.forward
    monkeypatch.setattr(
        Qwen3Model, "forward", lambda self, attention_mask=None, **k: own(self, **k)
    )
    with pytest.raises(ValueError, match="does not let the first patch of a picture see the last"):
        unified()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lora": Lora(r=2, alpha=4)}, r"model\.picture\.lora: .* set model\.text\.lora"),
        ({"ema": lambda updates: 0.9}, r"model\.picture\.ema .* set model\.picture\.ema=null"),
        ({"adapter": small().picture.adapter}, r"model\.picture\.adapter: TinyFlow .* model=chain"),
    ],
)
def test_what_would_be_of_the_painter_alone_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        UnifiedPolicy(
            text=unified().text, picture=FlowPolicy(**{"adapter": TinyUnified()} | options)
        )


def test_a_painter_without_a_writer_and_one_of_another_width_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"set model\._target_=.*UnifiedPolicy"):
        TinyUnified().load(None, None)
    policy = unified()
    policy.save(tmp_path)
    again = UnifiedPolicy(text=policy.text, picture=policy.picture, path=str(tmp_path))
    load_chain(again)
    adapter = again.picture.adapter
    with pytest.raises(ValueError, match=r"set it to the same value as model\.text\.dtype"):
        adapter.load(None, torch.bfloat16)
    adapter.patch = 8
    with pytest.raises(ValueError, match=r"model\.picture\.path=.*its heads belong to another"):
        adapter.load(str(tmp_path / "picture"), None)
    with pytest.raises(ValueError, match="cannot be sharded over ranks; set trainer=ddp"):
        again.shard(None)
