"""Search spaces: from Hydra's grammar of sweeps to Optuna's distributions, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from tandem.config.names import ConfigError
from tandem.config.overrides import parse

SEED = "seed"  # never searched: the seeds of a trial are its replicates
DIGITS = 6  # significant digits of a number from an interval, also in a folder's name

Space = Mapping[str, BaseDistribution]  # key as given to Hydra -> distribution of its values


def read(arguments: Sequence[str]) -> tuple[Space, list[str]]:
    """The search space, and the seed overrides of each trial's runs, [""] if there are none.

    Raises ConfigError if nothing is searched.
    """
    parts = {part.get_key_element(): part for part in parse(arguments)}
    seeds = [key for key in parts if key.lstrip("+") == SEED]
    lines = [f"{key}={seed}" for key in seeds for seed in parts[key].sweep_string_iterator()]
    space = {key: make_distribution(part) for key, part in parts.items() if key not in seeds}
    if not space:
        raise ConfigError(
            "hydra/sweeper=search has nothing to search; give optimizer.lr='tag(log,interval("
            "1e-5,1e-3))' or group_size=4,8,16"
        )
    return space, lines or [""]


def make_distribution(part: Override) -> BaseDistribution:
    """The distribution of an override: numbers for `interval(a,b)`, integers for
    `int(interval(a,b))`, both optionally tagged `log`; integers for an increasing range of
    integers; otherwise the values as strings.

    Raises ConfigError for an override that cannot be sampled.
    """
    sweep = part.value()
    match sweep:
        case IntervalSweep():
            return _between(sweep, part.input_line)
        case RangeSweep(start=int(start), stop=int(), step=int(step)) if step > 0:
            *_, last = sweep.range()
            return IntDistribution(start, int(last), step=step)
        case RangeSweep() | ChoiceSweep():
            return CategoricalDistribution(list(dict.fromkeys(part.sweep_string_iterator())))
    raise ConfigError(f"{part.input_line}: a search accepts choices, range() and interval()")


def _between(sweep: IntervalSweep, line: str) -> BaseDistribution:
    if unknown := sorted(sweep.tags - {"log"}):
        raise ConfigError(f"{line}: unknown tag {unknown[0]!r}; the only tag is log")
    log = "log" in sweep.tags
    if not sweep.start < sweep.end or (log and sweep.start <= 0):
        raise ConfigError(f"{line}: must be increasing{' and positive' if log else ''}")
    whole = isinstance(sweep.start, int) and isinstance(sweep.end, int)
    kind = IntDistribution if whole else FloatDistribution
    return kind(sweep.start, sweep.end, log=log)


def make_overrides(params: Mapping[str, object]) -> list[str]:
    """The overrides of a trial."""
    return [f"{key}={_write(value)}" for key, value in params.items()]


def _write(value: object) -> str:
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
