"""Shared recipes: conf/recipe/MODEL/_OBJECTIVE.yaml, for presets that have no recipe of their own.

The recipe of a pair was tuned for the preset and wins over it. A shared one was tuned for the model
alone, so whatever the file of the preset states wins over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

from tandem.config.contents import merge, read
from tandem.config.files import Plain
from tandem.config.overrides import parse
from tandem.config.plain import target_of

BASE = "algorithm/_base"  # the defaults of all presets
OBJECTIVE = "policy_gradient"  # of an algorithm that names none


def choose_shared_recipe(
    repo: IConfigRepository,
    choices: Mapping[str, str | None],
    algorithm: DictConfig,
    given: Sequence[Override],
) -> list[Override]:
    """The choice of the model's recipe for this objective, if the pair has none of its own and none
    was `given` or left out. `choices`: all choices so far."""
    recipe = choices.get("recipe")
    by_hand = any(part.key_or_group == "recipe" for part in given)
    if by_hand or recipe is None or repo.config_exists(f"recipe/{recipe}"):
        return []
    shared = f"{choices['model']}/_{algorithm.get('objective', OBJECTIVE)}"
    return parse([f"recipe={shared}"]) if repo.config_exists(f"recipe/{shared}") else []


def is_shared(recipe: str | None) -> bool:
    return recipe is not None and recipe.rpartition("/")[2].startswith("_")


def collect_stated(defaults: Sequence[ResultDefault], repo: IConfigRepository) -> Plain:
    """What the preset states: in its file, in those it extends, and in the options of other groups
    that they choose. Its parts are not meant: their files hold defaults."""
    presets = [default for default in defaults if is_preset(default.config_path)]
    chosen = {path for one in presets for path in _list_chosen(repo.load_config(one.config_path))}
    stated: Plain = {}
    for default in defaults:
        if default in presets or default.config_path in chosen:
            merge(stated, read(default, repo))
    return stated


def is_preset(config_path: str) -> bool:
    """Whether a file is that of an algorithm, and not of one of its parts."""
    return config_path.rpartition("/")[0] == "algorithm" and config_path != BASE


def _list_chosen(preset: ConfigResult) -> Iterator[str]:
    """Files of other groups that a preset chooses, such as dynamics/logp/gaussian."""
    for default in preset.defaults_list:
        if isinstance(default, GroupDefault) and default.group.startswith("/"):
            yield f"{default.group.lstrip('/')}/{default.value}"


def leave_out_stated(content: Plain, stated: Plain) -> Plain:
    """The content of a shared recipe without the keys that a preset states; a function that the
    preset touches is left out as a whole."""
    kept: Plain = {}
    for name, value in content.items():
        own = stated.get(name)
        if name not in stated:
            kept[name] = value
        elif isinstance(value, dict) and isinstance(own, dict) and target_of(value) is None:
            kept[name] = leave_out_stated(value, own)
    return kept
