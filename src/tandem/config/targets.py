"""The allow-list of `_target_`. A name proves nothing: the object that it leads to is judged."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator

from tandem.config.names import ConfigError, nearest
from tandem.config.plugins import ADMITTED

# Modules whose functions and classes are parts of a configuration. The shell (config, run, record,
# checkpoints) stays out: it imports modules and writes files, and no YAML may ask it to.
HOMES = (
    "tandem.advantages",
    "tandem.algorithm.algorithm",
    "tandem.training.callbacks",
    "tandem.training.collect",
    "tandem.losses.importance",
    "tandem.data",
    "tandem.dynamics",
    "tandem.losses.kl",
    "tandem.losses",
    "tandem.record.mirrors",
    "tandem.objectives",
    "tandem.evaluation.settings",
    "tandem.algorithm.regularizers",
    "tandem.policies",
    "tandem.rewards",
    "tandem.training.lr_schedules",
    "tandem.record.wandb_mirror",
    "tandem.losses.reduction",
)

# Classes of libraries, by the one name under which each may be asked for.
LIBRARY = frozenset(
    f"{module}.{name}"
    for module, names in {
        "bitsandbytes.optim": "AdamW8bit",
        "torch.optim": "Adafactor Adam AdamW NAdam RAdam RMSprop SGD",
        "lightning.pytorch.callbacks": "DeviceStatsMonitor Timer",
        "lightning.pytorch.loggers": "CSVLogger TensorBoardLogger WandbLogger",
        "lightning.pytorch.strategies": "DDPStrategy FSDPStrategy ModelParallelStrategy",
        "transformers": "LlamaConfig Qwen3Config",
        "diffusers": "FlowMatchEulerDiscreteScheduler",
        "peft": "LoraConfig",
    }.items()
    for name in names.split()
)

EXTRAS = {"bitsandbytes": "8bit"}  # libraries that come with an extra of this package alone


def resolve(path: str, where: str) -> Callable:
    """The function or class that `path` names; `where` is the key that asks for it.

    Raises before anything is imported if the module is no home of components.
    """
    module_name, _, name = str(path).rpartition(".")
    if path not in LIBRARY and (not _is_home(module_name) or name.startswith("_")):
        raise ConfigError(f"{where}: {path} is not among the targets that a configuration may name")
    found = getattr(_module(module_name, path, where), name, None)
    if found is None:
        _refuse_unknown(path, where)
    if not _is_own(found, path):
        raise ConfigError(f"{where}: {path} is no function or class of {module_name}'s own")
    return found


def _module(name: str, path: str, where: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (extra := EXTRAS.get(name.partition(".")[0])) is not None:
            needed = f"{where}: {path} needs a package: pip install 'tandem[{extra}]'"
            raise ConfigError(needed) from error
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{where}: {path} needs the package {error.name}") from error
        raise ConfigError(f"{where}: there is no module {name}, which {path} names") from error


def _refuse_unknown(path: str, where: str) -> None:
    module_name, _, name = path.rpartition(".")
    module = importlib.import_module(module_name)
    own = [
        n
        for n, value in vars(module).items()
        if n[0] != "_" and _is_own(value, f"{module_name}.{n}")
    ]
    meant = nearest(name, own)
    hint = f"did you mean {module_name}.{meant}?" if meant else f"it has {', '.join(own)}"
    raise ConfigError(f"{where}: there is no {path}: {hint}")


def _is_own(found: object, path: str) -> bool:
    """Defined where components live, however it was spelt: os.system under an alias is os's."""
    if path in LIBRARY:
        top, name = path.partition(".")[0], path.rpartition(".")[2]
        return inspect.isclass(found) and (found.__module__.partition(".")[0], found.__name__) == (
            top,
            name,
        )
    return (inspect.isfunction(found) or inspect.isclass(found)) and _is_home(found.__module__)


def _is_home(module_name: str) -> bool:
    return any(f"{module_name}.".startswith(f"{home}.") for home in _homes())


def _homes() -> Iterator[str]:
    yield from HOMES
    yield from ADMITTED
