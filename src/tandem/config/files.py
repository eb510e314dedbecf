"""Files of a configuration, each read once per process and as often as it changes."""

from __future__ import annotations

import copy
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import yaml
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

from tandem.config.names import ConfigError
from tandem.record.foreign import DEEPEST, check_yaml

Plain = dict[str, Any]

# Field that a loss of finished pictures reads -> a preset that provides it.
OF_ERRORS = {"velocity_gain": "diffusion_opd", "fast_error": "dgpo"}
# Field of a teacher of tokens that a loss reads -> a preset with such a teacher.
OF_TEACHERS = {"divergence": "gkd", "teacher_logp": "opd"}
LOSSES = "algorithm/loss"  # each of which is also an algorithm

INDENTATION = re.compile(r"^[ ?-]*", re.MULTILINE)  # at least one character for each level
STRICT: Any = get_yaml_loader()  # OmegaConf's: no duplicate keys, and 1e3 is a number
FAST: tuple[Any, ...] = (yaml.cyaml.CParser, STRICT) if yaml.__with_libyaml__ else (STRICT,)


class Yaml(*FAST):
    """OmegaConf's YAML loader with the parser of libyaml, if PyYAML was built with it."""

    def __init__(self, stream: str) -> None:
        FAST[0].__init__(self, stream)
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)


@dataclass
class Read(ConfigResult):
    """A file as Hydra reads it with its defaults list, and its plain content."""

    plain: Any = None


# (source, path of a file in it) -> version of the file when it was read, and its content.
READ: dict[tuple[str, str], tuple[object, ConfigResult]] = {}


class Repository(ConfigRepository):
    """A repository that rereads a file only after a change. Results are shared and read-only."""

    def __deepcopy__(self, _: object) -> Repository:
        """The copy that Hydra makes to search other folders; the sources can be shared."""
        copied = copy.copy(self)
        copied.sources = list(self.sources)
        return copied

    def load_config(self, config_path: str) -> ConfigResult | None:
        """A file, from the cache if it did not change; where there is none one that is made: the
        preset of a loss, the dynamics of a rollout that includes another."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return self._algorithm(config_path) or self._dynamics(config_path)
        key, now = (source.full_path(), config_path), _state(source, config_path)
        if key not in READ or READ[key][0] != now:
            READ[key] = now, self._read(source, config_path)
        return READ[key][1]

    def _algorithm(self, config_path: str) -> ConfigResult | None:
        """The preset made for a loss without one: see `algorithm_of`."""
        group, _, name = config_path.partition("/")
        if group != "algorithm" or not self.config_exists(f"{LOSSES}/{name}"):
            return None
        loss, ppo = (self.load_config(f"{LOSSES}/{option}") for option in (name, "ppo"))
        base = base_of(loss.plain["_target_"])
        plain = algorithm_of(name, loss.plain, ppo.plain)
        if base is not None:
            plain = over_parts_of(self._text(f"algorithm/{base}"), name, plain["loss"])
        listed = self._create_defaults_list(config_path, OmegaConf.create(plain.pop("defaults")))
        return replace(loss, defaults_list=listed, plain=plain)

    def _dynamics(self, config_path: str) -> ConfigResult | None:
        """`dynamics=auto` of a rollout that has none: that of the one which it includes."""
        group, _, name = config_path.rpartition("/")
        if group != "dynamics/_of" or not self.config_exists(f"rollout/{name}"):
            return None
        included = [one.get_name() for one in self.load_config(f"rollout/{name}").defaults_list]
        found = (
            self.load_config(f"{group}/{one}") for one in included if one not in ("_self_", name)
        )
        return next(filter(None, found), None)

    def _text(self, config_path: str) -> Plain:
        """The content of a file of conf/, with its defaults list."""
        path = Path(self._find_object_source(config_path, ObjectType.CONFIG).path)
        path /= f"{config_path}.yaml"
        return parse_text(path.read_text(encoding="utf-8"), path)

    def _read(self, source: ConfigSource, config_path: str) -> ConfigResult:
        if is_hydras(config_path):
            return super().load_config(config_path)
        if source.scheme() == "file":
            text = read_text(path := Path(source.path, f"{config_path}.yaml"))
            plain, header = parse_text(text, path), ConfigSource._get_header_dict(text[:512])
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
    """The preset for a loss without one: group-relative advantages, a mean over samples.

    Numbers that the loss leaves to be given are PPO's, where PPO has them.
    """
    parts = {"advantage": "group_relative", "loss": name, "weights": "sequence_mean"}
    given = {key: ppo[key] for key, value in loss.items() if value == "???" and key in ppo}
    return {"defaults": ["_base", *({k: v} for k, v in parts.items()), "_self_"], "loss": given}


def base_of(target: str) -> str | None:
    """The preset whose other parts a loss uses, by its facts; None: the usual parts."""
    from tandem.config.targets import resolve  # imports torch, for losses without a preset alone
    from tandem.contracts import facts_of

    loss = resolve(target, LOSSES)
    facts = facts_of(loss)
    if isinstance(loss, type):  # a wrapper of another loss, whose parts it uses
        return None
    if facts.reward is not None and facts.whole_groups:
        return "dpo"
    if facts.on_errors:
        return next((base for fact, base in OF_ERRORS.items() if fact in facts.reads), "nft")
    if facts.matches:
        return "tdm_r1" if "surrogate" in facts.networks else "tdm"
    taught = next((base for fact, base in OF_TEACHERS.items() if fact in facts.reads), None)
    if taught is not None:
        return taught
    compares_with_sampler = "behaviour_logp" in facts.reads and "old_logp" not in facts.reads
    return "dppo" if compares_with_sampler else None


def over_parts_of(base: Plain, name: str, numbers: Plain) -> Plain:
    """A preset with another loss and the numbers of that loss."""
    listed = [{"loss": name} if "loss" in entry else entry for entry in base["defaults"]]
    return {**base, "defaults": listed, "loss": numbers}


def read_text(path: Path) -> str:
    """The text of an untrusted file. Raises ConfigError for bytes that are not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_text(text: str, path: Path) -> Plain:
    """The mapping that a YAML text holds. Raises ConfigError for any other."""
    try:
        indented = max(map(len, INDENTATION.findall(text)))
        if "*" in text or indented + text.count("[") + text.count("{") > DEEPEST:
            check_yaml(text, path.name)  # a few aliases can expand to gigabytes
        content = yaml.load(text, Loader=Yaml)  # a subclass of the safe one
    except yaml.MarkedYAMLError as error:
        place = f"{path}, line {error.problem_mark.line + 1}"
        raise ConfigError(f"{place}: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict | NoneType):
        raise ConfigError(f"{path}: expected keys with values, got {content!r}")
    return content or {}


def _state(source: ConfigSource, config_path: str) -> object:
    """A version that changes with the file."""
    if source.scheme() == "file":
        found = os.stat(os.path.join(source.path, f"{config_path}.yaml"))
        return found.st_mtime_ns, found.st_size
    if source.scheme() == "structured":
        return ConfigStore.instance()._load(f"{config_path}.yaml")
    return None  # in an installed package


def is_hydras(config_path: str) -> bool:
    return config_path.startswith("hydra/")
