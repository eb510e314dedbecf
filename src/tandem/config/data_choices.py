"""Options of other groups that a dataset chooses: conf/data/_chooses/NAME.yaml, GROUP: OPTION.

Hydra only lets the last group, the model, choose for others. So the choices of a dataset are added
to those of the command line, which win. recipe/DATA/MODEL/ALGORITHM holds numbers tuned for all
three, in place of those for model and algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hydra._internal.config_repository import IConfigRepository
from hydra.core.override_parser.types import Override

from tandem.config.overrides import parse

FILE = "data/_chooses/{}"
RECIPE = "{data}/{model}/{algorithm}"


def choices_of_data(
    repo: IConfigRepository, choices: Mapping[str, str | None], given: Sequence[Override]
) -> list[Override]:
    """The choices of a dataset for groups not `given` by hand. `choices`: all choices so far."""
    typed = {part.key_or_group for part in given}
    found = [
        (group, option) for group, option in _iterate_choices(repo, choices) if group not in typed
    ]
    return parse([f"{group}={option}" for group, option in found])


def _iterate_choices(
    repo: IConfigRepository, choices: Mapping[str, str | None]
) -> Iterator[tuple[str, str]]:
    said = repo.load_config(FILE.format(choices["data"]))
    if said is not None:
        yield from said.plain.items()
    recipe = RECIPE.format(**{group: choices[group] for group in ("data", "model", "algorithm")})
    if repo.config_exists(f"recipe/{recipe}"):
        yield "recipe", recipe
