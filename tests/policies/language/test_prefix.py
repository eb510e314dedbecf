"""Prompts read once per training pass: the same values and gradients, for supported models."""

from dataclasses import replace

import pytest
import torch
from gate import each
from small_language import NOTHING, questions, small
from test_families import families
from test_packing import gradient
from torch.testing import assert_close

from tandem.experience import Budget
from tandem.policies.language import prefix
from tandem.policies.language.inputs import Trunk
from tandem.policies.language.prefix import begins_group, behind_prompts, share_prompts
from tandem.policies.language.records import TokenSample
from tandem.policies.language.tiny_lm import character_tokenizer
from tandem.policies.lora import Lora

ADAPTERS = (None, Lora(r=2, alpha=4))
TRAINED = (("grpo", "head"), ("dpo", "head"), ("ppo", "separate"))
CELLS = [(*trained, lora) for lora in ADAPTERS for trained in TRAINED]


@pytest.mark.parametrize(("name", "critic", "lora"), each(2, CELLS))
def test_prompts_read_once_leave_the_gradient_of_an_update(
    name, critic, lora, tmp_path, monkeypatch
):
    monkeypatch.setattr(prefix, "PAYS_BELOW", 10.0)
    read, remember = [], Trunk.remember
    monkeypatch.setattr(Trunk, "remember", lambda *all: read.append(1) or remember(*all))
    given = {"critic": critic, "tmp_path": tmp_path, "packing": False, "lora": lora}
    want = gradient(name, budget=Budget(), share_prompts=False, **given)
    assert not read
    for budget in (Budget(), Budget(max_tokens=90)):
        got = gradient(name, budget=budget, share_prompts=True, **given)
        assert got.keys() == want.keys()
        for parameter in want:
            assert_close(got[parameter], want[parameter], atol=1e-8, rtol=1e-6)
    assert len(read) > 8  # more than the probes, two per network
    assert max(g.abs().max() for g in want.values()) > 1e-5


def test_nothing_of_another_group_reaches_a_row(monkeypatch):
    monkeypatch.setattr(prefix, "PAYS_BELOW", 10.0)
    policy = small()
    rollout = policy.sample(questions(), 4, key=0, slots=range(8))
    layout = policy.scorer.layout_of(rollout.sample, rollout.sample.prompt_length + rollout.length)
    assert layout.prefix is not None
    before = policy.evidence(rollout, NOTHING).logp
    for changed in range(8):
        rows = slice(4 * changed, 4 * changed + 4)
        tokens = rollout.sample.tokens.clone()
        tokens[rows] = (tokens[rows] + 1) % 40
        other = replace(rollout, sample=replace(rollout.sample, tokens=tokens))
        moved = (policy.evidence(other, NOTHING).logp != before).any(1)
        assert moved[rows].all()
        assert moved.sum() == 4


def test_worked_example():
    """Two answers to the prompt 5 6 7, and one to 8: each begins with the prompt's last token."""
    sample = TokenSample(
        tokens=torch.tensor([[5, 6, 7, 1, 2], [5, 6, 7, 3, 0], [8, 4, 4, 0, 0]]),
        prompt_length=torch.tensor([3, 3, 1]),
        temperature=torch.ones(3),
    )
    layout = behind_prompts(sample, torch.tensor([4, 3, 2]))
    assert layout.tokens.tolist() == [[7, 1], [7, 3], [8, 4]]
    assert layout.position.tolist() == [[2, 3], [2, 3], [0, 1]]
    assert layout.prefix.tokens[0].tolist() == [5, 6]
    assert layout.prefix.mask.tolist() == [[1, 1], [0, 0]]
    assert layout.prefix.of_row.tolist() == [0, 0, 1]
    # A row's column c lies at start + c.
    assert (layout.start + sample.prompt_length - 1).tolist() == [0, 2, 4]


def test_a_prompt_is_shared_with_the_row_above_alone():
    prompts = torch.tensor([[1, 2], [1, 2], [1, 9], [1, 2], [1, 7]])
    length = torch.tensor([2, 2, 1, 1, 2])
    assert begins_group(prompts, length).tolist() == [True, False, True, False, True]


def test_prompts_of_one_answer_each_are_not_read_apart():
    policy = small()
    alone = policy.sample(questions(), 1, key=0, slots=range(8))
    read = alone.sample.prompt_length + alone.length - 1
    assert share_prompts(alone.sample, read) is None
    group = policy.sample(questions()[:1], 8, key=0, slots=[0])
    assert share_prompts(group.sample, group.sample.prompt_length + group.length - 1) is not None


@pytest.mark.parametrize(
    ("family", "can"),
    [
        ("llama", True),
        ("gpt2", True),
        ("mixture of experts", True),
        ("granite", True),
        ("gemma2", False),
        ("recurrent layers", False),
        ("convolutions", False),
    ],
)
def test_a_family_shares_prompts_only_if_it_keeps_every_token(family, can):
    from transformers import AutoModelForCausalLM

    def build():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(families()[family]), character_tokenizer()

    policy = small(build=build, packing=False)
    assert policy.scorer.shares == can
    rollout = policy.sample(questions(), 4, key=1, slots=range(8))
    want = policy.evidence(rollout, NOTHING).logp
    policy.scorer.shares = False
    assert_close(policy.evidence(rollout, NOTHING).logp, want, atol=5e-6, rtol=0)


def test_a_network_that_forgets_prompts_is_found_out(monkeypatch):
    remember = Trunk.remember

    def without_mask(self, prefix, rows):
        return {k: x for k, x in remember(self, prefix, rows).items() if k != "attention_mask"}

    assert small().scorer.shares
    monkeypatch.setattr(Trunk, "remember", without_mask)
    assert not small().scorer.shares


@pytest.mark.parametrize("switch", [{"share_prompts": False}, {"gradient_checkpointing": True}])
def test_prompts_are_not_shared_where_that_is_not_wanted_or_cannot_be(switch):
    assert not small(**switch).scorer.shares
