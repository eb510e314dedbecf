"""What the variants answered to the same prompts through training, from their sample tables."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tandem.compare.runs import whole_lines
from tandem.compare.variants import Variant

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
    found: Seen = {}
    for table in tables:
        iteration = int(table.stem.rpartition("_")[2])
        for prompt, cell in cells(table):
            own = found.setdefault(prompt, {}).setdefault(iteration, [])
            if len(own) < (PICTURES if "picture" in cell else TEXTS):
                own.append(cell)
    return found


def cells(table: Path) -> Iterator[tuple[str, Cell]]:
    """The prompt and what is shown of each row."""
    sheets: dict[str, list[str]] = {}
    for line in whole_lines(table):
        row = json.loads(line)
        if row["kind"] != KIND:
            continue
        where = row["output"]
        if isinstance(where, str):
            yield row["prompt"], {"text": where, "reward": row["reward"]}
            continue
        if where["file"] not in sheets:
            sheets[where["file"]] = cut(table.parent / where["file"], tuple(where["size"]))
        picture = sheets[where["file"]][where["place"]]
        yield row["prompt"], {"picture": picture, "reward": row["reward"]}


def cut(sheet: Path, size: tuple[int, int]) -> list[str]:
    """The pictures of a sheet as data URLs, in the order of their places."""
    from PIL import Image

    from tandem.record import pictures

    found = []
    for tile in pictures.tiles(pictures.load(sheet), size):
        image = Image.fromarray(tile.numpy())
        image.thumbnail((LARGEST, LARGEST))
        file = io.BytesIO()
        image.save(file, format="PNG", optimize=True)
        found.append(f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}")
    return found
