"""Entries of mappings in which a user chooses the names, such as the options of another library.

Such a mapping is an argument that a function or a record declares as one: `Mapping[str, object]`.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from tandem.config.signatures import mapping_of, record_of, signature
from tandem.config.targets import resolve


def is_entry(key: str, cfg: DictConfig) -> bool:
    """Whether a key may be an entry of such a mapping. No entry makes the mapping a call."""
    parent, _, name = key.rpartition(".")
    return not name.startswith("_") and is_open_mapping(parent, cfg)


def is_open_mapping(key: str, cfg: DictConfig) -> bool:
    """Whether the node at a key is such a mapping. Imports the function that declares it."""
    node = _mapping(key, cfg)
    if node is None or "_target_" in node:
        return False
    return mapping_of(_annotation(key, cfg)) is not None


def _annotation(key: str, cfg: DictConfig) -> object:
    """The annotation of an argument of a function, or of a field of a record among those; Any: it
    is neither."""
    parent, _, name = key.rpartition(".")
    node = _mapping(parent, cfg)
    if node is None:
        return Any
    own = "_target_" in node
    owner = resolve(str(node["_target_"]), parent) if own else record_of(_annotation(parent, cfg))
    declared = None if owner is None else signature(owner).parameters.get(name)
    return Any if declared is None else declared.annotation


def _mapping(key: str, cfg: DictConfig) -> DictConfig | None:
    node = OmegaConf.select(cfg, key, throw_on_resolution_failure=False) if key else None
    return node if isinstance(node, DictConfig) else None
