"""Names of built-in options, which neither functions nor files of plugins may have."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tandem.config.names import ConfigError
from tandem.config.own_targets import conf_folder
from tandem.registry import declared

PRESET_OF = {"algorithm": "algorithm/loss"}  # group -> the group whose options make presets in it


def is_taken(group: str, name: str) -> bool:
    """Whether a group has a built-in option of this name."""
    is_file = (conf_folder() / group / f"{name}.yaml").is_file()
    makes_it = group in PRESET_OF and is_taken(PRESET_OF[group], name)
    return is_file or makes_it or (group, name) in declared.options()


def refuse_taken_files(folders: Iterable[Path]) -> None:
    """Raise ConfigError for an option in the `conf` folders of plugins that Tandem or another of
    them has: Hydra reads one of the two, and leaves out the other without a word.

    The plugin may register the same option. A file outside the groups is none.
    """
    brought: dict[Path, Path] = {}
    own = conf_folder().resolve()  # beside a plugin in the checkout
    for folder in dict.fromkeys(one for one in folders if one.resolve() != own):
        for file in sorted(folder.rglob("*/*.yaml")):
            place = file.relative_to(folder).with_suffix("")
            option = f"{place.parent.as_posix()}={place.name}"
            other = brought.setdefault(place, file)
            if is_taken(place.parent.as_posix(), place.name):
                raise _conflict(file, f"{option} is an option of Tandem's")
            if other != file:
                raise _conflict(file, f"{option} is {other} already")


def _conflict(file: Path, said: str) -> ConfigError:
    return ConfigError(f"{file}: {said}; give the file another name, or the plugin another folder")
