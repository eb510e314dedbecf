"""Modules of the user's own: imported before composing, so that what they register is an option."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
from pathlib import Path

from tandem.config.names import ConfigError

# The modules that were named by `plugins=[...]` in this process: `targets` admits what they define.
ADMITTED: set[str] = set()


def load_plugins(names: object) -> list[Path]:
    """Import the modules; the `conf` folders that stand beside them hold further options."""
    if not isinstance(names, list):
        raise ConfigError(f"plugins: expected a list of modules, such as plugins=[{names}]")
    here = str(Path.cwd())
    if names and here not in sys.path:
        sys.path.insert(0, here)
    return [folder for name in names for folder in _load(str(name))]


def _load(name: str) -> list[Path]:
    _refuse_foreign(name)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the plugin is there, but something that it imports is not
        raise ConfigError(f"plugins: there is no module {name} in {Path.cwd()}") from error
    if module.__file__ is None:
        raise ConfigError(f"plugins: {name} is a folder without an __init__.py; add one")
    ADMITTED.add(name)
    folder = Path(module.__file__).parent / "conf"
    return [folder] if folder.is_dir() else []


def _refuse_foreign(name: str) -> None:
    """A library as a plugin would admit all that it defines, torch.load for one."""
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"plugins: {name} is a file; name its module: plugins=[{module}]")
    top = name.partition(".")[0]
    if top == "tandem" or top in sys.stdlib_module_names or _is_installed(top):
        raise ConfigError(f"plugins: {name} is a library; a plugin is a module of your own")


def _is_installed(top: str) -> bool:
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    libraries = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return any(folder in Path(place).resolve().parents for place in places for folder in libraries)
