"""A process that makes the questions of one reasoning-gym task.

Run as `PYTHONHASHSEED=0 python -P puzzles.py` by `tandem.data.reasoning_gym`: some tasks order what
they draw by Python's hash of text, which differs from process to process unless it is told not to.
It reads a recipe as JSON and writes {"questions": [[question, answer], ...]} or {"error": message}.
"""

from __future__ import annotations

import json
import os
import sys
from difflib import get_close_matches


def make_puzzles(recipe: dict) -> dict:
    """Make the rows that a recipe of Reasoning Gym names; run in a process of its own."""
    from reasoning_gym import create_dataset
    from reasoning_gym.factory import DATASETS

    task, difficulty = recipe["task"], recipe["difficulty"]
    if task not in DATASETS:
        near = get_close_matches(task, DATASETS, n=1) or sorted(DATASETS)[:1]
        return {"error": f"data.task={task} is not one of {len(DATASETS)} tasks; try {near[0]}"}
    try:
        dataset = create_dataset(task, size=recipe["size"], seed=recipe["seed"], **difficulty)
        entries = [dataset[index] for index in range(recipe["size"])]
    except Exception as error:
        return {"error": f"data.task={task}, data.difficulty={difficulty}: {error}"}
    return {"questions": [[entry["question"], entry["answer"]] for entry in entries]}


if __name__ == "__main__":
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the package prints is no answer
    json.dump(make_puzzles(json.load(sys.stdin)), answer)
