"""Programs of a policy run in a sandbox that isolates them, or not at all."""

import json
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_episodes import WITH_TOOLS, chatting, playing, sample_rows, script
from small_language import talk

from tandem.config import ConfigError, check, compose
from tandem.environments import Environment, Move, Play, sandbox
from tandem.environments.sandbox import PythonTools, Sandbox
from tandem.policies.language.records import Sampling
from tandem.types import Prompt

OVER = "error: out of time: the programs of one turn have 0.5 s together"
BARE = [sys.executable, "-I", "-S", "-"]  # runs programs without a sandbox
HIDDEN = [*dict.fromkeys(("/tmp", str(Path.home()), str(Path.cwd())))]
COVER = " && ".join(f"mount -t tmpfs tmpfs {folder}" for folder in HIDDEN)
WALLED = ["unshare", "-rnpmf", "--mount-proc", "sh", "-c", f"{COVER} && exec python3 -I -S -"]


def walls():
    """Whether the system allows a user to create namespaces."""
    try:
        said = subprocess.run(WALLED, input=b"print(7)", capture_output=True, timeout=20)
    except OSError:
        return False
    return said.stdout == b"7\n"


def call(code):
    arguments = json.dumps({"name": "python", "arguments": {"code": code}})
    return f"<tool_call>{arguments}</tool_call>"


def answers(code, **options):
    """The observation of a policy that wrote this program."""
    world = PythonTools(command=BARE, **options)
    episode = world.begin(Prompt(id=0, source="x", text=">"), 5)
    return episode.act(Move(text=call(code), number=1, key=3)).messages[0]["content"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(37 * 46)", "1702"),
        ("x = 1", "printed nothing"),
        ("import os\nprint(sorted({*os.environ} - {'LC_CTYPE', 'PWD', 'SHLVL', '_'}))", "['PATH']"),
        ("import sys\nsys.exit('no')", "no\nended with code 1"),
    ],
)
def test_a_program_is_answered_with_what_it_printed(code, said):
    assert answers(code) == said


def test_a_program_that_raises_is_answered_with_the_error_and_costs_no_episode():
    assert answers("1 / 0").endswith("ZeroDivisionError: division by zero\nended with code 1")


def test_a_program_that_does_not_end_is_stopped_with_all_that_it_started():
    code = "import subprocess\nprint(1, flush=True)\nsubprocess.run(['sleep', '60'])"
    assert answers(code, timeout=0.5) == OVER


def test_endless_programs_of_one_move_end_by_one_deadline_and_cost_no_episode():
    world = PythonTools(command=BARE, timeout=0.5)
    episode = world.begin(Prompt(id=0, source="x", text=">"), 5)
    begun = time.monotonic()
    said = episode.act(Move(text=call("while True: pass") * 7, number=1, key=3))
    assert time.monotonic() - begun < world.describe().slowest
    assert [one["content"] for one in said.messages] == [OVER] * 7
    assert said.counts == {"calls": 7.0, "tool_errors": 7.0}
    again = episode.act(Move(text=call("print(1)"), number=2, key=4))
    assert again.messages[0]["content"] == "1"  # the next move has its own time


def test_an_episode_that_was_closed_starts_no_more_programs(tmp_path):
    episode = PythonTools(command=BARE).begin(Prompt(id=0, source="x", text=">"), 5)
    episode.close()
    said = episode.act(Move(text=call(f"open({str(tmp_path / 'ran')!r}, 'w')"), number=1, key=3))
    assert said.counts["tool_errors"] == 1.0
    assert not (tmp_path / "ran").exists()


def test_the_traps_catch_another_user_and_another_address_of_this_machine(monkeypatch):
    monkeypatch.setattr(sandbox, "own_addresses", lambda: ["127.0.0.1", "127.0.0.2"])
    with sandbox.traps() as tried:
        for address in [where for _, what, where in tried if what == "reach"]:
            socket.create_connection(address, 2).close()
        modes = [
            stat.S_IMODE(Path(where).stat().st_mode)
            for name, _, where in tried
            if ".trap" in str(where)
        ]
    assert set(modes) == {0o644}
    assert "127.0.0.2" in str(tried)


def test_a_program_that_prints_for_ever_fills_no_memory():
    said = answers("while True: print('x' * 1000)", timeout=0.5)
    assert said == OVER
    assert len(answers("print('x' * 10**6)")) <= 1 << 14


def test_a_command_that_walls_nothing_off_is_refused_before_a_weight_is_sampled_from():
    world = Environment(PythonTools(command=BARE), max_tokens=None)
    with pytest.raises(
        ValueError, match="is not a sandbox: a program in it can use a network"
    ) as no:
        playing(world, build=lambda: chatting(WITH_TOOLS))
    for what in (
        "reach servers of",
        "environment of the trainer",
        "read files in",
        "write files in",
    ):
        assert what in str(no.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-sandbox"], r"environment\.world\.command: \[Errno 2\] No such file"),
        (["sh", "-c", "echo no rights >&2; exit 1"], "does not run Python from .*no rights"),
    ],
)
def test_a_command_that_runs_nothing_is_refused_with_what_it_said(command, said):
    with pytest.raises(ValueError, match=said):
        Sandbox(command, timeout=5).check()


@pytest.mark.skipif(not walls(), reason="this system gives users no namespaces")
def test_walls_that_hold_are_taken_and_an_episode_runs_behind_them():
    world = Environment(PythonTools(command=WALLED), max_tokens=None)
    policy = playing(
        world, build=lambda: chatting(WITH_TOOLS), sampling=Sampling(max_new_tokens=200)
    )
    script(policy, call("print(37 * 46)"), "1702")
    rows = sample_rows(policy, [talk("37*46?")], group_size=1)
    told = [one["content"] for one in rows.prompts[0].episode["turns"]]
    assert told[1:] == [call("print(37 * 46)"), "1702", "1702"][-len(told[1:]) :]
    assert '"name": "python"' in policy.describe_prompt(talk("?"))


def test_a_sandbox_that_cannot_be_started_any_more_is_a_fault_of_the_world():
    world = Environment(PythonTools(command=["no-such-sandbox"]), attempts=1)
    play = Play(Prompt(id=0, source="x", text=">"), key=5)
    world.begin([play])
    world.act([play], [Move(text=call("print(1)"), number=1, key=3)])
    assert play.lost.startswith("act raised FileNotFoundError")


def test_no_sandbox_is_no_tool():
    with pytest.raises(ConfigError, match=r"environment\.world\.command"):
        check(compose(["~recipe", "environment=python"]))
    with pytest.raises(ConfigError, match=r"command=\[\]: give the command of a sandbox"):
        check(compose(["~recipe", "environment=python", "environment.world.command=[]"]))
