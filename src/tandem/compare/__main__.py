"""`python -m tandem.compare RUNS... [by=algorithm] [metric=eval/accuracy] [out=FOLDER]`.

RUNS are run directories, or folders with runs in them, such as a sweep. Nothing but these is read.

  by=KEY[,KEY]    choices (algorithm) or keys (optimizer.lr) that tell variants apart;
                  left out: whatever the runs do not agree on
  task=KEY[,KEY]  those that tell tasks apart, within which variants are compared; left out: data
  metric=NAME     left out: eval/accuracy, or eval/reward where there is none
  x=AXIS          of the curves: iterations, samples, tokens, seconds, cpu_seconds, gpu_seconds
  threshold=0.5   of the metric: how much of x seeds need to get there; left out: halfway from where
                  runs start to the best last mean
  power_for=0.05  how many seeds would find a true difference of this size; left out: of the size
                  that is seen, from five seeds on
  out=FOLDER      report.html to look at, the tables as Markdown, CSV and LaTeX, the plots as PDF;
                  what an older report there wrote and this one does not goes
  wandb=true      a report on W&B too, where the runs are mirrored, or wandb=ENTITY/PROJECT
  save_band=experiments/NAME   keep the mean curves there; with ten seeds a band for one new run
  band=experiments/NAME        which of these runs leave it, and where
  serve=true      a page for this machine alone that follows runs while they go on; serve=8000: at
                  this port

It ends with 0; with 1 where a run leaves its band, ended before it did, or is of a configuration
that the experiment does not have; with 2 where nothing could be compared.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from tandem.compare import expected_bands, selection, terminal
from tandem.compare.comparison import Comparison, Request, compare
from tandem.compare.report import live, wandb_report
from tandem.compare.report.figures import draw_plots
from tandem.compare.report.write import PAGE, list_written, write_report
from tandem.record import durable
from tandem.record.reading import planned
from tandem.record.reading.provenance import provenance
from tandem.record.reading.runs import find, read_all

OPTIONS = (
    *("by", "task", "metric", "x", "threshold", "power_for", "out", "wandb", "save_band"),
    *("band", "serve"),
)


def main(arguments: Sequence[str]) -> None:
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return
    try:
        places, options = parse_options(arguments)
        if "serve" in options:
            follow(places, options)
            return
        runs, left_out = read_all(find(places))
        for sentence in left_out:
            print(sentence, file=sys.stderr)
        found = add_sweeps(compare(runs, make_request(options)), places, left_out)
        print(terminal.show_comparison(found))
        if "out" in options:
            write(found, Path(options["out"]), title=" ".join(places))
        if "wandb" in options:
            print(f"\n{wandb_report.save(found, options['wandb'])}")
        if "save_band" in options:
            every = [one.variant for one in found.variants]
            print(f"\n{expected_bands.save(Path(options['save_band']), every, found.metric)}")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if not all(one.holds for one in found.judged):
        sys.exit(1)


def follow(places: Sequence[str], options: Mapping[str, str]) -> None:
    """Until Ctrl-C, and whatever is not there yet."""
    request, port = make_request(options), options["serve"]
    if beside := {"out", "wandb", "save_band"} & options.keys():
        raise ValueError(
            f"serve={port} shows runs that go on: leave {min(beside)} to a call of its own"
        )
    if port != "true" and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"serve={port}: give serve=true, or a port such as serve=8000")
    watched = live.Watched(places, lambda runs: add_sweeps(compare(runs, request), places))
    live.serve(watched, 0 if port == "true" else int(port))


def add_sweeps(
    found: Comparison, places: Sequence[str], left_out: Sequence[str] = ()
) -> Comparison:
    """With what sweeps at these places selected, and which of their runs left no record."""
    missing = [*left_out, *planned.list_unrecorded(places)]
    made = [
        replace(table, notes=[*table.notes, *missing]) if table.name == "scores" else table
        for table in found.tables
    ]
    return replace(found, tables=[*made, *selection.tables_of(places)], unrecorded=tuple(missing))


def parse_options(arguments: Sequence[str]) -> tuple[list[str], Mapping[str, str]]:
    """Places and options. What has no = is a place, and so is what exists under that name."""
    places = [text for text in arguments if "=" not in text or Path(text).exists()]
    options = dict(text.split("=", 1) for text in arguments if text not in places)
    for name in options:
        if name not in OPTIONS:
            near = get_close_matches(name, OPTIONS, n=1) or [" or ".join(OPTIONS)]
            raise ValueError(f"unknown option {name!r}: did you mean {near[0]!r}?")
    if not places:
        raise ValueError("no runs: give run directories, or a folder with runs in it")
    return places, options


def make_request(options: Mapping[str, str]) -> Request:
    axis, metric = options.get("x", expected_bands.AXIS), options.get("metric")
    if "save_band" in options and axis != expected_bands.AXIS:
        raise ValueError(
            f"x={axis} with save_band: seeds are not at one place of it at a time; "
            f"a band is over {expected_bands.AXIS}: leave x out"
        )
    experiment = expected_bands.load(Path(options["band"])) if "band" in options else None
    if experiment is not None:
        if metric not in (None, experiment.metric):
            raise ValueError(
                f"metric={metric}: {experiment.folder} expects {experiment.metric}: leave it out"
            )
        metric = experiment.metric
    return Request(
        by=split(options.get("by")),
        task=split(options.get("task")),
        metric=metric,
        axis=axis,
        threshold=parse_number("threshold", options.get("threshold")),
        power_for=parse_number("power_for", options.get("power_for")),
        experiment=experiment,
    )


def split(text: str | None) -> list[str]:
    return text.split(",") if text else []


def parse_number(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{option}={text}: give a number, such as {option}=0.5")
    return value


def write(found: Comparison, folder: Path, *, title: str) -> None:
    """All files of a report; of an older one in this folder none stays beside them.

    Raises ValueError where they cannot be: those that were there stay.
    """
    line = provenance(found.runs)
    texts = {PAGE: write_report(found, title)}
    for table in found.tables:
        texts[f"{table.name}.md"] = f"{table.markdown()}\n\n{line}\n"
        texts[f"{table.name}.csv"] = f"# {line}\n{table.csv()}"
        texts[f"{table.name}.tex"] = f"% {line}\n{table.latex()}"
    files = {name: text.encode() for name, text in texts.items()} | draw_plots(found, line)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        older = list_written(folder) - files.keys()
        durable.replace_all(folder, files)
        for name in older:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"out={folder}: the report was not written ({error.strerror}); it takes "
            f"{sum(map(len, files.values())):,} bytes: free some space, or give another folder"
        ) from error


if __name__ == "__main__":
    main(sys.argv[1:])
