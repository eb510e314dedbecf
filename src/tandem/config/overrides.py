"""Command-line overrides, parsed, with errors for names that do not exist.

An override is a choice (`algorithm=grpo`: an option of a group) or a value (`seed=3`: a key).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.default_element import GroupDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import OverrideParseException
from hydra.plugins.config_source import ConfigSource
from omegaconf import DictConfig

from tandem.config.files import Read
from tandem.config.meant import is_path, suggest
from tandem.config.names import NOT_OFFERED, ConfigError, nearest, unknown
from tandem.config.own_targets import conf_folder
from tandem.contracts.bounds import values_of
from tandem.settings.renamed import present_override

# Groups that take several options.
TOGETHER = ("reward", "logger", "callbacks", "sweep")
# Groups whose folders sort their options; a folder of another group is a group of its own.
SORTED = ("experiment", "recipe")

PLACES = ("run_dir", "sweep_dir", "cache_dir", "resume", "continue_from")  # folders of runs

SEARCHED = "hydra.searchpath"

Menu = Mapping[str, Sequence[str]]  # group, with slashes -> its options


def parse(overrides: Sequence[str]) -> list[Override]:
    """The overrides of a command line. Raises ConfigError for one that cannot be parsed or was
    renamed."""
    for word in overrides:
        if (new := present_override(word)) != word:
            raise ConfigError(f"{word} was renamed to {new}")
    try:
        parts = OverridesParser.create().parse_overrides(overrides)
        return [_expand_home(_read_count(part)) for part in parts]
    except OverrideParseException as error:
        form = (
            "write key=value, e.g. seed=3; quote values that hold spaces, commas, brackets or ~, "
            "e.g. 'data.path=\"~/my prompts\"'"
        )
        if re.fullmatch(r"[\w./-]+", word := error.override.lstrip("-")):
            groups = sorted(path.parent.name for path in conf_folder().glob(f"*/{word}.yaml"))
            words = " or ".join(f"{group}={word}" for group in groups) or f"{word}=..."
            form = f"it has no value; write {words}, or --help for help"
        if re.search(r"=\[.*=", error.override):
            form = "quote the elements of a list that hold =, e.g. \"warm_start=['algorithm=sft']\""
        raise ConfigError(f"cannot read {error.override!r}: {form}") from error


def _read_count(part: Override) -> Override:
    """The override with 1e3 as the integer 1000, since counts take no floats."""
    whole = isinstance(part._value, float) and part._value.is_integer()
    if whole and re.fullmatch(r"\d+e\+?\d+", part.input_line.partition("=")[2], re.I):
        return replace(part, _value=int(part._value))
    return part


def _expand_home(part: Override) -> Override:
    """The override with the home directory in place of ~, which a shell leaves in quotes."""
    is_place = part.key_or_group in PLACES and isinstance(part._value, QuotedString)
    return replace(part, _value=os.path.expanduser(part.value())) if is_place else part


def expand_homes(cfg: DictConfig) -> None:
    """Replace ~ in the places that files name."""
    for name in [key for key in cfg if key in PLACES]:
        text = cfg._get_node(name)._value()  # possibly with interpolations
        if str(text).startswith("~"):
            cfg[name] = os.path.expanduser(text)


def refuse_other_folders(given: Sequence[Override]) -> None:
    """Raise for hydra.searchpath, whose files would not be checked."""
    if any(part.key_or_group == SEARCHED for part in given):
        raise ConfigError(f"{SEARCHED}: conf/ is the only source; see plugins=")


def list_options(source: ConfigLoaderImpl) -> Menu:
    """Every group of the project with its options, without those that start with `_`."""
    # Groups of config.yaml even if they have no options.
    found: dict[str, set[str]] = {"recipe": set(), "experiment": set()}
    for place in source.repository.get_sources():
        listed = _of_folder(place.path) if place.scheme() == "file" else _of_source(place)
        for group, options in listed:
            found.setdefault(group, set()).update(o for o in options if not o.startswith("_"))
    return {group: sorted(options) for group, options in found.items()}


def _of_folder(root: str) -> Iterator[tuple[str, list[str]]]:
    """Groups with their options, by one walk of the folder: Hydra would check each file often."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if _is_group(name))
        group = Path(folder).relative_to(root).as_posix()
        if group != ".":
            yield group, [name.removesuffix(".yaml") for name in files if name.endswith(".yaml")]


