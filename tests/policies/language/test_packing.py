"""Packed rows: the same values and gradients as unpacked ones, without leaks between rows."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from at_once import AtOnce
from gate import each
from loop import Alone, Stream
from small_language import NOTHING, WORDS, questions, small
from test_families import families
from torch.testing import assert_close

from tandem.config import build, compose
from tandem.experience import Budget
from tandem.policies.language.inputs import pad_rows
from tandem.policies.language.packing import EMPTY, pack_in_one_row, pack_rows
from tandem.policies.language.tiny_lm import character_tokenizer
from tandem.policies.lora import Lora
from tandem.settings.guards import Guards
from tandem.training.batches import BatchPlan
from tandem.types import Prompt, Scores, take

PLAN = BatchPlan(
    seed=0, iterations=1, prompts_per_step=8, group_size=4, num_minibatches=1, epochs=1,
    budget=Budget(), max_grad_norm=1e9,
)  # fmt: skip
PASSES = {
    "whole": {"token_budget": 2**14},
    "adapters": {"lora": Lora(r=2, alpha=4), "token_budget": 60},
    "recomputed": {"gradient_checkpointing": True, "logit_budget": 40 * 7, "token_budget": 60},
}


class Words(Stream):
    """Letters to sort, with a wrong answer of another length beside the right one."""

    def draw(self, iteration, count, *, round=0):
        return [
            replace(question, chosen=question.answer, rejected=word[:2])
            for question, word in zip(questions(), WORDS, strict=True)
        ]


class EarlyA(AtOnce):
    """A higher score for an earlier first `a`: few outputs tie."""

    def __call__(self, outputs, prompts) -> Scores:
        total = torch.tensor([1 / (1 + len(o.partition("a")[0])) for o in outputs]).double()
        return Scores(total=total, parts={"accuracy": total}, scored=torch.ones_like(total).bool())

    def pop_faults(self, *, judges=False):
        return {}


class Remembering(Alone):
    """One iteration that records the gradient of its update."""

    def update(self, minibatch):
        self.gradient = {n: p.grad for n, p in self.policy.trainable().items()}
        self.gradient = {n: g.clone() for n, g in self.gradient.items() if g is not None}
        super().update(minibatch)


@cache
def algorithm_of(name):
    overrides = ("algorithm/kl=k3", "algorithm.kl.coef=0.1") if name == "grpo" else ()
    return compose([f"algorithm={name}", "model=tiny_lm", *overrides]).algorithm


def gradient(name, *, packing, budget, tmp_path, critic="head", share_prompts=False, **options):
    algorithm = build(algorithm_of(name))
    own = {"packing": packing, "critic": critic, "share_prompts": share_prompts}
    policy = small(algorithm.needs, **own, **options)
    torch.manual_seed(0)
    for parameter in policy.trainable().values():  # with random weights attention hardly matters
        parameter.data += 0.1 * torch.randn_like(parameter)
    policy.double()
    if policy.reference is not None:
        policy.reference.model.double()
    run = Remembering(
        policy=policy, algorithm=algorithm, rewards=EarlyA(), stream=Words(),
        optimizer=partial(torch.optim.SGD, lr=1.0), guards=Guards(), folder=Path(tmp_path),
        plan=replace(PLAN, group_size=2 if name == "dpo" else 4, budget=budget),
    ).go()  # fmt: skip
    return run.gradient


TRAINED = (("grpo", "head"), ("dpo", "head"), ("sft", "head"), ("ppo", "head"), ("ppo", "separate"))
CELLS = [(*trained, passes) for passes in PASSES for trained in TRAINED]


@pytest.mark.parametrize(("name", "critic", "passes"), each(2, CELLS))
def test_packing_and_token_budgets_leave_the_gradient_of_an_update(name, critic, passes, tmp_path):
    given = {"critic": critic, "tmp_path": tmp_path, **PASSES[passes]}
    want = gradient(name, packing=False, budget=Budget(), **given)
    for packs in (True, False):
        budget = Budget(max_tokens=90, packed=packs)
        got = gradient(name, packing=packs, budget=budget, **given)
        assert got.keys() == want.keys()
        for parameter in want:
            assert_close(got[parameter], want[parameter], atol=1e-9, rtol=1e-6)
    assert max(g.abs().max() for g in want.values()) > 1e-5


def show(policy):
    return policy.encode(questions(), key=0, slots=range(8))


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_nothing_of_a_neighbour_reaches_a_row(critic):
    """Equally many other tokens in a neighbour leave every bit of a row unchanged."""
    values = frozenset({"values"})
    policy = small(values, critic=critic, packing=True)
    torch.nn.init.normal_(policy.critic.head.weight)
    rollout = show(policy)
    before = policy.evidence(rollout, values)
    for changed in range(8):
        tokens = rollout.sample.tokens.clone()
        tokens[changed] = (tokens[changed] + 1) % 40
        other = replace(rollout, sample=replace(rollout.sample, tokens=tokens))
        after = policy.evidence(other, values)
        others = torch.arange(8) != changed
        assert torch.equal(after.logp[others], before.logp[others])
        assert torch.equal(after.values[others], before.values[others])
        assert not torch.equal(after.logp[changed], before.logp[changed])


@pytest.mark.parametrize("lay", [pack_rows, pack_in_one_row])
def test_a_layout_holds_every_row_once_and_little_else(lay):
    torch.manual_seed(0)
    for _ in range(30):
        read = torch.randn(20).exp().mul(8).long().clamp(max=64) * (torch.rand(20) > 0.2)
        tokens = torch.arange(20 * 64).view(20, 64) + 1
        layout = lay(tokens, read)
        flat = layout.tokens.flatten()
        places = torch.cat([layout.start[b] + torch.arange(n) for b, n in enumerate(read)])
        assert len(places.unique()) == len(places)
        assert torch.equal(flat[places], torch.cat([tokens[b, :n] for b, n in enumerate(read)]))
        assert len(flat) <= (1 + EMPTY) * read.sum()
        position = layout.position.flatten()
        assert torch.equal(position[places], torch.cat([torch.arange(n) for n in read]))
        assert layout.position.max() < read.max()


def test_rows_of_one_length_lie_as_they_did():
    """Then attention needs no mask."""
    tokens, read = torch.ones(4, 6, dtype=torch.int64), torch.tensor([6, 6, 6, 6])
    assert pack_rows(tokens, read).position is None
    assert torch.equal(pack_rows(tokens, read).tokens, pad_rows(tokens, read).tokens)


def test_attention_is_as_wide_as_the_longest_row_and_not_as_all_of_them():
    read = torch.tensor([100, *[10] * 60])
    layout = pack_rows(torch.ones(61, 100, dtype=torch.int64), read)
    assert layout.tokens.shape == (7, 100)


def test_a_pass_reads_few_places_that_no_row_fills():
    policy = small(packing=True)
    rollout, sizes = show(policy), []
    policy.scorer.trunk.run.register_forward_pre_hook(
        lambda _, __, given: sizes.append(given["input_ids"].numel()), with_kwargs=True
    )
    policy.evidence(rollout, NOTHING)
    read = int((rollout.sample.prompt_length + rollout.length - 1).sum())
    assert read <= sum(sizes) <= (1 + EMPTY) * read
    assert sum(sizes) < rollout.sample.tokens.numel() * 0.8


PLAIN = ["llama", "gpt2", "gemma2", "mixture of experts"]
REMEMBERING = ["recurrent layers", "convolutions"]


@pytest.mark.parametrize("family", PLAIN)
def test_families_that_keep_rows_apart_are_packed(family):
    """Rotary and learned positions, sliding windows, experts: as if each row were alone."""
    policy = small(build=partial(random_model, family), packing="auto")
    assert policy.packs
    rollout = show(policy)
    together = policy.evidence(rollout, NOTHING).logp
    for row in range(8):
        alone = policy.evidence(take(rollout, torch.tensor([row])), NOTHING).logp
        assert_close(alone[0], together[row], atol=2e-6, rtol=0)


def random_model(family):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(families()[family]), character_tokenizer()


def packs(family, dtype):
    return small(build=partial(random_model, family), packing="auto", dtype=dtype).packs


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.filterwarnings("ignore:model.packing=auto")
def test_a_leak_is_told_from_rounding_in_any_dtype(dtype):
    """With random weights a convolution leaks less than the rounding of a packed row."""
    assert [packs(family, dtype) for family in PLAIN] == [True] * len(PLAIN)
    assert [packs(family, dtype) for family in REMEMBERING] == [False] * len(REMEMBERING)


def test_a_family_that_remembers_in_another_way_is_found_when_it_is_loaded():
    build = partial(random_model, "recurrent layers")
    with pytest.warns(
        UserWarning, match=r"model\.packing=auto: Qwen3NextForCausalLM mixes packed rows"
    ):
        assert not small(build=build, packing="auto").packs
    with pytest.raises(ValueError, match=r"^model\.packing=true: .*set model\.packing=false$"):
        small(build=build, packing=True)
    assert not small(build=build, packing=False).packs


def test_attention_that_reads_past_the_start_of_a_row_is_found(monkeypatch):
    """A custom mask, as in some remote code, ignores the restarts of positions."""
    from transformers.models.qwen3 import modeling_qwen3

    own = modeling_qwen3.create_causal_mask
    monkeypatch.setattr(
        modeling_qwen3,
        "create_causal_mask",
        lambda **given: own(**{**given, "position_ids": None}),
    )
    with pytest.raises(
        ValueError, match=r"^model\.packing=true: Qwen3ForCausalLM mixes packed rows"
    ):
        small(packing=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_narrow_weights_are_told_from_a_leak(dtype):
    assert small(dtype=dtype, packing=True, lora=Lora(r=2, alpha=4)).packs


def test_a_prompt_alone_is_packed_too():
    policy = small(packing=True)
    one = [Prompt(id=0, source="sort", text="cab>", answer="abc")]
    rollout = policy.encode(one, key=0, slots=[0])
    want = small(packing=False).evidence(rollout, NOTHING).logp
    assert_close(policy.evidence(rollout, NOTHING).logp, want)
