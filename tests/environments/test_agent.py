"""An external program with its own loop is trained on the tokens that were sampled for it."""

import errno
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from small_episodes import WITH_TOOLS, chatting, playing, sample_rows, script, with_tools
from small_language import TEMPLATE, questions, talk
from torch.testing import assert_close
from worlds import Counting, make_environment

from tandem.config import ConfigError, check, compose
from tandem.data.images import show
from tandem.environments import Environment, Move, Play
from tandem.environments.agent import Agent, reason_of
from tandem.environments.program import JANITOR, Janitor, Program
from tandem.policies.language.courses import Limits
from tandem.policies.language.records import Sampling
from tandem.rewards.result import Missing
from tandem.types import Prompt

AGENTS = Path(__file__).with_name("agents.py")


def agent(name, **options):
    command = [sys.executable, "-I", "-S", AGENTS, name]
    return Agent(**{"command": command, "pays": True, "patience": 20.0} | options)


def environment(name, *, attempts=1, max_turns=8, **options):
    return Environment(
        agent(name, **options), attempts=attempts, max_turns=max_turns, max_tokens=None
    )


def reason_lost(name, **options):
    """The reason why a prompt's episode is lost, after at most two moves."""
    world = environment(name, **options)
    play = Play(Prompt(id=0, source="x", text=">"), key=5)
    world.begin([play])
    for number in (1, 2):
        if play.lost is None and not play.said.over:
            world.act([play], [Move(text="7", number=number, key=3)])
    world.close([play])
    return play.lost


def test_a_program_gives_the_rows_of_an_embedded_world_that_says_the_same(learned):
    """Bit for bit: messages go back and forth, and no token of a move is encoded again."""
    prompts = questions()[:2]
    want = sample_rows(playing(make_environment(Counting(turns=3)), weights=learned), prompts, 2)
    got = sample_rows(playing(environment("counting"), weights=learned), prompts, 2)
    assert got.outputs == want.outputs
    for field in ("mask", "turn", "feedback", "length", "behaviour_logp", "group"):
        assert torch.equal(getattr(got, field), getattr(want, field)), field
    assert torch.equal(got.sample.tokens, want.sample.tokens)
    assert [row.episode["end"] for row in got.prompts] == ["over"] * 4


def test_a_program_that_asks_for_ever_is_cut_by_the_limit_of_turns_and_ended(learned):
    rows = sample_rows(
        playing(environment("endless", max_turns=2), weights=learned), questions()[:1], 1
    )
    assert (rows.prompts[0].episode["end"], int(rows.turn.max())) == ("turn_limit", 2)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("crashes", {}, "the agent ended with code 1: no such file"),
        ("crashes_at_once", {}, "the agent ended with code 1: no such file"),
        ("says_nothing", {}, "the agent ended before its first call"),
        ("is_refused", {}, "the agent ended with code 1: urllib.error.HTTPError: HTTP Error 400"),
        ("hangs", {"patience": 0.3}, "the agent made no call within 0.3 s (environment.world.pa"),
        ("makes_calls_up", {}, "the agent showed tool_calls that the policy did not make"),
        ("forgets_its_reward", {}, 'the last line that the agent printed is not {"reward": numb'),
        ("counting", {"command": ["no-such-program"]}, "environment.world.command: [Errno 2] No"),
    ],
)
def test_a_program_that_fails_loses_its_episode_with_the_reason(name, options, reason):
    assert reason_lost(name, **options).startswith(reason)


def test_a_move_that_nobody_read_is_no_move():
    episode = agent("does_not_wait").begin(Prompt(id=0, source="x", text=">"), 5)
    episode.program.exited.wait(20)
    with pytest.raises(Missing, match="ended without waiting for its last turn"):
        episode.act(Move(text="7", number=1, key=3))


def test_a_program_is_begun_once_more_with_the_same_seed_and_then_its_row_is_lost(learned):
    rows = sample_rows(
        playing(environment("crashes", attempts=2), weights=learned), questions()[:1], 1
    )
    told = rows.prompts[0].episode
    assert (told["attempts"], told["end"], told["turns"][-1]["turn"]) == (2, "lost", 1)


