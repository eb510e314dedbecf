"""The options whose functions a composed configuration uses, for help pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omegaconf import DictConfig, OmegaConf

from tandem.config.composition import compose_choices, import_plugins, make_loader
from tandem.config.loading import Loader
from tandem.config.overrides import Menu, is_choice, list_options, parse
from tandem.config.plain import target_of


def list_options_in_use(overrides: Sequence[str], cfg: DictConfig) -> Mapping[str, str | None]:
    """group, as a/b -> its option; None: no option of it is used. `cfg`: what `overrides` compose.

    A recipe or preset may set another function than that of the option it chooses, and a model
    leaves out parts that it has no place for.
    """
    source = make_loader(import_plugins(overrides))
    menu = list_options(source)
    choices = [part for part in parse(overrides) if is_choice(part, menu)]
    chosen = compose_choices(source, choices).choices
    left_out = {group for group in cfg.choices if "/" in group}
    return {
        group: None if group in left_out else _find_used(group, option, cfg, menu, source)
        for group, option in chosen.items()
    }


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
