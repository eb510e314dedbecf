"""Composition of a command line into a configuration, or one line about the wrong word."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tandem.config import trust
from tandem.config.absent import explain_absent_part
from tandem.config.data_choices import choices_of_data
from tandem.config.foreign_recipes import list_missing_recipe, refuse_foreign_recipe
from tandem.config.loading import (
    Composition,
    Loader,
    move_published_numbers,
)
from tandem.config.names import ConfigError, unknown
from tandem.config.overrides import (
    Menu,
    expand_homes,
    is_choice,
    list_options,
    parse,
    refuse_leaving_out,
    refuse_other_folders,
    refuse_wrong_choice,
)
from tandem.config.own_targets import conf_folder, project_root
from tandem.config.plugins import load_plugins
from tandem.config.registered import store_options
from tandem.config.resolvers import register_resolvers
from tandem.config.shared_recipes import choose_shared_recipe, is_shared
from tandem.config.swaps import Numbers
from tandem.config.values import (
    as_argument,
    of_reward,
    refuse_deleted_key,
    refuse_dotted_parts,
    refuse_unknown_key,
)
from tandem.contracts import need_extra

Compose = Callable[[Loader, Sequence[str]], Composition]

LAUNCHERS = {  # launcher of the runs of a sweep -> the extra that installs it
    **{"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"},
    **{"ray": "ray", "ray_aws": "ray"},
}


def compose(overrides: Sequence[str] = (), *, recorded: bool = False) -> DictConfig:
    """The configuration of a run, with interpolations unresolved. Imports no heavy library.

    `recorded`: the overrides come from a file or a run, not from a command line: see `trust`.
    """
    given = parse(overrides)
    if not any(part.key_or_group.startswith("hydra.") for part in given):
        return _compose(given, Loader.compose, recorded=recorded)
    return drop_hydra(compose_with_hydra(overrides, recorded=recorded))


def compose_with_hydra(overrides: Sequence[str], *, recorded: bool = False) -> DictConfig:
    """The configuration of a run together with that of Hydra."""
    return _compose(parse(overrides), _add_hydra, recorded=recorded)


def drop_hydra(whole: DictConfig) -> DictConfig:
    """The configuration without Hydra's own part, if it has one."""
    cfg = copy.deepcopy(whole)
    with open_dict(cfg):
        cfg.pop("hydra", None)
    return cfg


def _compose(given: Sequence[Override], compose: Compose, *, recorded: bool) -> DictConfig:
    refuse_other_folders(given)
    if not recorded:
        trust.believe(given)
    source = make_loader(load_plugins(_list_plugins(given), recorded=recorded))
    options = list_options(source)
    choices = find_choices(given, source, options)
    with _reword_errors(choices):
        made = compose_choices(source, choices, compose)
    refuse_foreign_recipe(made, source, options)
    cfg = move_published_numbers(made.cfg)
    refuse_dotted_parts(cfg)
    values = [of_reward(part, cfg) for part in given if part not in choices]
    for value in values:
        refuse_deleted_key(value, cfg, made.deleted)
        refuse_unknown_key(value, cfg, options)
    with _reword_errors():
        added = [as_argument(value, cfg) for value in values]
        ConfigLoaderImpl._apply_overrides_to_config(added, cfg)
    expand_homes(cfg)
    with open_dict(cfg):
        cfg.choices = list_choices(made.choices, options) | dict(_list_left_out(made))
        typed = {value.key_or_group for value in values}
        cfg.replaced = list_replaced_numbers(made.numbers, typed) | {
            "off": list(_list_switched_off(choices, cfg)),
            "untuned": list(list_missing_recipe(made.choices, options)),
        }
        cfg.choices.dynamics = find_dynamics(made)
    return cfg


def find_choices(given: Sequence[Override], source: Loader, menu: Menu) -> list[Override]:
    """The choices among overrides. Raises ConfigError for a group or option that does not exist."""
    choices = [part for part in given if is_choice(part, menu)]
    for choice in choices:
        refuse_leaving_out(choice, source.repository.load_config("config"))
        refuse_wrong_choice(choice, menu)
    return choices


def compose_choices(
    source: Loader, choices: Sequence[Override], compose: Compose = Loader.compose
) -> Composition:
    """The composition of choices, of those that the dataset makes, and of a shared recipe."""
    lines = [part.input_line for part in choices]
    made, repo = compose(source, lines), source.repository
    chosen = choices_of_data(repo, made.choices, choices)
    chosen += choose_shared_recipe(repo, made.choices, made.cfg.algorithm, [*chosen, *choices])
    return compose(source, [*(part.input_line for part in chosen), *lines]) if chosen else made


