"""Hydra's loader, which reads a file once per process and merges plain mappings.

Hydra decides which files a command line means, in which order. Reading them anew for each command
and merging them node by node took three quarters of its time.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from hydra._internal import defaults_list as hydras_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader

from tandem.config.judged_files import judge
from tandem.config.names import ConfigError
from tandem.config.swaps import Numbers, Swap, at, belongs, chosen_by_parts, fitted, replaced

Plain = dict[str, Any]

LOSSES = "algorithm/loss"  # of which each is an algorithm too

STRICT: Any = get_yaml_loader()  # OmegaConf's: no key twice, and 1e3 is a number
FAST: tuple[Any, ...] = (yaml.cyaml.CParser, STRICT) if yaml.__with_libyaml__ else (STRICT,)


class Yaml(*FAST):
    """OmegaConf's YAML by the parser of libyaml, where PyYAML was built with it."""

    def __init__(self, stream: str) -> None:
        FAST[0].__init__(self, stream)
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)


@dataclass
class Read(ConfigResult):
    """What Hydra reads of a file, its defaults list, beside the content of it."""

    plain: Any = None


# (source, path of a file in it) -> the file when it was read, and what was read.
READ: dict[tuple[str, str], tuple[object, ConfigResult]] = {}


class Repository(ConfigRepository):
    """Reads a file again only once it changed. What it gives is shared: nobody may write to it."""

    def __deepcopy__(self, _: object) -> Repository:
        """The copy that Hydra makes for other folders to search; sources hold nothing of theirs."""
        copied = copy.copy(self)
        copied.sources = list(self.sources)
        return copied

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return self._algorithm(config_path)
        key, now = (source.full_path(), config_path), _state(source, config_path)
        if key not in READ or READ[key][0] != now:
            READ[key] = now, self._read(source, config_path)
        return READ[key][1]

    def _algorithm(self, config_path: str) -> ConfigResult | None:
        """A loss that has no preset, as an algorithm: see `algorithm_of`."""
        group, _, name = config_path.partition("/")
        if group != "algorithm" or not self.config_exists(f"{LOSSES}/{name}"):
            return None
        loss, ppo = (self.load_config(f"{LOSSES}/{option}") for option in (name, "ppo"))
        plain = algorithm_of(name, loss.plain, ppo.plain)
        listed = self._create_defaults_list(config_path, OmegaConf.create(plain.pop("defaults")))
        return replace(loss, defaults_list=listed, plain=plain)

    def _read(self, source: ConfigSource, config_path: str) -> ConfigResult:
        if _is_hydras(config_path):
            return super().load_config(config_path)
        if source.scheme() == "file":
            text = (path := Path(source.path, f"{config_path}.yaml")).read_text(encoding="utf-8")
            plain, header = parsed(text, path), ConfigSource._get_header_dict(text[:512])
        else:
            found = source.load_config(config_path)
            plain, header = OmegaConf.to_container(found.config, resolve=False), found.header
        listed = OmegaConf.create(plain.pop("defaults", []))
        return Read(
            provider=source.provider,
            path=source.full_path(),
            config=OmegaConf.create(),
            header=header,
            defaults_list=self._create_defaults_list(config_path, listed),
            plain=plain,
        )


def algorithm_of(name: str, loss: Plain, ppo: Plain) -> Plain:
    """The preset of a loss that has none: advantages within groups, a mean over samples.

    Numbers that the loss leaves to be given are PPO's, where PPO has them.
    """
    parts = {"advantage": "group_relative", "loss": name, "weights": "sequence_mean"}
    given = {key: ppo[key] for key, value in loss.items() if value == "???" and key in ppo}
    return {"defaults": ["_base", *({k: v} for k, v in parts.items()), "_self_"], "loss": given}


def parsed(text: str, path: Path) -> Plain:
    try:
        content = yaml.load(text, Loader=Yaml)  # a subclass of the safe one
    except yaml.MarkedYAMLError as error:
        place = f"{path}, line {error.problem_mark.line + 1}"
        raise ConfigError(f"{place}: {error.problem or error.context}") from error
    if not isinstance(content, dict | NoneType):
        raise ConfigError(f"{path}: expected keys with values, got {content!r}")
    return content or {}


def _state(source: ConfigSource, config_path: str) -> object:
    """Changes when what stands there does."""
    if source.scheme() == "file":
        found = os.stat(os.path.join(source.path, f"{config_path}.yaml"))
        return found.st_mtime_ns, found.st_size
    if source.scheme() == "structured":
        return ConfigStore.instance()._load(f"{config_path}.yaml")
    return None  # of a package that is installed


