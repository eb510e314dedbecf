"""A judgement of what each configuration file tells Hydra itself.

Hydra acts on its own keys: it calls what callbacks, loggers, launchers and sweepers name, and sets
environment variables. A file may come from somebody else, so it says what is swept and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.default_element import GroupDefault, InputDefault
from hydra.plugins.config_source import ConfigResult

from tandem.config.names import ConfigError
from tandem.config.plain import iterate_leaves, reads_environment

PROGRAM = ("config", "hydra/sweeper/search")  # files of conf/ that are part of the program
SWEPT, MODE = "hydra.sweeper.params", "hydra.mode"  # what a file may tell Hydra
MODES = ("RUN", "MULTIRUN")
# What only a command line may say, under whatever key: it would become one of the command line.
TYPED = re.compile(r"(?<![\w.])(hydra\b|plugins\b|resume\b)|(\w*_env|\burl|\bcommand)\s*(?=[:=]|$)")
ADVICE = "a file may come from somebody else; give it on the command line"


def judge(path: str, read: ConfigResult, content: Mapping[str, Any]) -> None:
    """Raise ConfigError before Hydra acts on anything that a file says.

    `content` is embedded: its keys are those of the whole configuration.
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
