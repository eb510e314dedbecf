"""The family of a folder, recognised by the pipeline class in its index."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.contracts.bounds import values_of
from tandem.policies.flow import families
from tandem.policies.flow.families.folders import read_index

if TYPE_CHECKING:
    from tandem.policies.flow.families.pipelines import Family, Pipeline


def refuse_other_pipeline(folder: Path, chosen: Family, kind: type[Pipeline]) -> None:
    """Raise ValueError for a folder of another pipeline: its transformer may have the same class
    and different inputs. `kind`: the base class of all families."""
    said = read_index(folder).get("_class_name")
    # A pipeline with its own code has two names: of the file, and of the class in it.
    named = ".".join(map(str, values_of(said)))
    if said is None or named in (chosen.pipeline, *chosen.siblings):
        return
    raise ValueError(
        f"model.path={folder} is a {named}, but the chosen model needs a {chosen.pipeline}; "
        f"{advice(named, kind)}"
    )


def advice(named: str, kind: type[Pipeline]) -> str:
    """The option to choose for a pipeline of that class."""
    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")
    known = {own.family.pipeline: own.family for own in inheriting(kind) if "family" in vars(own)}
    if named not in known:
        return "no model supports that pipeline; choose another model.path"
    model = known[named].model
    return "choose its adapter" if model is None else f"set model={model}"


def inheriting(kind: type) -> Iterator[type]:
    """All subclasses, direct and indirect."""
    for own in kind.__subclasses__():
        yield own
        yield from inheriting(own)
