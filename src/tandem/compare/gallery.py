"""What the variants answered to the same prompts through training, from their sample tables."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from tandem.compare.variants import Variant

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS, ITERATIONS, TEXTS, PICTURES = 8, 24, 2, 8  # at most: a report stays light enough to send
LARGEST = 192  # pixels along a side of a picture in it
KIND = "eval"  # of rows: what evaluation saw
Cell = Mapping[str, object]
Seen = dict[str, dict[int, list[Cell]]]  # prompt -> iteration -> cells


def gallery(variants: Sequence[Variant]) -> dict[str, object]:
    """Columns of one seed each, the first; only prompts that all of them were evaluated on."""
    seen = {variant.name: samples(variant.runs[0].folder) for variant in variants}
    seen = {name: own for name, own in seen.items() if own}
    prompts = [p for p in next(iter(seen.values()), {}) if all(p in own for own in seen.values())]
    prompts = prompts[:PROMPTS]
    iterations = {i for own in seen.values() for prompt in prompts for i in own[prompt]}
    return {
        "prompts": prompts,
        "iterations": sorted(iterations),
        "columns": [
            {
                "variant": variant.name,
                "name": f"{variant.name}, seed {variant.seeds[0]}",
                "cells": [seen[variant.name][prompt] for prompt in prompts],
            }
            for variant in variants
            if variant.name in seen
        ],
    }


def samples(run: Path) -> Seen:
    """Of some iterations, the first and the last too."""
    tables = sorted((run / "samples").glob("iteration_*.jsonl"))
    tables = [table for table in tables if f'"kind": "{KIND}"' in table.read_text()]
    if len(tables) > ITERATIONS:
        step = (len(tables) - 1) / (ITERATIONS - 1)
        tables = [tables[round(i * step)] for i in range(ITERATIONS)]
    if not tables:
        return {}
    from tandem.record.galleries import seen  # torch takes a second, and most need none of it

    found: Seen = {}
    for table in tables:
        iteration = int(table.stem.rpartition("_")[2])
        for row, shown in seen(table):
            own = found.setdefault(row["prompt"], {}).setdefault(iteration, [])
            if len(own) < (TEXTS if isinstance(shown, str) else PICTURES):
                own.append({**as_cell(shown), "reward": row["reward"]})
    return found


def as_cell(shown: str | Tensor) -> Cell:
    return {"text": shown} if isinstance(shown, str) else {"picture": data_url(shown.numpy())}


def data_url(picture: NDArray) -> str:
    """A picture, uint8 [H, W, 3], as a PNG that a page can hold; a large one is made smaller."""
    from PIL import Image

    image = Image.fromarray(picture)
    image.thumbnail((LARGEST, LARGEST))
    file = io.BytesIO()
    image.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