def _of_source(source: ConfigSource, parent: str = "") -> Iterator[tuple[str, list[str]]]:
    for name in filter(_is_group, source.list(parent, ObjectType.GROUP)):
        group = f"{parent}/{name}".lstrip("/")
        yield group, source.list(group, ObjectType.CONFIG)
        yield from _of_source(source, group)


def _is_group(name: str) -> bool:
    return name != "hydra" and not name.startswith("_")


def is_choice(override: Override, menu: Menu) -> bool:
    return override.key_or_group in menu or "/" in override.key_or_group


def refuse_wrong_choice(override: Override, menu: Menu) -> None:
    """Raise if the group, or one of the options chosen from it, does not exist."""
    group, text = override.key_or_group, override.input_line
    if group.startswith("hydra/"):
        return  # Hydra's own groups
    if group not in menu:
        raise ConfigError(unknown("group", group, menu))
    if override.is_sweep_override():
        together = f", or {group}=[a,b] (together)" if group in TOGETHER else ""
        raise ConfigError(f"{text}: several values need -m (a sweep){together}")
    if override.is_add() and override.package is None:
        raise ConfigError(f"{text}: {group} already has a choice; write {text.lstrip('+')}")
    if not override.is_delete():
        refuse_wrong_options(group, override.value(), menu)


def refuse_leaving_out(choice: Override, whole: Read) -> None:
    """Raise for leaving out, by ~ or null, a group that every run needs. `whole`: conf/config.yaml,
    which chooses its option and has no `{}` for it."""
    group = choice.key_or_group
    if not choice.is_delete() and choice.value() is not None:
        return
    if (reason := NOT_OFFERED.get(f"{group}=null")) is not None:
        raise ConfigError(f"{choice.input_line}: {reason}")
    chosen = [one for one in whole.defaults_list if isinstance(one, GroupDefault)]
    has_one = any(one.group == group and one.value and not one.optional for one in chosen)
    if has_one and whole.plain.get(group) != {}:
        raise ConfigError(f"{group} is missing: choose one of the options of conf/{group}")


def refuse_wrong_options(group: str, chosen: object, menu: Menu) -> None:
    """Raise ConfigError for an option that the group does not have."""
    if chosen is None:
        raise ConfigError(
            f"{group}=null: choose one of its options; ~{group} leaves out an optional one"
        )
    below = [f"{sub}/{option}" for sub, option in _below(group, menu)]
    options = [*menu[group], *(below if group in SORTED else ())]
    if group == "algorithm":  # a loss is also an algorithm, with the usual parts
        options += menu["algorithm/loss"]
    if isinstance(chosen, list) and group not in TOGETHER:
        raise ConfigError(f"{group}=[{','.join(map(str, chosen))}]: {group} takes one option")
    names = [str(name) for name in values_of(chosen)]
    for name, count in Counter(names).items():
        if name not in options and name in below:
            sub, _, option = name.rpartition("/")
            raise ConfigError(f"{group}={name}: write {group}/{sub}={option}")
        if name not in options:
            raise ConfigError(_unknown_option(group, name, options))
        if count > 1:
            raise ConfigError(f"{group}=[{','.join(names)}]: {name} is given {count} times")


def _unknown_option(group: str, name: str, options: Sequence[str]) -> str:
    """The message about an unknown option, which may be a value that some option takes."""
    alike = [one for one in options if one.startswith(name.lower().replace("-", "_"))]
    thing = suggest(group, name, alike)
    if thing is None or not (is_path(name) or nearest(name, options) is None):
        return unknown(f"option of {group}", name, options)
    return thing


def _below(group: str, menu: Menu) -> Iterator[tuple[str, str]]:
    """Options one folder down, such as recipe/tiny_lm/grpo."""
    for other, options in menu.items():
        if other.startswith(f"{group}/"):
            yield from ((other.removeprefix(f"{group}/"), option) for option in options)


def quote(folder: Path) -> str:
    """A folder quoted for an override."""
    text = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
