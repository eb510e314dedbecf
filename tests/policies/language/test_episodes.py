"""Episodes as rows: laws for any environment."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from small_episodes import WITH_TOOLS, chatting, playing, sample_rows, script, with_tools
from small_language import TEMPLATE, WORDS, questions, talk
from torch.testing import assert_close

from tandem import rng
from tandem.data.hilo import hilo
from tandem.environments import Said
from tandem.environments.hilo import HiLo
from tandem.environments.tools import Tools, calculator
from tandem.policies.language.policy import Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.progress import PROGRESS
from tandem.types import Prompt, take

sys.path.append(str(Path(__file__).parents[2] / "environments"))
import itertools

from worlds import Counting, Faulty, dies_in_the_middle, hangs, make_environment, raises

NOTHING = frozenset()


def test_a_world_that_ends_after_one_move_gives_the_rows_of_today_bit_for_bit(learned):
    alone = playing(None, weights=learned)
    acting = playing(make_environment(Counting(turns=1)), weights=learned)
    want, got = sample_rows(alone), sample_rows(acting)
    assert got.outputs == want.outputs
    for name in ("mask", "group", "length", "truncated", "key", "behaviour_logp", "entropy"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    for name in ("tokens", "prompt_length", "temperature"):
        assert torch.equal(getattr(got.sample, name), getattr(want.sample, name)), name


def test_every_history_begins_with_the_prompt_and_the_moves_before_it(learned):
    """No sampled token is decoded and encoded again, as the requests to the engine show."""
    policy = playing(make_environment(Counting(turns=3)), weights=learned)
    histories, answer = {}, policy.engine.answer

    def listening(prompts, keys, **how):
        answers = answer(prompts, keys, **how)
        rows = [p for p in prompts for _ in range(keys.shape[1])]
        for row, (prompt, said, n) in enumerate(
            zip(rows, answers.tokens.tolist(), answers.length.tolist(), strict=True)
        ):
            histories.setdefault(row, []).append((prompt, said[:n]))
        return answers

    policy.engine.answer = listening
    sample_rows(policy, group_size=2)
    for turns in histories.values():
        assert len(turns) == 3
        for (prompt, move), (later, _) in itertools.pairwise(turns):
            assert later[: len(prompt) + len(move)] == [*prompt, *move]
            assert len(later) > len(prompt) + len(move)  # the observation follows


def test_training_finds_the_log_probabilities_of_the_sampler_at_every_token_of_the_policy(learned):
    policy = playing(make_environment(Counting(turns=3)), weights=learned)
    rows = sample_rows(policy)
    holes = (~rows.mask) & (torch.arange(rows.mask.shape[1]) < rows.length[:, None])
    assert holes.any()
    assert_close(policy.logp(rows), rows.behaviour_logp, atol=1e-4, rtol=0)
    assert (rows.behaviour_logp[holes] == 0).all()


@pytest.mark.parametrize("packing", [False, True])
def test_observations_carry_no_gradient_and_moves_do(learned, packing):
    """A loss weight on an observation changes nothing; one on a move does."""
    policy = playing(make_environment(Counting(turns=3)), weights=learned, packing=packing)
    rows = sample_rows(policy, group_size=1)

    def gradient(weight):
        policy.zero_grad()
        (policy.evidence(rows, NOTHING).logp * weight).sum().backward()
        return torch.cat([p.grad.flatten() for p in policy.trainable().values()])

    one = torch.ones_like(rows.behaviour_logp)
    on_world = torch.where(rows.turn == 0, 5.0, 1.0)
    on_move = torch.where(rows.turn == 2, 5.0, 1.0)
    assert torch.equal(gradient(one), gradient(on_world))
    assert not torch.allclose(gradient(one), gradient(on_move))


def test_feedback_stands_on_the_last_token_of_the_move_that_earned_it(learned):
    rows = sample_rows(playing(make_environment(Counting(turns=2)), weights=learned))
    last = (rows.turn == 2) & (rows.turn.roll(-1, 1) != 2)
    last[:, -1] = rows.turn[:, -1] == 2
    assert torch.equal(rows.feedback, last.float())
    for place, one in enumerate(rows.prompts):
        moves = [turn for turn in one.episode["turns"] if turn["role"] == "assistant"]
        assert [turn["turn"] for turn in moves] == [1, 2]
        assert moves[-1]["content"] == rows.outputs[place]


def test_a_group_begins_in_one_state_and_draws_its_own_ways(learned):
    world = Counting(turns=2)
    rows = sample_rows(playing(make_environment(world), weights=learned), group_size=4)
    keys = {}
    for prompt, key in world.begun:
        keys.setdefault(prompt, set()).add(key)
    assert all(len(own) == 1 for own in keys.values())
    assert len({key for own in keys.values() for key in own}) == len(WORDS)
    assert len({*rows.outputs}) > len(WORDS) / 2
    assert rows.state[:, 0].unique().numel() == 1  # all begin in the state "0"


def test_the_opening_and_every_turn_are_progress(learned, monkeypatch):
    policy = playing(make_environment(Counting(turns=3)), weights=learned)
    script(policy, "1", "2", "3")
    reports = []
    monkeypatch.setattr(PROGRESS, "report", lambda: reports.append("report"))
    sample_rows(policy)
    assert len(reports) == 4


@pytest.mark.parametrize(("shared", "different"), [(False, 3), (True, 1)])
def test_what_a_world_draws_in_a_turn_differs_by_sample_unless_noise_is_shared(
    learned, shared, different
):
    heard = []

    def listening(prompt, moves):
        heard.extend(move.key for move in moves[-1:])
        return Said(over=bool(moves))

    policy = playing(make_environment(listening, shared_noise=shared), weights=learned)
    sample_rows(policy, questions(WORDS[:1]), group_size=3)
    assert len({*heard}) == different


def test_company_and_cuts_move_no_token(learned):
    """Rows depend neither on the other prompts nor on the size of passes."""
    policy = playing(make_environment(Counting(turns=3)), weights=learned)
    many, few = sample_rows(policy), sample_rows(policy, questions()[:2])
    small_passes = sample_rows(policy, max_rows=5)
    assert few.outputs == many.outputs[: len(few.outputs)]
    assert small_passes.outputs == many.outputs
    turn = many.turn[: len(few.turn)]
    assert torch.equal(few.turn, turn[:, : few.turn.shape[1]])
    assert_close(small_passes.behaviour_logp, many.behaviour_logp, atol=1e-5, rtol=0)


def test_an_opening_is_encoded_once_for_the_rows_of_a_group(learned, monkeypatch):
    world = Counting(turns=2, opening=Said.text("+", state="0"))
    policy = playing(make_environment(world), weights=learned)
    bridge, opened = policy.episodes.of[None].bridge, []
    encode = bridge.opening_ids
    monkeypatch.setattr(bridge, "opening_ids", lambda *said: opened.append(said) or encode(*said))
    rows = sample_rows(policy, group_size=4)
    assert len(rows.mask) == 4 * len(opened) == 4 * len(questions())


def test_limits_of_turns_and_tokens_truncate_and_an_end_does_not(learned):
    three = partial(playing, weights=learned)
    over = sample_rows(three(make_environment(Counting(turns=3))), max_new_tokens=12)
    turns = sample_rows(three(make_environment(Counting(turns=9), max_turns=2)))
    tokens = sample_rows(three(make_environment(Counting(turns=9), max_tokens=6)))
    ends = [{row.episode["end"] for row in rows.prompts} for rows in (over, turns, tokens)]
    assert ends[:2] == [{"over"}, {"turn_limit"}]
    assert "token_limit" in ends[2]
    assert turns.truncated.all()
    assert tokens.truncated.all()
    assert tokens.length.max() <= 6
    assert turns.turn.max() == 2


def test_a_move_without_its_end_gets_it_outside_the_mask(learned):
    policy = playing(
        make_environment(Counting(turns=2)), weights=learned, sampling=Sampling(max_new_tokens=1)
    )
    rows = sample_rows(policy, questions(WORDS[:1]), group_size=1)
    end, plus = policy.chat.tokenizer.eos_token_id, policy.chat.ids(["+"], special=False)[0][0]
    written = rows.sample.tokens[0, int(rows.sample.prompt_length[0]) :].tolist()
    assert written[1:3] == ([plus, written[2]] if written[0] == end else [end, plus])
    assert not rows.mask[0, 1]


def test_what_the_world_failed_in_is_lost_and_the_others_are_not_moved(learned):
    faults = {1: raises, 3: dies_in_the_middle}
    sound = sample_rows(playing(make_environment(Counting(turns=3)), weights=learned))
    rows = sample_rows(playing(make_environment(Faulty(faults), attempts=1), weights=learned))
    lost = [row.episode["lost"] for row in rows.prompts]
    for row, prompt in enumerate(rows.prompts):
        if prompt.id in faults:
            assert lost[row].startswith("act raised ConnectionResetError: 'the socket is gone'")
        else:
            assert lost[row] is None
            assert rows.outputs[row] == sound.outputs[row]
    at = {p.id: int(rows.turn[row].max()) for row, p in enumerate(rows.prompts) if lost[row]}
    assert at == {1: 1, 3: 2}


def test_an_episode_that_broke_once_is_begun_again_with_the_same_draws(learned):
    sound = sample_rows(playing(make_environment(Counting(turns=3)), weights=learned))
    world = Faulty({2: dies_in_the_middle}, only_first=False)
    world.only_first = True
    rows = sample_rows(playing(make_environment(world, attempts=2), weights=learned), group_size=1)
    want = take(sound, torch.arange(0, len(sound.mask), 3))
    assert rows.outputs == want.outputs
    assert torch.equal(rows.turn, want.turn[:, : rows.turn.shape[1]])
    told = rows.prompts[2].episode
    assert (told["lost"], told["attempts"]) == (None, 2)


def test_episodes_are_closed_where_sampling_fails(learned):
    world = Counting(turns=3)
    policy = playing(make_environment(world), weights=learned)

    def broken(prompts, keys, **how):
        raise RuntimeError("out of memory")

    policy.engine.answer = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        sample_rows(policy, questions()[:2], group_size=1)
    assert world.closed == 2


def test_the_record_of_an_episode_has_a_message_as_it_was_read(learned):
    """Not the megabytes that the environment sent."""
    policy = playing(
        make_environment(Counting(says="+" * 100_000), max_observation_tokens=8), weights=learned
    )
    rows = sample_rows(policy, questions()[:2], group_size=1)
    said = [t["content"] for row in rows.prompts for t in row.episode["turns"] if "turn" not in t]
    assert said and max(map(len, said)) < 100
    assert [row.episode["counts"] for row in rows.prompts] == [{"shortened": 2.0}] * 2


def test_rows_near_their_limit_are_asked_in_one_call_and_cut(learned):
    """One call per wave; truncated rows equal those of separate calls."""
    policy = playing(make_environment(Counting(turns=9), max_tokens=9), weights=learned)
    calls, answer = [], policy.engine.answer

    def counted(prompts, keys, **how):
        calls.append(keys.numel())
        return answer(prompts, keys, **how)

    policy.engine.answer = counted
    rows = sample_rows(policy)
    assert len(calls) == rows.turn.max()
    policy.episodes.of[None].can_read = lambda course, count: count <= course.left
    alone = sample_rows(policy)
    assert len(calls) > 2 * rows.turn.max()  # one call per remaining length
    assert alone.outputs == rows.outputs
    for name in ("turn", "mask", "length", "truncated"):
        assert torch.equal(getattr(alone, name), getattr(rows, name)), name
    assert_close(alone.behaviour_logp, rows.behaviour_logp, atol=1e-5, rtol=0)


def test_a_world_that_hangs_is_given_up(learned):
    environment = make_environment(Faulty({0: hangs}), attempts=1, timeout=0.05)
    rows = sample_rows(playing(environment, weights=learned), questions()[:2], group_size=1)
    lost = [row.episode["lost"] for row in rows.prompts]
    assert lost == ["act took over 0.05 s (environment.timeout)", None]


def test_every_turn_of_a_demonstration_is_trained_by_the_ids_that_sampling_would_have():
    """A demonstration with sampled moves is encoded like the sampled row."""
    data = hilo(seed=0, demonstrations=4)
    policy = playing(
        make_environment(HiLo()),
        build=partial(tiny_lm, seed=0),
        sampling=Sampling(max_new_tokens=3),
    )
    rows = policy.encode(data.demonstrations, key=0, slots=range(4))
    for row, example in enumerate(data.demonstrations):
        said = [m["content"] for m in example.messages]
        ids = policy.chat.ids(list(said), special=False)
        end = policy.chat.tokenizer.eos_token_id
        want = [t for i, own in enumerate(ids) for t in (own if i % 2 == 0 else [*own, end])]
        whole = int(rows.sample.prompt_length[row] + rows.length[row])
        assert rows.sample.tokens[row, :whole].tolist() == want
        of_policy = [i % 2 == 1 for i, own in enumerate(ids) for _ in range(len(own) + i % 2)]
        assert rows.mask[row, : whole - 1].tolist() == of_policy[1:]


@pytest.mark.parametrize(("room", "last"), [(4, []), (1, [0])], ids=["ended", "cut"])
def test_a_demonstration_of_a_chat_ends_turns_as_a_sampled_row(room, last):
    """By the token of the template, which is not the tokenizer's own; a cut last move has none."""
    policy = playing(
        make_environment(Counting(turns=2)),
        build=partial(chatting, TEMPLATE.replace("<|im_end|>", "<|end|>")),
        sampling=Sampling(max_new_tokens=room),
    )
    script(policy, "2", "4")
    (sampled,) = sample_rows(policy, [talk("1 ?")], group_size=1).sample.tokens.tolist()
    shown = policy.encode([talk("1 ?", "2", "+", "4")], key=0, slots=range(1))
    assert shown.sample.tokens.tolist() == [[*sampled, *last]]
    assert policy.chat.decode_all(shown.sample.tokens.tolist()) == [
        "<|im_start|>user\n1 ?<|end|>\n<|im_start|>assistant\n2<|end|>\n"
        "<|im_start|>user\n+<|end|>\n<|im_start|>assistant\n4<|end|>"
    ]
    trained = shown.turn[shown.mask]
    assert trained.tolist() == [1, 1, 2, 2]


