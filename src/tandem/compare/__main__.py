"""`python -m tandem compare RUNS... [by=algorithm] [metric=eval/accuracy] [out=FOLDER]`.

RUNS are run directories, or folders that contain runs, such as a sweep. Nothing else is read.

  by=KEY[,KEY]    choices (algorithm) or keys (optimizer.lr) that distinguish variants;
                  default: every key in which the runs differ
  task=KEY[,KEY]  keys that distinguish tasks; variants are compared within a task; default: data
  metric=NAME     default: eval/accuracy, or eval/reward if the runs have no accuracy
  x=AXIS          axis of the curves: iterations, samples, tokens, seconds, cpu_seconds, gpu_seconds
  threshold=0.5   value of the metric; the table shows how much of x seeds need to reach it;
                  default: halfway from the mean first score to the best last mean
  power_for=0.05  true difference for which the number of seeds is computed; default: the observed
                  difference, from five seeds on
  out=FOLDER      write report.html, the tables as Markdown, CSV and LaTeX, and the plots as PDF;
                  files of an older report in this folder are removed
  wandb=true      also write a report on W&B, where the runs are mirrored; or wandb=ENTITY/PROJECT
  save_band=experiments/NAME   store the mean curves; from ten seeds on with a band for a new run
  band=experiments/NAME        show which of these runs leave the stored band, and where
  serve=true      serve a live page on this machine, updated while runs are in progress;
                  serve=8000 chooses the port

Exit code 0: success. 1: a run leaves its band, ended before the band does, or has a configuration
that is not in the experiment. 2: nothing could be compared.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tandem.compare import expected_bands, selection, terminal
from tandem.compare.comparison import Comparison, Request, compare
from tandem.compare.report import live, wandb_report
from tandem.compare.report.figures import draw_plots
from tandem.compare.report.write import PAGE, list_written, write_report
from tandem.record import durable
from tandem.record.foreign import plain
from tandem.record.reading import planned
from tandem.record.reading.provenance import provenance
from tandem.record.reading.runs import find, read_all
from tandem.stop import defer_signals, end_when_told

OPTIONS = (
    *("by", "task", "metric", "x", "threshold", "power_for", "out", "wandb", "save_band"),
    *("band", "serve"),
)


def main(arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return
    try:
        places, options = terminal.split_options(arguments, OPTIONS)
        if not places:
            raise ValueError("no runs: give run directories, or a folder that contains runs")
        if "serve" in options:
            follow(places, options)
            return
        runs, left_out = read_all(find(places))
        for sentence in left_out:
            print(sentence, file=sys.stderr)
        compared = compare(runs, make_request(options))
        for sentence in compared.unrecorded:
            print(sentence, file=sys.stderr)
        found = add_sweeps(compared, places, left_out)
        print(terminal.show_comparison(found))
        if "out" in options:
            write(found, Path(options["out"]), title=" ".join(places))
        if "wandb" in options:
            print(f"\n{wandb_report.save(found, options['wandb'])}")
        if "save_band" in options:
            every = [one.variant for one in found.variants]
            with defer_signals():
                saved = expected_bands.save(Path(options["save_band"]), every, found.metric)
            print(f"\n{saved}")
    except (ValueError, OSError) as error:
        print(plain(str(error)), file=sys.stderr)
        sys.exit(2)
    if not all(one.holds for one in found.judged):
        sys.exit(1)


def follow(places: Sequence[str], options: Mapping[str, str]) -> None:
    """Serve the live page until Ctrl-C. The runs need not exist yet."""
    request, port = make_request(options), options["serve"]
    if beside := {"out", "wandb", "save_band"} & options.keys():
        raise ValueError(f"serve={port} cannot be combined with {min(beside)}: run that separately")
    if port != "true" and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"serve={port}: give serve=true, or a port such as serve=8000")
    watched = live.Watched(places, lambda runs: add_sweeps(compare(runs, request), places))
    live.serve(watched, 0 if port == "true" else int(port))


def add_sweeps(
    found: Comparison, places: Sequence[str], left_out: Sequence[str] = ()
) -> Comparison:
    """Add what sweeps at these places selected, and which of their runs left no record."""
    chosen, unread = selection.tables_of(places)
    missing = [*left_out, *found.unrecorded, *planned.list_unrecorded(places), *unread]
    made = [
        replace(table, notes=[*table.notes, *missing]) if table.name == "scores" else table
        for table in found.tables
    ]
    return replace(found, tables=[*made, *chosen], unrecorded=tuple(missing))


def make_request(options: Mapping[str, str]) -> Request:
    axis, metric = options.get("x", expected_bands.AXIS), options.get("metric")
    if "save_band" in options and axis != expected_bands.AXIS:
        raise ValueError(
            f"x={axis} with save_band: a band is over {expected_bands.AXIS}, the only axis that "
            "seeds share exactly; leave x out"
        )
    experiment = expected_bands.load(Path(options["band"])) if "band" in options else None
    if experiment is not None:
        if metric not in (None, experiment.metric):
            raise ValueError(
                f"metric={metric}: {experiment.folder} stores {experiment.metric}; leave metric out"
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
        raise ValueError(f"{option}={text} is not a finite number; write {option}=0.5, say")
    return value


def write(found: Comparison, folder: Path, *, title: str) -> None:
    """Write all files of a report and remove those of an older one in the folder.

    Raises ValueError if they cannot be written; the older files then remain.
    """
    line = provenance(found.runs)
    texts = {PAGE: write_report(found, title)}
    for table in found.tables:
        texts[f"{table.name}.md"] = f"{table.markdown()}\n\n{line}\n"
        texts[f"{table.name}.csv"] = f"# {line}\n{table.csv()}"
        texts[f"{table.name}.tex"] = f"% {line}\n{table.latex()}"
    files = {name: text.encode() for name, text in texts.items()} | draw_plots(found, line)
    try:
        with defer_signals():
            folder.mkdir(parents=True, exist_ok=True)
            older = list_written(folder) - files.keys()
            durable.replace_all(folder, files)
            for name in older:
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"out={folder}: the report ({sum(map(len, files.values())):,} bytes) could not be "
            f"written ({error.strerror}); free some space, or choose another folder"
        ) from error


if __name__ == "__main__":
    with end_when_told():
        main(sys.argv[1:])
