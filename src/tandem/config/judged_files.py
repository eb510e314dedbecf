"""Checks of the keys of Hydra in configuration files.

Hydra acts on its own keys: it calls the targets of callbacks, loggers, launchers and sweepers, and
sets environment variables. A file may be untrusted, so it may only define what is swept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.default_element import GroupDefault, InputDefault
from hydra.plugins.config_source import ConfigResult

from tandem.config.names import ConfigError
from tandem.config.plain import iterate_leaves, reads_environment

PROGRAM = ("config", "hydra/sweeper/search")  # trusted files of conf/
SWEPT, MODE = "hydra.sweeper.params", "hydra.mode"  # keys of Hydra that a file may set
MODES = ("RUN", "MULTIRUN")
# Words that only a command line may contain: as swept values they would become part of one.
TYPED = re.compile(r"(?<![\w.])(hydra\b|plugins\b|resume\b)|(\w*_env|\burl|\bcommand)\s*(?=[:=]|$)")
ADVICE = "files are not trusted with it; set it on the command line"


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
        forbidden = top in ("plugins", "resume") or (
            top == "hydra" and (key, value) not in _modes()
        )
    if forbidden:
        raise ConfigError(f"{path}.yaml sets {key}: {ADVICE}")


def _modes() -> Iterator[tuple[str, str]]:
    return ((MODE, mode) for mode in MODES)
