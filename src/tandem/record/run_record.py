"""The directory of a run: configuration, manifest, logs, samples. Mirrors copy it elsewhere.

    config.yaml  manifest.json
    metrics.jsonl   one line per iteration, a function of configuration and seed alone
    timing.jsonl    the same iterations: seconds, tokens per second, memory
    evaluations.jsonl   one line per evaluation: prompts, their sources, and numbers of each
    samples/iteration_000020.jsonl   and, where samples are pictures, grids of them: see galleries

Line i describes the weights after i iterations: their evaluation, and the training metrics of
iteration i. The last one, i = iterations, has the final evaluation only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from tandem.evaluation.text_drift import mean_distance
from tandem.record import durable, galleries, jsonl
from tandem.record.finished import CURVES
from tandem.record.latest import home_of_runs, point_latest
from tandem.record.manifest import new_manifest, start
from tandem.record.mirrors import Job, Mirror, Mirrors, Run
from tandem.record.next_commands import how_to_go_on
from tandem.record.secrets import scrub_config
from tandem.types import Prompt

METRICS, TIMING, EVALUATIONS = "metrics.jsonl", "timing.jsonl", "evaluations.jsonl"
CHECKPOINTS = "checkpoints"
MANIFEST, CONFIG = "manifest.json", "config.yaml"
LOGS = (METRICS, TIMING, EVALUATIONS)
# The entries of a configuration that hold where a run ends: its number and the words that set it.
LENGTH = ("iterations", "overrides")

Numbers = Mapping[str, float]


class RunRecord:
    """The record that one process writes of its run; with several ranks, rank 0."""

    def __init__(
        self,
        folder: Path,
        *,
        mirrors: Sequence[Mirror] = (),
        job: Job = "train",
    ) -> None:
        self.folder, self.job = folder, job
        self.mirrors = Mirrors(mirrors)
        self.latest: dict[str, float] = {}  # metric -> its last written value
        self.latest_at: dict[str, int] = {}  # metric -> the iteration of that line
        self._held: tuple[dict[str, float], dict[str, float]] = ({}, {})

    def begin(
        self,
        config: str,
        *,
        seed: int,
        command: Sequence[str],
        plugins: Iterable[tuple[str, str]] = (),
        reproducible: bool = True,
        resumed: bool = False,
    ) -> None:
        """Write configuration and manifest. A resumed run keeps its configuration except for its
        length, and adds this start to the manifest; a new one replaces the record of a start that
        ended before its first iteration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place, config = self.folder / CONFIG, scrub_config(config, os.environ)
        if resumed:
            config = replace_length(place.read_text("utf-8"), config)
        else:
            if place.exists():
                self.cut(0)
                (self.folder / MANIFEST).unlink(missing_ok=True)
            (self.folder / CHECKPOINTS).mkdir(exist_ok=True)  # later, its absence means a loss
        durable.replace(place, config.encode())
        manifest = self._manifest() or new_manifest(seed)
        manifest["starts"].append(start(command, plugins, reproducible=reproducible))
        durable.replace(self.folder / MANIFEST, json.dumps(manifest, indent=2).encode())
        if self.job == "train" and (home := home_of_runs(self.folder)) is not None:
            point_latest(self.folder, home)

    @property
    def how_to_go_on(self) -> str:
        """The advice for a stopped run; of a warm start nothing is kept."""
        return how_to_go_on(self.folder, stays=self.job == "train")

    @property
    def id(self) -> str:
        """The same for all starts of a run."""
        return self._manifest()["id"]

    def totals(self, names: Sequence[str]) -> dict[str, float]:
        """Sums over all starts of the run, from the last line of timing.jsonl."""
        lines = jsonl.read(self.folder / TIMING)
        return {name: lines[-1].get(name, 0.0) if lines else 0.0 for name in names}

    @property
    def pending_numbers(self) -> Numbers:
        """The numbers held for the next line."""
        return self._held[0] | self._held[1]

    def open(self, iteration: int) -> None:
        """Start the mirrors at this iteration, after the logs were cut back to it."""
        self.mirrors.open(
            Run(
                folder=self.folder,
                name=self.folder.name,
                id=self.id,
                iteration=iteration,
                job=self.job,
                config=yaml.safe_load((self.folder / CONFIG).read_text()) or {},
            )
        )

    def hold(self, metrics: Numbers, timing: Numbers) -> None:
        """Keep numbers for the line that is written next."""
        self._held[0].update(metrics)
        self._held[1].update(timing)

    def write(self, iteration: int, metrics: Numbers, timing: Numbers) -> None:
        """The line of an iteration in both logs, with what was held for it."""
        metrics, timing = {**self._held[0], **metrics}, {**self._held[1], **timing}
        self._held = ({}, {})
        jsonl.append(self.folder / METRICS, _line(iteration, metrics))
        jsonl.append(self.folder / TIMING, _line(iteration, timing))
        self.latest |= {**metrics, **timing}
        self.latest_at |= dict.fromkeys((*metrics, *timing), iteration)
        self.mirrors.write(iteration, {**metrics, **timing})

    def prompts(
        self, iteration: int, asked: Sequence[Prompt], values: Mapping[str, Sequence[float]]
    ) -> None:
        """Append an evaluation's values per prompt, for the variance between prompts."""
        which = {"prompts": [one.id for one in asked], "sources": [one.source for one in asked]}
        jsonl.append(self.folder / EVALUATIONS, {"iteration": iteration, **which, **values})

    def evaluations(self) -> list[dict]:
        """The lines that `prompts` wrote, one per evaluation."""
        return jsonl.read(self.folder / EVALUATIONS)

    def samples(self, iteration: int, rows: Sequence[Mapping]) -> None:
        """Write the rows of an iteration's table; they replace earlier rows of the same kinds."""
        path = self._samples_at(iteration)
        path.parent.mkdir(exist_ok=True)
        kinds = {row["kind"] for row in rows}
        others = [row for row in jsonl.read(path) if row["kind"] not in kinds]
        durable.replace(path, jsonl.encode([*others, *galleries.write_pictures(rows, path)]))
        self.mirrors.samples(iteration, rows)

    def distance_to_start(self, rows: Sequence[Mapping]) -> float | None:
        """The distance of an evaluation's samples from those before training: root mean square of
        images in [-1, 1], mean `text_distance` of texts. None without an evaluation before
        training."""
        start = self._samples_at(0)
        if (found := galleries.distance_to_start(rows, start)) is not None:
            return found
        before, now = (number_texts(own) for own in (jsonl.read(start), rows))
        return mean_distance(before, now)

    def first(self, name: str) -> Numbers | None:
        """The first line that has a number of this name."""
        lines = jsonl.read(self.folder / METRICS)
        return next((line for line in lines if line.get(name) is not None), None)

    def cut(self, iteration: int) -> None:
        """Remove the lines and samples of `iteration` and later ones, torn lines, and the curves,
        which mark a finished run: its model may be of fewer iterations."""
        (self.folder / CURVES).unlink(missing_ok=True)
        for name in LOGS:
            jsonl.cut(self.folder / name, iteration)
        for path in (self.folder / "samples").rglob("iteration_*.*"):
            if galleries.parse_iteration(path) >= iteration:
                path.unlink()

    def find_missing_lines(self, iteration: int) -> list[str]:
        """A sentence for each log that lacks lines before this iteration: a resumed run does not
        write them again."""
        found = []
        for path in (self.folder / METRICS, self.folder / TIMING):
            lost = sorted({*range(iteration)} - {*jsonl.read_iterations(path)})
            if lost:
                found.append(
                    f"{path} lacks {len(lost)} of the {iteration} lines before iteration "
                    f"{iteration}, the first for iteration {lost[0]} and the last for {lost[-1]}; "
                    "the run continues without them: restore them if you have a copy"
                )
        return found

    def sync(self) -> None:
        """Flush the logs to disk, before a checkpoint that relies on them."""
        for name in LOGS:
            if (self.folder / name).exists():
                durable.sync(self.folder / name)

    def close(self) -> None:
        """Close the mirrors."""
        self.sync()
        self.mirrors.close()

    def _samples_at(self, iteration: int) -> Path:
        return self.folder / "samples" / f"iteration_{iteration:06d}.jsonl"

    def _manifest(self) -> dict | None:
        path = self.folder / MANIFEST
        return json.loads(path.read_bytes()) if path.exists() else None


def replace_length(recorded: str, present: str) -> str:
    """The recorded configuration with the length of the present one, both as YAML.

    The other values stay as they are written: PyYAML would read 1e-4 as text, OmegaConf does not.
    """
    kept, now = yaml.compose(recorded), yaml.compose(present)
    length = {key.value: value for key, value in now.value if key.value in LENGTH}
    kept.value = [(key, length.get(key.value, value)) for key, value in kept.value]
    return yaml.serialize(kept, allow_unicode=True)


def number_texts(rows: Sequence[Mapping]) -> dict[tuple[str, int], str]:
    """The answers that an evaluation sampled, by prompt and index among those of the prompt.

    Pictures are not included: their rows name files.
    """
    found: dict[tuple[str, int], str] = {}
    count: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == galleries.FIRST and isinstance(row["output"], str):
            found[row["prompt"], count[row["prompt"]]] = row["output"]
            count[row["prompt"]] += 1
    return found


def _line(iteration: int, numbers: Numbers) -> dict:
    return {"iteration": iteration} | dict(sorted(numbers.items()))