def conversations(rows, row=0):
    """The tokens of each context of a row."""
    tokens, before = rows.sample.tokens[row].tolist(), int(rows.sample.prompt_length[row])
    length = int(rows.length[row])
    found = {0: tokens[:before]}
    of = rows.sample.context[row].tolist()
    for place, token in enumerate(tokens[before : before + length]):
        found.setdefault(of[place], []).append(token)
    return found


def test_an_agent_that_rewrites_its_history_is_one_row_of_two_contexts():
    """Each context contains what the agent showed, and no move is encoded again from its text."""
    policy = playing(environment("rewrites"), build=chatting, sampling=Sampling(max_new_tokens=3))
    rows = sample_rows(policy, [talk("37+46?"), talk("1?", id=1)], group_size=2)
    assert rows.mask.shape[0] == 4 and rows.group.tolist() == [0, 0, 1, 1]
    told = rows.prompts[0].episode
    assert told["counts"] == {"contexts": 1.0} and told["end"] == "over"
    moves = [one["content"] for one in told["turns"] if "turn" in one]
    first, second = (policy.chat.tokenizer.decode(ids) for ids in conversations(rows).values())
    head = "<|im_start|>user\n37+46?<|im_end|>\n<|im_start|>assistant\n"
    assert first.startswith(head) and moves[0] in first
    shown = f"{moves[0]} indeed<|im_end|>\n<|im_start|>user\n+<|im_end|>"
    assert second.startswith(head + shown) and len(moves) == 4
    assert rows.feedback.sum(1).tolist() == [1.0] * 4 and int(rows.turn.max()) == 4


@pytest.mark.parametrize("packing", ["auto", "off"])
def test_training_reads_each_context_by_itself_as_sampling_did(packing):
    """The law of exact histories, for every token of the policy in any context."""
    world = environment("asks_a_second_agent")
    policy = playing(world, build=chatting, packing=packing, sampling=Sampling(max_new_tokens=4))
    rows = sample_rows(policy, [talk("37+46?"), talk("1?", id=1)], group_size=2)
    assert rows.sample.context.max() == 2
    logp = policy.logp(rows)
    assert_close(logp, torch.where(rows.mask, rows.behaviour_logp, 0), atol=1e-5, rtol=1e-5)
    one_context = replace(rows, sample=replace(rows.sample, context=None))
    assert (policy.logp(one_context) - logp).abs().max() > 1e-3, "contexts were read as one"


def test_a_second_agent_leaves_no_trace_in_the_conversation_of_the_first():
    policy = playing(
        environment("asks_a_second_agent"), build=chatting, sampling=Sampling(max_new_tokens=4)
    )
    rows = sample_rows(policy, [talk("37+46?")], group_size=1)
    own, other, summary = (
        policy.chat.tokenizer.decode(ids) for ids in conversations(rows).values()
    )
    assert own.count("<|im_start|>user") == 2 and "brief" not in own
    assert other.startswith("<|im_start|>system\nbe brief<|im_end|>")
    assert "so far: +" in summary and summary.count("<|im_start|>user") == 2
    assert rows.turn[0].unique().tolist() == [0, 1, 2, 3, 4]


def test_limits_are_of_the_positions_of_one_context_and_of_the_tokens_of_all():
    def played(positions=2048, tokens=None):
        world = Environment(agent("rewrites"), attempts=1, max_tokens=tokens)
        policy = playing(world, build=chatting, sampling=Sampling(max_new_tokens=3))
        policy.episodes.of[None].limits = Limits(tokens=tokens, positions=positions)
        rows = sample_rows(policy, [talk("37+46?")], group_size=1)
        return rows.prompts[0].episode["end"], rows

    end, rows = played()
    total, longest = int(rows.length[0]), max(map(len, conversations(rows).values()))
    assert end == "over" and total > longest
    assert played(positions=longest)[0] == "over"
    assert played(positions=longest - 4)[0] == played(tokens=total - 4)[0] == "token_limit"


