"""Configuration of a resumed run: the recorded one, except for keys that may change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from tandem.config import trust
from tandem.config.arguments import list_left_out_keys
from tandem.config.composition import compose
from tandem.config.entries import is_entry
from tandem.config.names import ConfigError, unknown
from tandem.config.overrides import parse
from tandem.config.plain import FILLED_IN, iterate_leaves, to_plain
from tandem.config.plugins import hash_modules, load_plugins
from tandem.config.recorded_words import restore_words
from tandem.config.resumed_choices import choose
from tandem.config.values import list_keys, names_below, of_reward
from tandem.record import foreign
from tandem.record.foreign import UNREADABLE, read_config, reason_of
from tandem.record.latest import follow_link
from tandem.record.secrets import REDACTED
from tandem.registry.nodes import as_text
from tandem.remote import is_address
from tandem.settings.renamed import present_config

# Addresses of servers and their timeouts: a server may have moved since.
ELSEWHERE = re.compile(
    r"""
    algorithm\.teachers\. (folders (\.[^.]+)? | server (\.\w+)?)  # only addresses: see _moves
    | (reward | rollout | environment) (\.\w+)* \.        # any part of these groups:
    ( url | \w+_env                                       # the server, and the secrets sent to it
    | command                                             # of a program, which may have moved
    | concurrency                                         # of requests
    | (limits | retries | breaker) (\.\w+)?               # as a whole, or one number
    | engine \. (folder | model | timeout | patience | sleeps | starts)
    )""",
    re.VERBOSE,
)
CHOSEN = ("model", "algorithm", "data", "rollout", "dynamics")  # in every run
TEACHERS = re.compile(r"algorithm\.teachers\.folders(\.[^.]+)?")


def configuration(
    overrides: Sequence[str], *, compose: Callable[..., DictConfig] = compose
) -> DictConfig:
    """The configuration of a command line: a new run, by `compose`, or a resumed one.

    Raises ConfigError for a sweep, and for an invalid run.
    """
    for part in parse(overrides):
        if part.key_or_group == "sweep" and not part.is_delete():
            text = part.input_line
            raise ConfigError(f"{text} is a sweep of many runs; use python -m tandem train {text}")
    folder = find_resumed_run(overrides)
    return compose(overrides) if folder is None else resume_config(folder, overrides)


def find_resumed_run(overrides: Sequence[str]) -> Path | None:
    """The run directory that `resume=` names."""
    named = [part.value() for part in parse(overrides) if part.key_or_group == "resume"]
    return follow_link(Path(str(named[-1]))) if named and named[-1] is not None else None


def resume_config(folder: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration in a run directory with permitted overrides.

    Raises ConfigError for a directory without a run, and for a key that may not change.
    """
    cfg = _read_record(folder)
    given = parse(overrides)
    trust.believe(given)
    _load_plugins(list(cfg.plugins), given)
    given = [of_reward(part, cfg) for part in given]
    redacted = _list_redacted(cfg)
    before = OmegaConf.to_container(cfg, resolve=False).get("cache_dir")
    if before not in trust.read_trusted().caches:
        cfg.cache_dir = compose([]).cache_dir
    cfg.resume = cfg.run_dir = str(folder)
    for override in sorted(given, key=lambda part: "." in part.key_or_group):  # choices first
        _apply(cfg, override, redacted)
    _move_cache(cfg, str(before), given)
    if left := _list_redacted(cfg):
        raise ConfigError(
            f"resume={folder}: its config.yaml holds {REDACTED} in place of a value that looked "
            f"like a secret; give {' '.join(f'{key}=...' for key in left)} on the command line"
        )
    restore_words(cfg)
    return cfg


def _move_cache(cfg: DictConfig, before: str, given: Sequence[Override]) -> None:
    """Move the cache folders of all parts to the current cache_dir."""
    typed = {part.key_or_group for part in given}
    for key, value in list(iterate_leaves(cfg)):
        kept = key.endswith(".cache_dir") or key == "rollout.engine.folder"
        if kept and key not in typed and f"{value}/".startswith(f"{before}/"):
            OmegaConf.update(cfg, key, f"{cfg.cache_dir}{value.removeprefix(before)}")


def _read_record(folder: Path) -> DictConfig:
    """The recorded configuration. The directory is untrusted: it is read within limits."""
    check_files(folder)
    path = folder / "config.yaml"
    with _as_a_run(folder):
        read_config(path)
        raw = present_config(yaml.load(path.read_bytes(), Loader=get_yaml_loader()))
        cfg = OmegaConf.create({"inherited": []} | as_text(raw))  # older records lack it
        kinds = dict.fromkeys(("plugins", "overrides", "inherited"), ListConfig)
        for key, kind in (kinds | {"choices": DictConfig}).items():
            if not isinstance(cfg[key], kind):
                raise ValueError(f"{key} is no {kind.__name__.removesuffix('Config').lower()}")
        for group in CHOSEN:
            if group not in cfg.choices:
                raise ValueError(f"choices lacks {group}")
            if not isinstance(cfg.get(group), DictConfig):
                raise ValueError(f"{group} is not a mapping")
    _refuse_older(folder, cfg)
    return cfg


