"""Record of a separate evaluation, in the directory of its run.

evaluation_test.json    iteration of the weights, and the metrics; one without a value is null
evaluation_test.jsonl   rows of samples, their pictures beside it
evaluation_test/        files of mirrors; for W&B it is a separate run
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from tandem.record import durable, galleries, jsonl
from tandem.record.mirrors import Mirror, Mirrors, Run
from tandem.record.secrets import scrub_config


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """The files of a separate evaluation, in the directory of its run."""

    run_dir: Path
    split: str  # of the data
    config: str  # resolved, as YAML
    mirrors: Sequence[Mirror] = ()

    @property
    def table(self) -> Path:
        """Rows of samples; the metrics are beside it, in .json."""
        return self.run_dir / f"evaluation_{self.split}.jsonl"

    def write(self, iteration: int, metrics: Mapping[str, float], rows: Sequence[Mapping]) -> None:
        """Write the metrics and rows of the weights after that iteration."""
        name = f"evaluation_{self.split}"
        table = self.table
        table.parent.mkdir(parents=True, exist_ok=True)
        found = jsonl.to_json({"iteration": iteration, **metrics})
        numbers = json.dumps(found, indent=1, allow_nan=False)
        durable.replace(table.with_suffix(".json"), numbers.encode())
        durable.replace(table, jsonl.encode(galleries.write_pictures(rows, table)))
        if not self.mirrors:
            return
        run = Run(
            folder=self.run_dir / name,
            name=f"{self.run_dir.name} {name}",
            id=uuid.uuid4().hex[:8],
            iteration=iteration,
            job="evaluate",
            config=yaml.safe_load(scrub_config(self.config, os.environ)),
        )
        run.folder.mkdir(exist_ok=True)
        copies = Mirrors(self.mirrors)
        copies.open(run)
        copies.samples(iteration, rows)
        copies.write(iteration, metrics)
        copies.close()
