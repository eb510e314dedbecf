"""The end of a process whose rewards left threads and children behind."""

import subprocess
import sys

import pytest

PROGRAM = """
import multiprocessing, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from tandem import processes
from tandem.stop import keep_exit_code

def hang():
    time.sleep(1000)

def signals():
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        time.sleep(0.01)
    time.sleep(0.2)  # until Python waits for what is left
    os.kill(os.getpid(), signal.SIGTERM)

processes.LEFT, processes.TOLD_LEFT = {seconds}
with processes.end_in_time():
    {leave}
    sys.exit({code})
"""
DAEMON = "threading.Thread(target=ThreadPoolExecutor().submit, args=(hang,), daemon=True)"
THREAD = "threading.Thread(target=hang, name='judge').start()"
CHILD = "multiprocessing.get_context('fork').Process(target=hang, name='judge').start()"
SIGNAL = "threading.Thread(target=signals, daemon=True).start()"
WAITING = "\nwaiting up to 0.1 s for judge; Ctrl-C ends it\n"
ENDED = "\nended without judge, which did not finish\n"


@pytest.mark.parametrize(
    ("leave", "seconds", "code", "ends", "said"),
    [
        (f"call = {DAEMON}; call.start(); call.join()", (1000, 1000), None, 0, ""),
        (THREAD, (1000, 0.1), 75, 75, ENDED),
        (CHILD, (0.1, 0.1), "'no'", 1, f"no\n{WAITING}{ENDED}"),
        (f"{THREAD}; {SIGNAL}", (1000, 1000), 3, 3, ""),
        (f"{CHILD}; keep_exit_code(); {SIGNAL}", (1000, 5), 75, 75, ""),
    ],
)
def test_a_process_ends_without_what_a_reward_left_behind(leave, seconds, code, ends, said):
    program = PROGRAM.format(leave=leave, seconds=seconds, code=code)
    called = [sys.executable, "-c", program]
    done = subprocess.run(called, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (ends, said)
