"""Checkpoints of LLaDA and Dream: loaded, sampled, trained, saved, and reloaded unchanged."""

import json

import pytest
import torch
from policies.masked.checkpoints import MASK, llada_logits, write_dream, write_llada
from policies.small_language import questions
from safetensors.torch import load_file
from torch.testing import assert_close

import tandem
from tandem.policies.masked.policy import MaskedPolicy
from tandem.policies.masked.pretrained import check_both_ways, check_shift
from tandem.policies.masked.records import MaskedSampling
from tandem.policies.request import Request

WRITE = {"llada_8b": write_llada, "dream_7b": write_dream}
RUN = (
    "data=sort_letters", "reward=target_length", "reward.target_length.function.target=4",
    "warm_start=null", "iterations=2", "trainer=cpu", "threads=1", "prompts_per_step=2",
    "group_size=4", "epochs=2", "evaluation.every=null", "checkpoints.every=1000",
    "rollout.max_new_tokens=6", "rollout.steps=3", "rollout.block_length=null", "model.lora=null",
    "model.dtype=float32", "model.gradient_checkpointing=false", "optimizer.lr=1e-2",
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("hub")
    return {name: write(place / name) for name, write in WRITE.items()}


def policy_of(folder, **options):
    policy = MaskedPolicy(path=str(folder), **options)
    policy.load(Request(sampling=MaskedSampling(max_new_tokens=6, steps=3)))
    return policy


def test_llada_is_read_as_what_it_computes(folders):
    policy = policy_of(folders["llada_8b"])
    tokens = torch.randint(0, 250, (2, 11))
    state = load_file(folders["llada_8b"] / "model.safetensors")
    with torch.no_grad():
        logits = policy.network(input_ids=tokens).logits
    assert_close(logits, llada_logits(state, tokens), atol=1e-4, rtol=1e-4)
    assert policy.tokens.mask == MASK and policy.tokens.shift == 0


def test_dream_tells_a_token_one_place_before_it(folders):
    policy = policy_of(folders["dream_7b"])
    assert policy.tokens.mask == MASK and policy.tokens.shift == 1
    rollout = policy.sample(questions(("dbca", "fa")), 2, key=1, slots=[0, 1])
    assert_close(policy.logp(rollout), rollout.behaviour_logp, atol=1e-5, rtol=0)
    other = policy_of(folders["dream_7b"], shift_logits=False)
    assert (other.logp(rollout) - rollout.behaviour_logp).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [
        ("llada_8b", "espo"),
        pytest.param("dream_7b", "diffu_grpo", marks=pytest.mark.slow),
        pytest.param("llada_8b", "diffu_grpo", marks=pytest.mark.slow),
        pytest.param("dream_7b", "espo", marks=pytest.mark.slow),
    ],
)
def test_it_trains_and_is_saved_in_its_own_format(model, algorithm, folders, tmp_path):
    words = [f"model={model}", f"algorithm={algorithm}", f"model.path={folders[model]}", *RUN]
    result = tandem.train(*words, f"run_dir={tmp_path}/run", f"cache_dir={tmp_path}/cache")
    assert result.metrics["optim/updates"] == 2 and result.metrics["optim/grad_norm"] > 0
    saved, first = tmp_path / "run" / "model", folders[model]
    weights, before = (load_file(place / "model.safetensors") for place in (saved, first))
    assert weights.keys() == before.keys()
    assert any(not torch.equal(w, before[name]) for name, w in weights.items())
    config, own = (json.loads((place / "config.json").read_text()) for place in (saved, first))
    assert config == own
    again = policy_of(saved)
    again.save(tmp_path / "again")
    twice = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(w, twice[name]) for name, w in weights.items())


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import save_file

    folder = write_llada(tmp_path / "part")
    state = load_file(folder / "model.safetensors")
    state.pop("model.transformer.ff_out.weight")
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks 1 weights, such as lm_head\.weight"):
        policy_of(folder)


def test_a_decoder_is_opened_to_the_right_and_one_that_is_not_is_refused(tmp_path):
    from hub_language_models import write_qwen3
    from transformers import AutoModelForCausalLM

    folder = write_qwen3(tmp_path / "qwen3")
    policy = policy_of(folder, mask_token_id=270)
    assert policy.model.config.is_causal is False
    with pytest.raises(ValueError, match=r"model\.mask_token_id is null"):
        policy_of(folder)
    with pytest.raises(ValueError, match="is causal: changing its last token changes no logit"):
        check_both_ways(AutoModelForCausalLM.from_pretrained(folder))
    policy.save(tmp_path / "saved")
    tokens = torch.randint(0, 250, (1, 9))
    again = policy_of(tmp_path / "saved", mask_token_id=270)
    with torch.no_grad():
        ours, theirs = (one.network(input_ids=tokens).logits for one in (policy, again))
    assert torch.equal(ours, theirs)


class Teller(torch.nn.Module):
    """Predicts every token of one text, masked or not, `shift` positions before it."""

    def __init__(self, ids, shift):
        from transformers import PretrainedConfig

        super().__init__()
        self.ids, self.shift, self.device = torch.tensor(ids), shift, torch.device("cpu")
        self.config = PretrainedConfig(attn_implementation="eager")

    def forward(self, input_ids, attention_mask):
        told = torch.nn.functional.one_hot(self.ids.roll(-self.shift), 300).float()
        out = type("Output", (), {})()
        out.logits = told.expand(len(input_ids), -1, -1)
        return out


def test_a_likely_text_says_where_its_logits_stand(folders):
    from tandem.policies.language.pretrained import Pretrained
    from tandem.policies.masked.logprob import MaskTokens
    from tandem.policies.masked.pretrained import LIKELY

    tokenizer = policy_of(folders["dream_7b"]).chat.tokenizer
    found = Pretrained(Teller(tokenizer(LIKELY)["input_ids"], 1), tokenizer)
    check_shift(found, MaskTokens(mask=MASK, banned=(MASK,), shift=1))
    with pytest.raises(ValueError, match=r"set model\.shift_logits=True"):
        check_shift(found, MaskTokens(mask=MASK, banned=(MASK,), shift=0))
