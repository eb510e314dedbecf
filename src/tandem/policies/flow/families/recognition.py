"""The family that a folder is of, by the pipeline that its index names."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.policies.flow import families
from tandem.policies.flow.families.folders import read_index

if TYPE_CHECKING:
    from tandem.policies.flow.families.pipelines import Family, Pipeline


def refuse_other_pipeline(folder: Path, chosen: Family, kind: type[Pipeline]) -> None:
    """Raise ValueError for the folder of another pipeline than the chosen one: its transformer may
    be of the same class and read something else. `kind`: of which every family is."""
    named = read_index(folder).get("_class_name")
    if named in (None, chosen.pipeline, *chosen.siblings):
        return
    raise ValueError(
        f"model.path={folder} is a {named}, and the chosen model a {chosen.pipeline}; "
        f"{advice(named, kind)}"
    )


def advice(named: str, kind: type[Pipeline]) -> str:
    """What to choose for a pipeline of that class."""
    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")
    known = {own.family.pipeline: own.family for own in inheriting(kind) if "family" in vars(own)}
    if named not in known:
        return "no model paints as that does; take another model.path"
    model = known[named].model
    return "take its adapter" if model is None else f"take model={model}"


def inheriting(kind: type) -> Iterator[type]:
    """All classes that are of that one."""
    for own in kind.__subclasses__():
        yield own
        yield from inheriting(own)
