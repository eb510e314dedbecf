"""Contents of configuration files: placed under the keys of the whole, and merged."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import reduce
from typing import Any

from hydra._internal.config_repository import IConfigRepository
from hydra.core.default_element import ResultDefault

from tandem.config.files import Plain, is_hydras
from tandem.config.judged_files import judge

DELETED = "~"


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
