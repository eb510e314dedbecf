"""`python -m tandem select SWEEP [metric=eval/accuracy] [seeds=5]`: an unbiased test of the best.

The configuration with the best mean over its seeds is trained again with `seeds` fresh seeds, each
in its own process beside the sweep (SWEEP-selected-HASH), and evaluated on the test prompts, which
are not used otherwise. Results are in selection.json and selection.md in the sweep's folder, and in
`python -m tandem compare SWEEP`. The same command continues an interrupted selection. Exit code 0:
success; 1: a fresh seed failed or has no test score; 75: stopped.

  metric=NAME   metric of the choice, one of an evaluation (eval/...); default: eval/accuracy, or
                eval/reward without an accuracy; the report uses it on test prompts
  seeds=N       number of fresh seeds
  plugins=[X]   modules named by the sweep's runs, if you did not start these yourself; in the same
                way servers (reward.http.url=...), variables sent to them, programs,
                rollout.engine.starts=true, and folders (cache_dir=..., rollout.engine.folder=...);
                also values that their records redact (reward.mine.api_key=...)
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from tandem.compare import selection
from tandem.compare.comparison import choose_metric
from tandem.compare.scores import is_of_evaluation
from tandem.compare.selection import Selection
from tandem.compare.terminal import refuse_flags, split_options
from tandem.config import check, compose, trust
from tandem.config.composition import conf_folder, import_plugins
from tandem.config.experiments import record_overrides
from tandem.config.overrides import parse
from tandem.config.plain import to_plain
from tandem.config.recorded_words import list_confirmed, supply_words
from tandem.record.latest import follow_link
from tandem.record.reading import runs
from tandem.stop import INTERRUPTED
from tandem.sweep.best import choose, keep_choice, list_whole_runs
from tandem.sweep.selection import carry_out, choose_seeds, count_unread, keep

OPTIONS = ("metric", "seeds", "plugins")
SEEDS = 5
FAILED = 1


def main(arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return
    try:
        refuse_flags(arguments, OPTIONS)
        confirmed = list_confirming(arguments)
        sweep, metric, count = parse_arguments([x for x in arguments if x not in confirmed])
        trust.believe(parse(confirmed))
        import_plugins(confirmed)
        program = conf_folder().parent / "train.py"
        found = select(sweep, metric, count, words=arguments, program=program)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"\n{selection.table(found).markdown()}")
    sys.exit(exit_code(found, count))


def exit_code(found: Selection, count: int) -> int:
    if len(found.fresh) < count:
        return INTERRUPTED
    return 0 if found.complete else FAILED


def parse_arguments(arguments: Sequence[str]) -> tuple[Path, str | None, int]:
    places, options = split_options(arguments, OPTIONS)
    if len(places) != 1:
        raise ValueError("give the folder of one sweep: python -m tandem select runs/sweeps/latest")
    seeds = options.get("seeds", str(SEEDS))
    if not seeds.isdecimal() or int(seeds) < 1:
        raise ValueError(f"seeds={seeds}: give a number of seeds, at least 1")
    return follow_link(Path(places[0])).absolute(), options.get("metric"), int(seeds)


def list_confirming(arguments: Sequence[str]) -> list[str]:
    """The arguments that confirm what the runs of a sweep name, as those of `resume=` do."""
    words = [x for x in arguments if x.partition("=")[1] and not Path(x).exists()]
    return list_confirmed([x for x in words if x.partition("=")[0] not in ("metric", "seeds")])


def select(
    sweep: Path, metric: str | None, count: int, *, words: Sequence[str], program: Path
) -> Selection:
    """Select and retrain. Raises ValueError first if there is nothing to choose or to test.

    words: all arguments of the command, which the folder of the fresh runs records.
    """
    refuse_run(sweep)
    jobs = list_whole_runs(sweep)
    every = [runs.read(folder) for folder in runs.find([sweep])]
    measured = choose_metric(every, metric)
    refuse_untested(measured)
    now = choose(sweep, jobs, every, measured)
    found = keep_choice(selection.read(sweep), now, sweep)
    seeds = choose_seeds(sweep, count, [run.seed for run in found.fresh])
    overrides = supply_words(found.overrides, words)
    cfg = check_recorded([*overrides, f"seed={seeds[0]}"])
    shared_prompts = count_unread(cfg, found.best.seeds)
    found = replace(found, asked_again=shared_prompts)
    keep(found, sweep)
    print(f"{selection.table(found).title}; {len(seeds)} fresh seeds", flush=True)
    return carry_out(found, sweep, seeds, overrides=overrides, words=words, program=program)


def refuse_untested(metric: str) -> None:
    """Raise ValueError for a metric that the test of a fresh seed cannot give."""
    if not is_of_evaluation(metric):
        raise ValueError(
            f"metric={metric}: it is not measured on test prompts, where fresh seeds are tested; "
            "set a metric of an evaluation, such as metric=eval/reward"
        )


def check_recorded(overrides: Sequence[str]) -> DictConfig:
    """The configuration of recorded overrides. Raises ConfigError if it, or its warm start, names a
    server, a variable, a program, an engine or a folder that is not trusted: the runs that these
    overrides start would take them for the user's."""
    from tandem.launch.initial_weights import check_start  # imports torch, which `--help` does not

    cfg = compose(overrides, recorded=True)
    check(cfg)
    record_overrides(cfg, overrides)
    trust.refuse_unsaid(to_plain(cfg), recorded=True)
    for one in filter(None, (cfg, check_start(cfg, recorded=True))):
        trust.refuse_unsaid_folders(to_plain(one), own=compose([]).cache_dir)
    return cfg


def refuse_run(folder: Path) -> None:
    """Raise ValueError for the directory of one run, in which there is nothing to choose."""
    if (folder / runs.MANIFEST).is_file():
        raise ValueError(
            f"{folder} is one run, and select chooses among the runs of a sweep, then trains "
            f"{SEEDS} fresh seeds of the best; give the folder of a sweep, or measure this run: "
            f"python -m tandem train evaluate=true evaluation.split=test "
            f"resume={shlex.quote(str(folder))}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
