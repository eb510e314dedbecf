"""A mixture of environments: each dataset uses its own and is unaffected by the others."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from small_episodes import WITH_TOOLS, chatting, playing, sample_rows
from small_language import questions, talk

from tandem.environments import Mixture
from tandem.environments.tools import Tools, calculator
from tandem.metrics import reduce_metrics
from tandem.policies.engines.paged import Paged
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language.policy import Sampling
from tandem.rewards.result import Missing
from tandem.training.episode_rows import episode_metrics

sys.path.append(str(Path(__file__).parents[2] / "environments"))
from worlds import Counting, make_environment

FIELDS = ("mask", "turn", "feedback", "state", "length", "behaviour_logp", "group", "key")


def of(name, prompts, first=0):
    return [
        replace(prompt, source=f"{name}/{prompt.source}", id=first + prompt.id)
        for prompt in prompts
    ]


def same_rows(got, want):
    assert got.outputs == want.outputs
    for field in FIELDS:
        assert torch.equal(getattr(got, field), getattr(want, field)), field
    assert torch.equal(got.sample.tokens, want.sample.tokens)


def test_a_mixture_of_one_is_its_environment_bit_for_bit(learned):
    want = sample_rows(playing(make_environment(Counting(turns=3)), weights=learned), questions())
    mixed = playing(Mixture({"count": make_environment(Counting(turns=3))}), weights=learned)
    same_rows(sample_rows(mixed, of("count", questions())), want)


def test_a_dataset_without_an_environment_has_the_rows_that_it_has_alone(learned):
    want = sample_rows(playing(None, weights=learned), questions())
    got = sample_rows(playing(Mixture({"plain": None}), weights=learned), of("plain", questions()))
    assert got.outputs == want.outputs and torch.equal(got.mask, want.mask)
    for field in ("behaviour_logp", "length", "truncated", "group", "key"):
        assert torch.equal(getattr(got, field), getattr(want, field)), field
    assert torch.equal(got.sample.tokens, want.sample.tokens)
    assert torch.equal(got.turn, got.mask.long()) and not got.feedback.any()


def test_groups_go_to_the_environment_of_their_source_and_stay_in_their_slots(learned):
    """Two environments and none, in turn: every group equals that of a run of its dataset alone."""
    worlds = {
        "two": make_environment(Counting(turns=2)),
        "four": make_environment(Counting(turns=4)),
        "plain": None,
    }
    policy = playing(Mixture(worlds), weights=learned)
    prompts = [
        replace(prompt, source=f"{list(worlds)[place % 3]}/sort")
        for place, prompt in enumerate(questions())
    ]
    rows = sample_rows(policy, prompts)
    assert rows.group.tolist() == [slot for slot in range(len(prompts)) for _ in range(3)]
    assert [row.id for row in rows.prompts] == [p.id for p in prompts for _ in range(3)]
    turns = rows.turn.amax(1).view(-1, 3)[:, 0].tolist()
    assert turns == [(2, 4, 1)[place % 3] for place in range(len(prompts))]
    for name, world in worlds.items():
        places = [i for i, prompt in enumerate(prompts) if prompt.source.startswith(name)]
        alone = playing(Mixture({name: world}), weights=learned).sample(
            [prompts[i] for i in places], 3, key=7, slots=places
        )
        outputs = [rows.outputs[3 * i + sample] for i in places for sample in range(3)]
        assert outputs == list(alone.outputs)


def test_episodes_are_counted_by_dataset_and_together(learned):
    worlds = {
        "two": make_environment(Counting(turns=2)),
        "four": make_environment(Counting(turns=4)),
    }
    policy = playing(Mixture(worlds), weights=learned)
    prompts = [*of("two", questions()[:2]), *of("four", questions()[:2], first=9)]
    told = reduce_metrics(episode_metrics(sample_rows(policy, prompts)))
    means = [told[f"environment/{name}turns_mean"] for name in ("", "two/", "four/")]
    assert means == [3.0, 2.0, 4.0]
    assert told["environment/two/reward_by_turn/2"] == 1.0


def test_tools_stand_in_the_prompts_of_their_own_dataset_alone():
    tools = make_environment(Tools({"calculator": calculator}))
    policy = playing(
        Mixture({"sums": tools, "talk": None}),
        build=partial(chatting, WITH_TOOLS),
        sampling=Sampling(max_new_tokens=2),
    )
    shown = [policy.describe_prompt(one) for n in ("sums", "talk") for one in of(n, [talk("1+1?")])]
    assert ["calculator" in text for text in shown] == [True, False]
    rows = sample_rows(policy, [*of("sums", [talk("1+1?")]), *of("talk", [talk("1+1?", id=1)])])
    read = policy.chat.tokenizer.batch_decode(rows.sample.tokens)
    assert ["calculator" in text for text in read] == [True] * 3 + [False] * 3


def test_a_text_that_shows_a_chat_model_no_tools_is_left_out_with_the_reason():
    tools = make_environment(Tools({"calculator": calculator}))
    both = Mixture({"sums": tools, "talk": None})
    texts = [*of("sums", questions()[:1]), *of("talk", questions()[:1], first=9)]
    asked = [*of("sums", [talk("1+1?", id=5)]), *texts]
    policy = playing(both, build=partial(chatting, WITH_TOOLS))
    kept, ((left, why),) = policy.admit(asked)
    assert ([one.id for one in kept], left.id) == ([5, 9], 0)
    assert why.endswith("give `messages` instead of `prompt`")
    without_template = playing(both)
    assert without_template.admit(texts) == (texts, [])


def test_a_prompt_of_no_dataset_is_named():
    policy = playing(Mixture({"two": make_environment(Counting())}))
    with pytest.raises(ValueError, match=r"environment\.of has no 'sort', the dataset of a prompt"):
        sample_rows(policy, questions())


def test_rows_that_a_world_lost_join_those_of_an_engine_that_says_no_entropy(learned):
    """A row without moves needs no entropy, whatever the order of its dataset."""

    class Refuses(Counting):
        def begin(self, prompt, key):
            raise Missing("the world is gone")

    def silent(*args, **options):
        return replace(answer(*args, **options), entropy=None)

    policy = playing(
        Mixture(
            {"gone": make_environment(Refuses()), "there": make_environment(Counting(turns=2))}
        ),
        weights=learned,
    )
    answer, policy.engine.answer = policy.engine.answer, silent
    one, other = of("gone", questions()[:1]), of("there", questions()[:1], first=9)
    for prompts in ([*one, *other], [*other, *one]):
        rows = sample_rows(policy, prompts)
        assert rows.entropy is None
        assert [row.source for row in rows.prompts] == [p.source for p in prompts for _ in range(3)]
    server = VllmServer(url="http://127.0.0.1:1", folder="")
    for engine, known in ((None, True), (Paged(), True), (server, False)):  # all of a rank's rows
        assert (sample_rows(policy, one, engine=engine).entropy is not None) == known
