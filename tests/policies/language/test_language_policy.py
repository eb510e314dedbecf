import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from small_language import NOTHING, chat_model, questions, small, talk, train_briefly
from torch.testing import assert_close

from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.types import take

OLD, REFERENCE = frozenset({"old_logp"}), frozenset({"ref_logp"})
CONF = Path(__file__).parents[3] / "conf"


def sample_rows(policy, **changes):
    sampling = replace(policy.sampling, **changes)
    return policy.sample(questions(), 4, key=5, slots=range(8), sampling=sampling)


def test_sampled_log_probabilities_are_reused_where_they_are_the_same(policy):
    rollout = sample_rows(policy)
    complete = policy.complete(rollout, OLD)
    assert complete.old_logp is rollout.behaviour_logp
    assert complete.ref_logp is None


def test_the_verdict_is_measured_once_and_kept(policy):
    policy.complete(sample_rows(policy), OLD)
    other = sample_rows(policy, top_p=0.5)  # it would fail the measurement
    assert policy.complete(other, OLD).old_logp is other.behaviour_logp
    again = small()
    again.load_state(policy.state())
    assert again.complete(other, OLD).old_logp is other.behaviour_logp


def test_a_sampler_that_differs_is_not_believed(policy):
    rollout = sample_rows(policy, top_p=0.5)  # renormalised over the remaining tokens
    complete = policy.complete(rollout, OLD)
    assert_close(complete.old_logp, policy.evidence(rollout, NOTHING).logp, atol=1e-6, rtol=0)
    assert (complete.old_logp - rollout.behaviour_logp).abs().max() > 0.01


def test_garbage_outside_the_mask_is_not_measured(policy):
    rollout = sample_rows(policy)
    dirty = rollout.behaviour_logp.masked_fill(~rollout.mask, torch.nan)
    complete = policy.complete(replace(rollout, behaviour_logp=dirty), OLD)
    assert complete.old_logp is dirty


@pytest.mark.filterwarnings("ignore:bfloat16 weights")
def test_narrow_weights_are_scored_again(policy):
    narrow = small(dtype="bfloat16")
    rollout = sample_rows(narrow)
    assert narrow.complete(rollout, OLD).old_logp is not rollout.behaviour_logp
    assert not narrow.exact
    assert policy.exact
    assert not small(mixed=True).exact


def test_passes_in_mixed_precision_do_not_hold_on_to_old_weights():
    learning = small(mixed=True)
    rollout = sample_rows(learning)
    learning.evidence(rollout, NOTHING).logp.sum().backward()
    with torch.no_grad():
        for parameter in learning.trainable().values():
            parameter.mul_(1.2)
    fresh = small(mixed=True)
    fresh.load_weights(learning.weights())
    assert torch.equal(
        learning.evidence(rollout, NOTHING).logp, fresh.evidence(rollout, NOTHING).logp
    )


