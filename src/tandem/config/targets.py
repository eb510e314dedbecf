"""Allow-list of `_target_`: the functions and classes that a configuration may call.

These are the built-in targets of options (`own_targets`), registered components, everything that a
plugin defines, and the library classes in `LIBRARY`. A name outside their modules is refused before
anything is imported. Then the object itself is checked by where it is defined, whatever its alias.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import NoReturn

from tandem.config.names import ConfigError, nearest
from tandem.config.own_targets import own_targets
from tandem.config.plugins import ADMITTED
from tandem.contracts import REGISTERED, is_foreign, need_extra, place
from tandem.contracts.registration import ADAPTED

# Modules of components: no other module is imported for a `_target_`. The shell (config, run,
# record, checkpoints) is excluded: it imports modules and writes files.
HOMES = (
    "tandem.advantages",
    "tandem.algorithm.algorithm",
    "tandem.algorithm.critic",
    "tandem.algorithm.matching",
    "tandem.training.callbacks",
    "tandem.training.collect",
    "tandem.training.reprompts",
    "tandem.training.strategies",
    "tandem.data",
    "tandem.dynamics",
    "tandem.environments",
    "tandem.losses",
    "tandem.record.mirrors",
    "tandem.evaluation.settings",
    "tandem.evaluation.text_drift",
    "tandem.algorithm.regularizers",
    "tandem.policies",
    "tandem.rewards",
    "tandem.training.lr_schedules",
    "tandem.record.wandb_mirror",
)

# Library classes, each by the only name that may be used for it.
LIBRARY = frozenset(
    f"{module}.{name}"
    for module, names in {
        "bitsandbytes.optim": "AdamW8bit",
        "torch.optim": "Adafactor Adam AdamW NAdam RAdam RMSprop SGD",
        "lightning.pytorch.callbacks": "DeviceStatsMonitor Timer",
        "transformers": "LlamaConfig Qwen3Config",
        "diffusers": "FlowMatchEulerDiscreteScheduler",
        "peft": "LoraConfig",
    }.items()
    for name in names.split()
)

EXTRAS = {"bitsandbytes": "8bit"}  # library -> the extra that installs it


def resolve(path: str, where: str) -> Callable:
    """The function or class that `path` names; `where` is the key that asks for it.

    Raises ConfigError, before any import, if the module holds no components.
    """
    module_name, _, name = str(path).rpartition(".")
    listed = str(path) in LIBRARY or _is_registered(str(path))
    if not listed and (not _is_home(module_name) or name.startswith("_")):
        _refuse(path, where)
    found = getattr(_module(module_name, path, where), name, None)
    if found is None:
        _refuse_unknown(path, where)
    if not _is_own(found, path):
        raise ConfigError(f"{where}: {path} is not a function or class defined in {module_name}")
    if not _is_part(found, path):
        _refuse(path, where)
    return _as_adapted(found, path, where)


def _as_adapted(found: Callable, path: str, where: str) -> Callable:
    """What a decorator made of a function. It is another one if the function was adapted by a plain
    call, register_adv_estimator(mine), whose result the module does not keep under its name."""
    made = ADAPTED.get(found, {})
    if len(made) > 1:  # the group whose keys `where` is among
        made = {
            group: one for group, one in made.items() if _lies_in([group.replace("/", ".")], where)
        }
        if not made:
            raise ConfigError(
                f"{where}: {path} is registered in {' and in '.join(ADAPTED[found])}; write a "
                "function of its own for each"
            )
    return next(iter(made.values()), found)


def _refuse(path: str, where: str) -> NoReturn:
    """Raise for a name that may not be called; the module of a user's parts can be a plugin."""
    module, _, name = str(path).rpartition(".")
    own = any(one.__module__ == module and is_foreign(one) for one in REGISTERED.values())
    helps = own and not name.startswith("_") and not _is_home(module)
    advice = f"; add {module} to plugins=[...]" if helps else ""
    said = f"{where}: {path} is not among the targets that a configuration may name"
    raise ConfigError(said + advice)


def _module(name: str, path: str, where: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (extra := EXTRAS.get(name.partition(".")[0])) is not None:
            raise ConfigError(need_extra(f"{where}: {path}", extra)) from error
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{where}: {path} needs the package {error.name}") from error
        raise ConfigError(f"{where}: there is no module {name}, which {path} names") from error


def _refuse_unknown(path: str, where: str) -> NoReturn:
    module_name, _, name = path.rpartition(".")
    own = [
        n
        for n, value in vars(importlib.import_module(module_name)).items()
        if n[0] != "_" and _may_be_named(value, f"{module_name}.{n}")
    ]
    meant = nearest(name, own)
    has = f"it has {', '.join(own)}" if own else f"{module_name} has no parts"
    hint = f"did you mean {module_name}.{meant}?" if meant else has
    raise ConfigError(f"{where}: there is no {path}: {hint}")


def _may_be_named(found: object, path: str) -> bool:
    return _is_own(found, path) and _is_part(found, path)


def _is_own(found: object, path: str) -> bool:
    """Whether it is defined in a module of components; an alias of os.system is not."""
    if path in LIBRARY:
        top, name = path.partition(".")[0], path.rpartition(".")[2]
        return inspect.isclass(found) and (found.__module__.partition(".")[0], found.__name__) == (
            top,
            name,
        )
    is_code = inspect.isfunction(found) or inspect.isclass(found)
    return is_code and (_is_home(found.__module__) or _is_registered(place(found)))


def _is_part(found: Callable, path: str) -> bool:
    """Whether it is named by an option, registered, or defined by a plugin."""
    if path in LIBRARY or _lies_in(ADMITTED, found.__module__):
        return True
    named = not own_targets().isdisjoint((path, place(found)))
    return named or _is_registered(place(found))


def _is_registered(path: str) -> bool:
    """Whether a decorator registered what lies there, which something has imported by then."""
    return any(place(component) == path for component in REGISTERED.values())


def _is_home(module_name: str) -> bool:
    return _lies_in((*HOMES, *ADMITTED), module_name)


def _lies_in(homes: Iterable[str], module_name: str) -> bool:
    return any(f"{module_name}.".startswith(f"{home}.") for home in homes)
