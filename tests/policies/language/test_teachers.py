"""Teachers of tokens: which one judges a prompt, their log-probabilities, and refused teachers."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_language import NOTHING, questions, small
from torch import distributed
from torch.testing import assert_close
from two_ranks import on_both

from tandem.policies.language.chat import Chat, ChatOptions
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.same_tokens import first_difference
from tandem.policies.language.teachers import TokenTeachers
from tandem.policies.language.tiny_lm import character_tokenizer, tiny_lm
from tandem.policies.request import Request
from tandem.stop import Stop
from tandem.types import take

NEEDS = frozenset({"teacher_logp", "old_logp"})
NARROW = {"hidden_size": 32, "num_layers": 2, "head_dim": 8}


def write(folder, seed, **sizes):
    """A teacher in Hugging Face format."""
    for part in tiny_lm(seed=seed, **(NARROW | sizes)):
        part.save_pretrained(folder)
    return str(folder)


def taught(needs=NEEDS, *, sampling=None, teachers=None, **folders):
    policy = LanguagePolicy(build=partial(tiny_lm, seed=0, **NARROW))
    teachers = teachers or TokenTeachers(folders=folders)
    sampling = sampling or Sampling(max_new_tokens=8)
    policy.load(Request(sampling=sampling, needs=needs, teachers=teachers))
    return policy


def sample_rows(policy, prompts=None, **changes):
    sampling = replace(policy.sampling, **changes)
    prompts = prompts or questions()
    return policy.sample(prompts, 2, key=5, slots=range(len(prompts)), sampling=sampling)


def test_a_teacher_says_how_likely_it_thinks_the_tokens_of_the_student(tmp_path):
    folder = write(tmp_path / "model", 1, hidden_size=48)
    policy = taught(others=str(tmp_path))
    rollout = sample_rows(policy)
    said = policy.complete(rollout, NEEDS)
    alone = small(path=folder)
    want = alone.evidence(rollout, NOTHING).logp.detach()
    assert_close(said.teacher_logp, want, atol=1e-6, rtol=0)
    assert (said.teacher_logp - said.old_logp).abs().max() > 0.1
    teacher = policy.teachers.scorers["others"].model
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not any(name.startswith("teacher") for name in policy.state_dict())


def test_a_teacher_with_the_weights_of_the_student_says_exactly_the_same(tmp_path):
    policy = taught(others=write(tmp_path, 0))
    rollout = sample_rows(policy, top_k=5)  # differs from training, so it is computed again
    said = policy.complete(rollout, NEEDS)
    assert said.old_logp is not said.behaviour_logp
    assert torch.equal(said.teacher_logp, said.old_logp)


def test_both_divide_their_logits_by_the_temperature_of_the_sample(tmp_path):
    policy = taught(others=write(tmp_path, 1), sampling=Sampling(max_new_tokens=8, temperature=2))
    rollout = sample_rows(policy)
    said = policy.complete(rollout, NEEDS).teacher_logp
    warm = replace(rollout.sample, temperature=torch.ones_like(rollout.sample.temperature))
    other = policy.complete(replace(rollout, sample=warm), NEEDS).teacher_logp
    assert (said - other).abs().max() > 0.01


def test_each_source_has_the_teacher_of_its_most_particular_name(tmp_path):
    names = {"sort/long": 1, "sort": 2, "others": 3}
    folders = {source: write(tmp_path / str(seed), seed) for source, seed in names.items()}
    policy = taught(**folders)
    sources = ("sums", "sort/long", "sort/short", "sort")
    prompts = [replace(p, source=s) for p, s in zip(questions()[:4], sources, strict=True)]
    rollout = sample_rows(policy, prompts)
    together = policy.complete(rollout, NEEDS).teacher_logp
    for row, source in enumerate(("others", "sort/long", "sort", "sort")):
        alone = taught(others=folders[source]).complete(rollout, NEEDS).teacher_logp
        rows = slice(2 * row, 2 * row + 2)
        assert_close(together[rows], alone[rows], atol=1e-6, rtol=0)
    with pytest.raises(
        ValueError, match=r"folders=\{sort: \.\.\.\} has no teacher for prompts of sums; add"
    ):
        taught(sort=folders["sort"]).complete(rollout, NEEDS)


def test_one_folder_is_loaded_once(tmp_path):
    folder = write(tmp_path, 1)
    scorers = taught(sort=folder, others=folder).teachers.scorers
    assert scorers["sort"] is scorers["others"]


def test_logits_beyond_the_tokenizer_are_left_out_and_that_is_said(tmp_path, caplog):
    model, tokenizer = tiny_lm(seed=1, **NARROW)
    plain = write(tmp_path / "plain", 1)
    model.resize_token_embeddings(48, mean_resizing=False)
    model.get_output_embeddings().weight.data[40:] = 3.0
    model.save_pretrained(tmp_path / "wide")
    tokenizer.save_pretrained(tmp_path / "wide")
    policy = taught(others=str(tmp_path / "wide"))
    assert "logits of 48 tokens and the policy of 40; those beyond 40" in caplog.text
    rollout = sample_rows(policy)
    want = taught(others=plain).complete(rollout, NEEDS).teacher_logp
    assert_close(policy.complete(rollout, NEEDS).teacher_logp, want, atol=1e-6, rtol=0)


def rename(**changes):
    """The policy's tokenizer with other names for some tokens."""
    tokenizer = character_tokenizer()
    state = tokenizer.backend_tokenizer.to_str()
    for old, new in changes.items():
        state = state.replace(f'"{old}":', f'"{new}":')
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(state)
    return tokenizer


