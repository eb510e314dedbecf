"""Checks of recipes: one tuned for another model or algorithm, and a pair without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tandem.config.binding import MARKS, comes_later
from tandem.config.contents import merge, read
from tandem.config.files import Plain
from tandem.config.loading import Composition, Loader
from tandem.config.names import ConfigError
from tandem.config.overrides import Menu
from tandem.config.plain import target_of
from tandem.config.shared_recipes import is_shared
from tandem.config.signatures import signature
from tandem.config.targets import resolve
from tandem.config.values import is_left_out, list_keys

CHOSEN_BY_ALGORITHM = ("algorithm", "dynamics")


def refuse_foreign_recipe(made: Composition, source: Loader, menu: Menu) -> None:
    """Raise for a recipe of a model of another kind, or of an algorithm with other parts."""
    recipe, model = made.choices.get("recipe") or "", made.choices["model"]
    words = recipe.split("/")
    tuned = [part for part in words if part in menu["model"]]
    if not tuned or [model, made.choices["algorithm"]] == words:
        return
    if model not in tuned:
        kinds = [source.compose([f"model={one}"]).cfg.model._target_ for one in (tuned[0], model)]
        if kinds[0] != kinds[1]:
            raise ConfigError(
                f"recipe={recipe} was tuned for model={tuned[0]}, and model={model} is of another "
                f"kind; set model={tuned[0]}, or leave recipe out"
            )
    _refuse_foreign_parts(made, source, menu)


def list_missing_recipe(choices: Mapping[str, str | None], menu: Menu) -> Iterator[str]:
    """A notice if the model has recipes, but none for the algorithm."""
    recipe, preset = choices.get("recipe") or "", choices["algorithm"]
    model, _, algorithm = recipe.rpartition("/")
    tuned = menu.get(f"recipe/{model}", ())
    if is_shared(recipe):
        yield f"recipe={recipe}, as algorithm={preset} has none of its own; its own numbers win"
    elif tuned and algorithm not in tuned:
        yield f"no recipe for {recipe}; recipe={model}/NAME takes the numbers of another algorithm"


def _refuse_foreign_parts(made: Composition, source: Loader, menu: Menu) -> None:
    recipe, algorithm = made.choices["recipe"], made.choices["algorithm"]
    tuned = recipe.rpartition("/")[2]
    if tuned == algorithm or tuned not in menu["algorithm"]:
        return
    said: Plain = {}
    others: Plain = {}
    for default in made.listed.defaults:
        of_recipe = default.config_path.startswith("recipe/")
        merge(said if of_recipe else others, read(default, source.repository))
    base = OmegaConf.create(others)
    keys = {*list_keys(base)}
    for key, value in _list_parts({name: said.get(name, {}) for name in CHOSEN_BY_ALGORITHM}):
        function = target_of(value)
        off = function is not None and OmegaConf.select(base, key) is None
        found = None
        if (off or key not in keys) and not is_left_out(key, base):
            found = f"sets {key}, which does not exist"
        elif function and (misfit := _find_misfit(function, made.cfg, key)):
            found = f"puts {function.rpartition('.')[2]} at {key}, which {misfit}"
        if found:
            raise ConfigError(
                f"recipe={recipe} {found} with algorithm={algorithm}; set algorithm={tuned}, or "
                "leave recipe out"
            )


def _list_parts(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key, value) that a file sets; a function of its own is one value."""
    for name, value in node.items():
        if isinstance(value, dict) and target_of(value) is None:
            yield from _list_parts(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _find_misfit(target: str, cfg: DictConfig, key: str) -> str | None:
    """Why a function does not accept the numbers of the function that it replaces."""
    node = OmegaConf.select(cfg, key)
    if node is None or node.get("_target_") != target:  # the command line chose another one
        return None
    given = [name for name in node if name not in MARKS]
    taken = signature(resolve(target, key)).parameters
    for name in given:
        if name not in taken:
            return f"does not take its {name}"
    for name, parameter in taken.items():
        if parameter.default is parameter.empty and not (name in given or comes_later(parameter)):
            return f"needs a {name} that is missing"
    return None