def test_what_sampling_cast_without_gradient_takes_none_away_from_training():
    rollout = sample_rows(small(mixed=True))

    def gradients(learning):
        learning.evidence(rollout, NOTHING).logp.sum().backward()
        return [parameter.grad for parameter in learning.trainable().values()]

    after = small(mixed=True)
    sample_rows(after)
    pairs = zip(gradients(after), gradients(small(mixed=True)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_demonstrations_are_scored_because_nobody_sampled_them(policy):
    rollout = policy.encode(questions(), key=0, slots=range(8))
    complete = policy.complete(rollout, OLD)
    assert_close(complete.old_logp, policy.evidence(rollout, NOTHING).logp, atol=1e-6, rtol=0)
    assert not complete.old_logp.requires_grad


def test_what_is_given_or_not_read_is_left(policy):
    rollout = sample_rows(policy)
    assert policy.complete(rollout, NOTHING).old_logp is None
    given = replace(rollout, old_logp=torch.full_like(rollout.behaviour_logp, -3.0))
    assert policy.complete(given, OLD).old_logp is given.old_logp


def test_the_reference_stays_where_the_policy_began():
    policy = small(REFERENCE)
    rollout = sample_rows(policy)
    first = policy.complete(rollout, REFERENCE).ref_logp
    assert_close(first, rollout.behaviour_logp, atol=5e-6, rtol=0)
    train_briefly(policy, steps=2)
    assert_close(policy.complete(rollout, REFERENCE).ref_logp, first, atol=0, rtol=0)
    assert (policy.evidence(rollout, NOTHING).logp - first).abs().max() > 0.1


def test_the_kl_that_a_reward_pays_is_k1_before_the_update():
    wanted = frozenset({"old_kl_to_ref"})
    policy = small(wanted)
    train_briefly(policy, steps=2)
    rollout = sample_rows(policy)
    paid = policy.complete(rollout, wanted)
    known = policy.complete(rollout, OLD | REFERENCE)
    k1 = torch.where(rollout.mask, known.old_logp - known.ref_logp, 0)
    assert k1.abs().max() > 0.1
    assert torch.equal(torch.where(rollout.mask, paid.old_kl_to_ref, 0), k1)


def test_the_sum_of_squared_probabilities_is_that_of_the_whole_vocabulary_before_the_update():
    policy = train_briefly(small(), steps=2)
    rollout, wanted = sample_rows(policy), frozenset({"sum_pi_squared"})
    assert policy.complete(rollout, NOTHING).sum_pi_squared is None
    got = policy.complete(rollout, wanted | OLD)
    sample = rollout.sample
    with torch.no_grad():
        logits = policy.network(input_ids=sample.tokens).logits / sample.temperature[:, None, None]
    row, step = rollout.mask.nonzero(as_tuple=True)
    said = logits.softmax(-1)[row, sample.prompt_length[row] + step - 1]
    assert_close(got.sum_pi_squared[rollout.mask], said.square().sum(-1), atol=1e-6, rtol=0)
    own = got.old_logp[rollout.mask].exp()
    assert (got.sum_pi_squared[rollout.mask] >= own.square() - 1e-6).all()


def test_the_reference_is_neither_trained_nor_saved():
    policy, plain = small(REFERENCE), small()
    assert policy.trainable().keys() == plain.trainable().keys()
    assert policy.state_dict().keys() == plain.state_dict().keys()
    assert plain.reference is None
    assert not any(p.requires_grad for p in policy.reference.model.parameters())


def test_weights_are_copied_into_the_tensors_an_optimizer_holds(learned):
    policy = small()
    before = {name: p.data_ptr() for name, p in policy.trainable().items()}
    policy.load_weights(learned)
    for name, parameter in policy.trainable().items():
        assert parameter.data_ptr() == before[name]
        assert torch.equal(parameter, learned[name])


def test_weights_of_another_model_are_refused(learned):
    with pytest.raises(ValueError, match="names do not match"):
        small(lora=Lora(r=2, alpha=4)).load_weights(learned)
    name = "model.norm.weight"
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(5,\)"):
        small().load_weights(learned | {name: torch.zeros(5)})


def test_nothing_puts_the_network_into_train_mode(policy):
    policy.train()
    assert policy.training
    assert not any(module.training for module in policy.network.modules())


def test_a_policy_describes_itself_without_weights():
    policy = LanguagePolicy(path="/no/such/folder")
    description = policy.describe(Request(sampling=Sampling(max_new_tokens=4)))
    assert description.kind == "tokens"
    assert description.provides >= {"old_logp", "ref_logp", "entropy", "behaviour_logp"}
    assert not list(policy.parameters())


def test_a_row_costs_its_tokens(policy):
    rollout = policy.encode(questions(("ab", "cde")), key=0, slots=[0, 1])
    assert policy.row_cost(rollout).tolist() == [3 + 3, 4 + 4]


def test_rows_remember_their_temperature_and_greedy_ones_have_none(policy):
    warm, greedy = sample_rows(policy, temperature=0.5), sample_rows(policy, temperature=0.0)
    assert set(warm.sample.temperature.tolist()) == {0.5}
    assert set(greedy.sample.temperature.tolist()) == {1.0}
    again = policy.evidence(greedy, NOTHING).logp
    assert_close(again, greedy.behaviour_logp, atol=5e-6, rtol=0)
    assert set(take(warm, torch.tensor([3])).sample.temperature.tolist()) == {0.5}


def test_the_limit_truncates_and_an_end_does_not(policy):
    rollout = sample_rows(policy, max_new_tokens=3)
    assert rollout.truncated.any()
    last = rollout.sample.tokens[
        torch.arange(32), rollout.sample.prompt_length + rollout.length - 1
    ]
    assert torch.equal(rollout.truncated, last != 1)


def test_a_sample_is_a_function_of_key_slot_and_place_in_the_group(policy):
    one = policy.sample(questions()[:1], 2, key=5, slots=[3])
    four = policy.sample(questions()[:1], 4, key=5, slots=[3])
    assert one.outputs == four.outputs[:2]
    other = policy.sample(questions()[:1], 4, key=6, slots=[3])
    assert other.outputs != four.outputs
    assert four.group.tolist() == [3, 3, 3, 3]
    assert [prompt.id for prompt in four.prompts] == [0, 0, 0, 0]


def longrope(original=12):
    """A model that rotates all rows of a pass by other frequencies if one is longer than that."""
    from transformers import Phi3Config, Phi3ForCausalLM

    _, tokenizer = tiny_lm(seed=0, hidden_size=32, num_layers=1, head_dim=8)
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 3.0, 9.0, 27.0]}
    config = Phi3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        original_max_position_embeddings=original,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
    )
    torch.manual_seed(0)
    return Phi3ForCausalLM(config), tokenizer