def chat(tokenizer, **options):
    return Chat(tokenizer, ChatOptions(**options))


def test_the_first_difference_of_two_tokenizers_is_named():
    own = chat(character_tokenizer())
    assert first_difference(own, chat(character_tokenizer())) is None
    swapped = rename(a="§", b="a")
    assert first_difference(own, chat(swapped)) == ("token 15 is '§' there and 'a' in the policy's")
    ended = character_tokenizer()
    ended.eos_token = "<pad>"
    assert first_difference(own, chat(ended)) == "eos_token_id is 0 there and 1 in the policy's"
    spoken = character_tokenizer()
    spoken.chat_template = "{{ messages[0]['content'] }}"
    assert "of a conversation has id" in first_difference(own, chat(spoken))


def test_a_teacher_of_other_tokens_is_refused(tmp_path):
    model, _ = tiny_lm(seed=1, **NARROW)
    model.save_pretrained(tmp_path)
    rename(a="§", b="a").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="same tokenizer") as refused:
        taught(others=str(tmp_path))
    assert str(refused.value) == (
        f"algorithm.teachers.folders.others={tmp_path}: token 15 is '§' there and 'a' in the "
        "policy's; a teacher reads the policy's own token ids, so choose one with the same "
        "tokenizer"
    )


def test_a_teacher_that_reads_too_little_ends_the_run(tmp_path):
    policy = taught(others=write(tmp_path, 1, max_positions=12))
    with pytest.raises(Stop, match=r"the teacher of others reads at most 12 tokens, but a"):
        policy.complete(sample_rows(policy), NEEDS)


def complete_long_row_of_second(folder, needs):
    """What ends the run of this rank, and whether a checkpoint can be saved; None: it goes on."""
    policy = taught(needs, teachers=TokenTeachers(folders={"others": folder}))
    word = "bjihgfedca" if distributed.get_rank() else "a"
    rollout = sample_rows(policy, questions((word,)))
    try:
        policy.complete(rollout, needs)
    except Stop as stop:
        return str(stop), stop.together
    return None


@pytest.mark.parametrize("needs", [NEEDS, frozenset({"divergence"})], ids=["logp", "divergence"])
def test_a_row_too_long_for_its_teacher_ends_the_run_on_all_ranks(tmp_path, needs):
    folder = write(tmp_path, 1, max_positions=12)
    first, second = on_both(partial(complete_long_row_of_second, folder, needs))
    assert first == second
    assert "the teacher of others reads at most 12 tokens, but a row has 1" in first[0]
    assert first[1]


def test_a_teacher_may_read_less_than_the_rows_of_another_source(tmp_path):
    short, long = write(tmp_path / "short", 1, max_positions=12), write(tmp_path / "long", 2)
    prompts = [replace(p, source=p.text[:1]) for p in questions(("a", "bjihgfedca"))]
    policy = taught(a=short, b=long)
    rollout = sample_rows(policy, prompts)
    assert rollout.sample.tokens.shape[1] > 12
    said = policy.complete(rollout, NEEDS).teacher_logp
    want = taught(others=short).complete(take(rollout, torch.tensor([0, 1])), NEEDS)
    assert_close(said[:2], want.teacher_logp, atol=1e-6, rtol=0)


def test_a_folder_that_holds_no_model_is_named_as_a_teacher(tmp_path):
    with pytest.raises(ValueError, match=r"^algorithm\.teachers\.folders\.others=.*no config.json"):
        TokenTeachers(folders={"others": str(tmp_path)}).check()
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ValueError, match=r"there is no model/ in this run; finish it first"):
        TokenTeachers(folders={"others": str(tmp_path)}).check()
    with pytest.raises(ValueError, match=r"name at least one teacher"):
        TokenTeachers(folders={})
    TokenTeachers(folders={"others": "Qwen/Qwen3-0.6B"}).check()
    with pytest.raises(ValueError, match=r"^algorithm\.teachers\.folders\.others=no/such"):
        taught(others="no/such")
