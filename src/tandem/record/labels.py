"""Labels of a run in its mirrors, all read from its configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tandem.settings.settings import key_of

Config = Mapping[str, object]
Choice = str | int

TAGGED = ("algorithm", "model", "dynamics", "data")  # and every reward
SAID = ("algorithm", "model")  # in a group's name already
LONGEST = 100  # characters of a group's name


def choices(config: Config) -> dict[str, Choice]:
    """The option of every group, the seed, and the sweep that the run belongs to: flat.

    Several rewards are one choice, such as math_verify+length.
    """
    chosen = {"reward": "+".join(_rewards(config)) or None, **(config.get("choices") or {})}
    sweep = Path(str(config["sweep_dir"])).name if config.get("sweep_dir") else None
    named = {**chosen, "seed": config.get("seed"), "sweep": sweep}
    return {name: choice for name, choice in named.items() if choice is not None}


def settings(config: Config) -> dict[str, object]:
    """The resolved values, nested as in the configuration."""
    return {name: _plain(node) for name, node in config.items() if key_of(name).mirrored}


def group(config: Config) -> str:
    """The group that seeds of a configuration share: sweep, model, algorithm, other overrides."""
    chosen = choices(config)
    named = [str(chosen[name]) for name in ("sweep", "model", "algorithm") if name in chosen]
    typed = sorted({*filter(_names_a_variant, config.get("overrides") or ())})
    name = " ".join(["-".join(named), *typed]).strip()
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - len(digest) - 1]}~{digest}"


def tags(config: Config) -> list[str]:
    """The choices that a mirror tags a run with, every reward among them."""
    chosen = choices(config)
    return [*(str(chosen[name]) for name in TAGGED if name in chosen), *_rewards(config)]


def _names_a_variant(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return key not in SAID and key_of(key).compared


def _rewards(config: Config) -> Iterator[str]:
    return iter(config.get("reward") or ())


def _plain(node: object) -> object:
    """The node without Hydra's `_partial_`."""
    if not isinstance(node, Mapping):
        return node
    return {name: _plain(item) for name, item in node.items() if name != "_partial_"}
