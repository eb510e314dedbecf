"""Procedural puzzles of the reasoning-gym package, with answers that a program checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tandem.contracts import need_extra, register_dataset
from tandem.data.records import AS_CHAT, Data, StreamMaker, Wording, prompt_id
from tandem.data.stream import PromptStream
from tandem.types import Prompt

SCRIPT = Path(__file__).with_name("puzzles.py")


@register_dataset(pairs_in="sort_pairs", judges="texts", test_from="set data.held_out above 0")
def reasoning_gym(
    *,
    task: str,  # the name of a task of reasoning-gym, such as chain_sum
    size: int = 2000,  # questions to train on
    held_out: int = 100,
    difficulty: Mapping[str, Any] | None = None,
    wording: Wording = AS_CHAT,  # how a question becomes a prompt
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the questions
) -> Data:
    """`size` questions to train on, `held_out` to evaluate and as many to test.

    Fewer, where a question comes up twice: it counts where it came first, held-out ones before
    others. `difficulty` holds the task's own settings. `fields["reasoning_gym"]` names the question
    to the reward of the same name, which makes it again.
    """
    total = size + 2 * held_out
    recipe = {"task": task, "size": total, "seed": seed, "difficulty": dict(difficulty or {})}
    prompts = {place: wording.put(prompt) for place, prompt in _distinct(recipe).items()}
    train = _select(prompts, 2 * held_out, total)
    return Data(
        train=train,
        eval=_select(prompts, 0, held_out),
        test=_select(prompts, held_out, 2 * held_out),
        demonstrations=tuple(prompt for prompt in train if prompt.answer is not None),
        curriculum=curriculum,
    )


def _distinct(recipe: Mapping[str, Any]) -> dict[int, Prompt]:
    """Index -> prompt, of the first of equal questions."""
    prompts = [_prompt(*pair, place, recipe) for place, pair in enumerate(_questions(recipe))]
    first: dict[str, int] = {}
    for place, prompt in enumerate(prompts):
        first.setdefault(prompt.text, place)
    return {place: prompts[place] for place in first.values()}


def _select(prompts: Mapping[int, Prompt], start: int, stop: int) -> tuple[Prompt, ...]:
    return tuple(prompt for place, prompt in prompts.items() if start <= place < stop)


def _questions(recipe: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Question and answer of each index; the answer is None where many are right."""
    if find_spec("reasoning_gym") is None:
        raise ValueError(need_extra("data=reasoning_gym", "reasoning-gym"))
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT)],
        input=json.dumps(recipe),
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    answer = json.loads(done.stdout or '{"error": "reasoning-gym ended without an answer"}')
    if "error" in answer:
        raise ValueError(answer["error"])
    return [tuple(pair) for pair in answer["questions"]]


def _prompt(question: str, answer: str | None, index: int, recipe: Mapping[str, Any]) -> Prompt:
    return Prompt(
        id=prompt_id("reasoning_gym", recipe["task"], question),
        source=recipe["task"],
        text=question,
        answer=answer,
        fields={"reasoning_gym": {**recipe, "index": index}},
    )