def test_a_demonstration_with_a_turn_that_the_template_rejects_is_left_out():
    turns = [("user", "1 ?"), ("assistant", "2"), ("system", "go on"), ("user", "3 ?")]
    messages = tuple({"role": role, "content": text} for role, text in turns)
    good = Prompt(id=0, source="s", messages=(messages[0],), answer="2")
    odd = Prompt(id=1, source="s", messages=messages, answer="4")
    template = TEMPLATE.replace("message.role == 'tool'", "message.role in ('tool', 'system')")
    policy = playing(make_environment(Counting(turns=3)), build=partial(chatting, template))
    kept, dropped = policy.admit_answered([good, odd])
    assert kept == [good] and "the chat template rejects" in dropped[0][1]


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["template", "no template"])
def test_a_demonstration_that_begins_with_a_move_is_left_out(template):
    turns = [("assistant", "ab"), ("user", "cab>")]
    messages = tuple({"role": role, "content": text} for role, text in turns)
    good = Prompt(id=0, source="s", messages=messages[1:], answer="abc")
    odd = Prompt(id=1, source="s", messages=messages, answer="abc")
    build = partial(tiny_lm, seed=0) if template is None else partial(chatting, template)
    policy = playing(make_environment(Counting(turns=3)), build=build)
    kept, dropped = policy.admit_answered([good, odd])
    assert kept == [good] and dropped == [(odd, "begins with the assistant's turn")]