def _is_hydras(config_path: str) -> bool:
    return config_path.startswith("hydra/")


class Loader(ConfigLoaderImpl):
    """Composes what Hydra would, out of files that are read once."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = Repository(config_search_path)

    def compose(self, choices: Sequence[str]) -> Composition:
        """The configuration of these choices, without Hydra's own part of it."""
        asked = self._listed(choices)
        presets = self._presets(asked, choices)
        numbers = Numbers()
        plain = merged(asked, self.repository, presets, numbers)
        plain.pop("hydra", None)
        cfg = OmegaConf.create(plain)
        OmegaConf.set_struct(cfg, True)
        return Composition(cfg=cfg, choices=asked.overrides.known_choices, numbers=numbers)

    def _listed(self, choices: Sequence[str]) -> DefaultsList:
        parsed, repo = self._parse_overrides_and_create_caching_repo("config", list(choices))
        return hydras_list.create_defaults_list(
            repo=repo,
            config_name="config",
            overrides_list=parsed,
            prepend_hydra=True,
            skip_missing=False,
        )

    def _presets(self, asked: DefaultsList, choices: Sequence[str]) -> list[DefaultsList]:
        """What model and algorithm chose by themselves, and what an experiment made of that."""
        if not chosen_by_parts(choices):
            return []
        known = asked.overrides.known_choices
        alone = [f"{group}={known[group]}" for group in ("model", "algorithm")]
        if known.get("experiment") is None:
            return [self._listed(alone)]
        study = f"experiment={known['experiment']}"
        return [self._listed(alone), self._listed([*alone, study])]

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        hydras = [default for default in defaults if _is_hydras(default.config_path)]
        others = [default for default in defaults if default not in hydras]
        said = {}
        for default in others:
            merge(said, read(default, repo).get("hydra", {}))
        cfg = super()._compose_config_from_defaults_list(hydras, repo)
        cfg.merge_with({"hydra": said})
        return cfg


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What a command line's choices make, and the numbers of the parts that they replaced."""

    cfg: DictConfig
    choices: Mapping[str, str | None]  # group -> its option
    numbers: Numbers


def merged(
    asked: DefaultsList,
    repo: IConfigRepository,
    presets: Sequence[DefaultsList],
    numbers: Numbers,
) -> Plain:
    """The contents of files, Hydra's own left out, each put where its package says."""
    swaps = [list(_swaps(preset, asked, repo)) for preset in presets]
    whole: Plain = {}
    for default in asked.defaults:
        content = read(default, repo)
        of_study = default.config_path.startswith("experiment/")
        for swap in (swaps[-1] if of_study else swaps[0]) if swaps else ():
            if not default.primary and not swap.brings(default):
                content = fitted(content, swap, numbers)
        merge(whole, content)
    return whole


def _swaps(preset: DefaultsList, asked: DefaultsList, repo: IConfigRepository) -> Iterator[Swap]:
    before, after = (listed.overrides.known_choices for listed in (preset, asked))
    for group, place in replaced(before, after):
        nodes = []
        for listed in (preset, asked):
            alone: Plain = {}
            for default in listed.defaults:
                if belongs(default, group, place):
                    merge(alone, read(default, repo))
            nodes.append(at(alone, place))
        yield Swap(group, place, *nodes)


def read(default: ResultDefault, repo: IConfigRepository) -> Plain:
    """What a file says, put where its package says; nothing of Hydra's own files."""
    path = default.config_path
    found = repo.load_config(path)
    package = default.package if default.package is not None else found.header["package"]
    content = {} if _is_hydras(path) else placed(found.plain, package)
    judge(path, found, content)
    return content


def placed(content: Any, package: str | None) -> Plain:
    names = package.split(".") if package else []
    return reduce(lambda inner, name: {name: inner}, reversed(names), content)


def merge(into: Plain, own: Mapping[str, Any]) -> None:
    """What `own` says beats what stands there; what it leaves open, `???`, does not."""
    for name, value in own.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        elif value != "???" or name not in into:
            into[name] = copy.deepcopy(value)


def _choices_where_read(
    overrides: hydras_list.Overrides, listed: list[InputDefault], self_added: bool
) -> DictConfig | None:
    """Hydra makes this mapping for each file, half of its time, and reads it for interpolations."""
    if not any(default.is_interpolation() for default in listed):
        return None
    return _choices(overrides, listed, self_added)


_choices = hydras_list._create_interpolation_map
hydras_list._create_interpolation_map = _choices_where_read
