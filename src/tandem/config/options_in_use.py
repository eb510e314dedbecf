"""Options and files that a composed configuration consists of, for help pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from tandem.config.composition import compose_choices, import_plugins, make_loader
from tandem.config.contents import read
from tandem.config.loading import Composition, Loader
from tandem.config.overrides import Menu, is_choice, list_options, parse
from tandem.config.plain import target_of
from tandem.config.swaps import select_node
from tandem.settings.renamed import OF_THE_RUN

STORED = "structured:"  # the path of an option that is made from a signature


@dataclass(frozen=True, slots=True)
class Setter:
    """The file that gave a key its value, or the command line, and what is written there."""

    place: str
    written: object


def list_options_in_use(overrides: Sequence[str], cfg: DictConfig) -> Mapping[str, str | None]:
    """group, as a/b -> its option; None: no option of it is used. `cfg`: what `overrides` compose.

    A recipe or preset may set another function than that of the option it chooses, and a model
    leaves out parts that it has no place for.
    """
    source, menu, made = _compose(overrides)
    chosen = made.choices
    left_out = {group for group in cfg.choices if "/" in group}
    return {
        group: None if group in left_out else _find_used(group, option, cfg, menu, source)
        for group, option in chosen.items()
    }


def _compose(overrides: Sequence[str]) -> tuple[Loader, Menu, Composition]:
    source = make_loader(import_plugins(overrides))
    menu = list_options(source)
    choices = [part for part in parse(overrides) if is_choice(part, menu)]
    return source, menu, compose_choices(source, choices)


def find_setter(overrides: Sequence[str], key: str, value: object) -> Setter | None:
    """The last file that gives a key its `value`; None if it is the default of a function."""
    typed = [part for part in parse(overrides) if part.key_or_group == key]
    if typed:
        return Setter("the command line", typed[-1].input_line.partition("=")[2])
    source, _, made = _compose(overrides)
    places = [key, f"algorithm.{key}"] if key in OF_THE_RUN else [key]
    for default in reversed(made.listed.defaults):
        found = source.repository.load_config(default.config_path)
        content = read(default, source.repository)
        for written in (select_node(content, place) for place in places):
            # The file of a part that another choice replaced wrote another value.
            if written is not None and (written == value or "${" in str(written)):
                of_function = found.path.startswith(STORED)
                return None if of_function else Setter(f"conf/{default.config_path}.yaml", written)
    return None


def _find_used(
    group: str, chosen: str | None, cfg: DictConfig, menu: Menu, source: Loader
) -> str | None:
    """The chosen option, unless its function is another one than that of the configuration: then
    the only option with this function."""
    used = target_of(OmegaConf.select(cfg, group.replace("/", ".")))
    if used is None or _function_of(group, chosen, source) in (None, used):
        return chosen
    same = [one for one in menu.get(group, ()) if _function_of(group, one, source) == used]
    return same[0] if len(same) == 1 else None


def _function_of(group: str, option: str | None, source: Loader) -> str | None:
    """The `_target_` in the file of an option; None if the file has none of its own."""
    found = source.repository.load_config(f"{group}/{option}")
    if found is None:
        return None
    return target_of(found.plain.get(group.rpartition("/")[2], found.plain))
