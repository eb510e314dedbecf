"""Plugins: modules of the user, imported before composing to register options."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from tandem.config import trust
from tandem.config.names import ConfigError
from tandem.config.taken_names import refuse_taken_files
from tandem.contracts import REGISTERED
from tandem.record.foreign import is_of_a_run

# Modules named by `plugins=[...]` in this process. `targets` admits what they define.
ADMITTED: set[str] = set()
IMPORTED: dict[str, str] = {}  # plugin -> sha256 of its files when they were imported
LIBRARIES = {"site-packages", "dist-packages"}  # folder names in any environment


def load_plugins(names: object, *, recorded: bool = False) -> list[Path]:
    """Import the modules and return the `conf` folders beside them, which hold further options.

    `recorded`: a run names them, not the user. Then the user must have named the same files with
    the same bytes before. Raises ConfigError for a module that cannot be imported or was not
    confirmed, and for a file whose option is there already.
    """
    if not isinstance(names, list):
        example = names if isinstance(names, str) and names else "my_rewards"
        raise ConfigError(f"plugins: expected a list of modules, such as plugins=[{example}]")
    plugins = [str(name) for name in names]
    for name in plugins:
        _refuse_foreign(name)
        _refuse_of_a_run(name)
        if recorded and name not in ADMITTED:
            _refuse_unsaid(name, plugins)
    for name in plugins:
        _reach(name)
    folders = [folder for name in plugins for folder in _load(name)]
    refuse_taken_files(folders)
    return folders


def _reach(name: str) -> None:
    """Add the working directory to sys.path for a plugin in it, at the end: no file there may
    replace a library."""
    top, here = name.partition(".")[0], str(Path.cwd())
    if PathFinder.find_spec(top) is None and PathFinder.find_spec(top, [here]) is not None:
        sys.path.append(here)


def hash_modules(names: Sequence[str]) -> dict[str, str]:
    """Path of each module -> sha256 of the files that importing it runs."""
    return {str(files[0]): trust.digest(files) for name in names if (files := list_files(name))}


def list_files(name: str) -> list[Path]:
    """The files that importing a module runs: its own, its package's, and those around it; or [].

    Nothing is imported to find them.
    """
    around, places, parts = [], [*sys.path, str(Path.cwd())], name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            return []
        places = spec.submodule_search_locations
        around += [Path(spec.origin).resolve()] if spec.has_location else []
    return list(dict.fromkeys([*reversed(around), *_list_below(places)]))


def _list_loaded(module: ModuleType) -> list[Path]:
    """The files of a module that a finder of its own found, such as one of `pip install -e`."""
    below = _list_below(module.__spec__.submodule_search_locations)
    return list(dict.fromkeys([Path(module.__file__).resolve(), *below]))


def _list_below(places: Iterable[str] | None) -> list[Path]:
    """The files of a package in these folders; [] for a module that is no package."""
    return [file.resolve() for place in places or () for file in sorted(Path(place).rglob("*.py"))]


def _refuse_unsaid(name: str, names: Sequence[str]) -> None:
    flag = f"plugins=[{','.join(names)}]"
    files = list_files(name)
    if not files and _is_served(name.partition(".")[0]):
        raise ConfigError(
            f"plugins: the run names {name}, which is installed elsewhere; give {flag} on the "
            "command line if it may run"
        )
    if not files:
        raise ConfigError(f"plugins: there is no module {name} in {Path.cwd()}")
    known = trust.read_trusted().plugins.get(str(files[0]))
    if known is None or known != trust.digest(files):
        raise ConfigError(
            f"plugins: the run names {name}, and {files[0]} is not what you have run before; read "
            f"it, and give {flag} on the command line if it may run"
        )


def _is_served(top: str) -> bool:
    """Whether only a finder of its own, such as one of `pip install -e`, knows a module."""
    if PathFinder.find_spec(top, [*sys.path, str(Path.cwd())]) is not None:
        return False
    if top in sys.modules:  # where find_spec raises for one without a spec, such as __main__
        return sys.modules[top].__spec__ is not None
    return importlib.util.find_spec(top) is not None


def _refuse_of_a_run(name: str) -> None:
    for file in list_files(name)[:1]:
        if (run := _run_around(file.parent)) is not None:
            raise ConfigError(
                f"plugins: {name} is in the run directory {run}, from which nothing is imported; "
                "read it, and move it elsewhere to allow it"
            )


def _run_around(folder: Path) -> Path | None:
    """The run directory that contains a folder, or is it."""
    return next(filter(is_of_a_run, (folder, *folder.parents)), None)


def _load(name: str) -> list[Path]:
    known = name in sys.modules
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(_describe_fault(name, error)) from error
        raise ConfigError(f"plugins: there is no module {name} in {Path.cwd()}") from error
    except (Exception, SystemExit) as error:  # an error in user code, reported with its line
        raise ConfigError(_describe_fault(name, error)) from error
    if module.__file__ is None:
        raise ConfigError(f"plugins: {name} is a folder without an __init__.py; add one")
    if _is_library(name) and not _registers(name.partition(".")[0]):
        said = f"plugins: {name} is a library, which registers nothing; give a module of your own"
        raise ConfigError(said)
    ADMITTED.add(name)
    if not known or name not in IMPORTED:  # a later import runs no file again
        IMPORTED[name] = trust.digest(list_files(name) or _list_loaded(module))
    folder = Path(module.__file__).parent / "conf"
    return [folder] if folder.is_dir() else []


def _describe_fault(name: str, error: Exception | SystemExit) -> str:
    """The error of a module, with the last line in the user's files that led to it."""
    if isinstance(error, SyntaxError):
        return f"plugins: {error.filename}, line {error.lineno}: {error.msg}"
    frames, files = traceback.extract_tb(error.__traceback__), list_files(name)
    own = [frame for frame in frames if Path(frame.filename).resolve() in files]
    last = (own or frames)[-1]
    said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return f"plugins: {last.filename}, line {last.lineno}: {' '.join(said.split())}"


