"""Processes that start quickly: forked from one that has imported their libraries.

Importing torch and Lightning takes six seconds, longer than most of these processes live. The
process they are forked from does nothing else, so no state of a test gets into them.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    ["tandem.launch.run", "tandem.policies.language.policy", "matplotlib.figure"]
)


def start_training(*overrides: str, output: Path) -> BaseProcess:
    """`python train.py OVERRIDES`, with its output in the file `output`."""
    process = FORKED.Process(target=_train, args=(overrides, output))
    process.start()
    return process


def _train(overrides: tuple[str, ...], output: Path) -> None:
    with output.open("ab") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.chdir(ROOT)
    torch.set_num_threads(1)  # as tests have: more threads round otherwise
    sys.argv = ["train.py", *overrides]
    runpy.run_path("train.py", run_name="__main__")