def test_a_rank_whose_episodes_end_at_their_opening_refreshes_the_engine_with_the_others(learned):
    class Closed(Counting):
        def begin(self, prompt, key):
            raise OSError("no world is left")

    world = make_environment(Closed(), attempts=1)
    policy, calls = playing(world, weights=learned), []
    policy.ready = lambda: calls.append("ready")
    policy.engine.answer = lambda *given, **named: calls.append("asked")
    rows = sample_rows(policy)
    assert calls == ["ready"] and not rows.mask.any()


def test_a_move_out_of_the_vocabulary_is_not_demonstrated():
    data = hilo(seed=0, demonstrations=1)
    policy = playing(make_environment(HiLo()), build=partial(tiny_lm, seed=0))
    last = {"role": "assistant", "content": "日"}
    odd = replace(data.demonstrations[0], messages=(*data.demonstrations[0].messages[:-1], last))
    kept, dropped = policy.admit_answered([odd])
    assert not kept
    assert dropped[0][1] == "has an answer with '日', characters that the tokenizer does not know"


def test_hilo_is_won_by_bisection_as_often_as_arithmetic_says():
    data = hilo(seed=0, demonstrations=1)
    won = 0.0
    for prompt in data.train:
        episode, said = HiLo().begin(prompt, 0), None
        while said is None or not said.over:
            low, high = map(int, (said or episode.opening).state.split(".."))
            said = episode.act(move_of(f"{(low + high) // 2:02}"))
        won += said.reward
    assert won == 15


