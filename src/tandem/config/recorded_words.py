"""Words of a command line as a run records them, for a later start that repeats them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf

from tandem.config.experiments import override_text
from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.config.values import of_reward
from tandem.record.secrets import REDACTED, scrub_word
from tandem.registry.nodes import as_text

# The keys that name servers, secrets, programs and folders with addresses.
CONFIRMED = re.compile(
    r"cache_dir|rollout\.engine\.folder|(reward|rollout|environment)(\.\w+)*\.(url|\w+_env|starts|command)"
    r"|algorithm\.teachers\.(folders(\.[^.]+)?|server(\.\w+_env)?)|logger(\.\w+)*\.entity"
)


def list_confirmed(overrides: Sequence[str]) -> list[str]:
    """The overrides of a run that must be repeated when it is resumed: what only a command line may
    say, and values that the record redacts."""
    found: list[str] = []
    for part in parse(overrides):
        if part.is_delete():
            continue
        if part.key_or_group == "plugins" or CONFIRMED.fullmatch(part.key_or_group):
            found.append(part.input_line)
        else:
            found += _list_hidden(part.key_or_group, part.value(), part.input_line)
    return found


def _list_hidden(key: str, value: object, word: str) -> list[str]:
    """The word if its record redacts it; of a mapping the words of those values alone."""
    if scrub_word(word, os.environ) == word:
        return []
    if not isinstance(value, dict):
        return [word]
    own = {f"{key}.{name}": inner for name, inner in value.items()}
    return [
        line
        for name, inner in own.items()
        for line in _list_hidden(name, inner, f"{name}={override_text(inner)}")
    ]


def restore_words(cfg: DictConfig) -> None:
    """Give the recorded words with a redacted value the value that the resumed run has.

    A word of which it has none is left out: `key=<redacted>` cannot be parsed.
    """
    for name in ("overrides", "inherited"):
        words = (_restore(str(word), cfg) for word in cfg[name])
        cfg[name] = as_text([word for word in words if word is not None])


def supply_words(words: Sequence[str], given: Sequence[str]) -> list[str]:
    """Recorded words with the values of a command line in place of redacted ones.

    Raises ConfigError that names the keys of which it gives none.
    """
    values = {split_key(word)[1]: word.partition("=")[2] for word in given}
    hiding = [split_key(word) for word in words if REDACTED in word]
    if lacking := [f"{key}=..." for _, key in hiding if key not in values]:
        raise ConfigError(
            f"the record holds {REDACTED} in place of a value that looked like a secret; give "
            f"{' '.join(lacking)} on the command line"
        )
    supplied = iter(f"{sign}{key}={values[key]}" for sign, key in hiding)
    return [next(supplied) if REDACTED in word else word for word in words]


def split_key(word: str) -> tuple[str, str]:
    """The sign of a word, such as + or nothing, and its key; of a redacted word no parser reads."""
    before = word.partition("=")[0]
    key = before.lstrip("+~")
    return before.removesuffix(key), key


def _restore(word: str, cfg: DictConfig) -> str | None:
    if REDACTED not in word:
        return word
    sign, key = split_key(word)
    (part,) = parse([f"{key}=null"])
    value = OmegaConf.select(cfg, of_reward(part, cfg).key_or_group)
    if value is None:
        return None
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return f"{sign}{key}={override_text(plain)}"
