"""Messages: plain in a file, with colour and weight on a terminal."""

import os
import pty
import subprocess
import sys

import pytest

from tandem.record.terminal import BARS, Bar, doing, line, style_text

CODE = """
from tandem.record.terminal import doing, say
say('run         runs/today\\nwarning: it grew')
with doing('evaluating', '320 prompts'):
    pass
"""
TEXT = "run         runs/today"


def on_a_terminal(**environment):
    """The output of the program on a terminal, with its escape codes."""
    ours, theirs = pty.openpty()
    around = {"TERM": "xterm-256color", **environment}
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    subprocess.run([sys.executable, "-c", CODE], stdout=theirs, env=kept | around, check=True)
    os.close(theirs)
    return os.read(ours, 10_000).decode()


def test_a_file_gets_plain_lines():
    told = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == [TEXT, "warning: it grew", "evaluating  320 prompts"]


def test_a_terminal_gets_weight_and_colour():
    said = on_a_terminal()
    assert "\x1b[1;36mrun" in said
    assert "\x1b[1;33mwarning" in said
    assert "\x1b[1;36mevaluating" in said and "320 prompts" in said


def test_no_color_is_heard():
    said = on_a_terminal(NO_COLOR="1")
    assert "36m" not in said and "33m" not in said


def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def terminal_that_was_closed():
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


@pytest.mark.parametrize("opened", [pipe_without_reader, terminal_that_was_closed])
@pytest.mark.parametrize("both", [False, True])
def test_a_run_whose_output_has_no_reader_goes_on(opened, both):
    """`python train.py | head`, and a terminal that is closed beside a run in the background."""
    code = f"{CODE}import sys\nprint('it goes on', file=sys.stderr)\nsay('run')\nsys.exit(5)"
    gone = opened()
    where = gone if both else subprocess.PIPE
    done = subprocess.run([sys.executable, "-c", code], stdout=gone, stderr=where, text=True)
    os.close(gone)
    assert (done.returncode, done.stderr) == (5, None if both else "it goes on\n")


@pytest.mark.parametrize(
    "text", [TEXT, "-----\n   at 0  at 9\n-----\naccuracy  0.1  0.2", "", "a\n\nb"]
)
def test_painting_changes_no_character(text):
    assert style_text(text).plain == text


def test_what_takes_a_while_stands_beside_the_bar():
    bar = Bar("training", total=10, done=0)
    BARS.append(bar)
    try:
        with doing("evaluating", "320 prompts"):
            assert bar.doing == "evaluating 320 prompts"
        assert bar.doing == "training"
    finally:
        BARS.remove(bar)


def test_values_stand_in_one_column():
    assert line("run", "x").index("x") == line("evaluating", "x").index("x")
