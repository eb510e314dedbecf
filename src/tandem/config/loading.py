"""Hydra's loader with cached files, merged as plain mappings.

Hydra decides which files a command line needs, and their order. Rereading them for each command and
merging them node by node took three quarters of its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hydra._internal import defaults_list as hydras_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import InputDefault, ResultDefault
from omegaconf import DictConfig, OmegaConf, open_dict

from tandem.config.contents import DELETED, merge, read
from tandem.config.files import Plain, Repository, is_hydras
from tandem.config.plain import iterate_leaves, target_of
from tandem.config.shared_recipes import collect_stated, is_shared, leave_out_stated
from tandem.config.swaps import (
    Numbers,
    Swap,
    belongs,
    fit_numbers,
    is_hung_in,
    keys_of,
    list_replaced,
    may_replace_parts,
    select_node,
)
from tandem.settings.renamed import OF_THE_RUN


class Loader(ConfigLoaderImpl):
    """A loader with the results of Hydra's own, from files that are read once."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = Repository(config_search_path)

    def compose(self, choices: Sequence[str]) -> Composition:
        """The configuration of these choices, without Hydra's own part."""
        asked, repo = self._list_files(choices)
        presets = self._presets(asked, choices)
        numbers = Numbers()
        swaps = [list(_find_swaps(preset, asked, repo, choices)) for preset in presets]
        plain = merge_files(asked, repo, swaps, numbers)
        plain.pop("hydra", None)
        cfg = OmegaConf.create(plain)
        OmegaConf.set_struct(cfg, True)
        return Composition(
            cfg=cfg,
            listed=asked,
            choices=asked.overrides.known_choices,
            numbers=numbers,
            deleted=dict(_find_deleted(asked, repo)),
        )

    def _list_files(self, choices: Sequence[str]) -> tuple[DefaultsList, IConfigRepository]:
        """The files of these choices, and the repository that caches them."""
        parsed, repo = self._parse_overrides_and_create_caching_repo("config", list(choices))
        listed = hydras_list.create_defaults_list(
            repo=repo,
            config_name="config",
            overrides_list=parsed,
            prepend_hydra=True,
            skip_missing=False,
        )
        return listed, repo

    def _presets(self, asked: DefaultsList, choices: Sequence[str]) -> list[DefaultsList]:
        """The defaults of model and algorithm alone, and with the experiment."""
        if not may_replace_parts(choices):
            return []
        known = asked.overrides.known_choices
        alone = [f"{group}={known[group]}" for group in ("model", "algorithm")]
        if known.get("experiment") is None:
            return [self._list_files(alone)[0]]
        study = f"experiment={known['experiment']}"
        return [self._list_files(words)[0] for words in (alone, [*alone, study])]

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        hydras = [default for default in defaults if is_hydras(default.config_path)]
        others = [default for default in defaults if default not in hydras]
        said = {}
        for default in others:
            merge(said, read(default, repo).get("hydra", {}))
        cfg = super()._compose_config_from_defaults_list(hydras, repo)
        cfg.merge_with({"hydra": said})
        return cfg


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The configuration of a command line's choices, and the numbers of the parts that they
    replaced."""

    cfg: DictConfig
    listed: DefaultsList  # the files that it consists of
    choices: Mapping[str, str | None]  # group -> its option
    numbers: Numbers
    deleted: Mapping[str, str]  # key that a file deletes -> the option of that file


def merge_files(
    asked: DefaultsList,
    repo: IConfigRepository,
    swaps: Sequence[Sequence[Swap]],
    numbers: Numbers,
) -> Plain:
    """The merged contents of files, each at the place of its package, without Hydra's own.

    `swaps`: relative to the presets, then relative to the experiment.
    """
    whole: Plain = {}
    shared = is_shared(asked.overrides.known_choices.get("recipe"))
    stated = collect_stated(asked.defaults, repo) if shared else {}
    for default in asked.defaults:
        content = read(default, repo)
        of_study = default.config_path.startswith("experiment/")
        for swap in (swaps[-1] if of_study else swaps[0]) if swaps else ():
            if not default.primary and not swap.brings(default):
                content = fit_numbers(content, swap, numbers)
        if default.config_path.startswith("recipe/"):
            content = leave_out_stated(content, stated)
        merge(whole, content)
    return whole


def move_published_numbers(cfg: DictConfig) -> DictConfig:
    """Move numbers of the run that an algorithm file sets to their top-level keys, unless those are
    set: each number has one key."""
    published = OmegaConf.to_container(cfg.algorithm, resolve=False)
    given = {name: published.get(name) for name in OF_THE_RUN if name in published}
    with open_dict(cfg):
        for name, value in given.items():
            if cfg._get_node(name)._value() == f"${{algorithm.{name}}}":
                cfg[name] = value
            del cfg.algorithm[name]
    return cfg


def _find_deleted(asked: DefaultsList, repo: IConfigRepository) -> Iterator[tuple[str, str]]:
    for default in asked.defaults:
        for key, value in iterate_leaves(read(default, repo)):
            if value == DELETED:
                yield key, default.config_path


def _find_swaps(
    preset: DefaultsList, asked: DefaultsList, repo: IConfigRepository, choices: Sequence[str]
) -> Iterator[Swap]:
    before, after = (listed.overrides.known_choices for listed in (preset, asked))
    of_preset = {key for key in after if after[key] == before.get(key)} - keys_of(choices)
    for group, place, is_other in list_replaced(before, after, choices):
        hung = {each.override_key for each in asked.defaults if is_hung_in(each, group, place)}
        inner = frozenset(hung & of_preset) if is_other else frozenset()
        nodes = (_node_of(listed, group, place, inner, repo) for listed in (preset, asked))
        swap = Swap(group, place, *nodes, inner, _keys_outside(asked, group, place, repo))
        if is_other or any(_overrules(swap, default, repo) for default in asked.defaults):
            yield swap


def _node_of(
    listed: DefaultsList, group: str, place: str, inner: frozenset[str], repo: IConfigRepository
) -> Plain:
    """The content of the files of a group at its place, without the `inner` groups."""
    alone: Plain = {}
    for default in listed.defaults:
        if belongs(default, group, place) and default.override_key not in inner:
            merge(alone, read(default, repo))
    return select_node(alone, place)


def _keys_outside(
    listed: DefaultsList, group: str, place: str, repo: IConfigRepository
) -> frozenset[str]:
    """The keys that the option of a group sets beside its place, such as the scale of a clip."""
    parent, _, last = place.rpartition(".")
    files = [read(one, repo) for one in listed.defaults if one.config_path.startswith(f"{group}/")]
    nodes = [select_node(file, parent) if parent else file for file in files]
    return frozenset(name for node in nodes if isinstance(node, dict) for name in node) - {last}


def _overrules(swap: Swap, default: ResultDefault, repo: IConfigRepository) -> bool:
    """Whether a file replaces a function that was chosen by name."""
    said = target_of(select_node(read(default, repo), swap.place))
    other = said not in (None, target_of(swap.after))
    return other and not default.primary and not swap.brings(default)


def _choices_where_read(
    overrides: hydras_list.Overrides, listed: list[InputDefault], self_added: bool
) -> DictConfig | None:
    """The choices that a defaults list refers to. Hydra maps all choices, half of its time."""
    named = "".join(str(default.get_name()) for default in listed if default.is_interpolation())
    known = overrides.known_choices.items()
    here = {group: name for group, name in known if group in named}
    return OmegaConf.create(here) if named else None


hydras_list._create_interpolation_map = _choices_where_read
