"""Plain configurations without OmegaConf: interpolations resolved, no value missing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tandem.config.names import ConfigError
from tandem.settings.renamed import was_renamed

ROOT = "${oc.env:PROJECT_ROOT}"
# Resolvers of OmegaConf that read variables or evaluate text, and nested interpolations.
READS = re.compile(r"(?<![\w./-])oc\s*\.(?!select:)|\$\{[^:{}]*\$\{")
RAISED = re.compile(
    r"^\w+ raised while resolving interpolation: "
)  # prefix of errors raised by a resolver

REFERENCE = re.compile(r"\$\{(\w[\w.]*)\}")  # to the value of another key

FILLED_IN = ("choices", "inherited", "overrides", "replaced")  # by the run itself


def to_plain(node: DictConfig | ListConfig | Any) -> Any:
    """Plain dicts, lists and scalars. Raises ConfigError for missing values."""
    if not OmegaConf.is_config(node):
        return node
    if missing := list_missing(node):
        are = "is" if len(missing) == 1 else "are"
        flags = " ".join(f"{key}=..." for key in missing)
        raise ConfigError(f"{' and '.join(missing)} {are} not set: add {flags}")
    try:
        return OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        said = f"{error.full_key}: {shorten_reason(error)}"
        empty = find_null(node._get_root(), error.full_key) if "None" in said else None
        if empty is not None:
            said = f"{empty}=null: {error.full_key} is computed from it; set a value"
        raise ConfigError(said) from error


def find_null(root: DictConfig, key: str) -> str | None:
    """The first key without a value among those that the value at `key` is computed from."""
    raw, asked, seen = dict(iterate_leaves(root)), [key], set()
    while asked:
        key = asked.pop()
        if key in raw and raw[key] is None:
            return key
        if key not in seen:
            seen.add(key)
            asked += REFERENCE.findall(str(raw.get(key)))
    return None


def shorten_reason(error: OmegaConfBaseException) -> str:
    """The first line of an error, without the prefix that OmegaConf adds."""
    said = RAISED.sub("", str(error).partition("\n")[0])
    if (resolver := re.match(r"Unsupported interpolation type (\w+)", said)) is not None:
        said = was_renamed(f"${{{resolver[1]}:}}") or said
    return f"{said[:1].lower()}{said[1:]}"


def reads_environment(text: str) -> bool:
    """Whether an interpolation may read more of the environment than PROJECT_ROOT."""
    rest = text.replace(ROOT, "")
    return "${" in rest and READS.search(rest) is not None


def target_of(node: object) -> str | None:
    """The `_target_` of a node; None for one that calls nothing."""
    return node.get("_target_") if isinstance(node, Mapping) else None


def iterate_leaves(node: DictConfig | ListConfig | Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every leaf key with its value; interpolations stay text."""
    raw = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node
    yield from _iterate_leaves(raw, key_of(node))


def key_of(node: DictConfig | ListConfig | Any) -> str:
    """The place of a node in its configuration; empty for the whole and for plain values."""
    return (node._get_full_key(None) or "") if OmegaConf.is_config(node) else ""


def _iterate_leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            items = value.items()
        case list():
            items = enumerate(value)
        case _:
            yield where, value
            return
    for name, item in items:
        yield from _iterate_leaves(item, f"{where}.{name}" if where else str(name))


def source_of(cfg: DictConfig, key: str) -> str:
    """The key that sets the value at `key`, which may refer to it, as `${rollout.steps}` does."""
    for leaf, value in iterate_leaves(cfg):
        is_at = key == leaf or key.startswith(f"{leaf}.")
        if is_at and (reference := REFERENCE.fullmatch(str(value))) is not None:
            return source_of(cfg, reference[1] + key.removeprefix(leaf))
    return key


def list_missing(node: DictConfig | ListConfig) -> list[str]:
    """The keys without a value."""
    return [key for key, value in iterate_leaves(node) if value == "???"]