def check_files(folder: Path) -> None:
    """Raise ConfigError for a directory without a configuration, or with files that must not be
    opened or written."""
    if not folder.is_dir():
        raise ConfigError(f"resume={folder}: there is no such directory; give a run directory")
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"resume={folder}: there is no config.yaml in it; give a run directory")
    with _as_a_run(folder):
        foreign.check_files(folder)


@contextmanager
def _as_a_run(folder: Path) -> Iterator[None]:
    try:
        yield
    except (*UNREADABLE, OmegaConfBaseException) as error:
        raise ConfigError(
            f"resume={folder}: it cannot be read as a run ({reason_of(error)})"
        ) from None


def _list_redacted(cfg: DictConfig) -> list[str]:
    """The keys whose values the record redacts, which must be given again."""
    hiding = [key for key, value in iterate_leaves(cfg) if REDACTED in str(value)]
    whole = [re.split(r"\.\d+(?:\.|$)", key)[0] for key in hiding]  # a list is given as a whole
    return [key for key in dict.fromkeys(whole) if key.split(".")[0] not in FILLED_IN]


def _refuse_older(folder: Path, cfg: DictConfig) -> None:
    """Raise for a run of an old version, from before `replaced` was recorded."""
    older = [f"model.{name}" for name in ("sampling", "trained") if name in cfg.get("model", {})]
    if "replaced" not in cfg or older:
        sign = f"has {older[0]}" if older else "lacks replaced"
        raise ConfigError(
            f"resume={folder}: an older version of Tandem wrote its config.yaml, which {sign}; "
            "resume it at the commit in its manifest.json"
        )


def _load_plugins(names: list[str], given: Sequence[Override]) -> None:
    """Load the plugins of the run. Naming the same ones on the command line confirms them."""
    said = [part for part in given if part.key_or_group == "plugins"]
    for part in said:
        if part.is_delete() or part.value() != names:
            raise ConfigError(_explain_kept(part.input_line))
    load_plugins(names, recorded=not said)


def remember(cfg: DictConfig) -> None:
    """Record what the user started as trusted, so that it can be resumed: see `trust`."""
    trust.remember(to_plain(cfg), hash_modules(list(cfg.plugins)))


def judge_address(cfg: DictConfig, url: str) -> None:
    """Raise for an address found in a folder (`url=auto`) that is not trusted: see `trust`."""
    config = trust.with_address(to_plain(cfg), url)
    recorded = cfg.resume is not None and cfg.rollout.engine.folder not in trust.SAID_FOLDERS
    trust.refuse_unsaid(config, recorded=recorded)


def remember_address(cfg: DictConfig, url: str) -> None:
    trust.remember(trust.with_address(to_plain(cfg), url), {})


def _explain_kept(text: str) -> str:
    return (
        f"{text}: a run that is resumed keeps it; only {_list_resumable()}, and where a server is "
        "asked may change; continue_from=RUN starts a new run from its weights"
    )


def _apply(cfg: DictConfig, override: Override, redacted: Sequence[str]) -> None:
    key, text = override.key_or_group, override.input_line
    top = re.split("[./]", key)[0]
    stays = (
        key == "run_dir" and Path(str(override.value())).resolve() == Path(cfg.run_dir).resolve()
    )
    repeats = key == "warm_start" and override.value() == cfg.warm_start  # to confirm its servers
    if top in ("hydra", "plugins", "resume") or stays or repeats:
        return
    from tandem.settings.settings import key_of  # a tenth of what --help takes

    keys = [*list_keys(cfg), *list_left_out_keys(cfg)]
    if "/" not in key and key not in [*keys, *cfg.choices]:
        raise ConfigError(unknown("key", key, keys))
    if override.is_sweep_override():
        raise ConfigError(f"{text}: several values need -m (a sweep), and a resumed run has one")
    may_change = key_of(key).resumable or ELSEWHERE.fullmatch(key) or key in redacted
    if not may_change or "/" in key or override.is_delete():
        raise ConfigError(_explain_kept(text))
    if TEACHERS.fullmatch(key) and not _moves(OmegaConf.select(cfg, key), override.value()):
        raise ConfigError(_explain_kept(text))
    for name in names_below(key, override.value(), cfg):
        if name not in keys and not is_entry(name, cfg):
            raise ConfigError(unknown("key", name, keys))
    if OmegaConf.is_dict(cfg.get(key)) and not isinstance(override.value(), dict):
        choose(cfg, override)
        return
    try:
        OmegaConf.update(cfg, key, override.value(), merge=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{text}: {str(error).splitlines()[0]}") from error


def _moves(old: object, new: object) -> bool:
    """Whether the teachers differ from those of the run only in addresses of servers."""
    match old, new:
        case Mapping(), Mapping():
            return all(_moves(old.get(source), place) for source, place in new.items())
    return old == new or (is_address(old) and is_address(new))


def _list_resumable() -> str:
    from tandem.settings.settings import KEYS, key_of

    of_groups = {x for x in KEYS if key_of(x.rpartition(".")[0]).resumable}
    return ", ".join(x for x in KEYS if KEYS[x].resumable and x not in of_groups)