def test_rows_of_longrope_stay_within_its_first_set_of_frequencies(caplog):
    policy = small(build=longrope, sampling=Sampling(max_new_tokens=5))
    assert "rows have up to 12 tokens instead of 64" in caplog.text
    kept, dropped = policy.admit(questions())
    assert [len(prompt.text) <= 7 for prompt in questions()] == [p in kept for p in questions()]
    assert dropped
    rollout = policy.sample(kept, 2, key=1, slots=range(len(kept)))
    logp = policy.evidence(rollout, NOTHING).logp
    assert_close(logp, rollout.behaviour_logp, atol=5e-6, rtol=0)
    alone = torch.cat(
        [policy.evidence(take(rollout, torch.tensor([i])), NOTHING).logp for i in range(len(logp))]
    )
    assert_close(logp, alone, atol=5e-6, rtol=0)


def test_a_demonstration_beyond_the_positions_is_refused(policy):
    with pytest.raises(ValueError, match="a demonstration of 66 tokens exceeds the 64 positions"):
        policy.encode(questions(("a" * 32,)), key=0, slots=[0])


def test_outputs_are_the_text_of_the_answer_without_the_end():
    policy = train_briefly(small(), steps=60)
    greedy = sample_rows(policy, temperature=0.0, max_new_tokens=11)
    right = [out == p.answer for out, p in zip(greedy.outputs, greedy.prompts, strict=True)]
    assert sum(right) >= 24


def test_a_chat_model_learns_its_answers():
    policy = small(build=chat_model, sampling=Sampling(max_new_tokens=8), system_prompt="Add.")
    shown = [talk("2+2?", answer="four"), talk("3+1?", answer="four")]
    rollout = policy.encode(shown, key=0, slots=[0, 1])
    optimizer = torch.optim.Adam(policy.trainable().values(), lr=3e-2)
    for _ in range(30):
        optimizer.zero_grad()
        (-policy.evidence(rollout, NOTHING).logp.sum()).backward()
        optimizer.step()
    greedy = Sampling(max_new_tokens=8, temperature=0.0)
    answers = policy.sample(shown, 1, key=0, slots=[0, 1], sampling=greedy)
    assert answers.outputs == ("four", "four")
    assert answers.length.tolist() == [5, 5]


def of_language(file):
    return "_language" in OmegaConf.load(file).defaults


MODELS = sorted(f.stem for f in (CONF / "model").glob("[!_]*.yaml") if of_language(f))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_file_names_arguments_of_the_policy(name):
    shared, own = (OmegaConf.load(CONF / f"model/{f}.yaml") for f in ("_language_policy", name))
    node = OmegaConf.merge(shared, own.get("model", {}))
    target, _ = node.pop("_target_"), node.pop("defaults", None)
    assert target == "tandem.policies.language.policy.LanguagePolicy"
    assert set(node) <= set(inspect.signature(LanguagePolicy).parameters)
    node.build = None
    plain = OmegaConf.to_container(node, resolve=True)
    assert LanguagePolicy(**plain).describe(Request(sampling=None)).kind == "tokens"
    chosen = {key for entry in own.defaults if isinstance(entry, DictConfig) for key in entry}
    assert chosen >= {f"override /{group}" for group in ("algorithm", "data", "reward")}


def test_there_is_a_file_for_every_promised_model():
    qwen = {f"qwen3_{size}" for size in ("0_6b", "1_7b", "4b", "8b", "14b", "32b")}
    assert set(MODELS) >= qwen | {"tiny_lm", "llama3_8b", "hf"}


def test_the_rollout_file_names_arguments_of_sampling():
    node = OmegaConf.load(CONF / "rollout/local.yaml")
    assert node.pop("_target_") == "tandem.policies.language.policy.Sampling"
    assert Sampling(**OmegaConf.to_container(node)).temperature == 1.0
    assert set(node) <= set(inspect.signature(Sampling).parameters)
