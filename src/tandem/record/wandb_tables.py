"""Samples of a run as W&B shows them: tables with their pictures in the rows, and sheets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tandem.record import galleries, pictures

if TYPE_CHECKING:
    import wandb

    Media = wandb.Table | wandb.Image

COLUMNS = ("iteration", "kind", "source", "prompt", "output", "answer", "reward", "length")
TRAINED = ("best", "worst")  # kinds of samples that were trained on; others are of evaluations
MOST_TABLES = 100  # evaluations in the joined table of a run


def make_media(iteration: int, rows: galleries.Rows) -> dict[str, Media]:
    """Tables of the evaluated and of the trained samples, and a sheet for each kind of pictures."""
    evaluated = [row for row in rows if row["kind"] not in TRAINED]
    trained = [row for row in rows if row["kind"] in TRAINED]
    named = {"samples/evaluation": evaluated, "samples/training": trained}
    tables = {
        name: _table({**row, "iteration": iteration} for row in some)
        for name, some in named.items()
        if some
    }
    sheets = {
        f"pictures/{kind}": _image(galleries.lay_out(of_kind))
        for kind, of_kind in galleries.split_by_kind(rows).items()
    }
    return {**tables, **sheets}


def join_evaluations(run_dir: Path) -> wandb.Table | None:
    """All evaluations of a run, or MOST_TABLES evenly spaced ones; None: it has none.

    Large pictures are reduced; the table of each iteration has them in full size.
    """
    found = list(galleries.list_tables(run_dir).items())
    chosen = np.linspace(0, len(found) - 1, min(MOST_TABLES, len(found))).round().astype(int)
    rows = [
        {**row, "iteration": iteration, "output": _small(row["output"])}
        for iteration, table in (found[place] for place in chosen)
        for row in galleries.read_recorded(table)
        if row["kind"] not in TRAINED
    ]
    return _table(rows) if rows else None


def _table(rows: Iterable[Mapping]) -> wandb.Table:
    import wandb

    table = wandb.Table(columns=list(COLUMNS))
    for row in rows:
        seen, answer = row["output"], row["answer"]
        shown = {
            **row,
            "output": seen if isinstance(seen, str) else _image(seen),
            "answer": None if answer is None else str(answer),  # a column is of one type
        }
        table.add_data(*(shown[name] for name in COLUMNS))
    return table


def _image(picture: Tensor) -> wandb.Image:
    import wandb

    return wandb.Image(pictures.enlarge_to_screen(picture).numpy())


def _small(output: str | Tensor) -> str | Tensor:
    return output if isinstance(output, str) else pictures.shrink(output)
