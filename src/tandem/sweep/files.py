"""Files that define swept values, and what they may not do in a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from omegaconf import DictConfig, OmegaConf

from tandem.config.composition import compose_with_hydra, read_option
from tandem.config.loading import Loader
from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.contracts.bounds import values_of

PARAMS = "hydra.sweeper.params"  # key of a file -> its swept keys and their values


def refuse_more_than_a_sweep(overrides: Sequence[str], source: Loader) -> None:
    """Raise ConfigError for an option of `sweep` that sets anything but swept values."""
    chosen = [part.value() for part in parse(overrides) if part.key_or_group == "sweep"]
    names = [name for value in chosen for name in values_of(value)]
    for name in names:
        node = read_option(source, "sweep", name)
        others = [key for key in node if key != "hydra"]
        if others or not OmegaConf.select(node, PARAMS):
            found = f"sets {others[0]}" if others else "sets none"
            raise ConfigError(
                f"sweep={name}: its file must set {PARAMS} and nothing else, but it "
                f"{found}; put what all runs share into an experiment"
            )


def list_swept(hydra: DictConfig, overrides: Sequence[str]) -> dict[str, str]:
    """The keys that the chosen files sweep, with their values; without those that the command line
    sets."""
    given = {part.key_or_group for part in parse(overrides)}
    params = OmegaConf.to_container(hydra.sweeper).get("params") or {}
    return {k: x for k, x in params.items() if k.lstrip("+~").partition("@")[0] not in given}


def refuse_studies_that_sweep(line: str, runs: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError if one of several experiments sweeps: each could sweep other keys.

    line: the override that sweeps over the experiments. runs: a command line of each.
    """
    for name, words in runs.items():
        swept: Iterable[str] = ()
        with suppress(ConfigError):  # which refuses the runs of this experiment alone
            swept = list_swept(compose_with_hydra(words).hydra, words)
        if swept:
            raise ConfigError(
                f"{line}: {name} sweeps {', '.join(swept)} itself; give it alone, or give the "
                "values on the command line"
            )