def test_a_call_that_is_told_again_is_shown_as_it_was_sampled():
    build = partial(chatting, WITH_TOOLS)
    world = environment("forgets_a_thought_of_a_tool")
    policy = playing(world, build=build, sampling=Sampling(max_new_tokens=99))
    script(policy, CALL, "83")
    rows = sample_rows(policy, [talk("37+46?")], group_size=1)
    again = policy.chat.tokenizer.decode(conversations(rows)[1])
    assert "37+46?" not in again and f"summed up<|im_end|>\n<|im_start|>assistant\n{CALL}" in again


CALL = '<tool_call>{"name": "add", "arguments": {"b": 46, "a": 37}}</tool_call>'


def test_tools_of_a_program_need_a_format_of_calls_that_can_be_read():
    build = partial(chatting, with_tools(""))
    policy = playing(environment("uses_a_tool"), build=build)
    reason = sample_rows(policy, [talk("37+46?")], group_size=1).prompts[0].episode["lost"]
    assert "sent tools" in reason and "set environment.world.calls" in reason


def test_calls_are_learnt_from_the_template_that_is_used_with_tools():
    """Some tokenizers have one for prompts with tools, and one that writes no calls."""
    both = {"default": TEMPLATE, "tool_use": with_tools("<{{ call.function | tojson }}>")}
    world = environment("uses_a_tool")
    playing(world, build=partial(chatting, both))
    assert [*world.world.format.calls_in('<{"name": "add"}>', {})] == [("add", {})]


def test_tools_of_a_program_stand_in_the_prompt_and_calls_come_to_it_as_such():
    build = partial(chatting, WITH_TOOLS)
    policy = playing(environment("uses_a_tool"), build=build, sampling=Sampling(max_new_tokens=99))
    script(policy, CALL, "83")
    rows = sample_rows(policy, [talk("37+46?")], group_size=1)
    told = rows.prompts[0].episode
    assert [one["role"] for one in told["turns"]] == ["user", "assistant", "tool", "assistant"]
    assert rows.feedback.sum() == 37
    text = policy.chat.tokenizer.decode(rows.sample.tokens[0])
    head, _, behind = text.partition(CALL)
    assert '"name": "add"' in head and head.endswith("<|im_start|>assistant\n")
    assert behind.startswith("<|im_end|>\n<|im_start|>tool\n83<|im_end|>\n<|im_start|>assistant\n")


def test_a_conversation_that_the_template_refuses_is_lost_and_the_run_goes_on():
    policy = playing(environment("uses_a_tool"), build=partial(chatting, TEMPLATE))
    rows = sample_rows(policy, [talk("37+46?")], group_size=1)
    assert rows.prompts[0].episode["lost"].startswith("the chat template renders no tools")


def test_a_prompt_of_a_program_that_is_too_long_is_lost_with_its_length():
    policy = playing(
        environment("counting"), build=chatting,
        sampling=Sampling(max_new_tokens=2, max_prompt_tokens=30),
    )  # fmt: skip
    rows = sample_rows(policy, [talk("1" * 40)], group_size=1)
    assert "tokens, more than 30 (rollout.max_prompt_tokens)" in rows.prompts[0].episode["lost"]


def test_a_program_gets_no_variable_of_the_trainer_but_those_that_are_named(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "canary")
    monkeypatch.setenv("MY_FLAG", "1")
    world = agent("counting", keep_env=["MY_FLAG"])
    given = world.variables(world.endpoint.open(), 7)
    assert (given.get("MY_TOKEN"), given["MY_FLAG"], given["PYTHONHASHSEED"]) == (None, "1", "7")
    assert given["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")


def test_a_program_for_which_no_descriptors_are_left_says_what_to_raise():
    assert "raise `ulimit -n`" in reason_of(OSError(errno.EMFILE, "Too many open files"))
    assert reason_of(OSError(2, "No such file")).startswith("environment.world.command: ")


def test_only_a_program_that_judges_is_told_the_answer():
    prompt = Prompt(id=0, source="x", text=">", answer="42")
    assert b"42" in agent("counting").program_input(prompt, 1)
    assert b"42" not in agent("counting", pays=False).program_input(prompt, 1)


