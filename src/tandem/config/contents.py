"""Contents of configuration files: placed under the keys of the whole, checked, and merged.

Hydra acts on its own keys: it calls the targets of callbacks, loggers, launchers and sweepers, and
sets environment variables. A file may be untrusted, so it may only define what is swept.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import GroupDefault, InputDefault, ResultDefault
from hydra.plugins.config_source import ConfigResult

from tandem.config.files import Plain, is_hydras
from tandem.config.names import ConfigError
from tandem.config.plain import iterate_leaves, reads_environment

DELETED = "~"
PROGRAM = ("config", "hydra/sweeper/search")  # trusted files of conf/
SWEPT, MODE = "hydra.sweeper.params", "hydra.mode"  # keys of Hydra that a file may set
MODES = ("RUN", "MULTIRUN")
# Words that only a command line may contain: as swept values they would become part of one.
TYPED = re.compile(r"(?<![\w.])(hydra\b|plugins\b|resume\b)|(\w*_env|\burl|\bcommand)\s*(?=[:=]|$)")
ADVICE = "files are not trusted with it; set it on the command line"


def read(default: ResultDefault, repo: IConfigRepository) -> Plain:
    """The content of a file at the place of its package; nothing for Hydra's own files."""
    path = default.config_path
    found = repo.load_config(path)
    package = default.package if default.package is not None else found.header["package"]
    content = {} if is_hydras(path) else place_content(found.plain, package)
    judge(path, found, content)
    return content


def place_content(content: Any, package: str | None) -> Plain:
    """The content of a file at the place that its package names."""
    names = package.split(".") if package else []
    return reduce(lambda inner, name: {name: inner}, reversed(names), content)


def judge(path: str, read: ConfigResult, content: Mapping[str, Any]) -> None:
    """Raise ConfigError before Hydra acts on a forbidden key of a file.

    `content` has the keys of the whole configuration.
    """
    if (path in PROGRAM and read.provider == "main") or not read.path.startswith("file://"):
        return
    if path.startswith("hydra/"):
        raise ConfigError(f"{path}.yaml: Hydra's own groups take no options from files")
    for default in read.defaults_list or ():
        _judge_default(path, default)
    for key, value in iterate_leaves(content):
        _judge_value(path, key, value)


def _judge_default(path: str, default: InputDefault) -> None:
    is_group = isinstance(default, GroupDefault)
    name = str(default.group if is_group else default.path)
    if name.lstrip("/").startswith("hydra/"):
        chosen = f"{name.lstrip('/')}={default.value}" if is_group else name
        raise ConfigError(f"{path}.yaml chooses {chosen}: {ADVICE}")


def _judge_value(path: str, key: str, value: object) -> None:
    if isinstance(value, str) and reads_environment(value):
        raise ConfigError(f"{path}.yaml: {key}: only PROJECT_ROOT may be read from the environment")
    top = key.partition(".")[0]
    if key.startswith(f"{SWEPT}."):
        swept = key.removeprefix(f"{SWEPT}.")
        forbidden = any(map(TYPED.search, (swept, str(value))))
    else:
        is_mode = key == MODE and value in MODES
        forbidden = top in ("plugins", "resume") or (top == "hydra" and not is_mode)
    if forbidden:
        raise ConfigError(f"{path}.yaml sets {key}: {ADVICE}")


def merge(into: Plain, own: Mapping[str, Any]) -> None:
    """Merge `own` over `into`. `~` deletes a key, and `???` keeps an existing value."""
    for name, value in own.items():
        if value == DELETED:
            into.pop(name, None)
            continue
        if isinstance(value, dict):
            there = into.get(name)
            into[name] = there if isinstance(there, dict) else {}
            merge(into[name], value)
        elif value != "???" or name not in into:
            into[name] = copy.deepcopy(value)
