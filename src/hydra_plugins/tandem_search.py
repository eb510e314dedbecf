"""hydra/sweeper=search. Hydra finds sweepers in this namespace alone; the work is elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from tandem.config.names import ConfigError

REFUSED = 2


class Search(Sweeper):
    """Search over the swept values; conf/hydra/sweeper/search.yaml has its settings."""

    # Hydra hands over the numbers of an option as arguments.
    def __init__(
        self,
        *,
        n_trials: int,
        at_once: int,
        seed: int,
        direction: str,
        metric: str | None,
        params: dict[str, Any] | None,
    ) -> None:
        self.numbers = {
            "n_trials": n_trials,
            "at_once": at_once,
            "seed": seed,
            "direction": direction,
            "metric": metric,
        }

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from tandem.sweep.search import search  # imports optuna
        from tandem.sweep.trials import Asked

        def launch(rows: Sequence[Sequence[str]], first: int) -> None:
            self.launcher.launch(rows, initial_job_idx=first)

        try:
            search(arguments, Asked(**self.numbers), self.config, launch)
        except ConfigError as error:  # Hydra would show where it was raised
            print(error, file=sys.stderr)
            sys.exit(REFUSED)
