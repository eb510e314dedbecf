"""From a command line to one configuration, or to one line that says which word of it is wrong."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from tandem.config import trust
from tandem.config.absent import absent_part
from tandem.config.clips import clip_ratio
from tandem.config.judged_files import JudgingLoader
from tandem.config.learning_rates import learning_rate
from tandem.config.names import ConfigError, unknown
from tandem.config.overrides import (
    is_choice,
    menu,
    parse,
    refuse_unknown_key,
    refuse_wrong_choice,
)
from tandem.config.plugins import load_plugins
from tandem.config.registered import store_options

SEARCHED = "hydra.searchpath"
# What starts the runs of a sweep, when it is installed -> the extra that brings it.
LAUNCHERS = {
    **{"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit"},
    **{"ray": "ray", "ray_aws": "ray"},
}


def compose(overrides: Sequence[str] = (), *, recorded: bool = False) -> DictConfig:
    """The configuration of a run; interpolations are still open. Imports no heavy library.

    `recorded`: these are words of a file or of a run, not of a command line: see `trust`.
    """
    cfg = with_hydra(overrides, recorded=recorded)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def with_hydra(overrides: Sequence[str], *, recorded: bool = False) -> DictConfig:
    """The same, and beside it what Hydra is told of itself."""
    given = parse(overrides)
    if not recorded:
        trust.believe(given)
    folders = load_plugins(_plugins(given), recorded=recorded)
    _refuse_foreign_folders(given, folders)
    source = loader(folders)
    options = menu(source)
    choices = [part for part in given if is_choice(part, options)]
    for choice in choices:
        refuse_wrong_choice(choice, options)
    cfg = _composed(source, choices)
    values = [part for part in given if part not in choices]
    for value in values:
        refuse_unknown_key(value, cfg, options)
    with _told():
        ConfigLoaderImpl._apply_overrides_to_config(values, cfg)
    with open_dict(cfg):
        cfg.choices = choices_of(cfg.hydra.runtime.choices, source)
        cfg.choices.dynamics = cfg.dynamics.name  # what `auto` has come to
    return cfg


def option_file(group: str, option: str, overrides: Sequence[str]) -> DictConfig:
    """What the file of an option says by itself, in conf/ or beside the plugins of a command."""
    source = loader(load_plugins(_plugins(parse(overrides))))
    return source.repository.load_config(f"{group}/{option}").config


def conf_folder() -> Path:
    """`conf/` of the checkout, or of an installed package."""
    package = Path(__file__).parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parents[1] / "conf"


def loader(plugin_folders: Sequence[Path] = ()) -> ConfigLoaderImpl:
    """Reads conf/, what was registered, and the folders of plugins."""
    store_options(conf_folder())
    os.environ.setdefault("PROJECT_ROOT", str(conf_folder().parent))
    hydra.version.setbase("1.3")
    setup_globals()
    path = create_config_search_path(str(conf_folder()))
    for folder in plugin_folders:
        path.prepend("plugin", f"file://{folder}", anchor="schema")
    return JudgingLoader(config_search_path=path)


def search_path(folders: Sequence[Path]) -> list[str]:
    """The override that makes Hydra itself look into these folders too."""
    if not folders:
        return []
    return [f"{SEARCHED}=[{','.join(repr(f'file://{folder}') for folder in folders)}]"]


def _refuse_foreign_folders(given: Sequence[Override], folders: Sequence[Path]) -> None:
    """Hydra would read them unjudged; those of plugins are told to the ranks of a run."""
    for part in given:
        if part.key_or_group == SEARCHED and part.input_line not in search_path(folders):
            raise ConfigError(f"{SEARCHED}: conf/ is the only source; see plugins=")


def _plugins(given: Sequence[Override]) -> object:
    named = [part.value() for part in given if part.key_or_group == "plugins"]
    return named[-1] if named else []


def _composed(source: ConfigLoaderImpl, parts: Sequence[Override]) -> DictConfig:
    lines = [part.input_line for part in parts]
    with _told(parts):
        return source.load_configuration("config", lines, run_mode=RunMode.RUN, from_shell=False)


@contextmanager
def _told(choices: Sequence[Override] = ()) -> Iterator[None]:
    """What Hydra finds wrong, in one line."""
    try:
        yield
    except MissingConfigException as error:
        raise ConfigError(_missing_option(error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        said = absent_part(error, choices, conf_folder()) or one_line(error)
        raise ConfigError(said) from error


def _missing_option(error: MissingConfigException) -> str:
    """A choice made inside a YAML; those of the command line were read before."""
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    if group == "hydra/launcher" and (extra := LAUNCHERS.get(option)) is not None:
        return f'{group}={option} needs the extra {extra}: pip install -e ".[{extra}]"'
    place = str(error).partition(":")[0].removeprefix("In ").strip("'")
    return f"conf/{place}.yaml: {unknown(f'option of {group}', option, error.options or ())}"


def one_line(error: Exception) -> str:
    """What an error of Hydra or OmegaConf says, without its advice for programmers."""
    said = re.sub(r"\n\s*(full_key|object_type|See|To append).*", "", str(error), flags=re.S)
    return " ".join(said.split())


def choices_of(raw: Mapping[str, str | None], source: ConfigLoaderImpl) -> dict[str, str | None]:
    """The option of every group; the recipe is None where the pair has none.

    What is swept is no choice of the one run that it is swept for.
    """
    chosen = {group: raw[group] for group in sorted(raw) if "/" not in group and group != "sweep"}
    folder, _, name = (chosen.get("recipe") or "").rpartition("/")
    found = name in source.get_group_options(f"recipe/{folder}")
    return chosen | {"recipe": chosen["recipe"] if found else None}


def _choice(group: str, _root_: DictConfig) -> str:
    """The option of a group; `choices` is not filled in yet where Hydra names a job's folder."""
    return (_root_.choices or HydraConfig.get().runtime.choices)[group]


def _multiply(*factors: float) -> float:
    return math.prod(factors)


def _add(*terms: float) -> float:
    return math.fsum(terms)


OmegaConf.register_new_resolver("mul", _multiply, replace=True)
OmegaConf.register_new_resolver("add", _add, replace=True)
OmegaConf.register_new_resolver("most", max, replace=True)
OmegaConf.register_new_resolver("power", pow, replace=True)
OmegaConf.register_new_resolver("ceil", math.ceil, replace=True)
OmegaConf.register_new_resolver("pid", os.getpid, replace=True)
OmegaConf.register_new_resolver("choice", _choice, replace=True)
OmegaConf.register_new_resolver("clip_ratio", clip_ratio, replace=True)
OmegaConf.register_new_resolver("learning_rate", learning_rate, replace=True)
