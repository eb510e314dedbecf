"""Prompts that teachers can read with their answers: the others are left out before training."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from policies.small_language import questions

from tandem.config import ConfigError
from tandem.data import Data
from tandem.evaluation.settings import Answers
from tandem.launch.admission import admit_data
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.teachers import TokenTeachers
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.request import Request

TINY = {"hidden_size": 32, "num_layers": 2, "head_dim": 8}
NEEDS = frozenset({"teacher_logp"})
NEW = 8  # tokens of an answer
SHORT, LONG = "ab", "bjihgfedca"  # prompts of 3 and of 11 tokens


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Teachers that read as much as SHORT with an answer, one token less, and more than a row."""
    found = {}
    for name, most in {"just": 11, "less": 10, "much": 64}.items():
        found[name] = str(tmp_path_factory.mktemp(name))
        for part in tiny_lm(seed=1, **TINY, max_positions=most):
            part.save_pretrained(found[name])
    return found


def load(**folders):
    policy = LanguagePolicy(build=partial(tiny_lm, seed=0, **TINY))
    sampling = Sampling(max_new_tokens=NEW)
    teachers = TokenTeachers(folders=folders)
    policy.load(Request(sampling=sampling, needs=NEEDS, teachers=teachers))
    return policy


def admit(policy, data, source="train", *, evaluate=False, gives=frozenset()):
    evaluation = Answers(every=1, prompts=None, samples=1, pass_at=(), temperatures=(1.0,))
    settings = SimpleNamespace(evaluation=evaluation, evaluate=evaluate)
    return admit_data(policy, data, source, settings, gives=gives)


def ask(*texts, **options):
    return tuple(replace(prompt, **options) for prompt in questions(texts))


def test_a_prompt_that_its_teacher_cannot_read_with_an_answer_is_left_out(folders):
    asked = tuple(
        replace(prompt, id=number, source=source)
        for number, (source, text) in enumerate([("a", SHORT), ("a", LONG), ("b", LONG)])
        for prompt in questions((text,))
    )
    data = Data(train=asked, eval=asked, asks_again=True)
    policy = load(a=folders["just"], b=folders["much"])
    got = admit(policy, data)
    assert got.train == (asked[0], asked[2]) and got.eval == asked
    (row,) = got.quarantine
    assert (row.id, row.file) == (1, "train of a")
    assert row.reason == (
        "has 11 tokens and up to 8 in its answer (rollout.max_new_tokens); its teacher reads 11"
    )
    policy.complete(policy.sample(got.train, 8, key=0, slots=range(2)), NEEDS)
    assert admit(policy, data, evaluate=True).train == asked
    assert admit(policy, data, gives={"reprompts"}).train == asked  # it reads other prompts


def test_a_run_whose_teacher_reads_no_prompt_does_not_begin(folders):
    data = Data(train=ask(SHORT), eval=(), asks_again=True)
    with pytest.raises(
        ConfigError, match=r"can use none of the 1 prompts of train: 1 x has 3 .*10"
    ):
        admit(load(others=folders["less"]), data)


def test_a_demonstration_is_left_out_by_the_length_of_its_answer(folders):
    shown = tuple(
        replace(prompt, id=number, answer=answer)
        for number, answer in enumerate(("ab", "abcdefg", "abcdefgh"))  # and an end token
        for prompt in questions((SHORT,))
    )
    data = Data(train=shown, eval=(), demonstrations=shown, asks_again=True)
    policy = load(others=folders["just"])
    got = admit(policy, data, "demonstrations")
    assert got.demonstrations == shown[:2]
    assert "3 tokens and up to 9 in its answer; its" in got.quarantine[0].reason
    policy.complete(policy.encode(got.demonstrations, key=0, slots=range(2)), NEEDS)
    policy = load(others=folders["less"])
    with pytest.raises(ConfigError, match="can use none"):  # samples of the longest answers too
        admit(policy, data, "demonstrations", gives={"samples"})


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_that_its_teacher_cannot_read_with_both_answers_is_left_out(folders, side):
    pairs = ask(SHORT, SHORT, chosen="ab", rejected="ba")
    pairs = (pairs[0], replace(pairs[1], id=1, **{side: "abcdefghij"}))
    data = Data(train=pairs, pairs=pairs, eval=(), asks_again=True)
    got = admit(load(others=folders["just"]), data, "pairs")
    assert got.pairs == pairs[:1]
    (row,) = got.quarantine
    assert (row.id, row.reason) == (
        1,
        "has 3 tokens and up to 11 in its answer; its teacher reads 11",
    )
