"""Overrides that the file of an experiment stands for, and those that a warm start takes over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hydra.core.default_element import GroupDefault, ResultDefault
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from tandem.config.composition import import_plugins, make_loader
from tandem.config.contents import read
from tandem.config.files import Plain
from tandem.config.loading import Composition, Loader
from tandem.config.overrides import is_choice, list_options, parse
from tandem.registry.nodes import as_text
from tandem.settings.settings import key_of


def record_overrides(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Record the words of a new run and, for its warm start, those that its experiment stands for
    now: the file may be another one when the run is resumed."""
    cfg.overrides = as_text(list(overrides))
    cfg.inherited = as_text(expand_experiment(overrides) if cfg.warm_start else [])


def shared_words(cfg: DictConfig) -> list[str]:
    """The recorded overrides that a warm start takes over, those of the experiment first.

    Numbers that the experiment gives for a group are left out if the warm start chooses another
    option of it.
    """
    chosen = {part.key_or_group for part in parse(cfg.warm_start)}
    of_study = [word for word in cfg.inherited if word.lstrip("+~").partition(".")[0] not in chosen]
    return shared_overrides([*of_study, *cfg.overrides])


def shared_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides that a warm start takes over from the main run."""
    return [
        part.input_line
        for part in parse(overrides)
        if key_of(part.key_or_group.lstrip("+~").partition("@")[0]).shared
    ]


def expand_experiment(overrides: Sequence[str]) -> list[str]:
    """The choices and values of the experiment among recorded overrides; []: there is none."""
    given = parse(overrides)
    if not any(part.key_or_group == "experiment" for part in given):
        return []
    source = make_loader(import_plugins(overrides, recorded=True))
    options = list_options(source)
    made = source.compose([part.input_line for part in given if is_choice(part, options)])
    files = [one for one in made.listed.defaults if one.config_path.startswith("experiment/")]
    choices = (word for file in files for word in _list_choices(file, made, source))
    values = (word for file in files for word in _list_values(read(file, source.repository), made))
    return [*choices, *values]


def _list_choices(file: ResultDefault, made: Composition, source: Loader) -> Iterator[str]:
    for one in source.repository.load_config(file.config_path).defaults_list:
        if isinstance(one, GroupDefault) and one.override:
            package = "" if one.package is None else f"@{one.package}"
            group = f"{one.group.lstrip('/')}{package}"
            option = made.choices.get(group)
            yield f"~{group}" if option is None else f"{group}={option}"


def _list_values(content: Plain, made: Composition) -> Iterator[str]:
    """The values of a file, as composed: those of replaced parts were dropped.

    A part of a group is given as a whole.
    """
    whole = OmegaConf.to_container(made.cfg, resolve=False)
    for name, value in content.items():
        if isinstance(value, dict):
            node = whole.get(name, {})
            yield from (f"++{name}.{x}={override_text(node[x])}" for x in value if x in node)
        elif name in whole:
            yield f"++{name}={override_text(whole[name])}"


def override_text(value: object) -> str:
    """A value in the grammar of overrides."""
    match value:
        case dict():
            return f"{{{','.join(f'{key}:{override_text(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{','.join(map(override_text, value))}]"
        case str():
            return QuotedString(text=value, quote=Quote.single).with_quotes()
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
    return repr(value)
