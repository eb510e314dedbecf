"""The command that adds seeds to the variants of a comparison."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from tandem.compare.scores import Scored
from tandem.record.reading.runs import Run


def write_command(variants: Sequence[Scored], seeds: int) -> Iterator[str]:
    """The command that adds seeds; none if the variants differ in more than one override, or if
    it would train a run of their sweep again in a folder of another name."""
    runs = [one.variant.runs[0] for one in variants]
    typed = [
        [word for word in run.config.get("overrides", ()) if fits_other_seeds(word)] for run in runs
    ]
    shared = [word for word in typed[0] if all(word in own for own in typed)]
    apart = [[word for word in own if word not in shared] for own in typed]
    keys = {word.partition("=")[0] for own in apart for word in own}
    if any(len(own) != 1 for own in apart) or len(keys) != 1:
        return
    values = ",".join(own[0].partition("=")[2] for own in apart)
    words = [f"{keys.pop()}={values}", f"seed=range(0,{seeds})"]
    if sweep_dir := runs[0].config.get("sweep_dir"):
        swept = [word for word in shared if word in names_of(runs[0])]
        named = [{*own, *swept, f"seed={run.seed}"} for own, run in zip(apart, runs, strict=True)]
        if named != [names_of(run) for run in runs]:
            return
        shared = [sweep_alone(word) if word in swept else word for word in shared]
        shared += [f"sweep_dir={sweep_dir}"]
    yield shlex.join(["python", "-m", "tandem", "train", "-m", *words, *shared])


def names_of(run: Run) -> set[str]:
    """The swept values that name the folder of a run."""
    return {*run.folder.name.split(",")}


def sweep_alone(word: str) -> str:
    """An override as a sweep over its one value, which then names the folder as well."""
    key, _, value = word.partition("=")
    return f"{key}=choice({value})"


def fits_other_seeds(word: str) -> bool:
    """Whether an override also belongs in the command for other seeds of the variant."""
    return word.partition("=")[0] not in ("seed", "run_dir", "sweep_dir")