def _registers(top: str) -> bool:
    """Whether a package registered parts, as one that is made for Tandem does."""
    return any(one.__module__.partition(".")[0] == top for one in REGISTERED.values())


def _refuse_foreign(name: str) -> None:
    """Raise for a file, and for a module of Python or Tandem. Other libraries are judged by what
    they register: one would admit all that it defines, like torch.load."""
    module = name.removesuffix(".py").strip("./").replace("/", ".")
    if module and (name.endswith(".py") or "/" in name):
        raise ConfigError(f"plugins: {name} is a file; give its module: plugins=[{module}]")
    if not all(name.split(".")):
        raise ConfigError(f"plugins: {name!r} names no module; write plugins=[my_rewards]")
    if (top := name.partition(".")[0]) == "tandem" or top in sys.stdlib_module_names:
        raise ConfigError(f"plugins: {name} is a library; give a module of your own")


def list_sources(targets: Iterable[str]) -> list[Path]:
    """The user's files and packages that define these functions, and those that they import."""
    found: dict[Path, None] = {}
    waiting = [target.rpartition(".")[0] for target in targets]
    while waiting:
        module = sys.modules.get(waiting.pop())
        written = module and vars(module).get("__file__")  # a notebook has none
        if not written or _is_library(module.__name__):
            continue
        file = Path(written)
        place = file.parent if file.name == "__init__.py" else file
        if place not in found:
            found[place] = None
            inside = sorted(place.rglob("*.py")) if place.is_dir() else [place]
            for path in inside:
                below = path.relative_to(place).parent.parts  # the package of a file is its folder
                package = ".".join([module.__package__ or "", *below])
                waiting += _list_imports(path, package)
    return list(found)


def _list_imports(path: Path, package: str) -> Iterator[str]:
    """The imported modules, and imported names that may be modules; of a template or another file
    that Python refuses, none."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=home, names=names, level=level):
                try:
                    base = importlib.util.resolve_name("." * level + (home or ""), package)
                except ImportError:  # above the top package, where Python finds nothing either
                    continue
                yield base
                yield from (f"{base}.{alias.name}" for alias in names)


def _is_library(name: str) -> bool:
    top = name.partition(".")[0]
    # The script that calls tandem.train, or a plugin, wherever it is installed.
    if top in ("__main__", *(one.partition(".")[0] for one in ADMITTED)):
        return False
    return top == "tandem" or top in sys.stdlib_module_names or _is_installed(top)


def _is_installed(top: str) -> bool:
    spec = importlib.util.find_spec(top)
    if spec is None:
        return False
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    return any(LIBRARIES & {*Path(place).resolve().parts} for place in places)
