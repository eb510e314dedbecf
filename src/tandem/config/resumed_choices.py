"""Choices of a resumed run: an option has the numbers that it would have in a new run."""

from __future__ import annotations

from collections.abc import Iterator

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from tandem.config.arguments import list_left_out_keys
from tandem.config.composition import compose
from tandem.config.entries import is_entry
from tandem.config.names import ConfigError
from tandem.config.values import list_keys
from tandem.record.secrets import REDACTED


def choose(cfg: DictConfig, choice: Override) -> None:
    """Set a group of the run to the option that a choice such as trainer=ddp names.

    The option is composed with the choices that started the run, so it has what the model, the
    recipe and the experiment set in the group; then it takes over the numbers that were typed,
    where it has what the old option has. Raises ConfigError for an option that does not exist.
    """
    group, before = choice.key_or_group, cfg.choices.get(choice.key_or_group)
    if before is not None and choice.value() == before:
        return
    typed = {word: word.lstrip("+~").partition("=")[0] for word in map(str, cfg.overrides)}
    # Values are not composed: those of a foreign record may be interpolations of any cost.
    others = {word: key for word, key in typed.items() if key.partition("/")[0] != group}
    words = [word for word, key in others.items() if "." not in key]
    words = [word for word in words if REDACTED not in word]  # no choice has a secret
    words += [f"plugins=[{','.join(cfg.plugins)}]"]
    made = _compose_again(words, choice.input_line)
    old = made if before is None else _compose_again(words, f"{group}={before}")
    for key in _list_kept({typed[word] for word in typed if not word.startswith("~")}, cfg, made):
        # Where the options differ, a number typed for the old one would undo the choice.
        same = OmegaConf.select(old, key) == OmegaConf.select(made, key)
        if same and key.startswith(f"{group}."):
            parent, _, name = key.rpartition(".")
            value = OmegaConf.select(cfg, parent)._get_node(name)
            OmegaConf.update(made, key, value, merge=False, force_add=True)
    cfg[group], cfg.choices[group] = made[group], made.choices.get(group)  # of a list: none


def _compose_again(words: list[str], choice: str) -> DictConfig:
    try:
        return compose([*words, choice], recorded=True)
    except ConfigError as error:
        compose([words[-1], "~recipe", choice], recorded=True)  # raises if the choice is the fault
        raise ConfigError(
            f"{choice}: the words that started the run cannot be composed with it: {error}; set "
            "single numbers instead, such as trainer.devices=8"
        ) from error


def _list_kept(keys: set[str], cfg: DictConfig, made: DictConfig) -> Iterator[str]:
    """The typed keys that the new option has too, or may have as entries of a mapping."""
    known = {*list_keys(made), *list_left_out_keys(made)}
    return (key for key in sorted(keys & {*list_keys(cfg)}) if key in known or is_entry(key, made))
