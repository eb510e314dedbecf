"""Words that only a sweep reads, refused for a single run, which would drop them silently."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omegaconf import DictConfig

from tandem.config.names import ConfigError
from tandem.config.overrides import parse

OF_SWEEPS = re.compile(r"hydra[./](launcher|sweeper|sweep)\b.*")
MODE = "hydra.mode"  # jobs of a sweep set it, as their experiment may sweep


def refuse_sweep(overrides: Sequence[str], hydra: DictConfig | None) -> None:
    """Raise ConfigError for a launcher, a sweeper or the folder of a sweep, and for a file that
    sweeps.

    hydra: Hydra's part of the composed configuration; None: a resumed run has none.
    """
    parts = {part.key_or_group: part for part in parse(overrides)}
    for key, part in parts.items():
        if key == MODE and part.value() == "MULTIRUN":
            raise ConfigError(f"{part.input_line}: write -m instead")
        if OF_SWEEPS.fullmatch(key) or (key == "sweep_dir" and "run_dir" not in parts):
            raise ConfigError(f"{part.input_line}: only a sweep reads it; add -m, or leave it out")
    if hydra is not None and hydra.sweeper.params and MODE not in parts:
        named = parts["experiment"].input_line if "experiment" in parts else "a chosen file"
        raise ConfigError(
            f"{named} sweeps {', '.join(hydra.sweeper.params)}: start it by python -m tandem train "
            f"-m, or add {MODE}=RUN for a single run"
        )