def _add_hydra(source: Loader, choices: Sequence[str]) -> Composition:
    made = source.compose(choices)
    hydras = source.load_configuration("config", list(choices), RunMode.RUN, from_shell=False)
    with open_dict(made.cfg):
        made.cfg.hydra = hydras.hydra
    return made


def read_option(source: Loader, group: str, option: str) -> DictConfig:
    """The file of one option."""
    return OmegaConf.create(source.repository.load_config(f"{group}/{option}").plain)


def import_plugins(overrides: Sequence[str], *, recorded: bool = False) -> list[Path]:
    """Import the plugins of a command and return the `conf` folders beside them."""
    return load_plugins(_list_plugins(parse(overrides)), recorded=recorded)


def make_loader(plugin_folders: Sequence[Path] = ()) -> Loader:
    """A loader of conf/, of registered options and of the folders of plugins."""
    store_options(conf_folder())
    os.environ.setdefault("PROJECT_ROOT", str(project_root()))
    hydra.version.setbase("1.3")
    setup_globals()
    path = create_config_search_path(str(conf_folder()))
    for folder in plugin_folders:
        path.prepend("plugin", f"file://{folder}", anchor="schema")
    return Loader(path)


def _list_plugins(given: Sequence[Override]) -> object:
    named = [part.value() for part in given if part.key_or_group == "plugins"]
    return named[-1] if named else []


@contextmanager
def _reword_errors(choices: Sequence[Override] = ()) -> Iterator[None]:
    """Convert errors of Hydra to ConfigErrors of one line."""
    try:
        yield
    except MissingConfigException as error:
        raise ConfigError(_explain_missing_option(error)) from error
    except ConfigError:
        raise
    except RecursionError as error:
        raise ConfigError("a configuration file includes itself through its defaults") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # of a defaults list
        said = explain_absent_part(error, choices, conf_folder()) or shorten_error(error)
        raise ConfigError(said) from error


def _explain_missing_option(error: MissingConfigException) -> str:
    """The message about a missing option chosen in a YAML; the command line was checked before."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    if group == "hydra/launcher" and (extra := LAUNCHERS.get(option)) is not None:
        return need_extra(f"{group}={option}", extra)
    place = str(error).partition(":")[0].removeprefix("In ").strip("'")
    return f"conf/{place}.yaml: {unknown(f'option of {group}', option, error.options or ())}"


def shorten_error(error: Exception) -> str:
    """The message of an error of Hydra or OmegaConf, without its advice for programmers."""
    said = re.sub(r"\n\s*(full_key|object_type|See|To append).*", "", str(error), flags=re.S)
    return " ".join(said.split())


def list_choices(raw: Mapping[str, str | None], options: Menu) -> dict[str, str | None]:
    """The option of every group; the recipe is None if the pair has none.

    `sweep` is left out: it is not a choice of a single run.
    """
    chosen = {group: raw[group] for group in sorted(raw) if "/" not in group and group != "sweep"}
    folder, _, name = (chosen.get("recipe") or "").rpartition("/")
    found = name in options.get(f"recipe/{folder}", ()) or is_shared(chosen.get("recipe"))
    return chosen | {"recipe": chosen["recipe"] if found else None}


def find_dynamics(made: Composition) -> str:
    """The option of dynamics: of `auto`, the last one that it stands for."""
    chosen = made.choices["dynamics"]
    paths = [Path(default.config_path) for default in made.listed.defaults]
    options = [path.name for path in paths if path.parent.name == "dynamics"]
    return [name for name in options if name != "auto"][-1] if chosen == "auto" else chosen


def _list_left_out(made: Composition) -> Iterator[tuple[str, str]]:
    """(group, option) of the choices that the model has no place for."""
    for key in made.deleted:
        option = made.choices.get(key.replace(".", "/"))
        if option is not None and OmegaConf.select(made.cfg, key) is None:
            yield key.replace(".", "/"), option


def list_replaced_numbers(numbers: Numbers, typed: Collection[str] = ()) -> dict[str, list[str]]:
    """Replaced numbers that were not `typed`, as overrides; interpolated ones by their key."""
    kept = {key: value for key, value in numbers.kept.items() if key not in typed}
    return {
        what: [key if "${" in str(value) else f"{key}={value}" for key, value in found.items()]
        for what, found in (("dropped", numbers.dropped), ("kept", kept))
    }


def _list_switched_off(choices: Sequence[Override], cfg: DictConfig) -> Iterator[str]:
    """The chosen KL if its coefficient of 0 disables it."""
    kl = OmegaConf.to_container(cfg.algorithm, resolve=False).get("kl")
    if isinstance(kl, dict) and kl.get("coef") == 0:
        chosen = [choice.input_line for choice in choices if choice.key_or_group == "algorithm/kl"]
        yield from (f"{line}, since algorithm.kl.coef=0" for line in chosen)


register_resolvers()