@pytest.mark.parametrize("text", ["7", "07 ", "ab", ""])
def test_anything_but_two_digits_ends_the_game(text):
    said = HiLo().begin(hilo(seed=0, demonstrations=1).train[3], 0).act(move_of(text))
    assert (said.over, said.reward, said.counts) == (True, 0.0, {"unparsed": 1})


@pytest.mark.parametrize(
    ("limit", "heard", "ends"),
    [
        (99, ["1702"], "over"),
        (20, ["error: a call was begun that does not end, or is in another format"], "over"),
    ],
    ids=["whole", "cut in the middle"],
)
def test_a_tool_that_is_called_answers_in_the_history(limit, heard, ends):
    """A call cut by the token limit is the policy's mistake, and the episode continues."""
    policy = playing(
        make_environment(Tools({"calculator": calculator})), build=partial(chatting, WITH_TOOLS),
        sampling=Sampling(max_new_tokens=limit),
    )  # fmt: skip
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "37*46"}}</tool_call>'
    script(policy, call, "1702")
    rows = sample_rows(policy, [talk("37*46?")], group_size=2)
    told = rows.prompts[0].episode
    assert [one["content"] for one in told["turns"] if one["role"] == "tool"] == heard
    assert (told["end"], rows.outputs) == (ends, ("1702", "1702"))
    called = [one["function"] for turn in told["turns"] for one in turn.get("tool_calls", ())]
    whole = {"name": "calculator", "arguments": {"expression": "37*46"}}
    assert called == ([whole] if limit == 99 else [])
    ids = rows.sample.tokens[0, : int(rows.sample.prompt_length[0] + rows.length[0])]
    text = policy.chat.tokenizer.decode(ids)
    assert (
        f"<|im_end|>\n<|im_start|>tool\n{heard[0]}<|im_end|>\n<|im_start|>assistant\n1702" in text
    )
    shown = policy.chat.tokenizer.decode(rows.sample.tokens[0, : int(rows.sample.prompt_length[0])])
    assert "calculator" in shown


