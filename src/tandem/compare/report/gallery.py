"""Sample galleries: answers of the variants to the same prompts during training."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from tandem.record.foreign import UNREADABLE, reason_of
from tandem.record.reading.runs import Run
from tandem.record.reading.variants import Variant

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS, ITERATIONS, TEXTS, PICTURES = 8, 24, 2, 8  # limits that keep the file small
LARGEST = 192  # pixels of the longer side of a picture
FOLDED = 8  # turns of an episode shown in full; longer ones are shortened
KIND = "eval"  # of the rows that an evaluation wrote
Cell = Mapping[str, object]
Seen = dict[str, dict[int, list[Cell]]]  # prompt -> iteration -> cells


def make_gallery(variants: Sequence[Variant]) -> dict[str, object]:
    """One column per variant, with one seed each, and the prompts that all have in common."""
    shown = choose_runs(variants)
    seen, damaged = {}, []
    for name, run in shown.items():
        try:
            seen[name] = read_samples(run.folder)
        except UNREADABLE as error:
            damaged.append(f"left out: samples of {run.folder} ({reason_of(error)})")
    shared = [p for p in next(iter(seen.values()), {}) if all(p in own for own in seen.values())]
    prompts = sorted(shared, key=lambda prompt: measure_disagreement(seen, prompt), reverse=True)[
        :PROMPTS
    ]
    iterations = {i for own in seen.values() for prompt in prompts for i in own[prompt]}
    return {
        "prompts": prompts,
        "iterations": sorted(iterations),
        "columns": [
            {
                "variant": name,
                "name": f"{name}, seed {shown[name].seed}",
                "cells": [own[prompt] for prompt in prompts],
            }
            for name, own in seen.items()
        ],
        "note": "; ".join(
            [
                *damaged,
                *describe_missing(
                    seen, prompts, [one.name for one in variants if one.name not in shown]
                ),
            ]
        ),
    }


def measure_disagreement(seen: Mapping[str, Seen], prompt: str) -> tuple[float, int]:
    """The range of the last mean rewards of the variants, and the number of distinct answers."""
    last = [own[prompt][max(own[prompt])] for own in seen.values()]
    rewards = [[cell["reward"] for cell in cells if cell["reward"] is not None] for cells in last]
    means = [sum(own) / len(own) for own in rewards if own]
    answers = {str(cell.get("text")) for cells in last for cell in cells}
    return (round(max(means) - min(means), 6) if means else 0.0), len(answers)


def describe_missing(
    seen: Mapping[str, Seen], prompts: Sequence[str], without: Sequence[str]
) -> list[str]:
    """Sentences on what the gallery lacks."""
    said = {
        "the variants have no prompt in common": not prompts,
        f"no samples of {', '.join(without)}": without,
    }
    return [text for text, holds in said.items() if seen and holds]


def choose_runs(variants: Sequence[Variant]) -> Mapping[str, Run]:
    """A run with samples for each variant that has one.

    It is the smallest seed for which all have samples, as data may draw prompts by seed. Without
    such a seed it is the smallest of each.
    """
    firsts = {one.name: next(filter(has_samples, one.runs), None) for one in variants}
    known = {name: run for name, run in firsts.items() if run is not None}
    runs = {one.name: {run.seed: run for run in one.runs} for one in variants if one.name in known}
    shared = set.intersection(*map(set, runs.values())) if runs else set()
    for seed in sorted(shared):
        of_seed = {name: own[seed] for name, own in runs.items()}
        if all(map(has_samples, of_seed.values())):
            return of_seed
    return known


def has_samples(run: Run) -> bool:
    return next(find_tables(run.folder), None) is not None


def find_tables(run: Path) -> Iterator[Path]:
    """The sample tables with rows of an evaluation, by iteration; none that a link leads to
    elsewhere, for reports are passed on."""
    home, found = run.resolve(), sorted((run / "samples").glob("iteration_*.jsonl"))
    tables = [table for table in found if table.resolve().is_relative_to(home)]
    return (table for table in tables if f'"kind": "{KIND}"'.encode() in table.read_bytes())


def read_samples(run: Path) -> Seen:
    """Samples of evenly spaced iterations, including the first and the last."""
    tables = list(find_tables(run))
    if len(tables) > ITERATIONS:
        step = (len(tables) - 1) / (ITERATIONS - 1)
        tables = [tables[round(i * step)] for i in range(ITERATIONS)]
    if not tables:
        return {}
    from tandem.record.galleries import read_seen  # imports torch, which takes a second

    found: Seen = {}
    for table in tables:
        iteration = int(table.stem.rpartition("_")[2])
        for row, shown in read_seen(table):
            check_row(row)
            own = found.setdefault(row["prompt"], {}).setdefault(iteration, [])
            if len(own) < (TEXTS if isinstance(shown, str) else PICTURES):
                written = {"written": row["written"]} if "written" in row else {}
                cell = make_cell(shown, row.get("steps") or conversation(row.get("episode", ())))
                own.append({**cell, **written, "reward": row["reward"]})
    return found


def check_row(row: Mapping) -> None:
    """Raise ValueError for a row that a page cannot show."""
    texts = [row["prompt"], row.get("written", ""), *(row.get("steps") or ())]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"a sample has values that are not text: {texts!r:.60}")
    if row["reward"] is not None and not math.isfinite(row["reward"]):
        raise ValueError(f"a reward is not finite: {row['reward']}")


def conversation(turns: Sequence[Mapping]) -> list[str]:
    """An episode up to its last move, one line per turn with its reward; the middle of a long one
    is left out."""
    moves = [place for place, turn in enumerate(turns) if turn["role"] == "assistant"]
    lines = [_line(turn) for turn in turns[: moves[-1]]] if moves else []
    if len(lines) <= FOLDED:
        return lines
    half = FOLDED // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} more ...", *lines[-half:]]


def _line(turn: Mapping) -> str:
    given = f"  [{turn['reward']:+g}]" if turn.get("reward") else ""
    return f"{turn['role']}: {turn['content']}{given}"


def make_cell(shown: str | Tensor, steps: Sequence[str] | None = None) -> Cell:
    """A text, preceded by its unmasking steps if it has any, or a picture."""
    if isinstance(shown, str):
        return {"text": "\n".join([*(steps or ()), shown])}
    return {"picture": encode_picture(shown.numpy())}


def encode_picture(picture: NDArray) -> str:
    """A picture, uint8 [H, W, 3], as a PNG data URL; large pictures are scaled down."""
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