def test_a_program_gets_the_fields_that_json_can_hold():
    picture = show(torch.zeros(2, 2, 3, dtype=torch.uint8))
    prompt = Prompt(id=0, source="x", text=">", fields={"k": 1, "one": picture, "raw": b"x"})
    assert json.loads(agent("counting").program_input(prompt, 1))["fields"] == {"k": 1}
    with pytest.raises(Missing, match=r"^the fields of the prompt are not JSON: .* Tensor "):
        agent("counting").program_input(replace(prompt, fields={"k": torch.zeros(1)}), 1)


def test_a_program_that_cannot_be_watched_is_not_left_running():
    class Broken:
        def tell(self, line):
            told.append(int(line))
            raise RuntimeError("can't start new thread")

    told, world = [], agent("hangs")
    world.janitor = Broken()
    with pytest.raises(Missing, match=r"^environment\.world\.command: can't start new thread"):
        world.begin(Prompt(id=0, source="x", text=">"), 5)
    with pytest.raises(ProcessLookupError):
        os.kill(told[0], 0)
    assert not world.endpoint.server.sessions


@pytest.mark.parametrize("started", [0, 1, 2])
def test_a_program_whose_threads_cannot_start_is_ended_and_off_the_list(monkeypatch, started):
    class Recorder:
        def tell(self, line):
            os.waitid(os.P_PID, abs(int(line)), os.WEXITED | os.WNOHANG | os.WNOWAIT)
            told.append(int(line))

    def start(thread):
        threads.append(thread)
        if len(threads) > started:
            raise RuntimeError("can't start new thread")
        real(thread)

    told, threads, real = [], [], threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Program(["sleep", "9"], given=b"", environment={}, janitor=Recorder(), ended=told.append)
    number = told[0]
    assert told == [number, -number], "named before it is reaped, and never again"
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_the_janitor_of_a_world_that_is_gone_is_awaited():
    janitor = Janitor()
    janitor.tell("-7")
    process = janitor.process
    del janitor
    assert process.returncode == 0


def test_programs_of_a_trainer_that_is_gone_are_killed():
    janitor = subprocess.Popen([sys.executable, "-I", "-S", JANITOR], stdin=subprocess.PIPE)
    left, ended = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
    janitor.communicate(f"+{left.pid}\n+{ended.pid}\n-{ended.pid}\n".encode())
    try:
        assert left.wait(timeout=20) == -signal.SIGKILL
        assert ended.poll() is None
    finally:
        os.killpg(ended.pid, signal.SIGKILL)
        ended.wait()


def test_no_group_is_signalled_or_named_once_its_number_may_be_that_of_another(monkeypatch):
    """A process id stays reserved until its exit status has been read."""
    kill, told, ends = os.killpg, [], queue.SimpleQueue()

    def tell(number, what):
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises if it is gone
        told.append(what)

    class Janitor:
        def tell(self, line):
            tell(abs(int(line)), line[0])

    monkeypatch.setattr(os, "killpg", lambda group, by: (tell(group, by), kill(group, by)))
    command = ["sh", "-c", "exit 3"]
    program = Program(command, given=b"", environment={}, janitor=Janitor(), ended=ends.put)
    assert ends.get(timeout=20).code == 3
    for _ in range(2):
        program.stop()
    assert told == ["+", signal.SIGKILL, "-"]


@pytest.mark.parametrize(
    ("calls", "said"), [("(", "is not a valid pattern"), ("x", "has no group")]
)
def test_a_pattern_of_calls_that_is_none_is_refused_with_its_key(calls, said):
    with pytest.raises(ValueError, match=re.escape(f"environment.world.calls={calls!r} {said}")):
        agent("counting", calls=calls)


AGENT = ["environment=agent", "reward=episode", "~recipe"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["environment.world.command=[python]"],
            r"reward=episode sums .* gives none .*; set environment\.world\.pays=true",
        ),
        (["environment.world.command=[]"], r"environment.world.command=\[\]: give the words"),
        (
            ["environment.world.command=[python]", "environment.timeout=60"],
            "environment.timeout=60: a call of this world has its own limits of 64 s",
        ),
    ],
)
def test_what_cannot_be_started_is_refused_with_its_key(words, said):
    with pytest.raises(ConfigError, match=said):
        check(compose([*AGENT, *words]))