TAGGED = (
    "<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for name, value in call.function.arguments.items() %}<parameter={{ name }}>\n{{ value }}"
    "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
AS_ALL = (
    "{% if message.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'
)
SPECIAL = (
    "{{ '<|im_start|>call ' + call.function.name + '\n' + call.function.arguments + '<|end|>' }}"
)


@pytest.mark.parametrize(
    ("template", "call"),
    [
        (
            TAGGED,
            "<tool_call>\n<function=calculator>\n<parameter=expression>\n37*46\n</parameter>\n"
            "</function>\n</tool_call>",
        ),
        (AS_ALL, '{"name": "calculator", "parameters": {"expression": "37*46"}}'),
    ],
    ids=["a text per argument", "all of the move"],
)
def test_a_call_is_read_as_the_chat_template_writes_it(template, call):
    policy = playing(
        make_environment(Tools({"calculator": calculator})),
        build=partial(chatting, with_tools(template)), sampling=Sampling(max_new_tokens=200),
    )  # fmt: skip
    script(policy, f"<think>\nSo.\n</think>\n\n{call}", "1702")
    told = sample_rows(policy, [talk("37*46?")], group_size=1).prompts[0].episode
    assert [one["content"] for one in told["turns"] if one["role"] == "tool"] == ["1702"]


@pytest.mark.parametrize("template", ["", "[{{ call.function.name }}(x=1)]", SPECIAL])
def test_a_template_whose_calls_cannot_be_read_is_refused_with_the_key(template):
    """A mark that is a special token is not in the text of a move."""
    tools = partial(Tools, {"calculator": calculator})
    build = partial(chatting, with_tools(template))
    with pytest.raises(ValueError, match=r"calls of tools.* set environment\.world\.calls to"):
        playing(make_environment(tools()), build=build)
    playing(make_environment(tools(calls=r"\((?P<expression>[^()]*)\)")), build=build)


def move_of(text):
    from tandem.environments import Move

    return Move(text=text, number=1, key=rng.key("move"))
