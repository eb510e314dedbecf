"""Values of a command line, with checks that the composed configuration has their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf

from tandem.config.absent import any_of, list_bringing, list_functions_having, list_having
from tandem.config.arguments import is_open, list_left_out, list_left_out_keys
from tandem.config.entries import is_entry, is_open_mapping
from tandem.config.names import ALIASES, ConfigError, nearest, unknown
from tandem.config.overrides import TOGETHER, Menu, refuse_wrong_options
from tandem.config.own_targets import conf_folder
from tandem.config.plain import FILLED_IN, source_of


def of_reward(override: Override, base: DictConfig) -> Override:
    """The override with `reward.places.extra` as a number of the function in `reward.places`, if
    that has one of this name, or if the override adds one."""
    group, name, *inner = [*override.key_or_group.split("."), "", ""]
    node = OmegaConf.select(base, f"{group}.{name}") if group == "reward" and name else None
    if (
        not isinstance(node, DictConfig)
        or inner[0] in ("", *node, *list_left_out(node))
        or "function" not in node
    ):
        return override
    function = node.function
    known = [*(function if isinstance(function, DictConfig) else ()), *list_left_out(function)]
    if inner[0] not in known and not _is_added(override):
        return override
    key = ".".join([group, name, "function", *filter(None, inner)])
    return replace(override, key_or_group=key)


def refuse_dotted_parts(base: DictConfig) -> None:
    """Raise for a part, such as a reward, in whose name a dot would separate keys."""
    for group in TOGETHER:
        for name in base.get(group) or ():
            if "." in name:
                raise ConfigError(
                    f"{group}.{name}: a dot separates keys, so no key of {name} could be set; name "
                    f"it {name.replace('.', '_')}"
                )


def refuse_deleted_key(override: Override, base: DictConfig, deleted: Mapping[str, str]) -> None:
    """Raise for a key that a file deletes, such as one of pictures in a run of tokens."""
    key = override.key_or_group
    for place, file in deleted.items():
        if f"{key}.".startswith(f"{place}.") and OmegaConf.select(base, place) is None:
            kind = file.rpartition("/")[2].removeprefix("_")
            raise ConfigError(
                f"{key}: {kind} models have no {place}; leave it out, or set model= to one of "
                "another kind"
            )


def refuse_unknown_key(override: Override, base: DictConfig, menu: Menu) -> None:
    """Raise if `base`, composed of the choices alone, has no such key."""
    key, text = override.key_or_group, override.input_line
    if override.is_sweep_override():
        listed = f", or {key}=[a,b]" if OmegaConf.is_list(OmegaConf.select(base, key)) else ""
        raise ConfigError(f"{text}: several values need -m (a sweep){listed}")
    if key.partition(".")[0] in FILLED_IN:
        raise ConfigError(f"{text}: a run fills it in by itself; leave it out")
    keys = list_keys(base)
    if key in keys and override.is_add():
        raise ConfigError(f"{text}: {key} already exists; write {text.lstrip('+')}")
    value = None if override.is_delete() else override.value()
    _refuse_dotted_choice(key, value, menu)
    for name in (key, *names_below(key, value, base)):
        _refuse_copy(text, name, base)
        if name not in keys and not _may_be_added(override, name, base):
            _refuse_missing_plus(override, name, base)
            _refuse_unchosen(name, menu, keys)
            _refuse_part_alone(name, value, menu)
            keys += list_left_out_keys(base)
            near = [k for k in keys if k.startswith("hydra.") == name.startswith("hydra.")]
            _refuse_part_of_others(name, menu, near)
            _refuse_key_of_unchosen(name, base, menu, keys)
            _refuse_part_of_nothing(name, base, keys)
            if nearest(name, near) is None:
                _refuse_key_of_other_functions(name, base, menu)
            raise ConfigError(unknown("key", name, near))


def _refuse_copy(text: str, key: str, base: DictConfig) -> None:
    """Raise for a key of the rollout that repeats one that other parts read too."""
    if key.startswith("rollout.") and (source := source_of(base, key)) != key:
        raise ConfigError(f"{text}: {key} repeats {source}, which other parts read; set that")


def _may_be_added(override: Override, name: str, base: DictConfig) -> bool:
    if is_left_out(name, base):
        if override.is_delete():
            raise ConfigError(f"{override.input_line}: {name} is at its default already")
        return True
    in_braces = name != override.key_or_group  # the value is merged into the mapping
    return (_is_added(override) and _may_grow(base, name)) or (
        (_is_added(override) or in_braces) and is_entry(name, base)
    )


def _refuse_missing_plus(override: Override, key: str, base: DictConfig) -> None:
    """Raise for a new entry without a plus, unless it may be an existing one, misspelt."""
    parent, _, name = key.rpartition(".")
    if override.is_delete() or not is_entry(key, base):
        return
    if nearest(name, list(_node(base, parent))) is None:
        text = override.input_line
        raise ConfigError(f"unknown key {key!r}: to add it to {parent}, write +{text}")


def is_left_out(key: str, base: DictConfig) -> bool:
    """Whether a key is an argument that its file leaves at the default of the function."""
    parent, _, name = key.rpartition(".")
    node = _node(base, parent) if parent else None
    return name in list_left_out(node)


def _node(base: DictConfig, key: str) -> object:
    """The node at a key; None if it cannot be resolved yet, like the name of a run."""
    return OmegaConf.select(base, key, throw_on_resolution_failure=False)


def as_argument(override: Override, base: DictConfig) -> Override:
    """The override, added if its key, or a key in its value, need not exist yet."""
    key = override.key_or_group
    node = _node(base, key)
    of_call = isinstance(node, DictConfig) and "_target_" in node
    if override.is_delete():
        return override
    in_braces = isinstance(override.value(), dict)
    if of_call or is_left_out(key, base) or (in_braces and is_open_mapping(key, base)):
        return replace(override, type=OverrideType.FORCE_ADD)
    return override


def _refuse_unchosen(key: str, menu: Menu, keys: Sequence[str]) -> None:
    group, option, *_ = [*key.split("."), ""]
    if option in menu.get(group, ()) and f"{group}.{option}" not in keys:
        raise ConfigError(f"unknown key {key!r}: it comes with {group}={option}")


def _refuse_part_of_others(key: str, menu: Menu, keys: Sequence[str]) -> None:
    """Raise for a key, or a key of a part, that only other options of the group have."""
    group, part, *_ = [*key.split("."), ""]
    if group not in menu or f"{group}.{part}" in keys:
        return
    if having := list_having(part, conf_folder() / group):
        named = "it" if key == f"{group}.{part}" else f"{group}.{part}"
        raise ConfigError(
            f"unknown key {key!r}: {named} belongs to {group}={any_of(having)}, not to the chosen "
            "option"
        )


def _refuse_key_of_other_functions(key: str, base: DictConfig, menu: Menu) -> None:
    """Raise for a key that other functions of the group take, such as the clip of another loss."""
    parent, _, name = key.rpartition(".")
    group, node = parent.replace(".", "/"), _node(base, parent) if parent else None
    if group not in menu or name in ALIASES or not isinstance(node, DictConfig):
        return
    if having := list_functions_having(name, group, conf_folder()):
        chosen = str(node.get("_target_", "the chosen option")).rpartition(".")[2]
        raise ConfigError(
            f"unknown key {key!r}: it belongs to {group}={any_of(having)}, not to {chosen}"
        )


def _refuse_key_of_unchosen(key: str, base: DictConfig, menu: Menu, keys: Sequence[str]) -> None:
    """Raise for a key of a part that is null or absent, with the options that bring the key."""
    parent, _, rest = key.rpartition(".")
    if parent and _node(base, parent) is not None:
        return
    while parent:
        group = parent.replace(".", "/")
        if group in menu and (having := list_bringing(rest, group, conf_folder())):
            chosen = f"{group}={any_of(having)}"
            if "/" in group and parent not in keys:  # as the kind of model decides
                chosen += f", and this run has no {parent}"
            raise ConfigError(f"unknown key {key!r}: it comes with {chosen}")
        parent, _, last = parent.rpartition(".")
        rest = f"{last}.{rest}"


def _refuse_part_of_nothing(key: str, base: DictConfig, keys: Sequence[str]) -> None:
    parent, _, name = key.rpartition(".")
    if parent in keys and OmegaConf.select(base, parent) is None:
        raise ConfigError(f"{key}: {parent} is null; give it as a whole, {parent}={{{name}:...}}")


def _refuse_dotted_choice(key: str, value: object, menu: Menu) -> None:
    """Raise for `algorithm.loss=ppo`, which would replace a function by a word."""
    group = key.replace(".", "/")
    if "." in key and group in menu and isinstance(value, str):
        refuse_wrong_options(group, value, menu)
        raise ConfigError(f"{key}={value}: an option is chosen with a slash; write {group}={value}")


def _refuse_part_alone(name: str, option: object, menu: Menu) -> None:
    """Raise for `loss=ppo`, which lacks the parent group."""
    groups = [g for g in menu if g.endswith(f"/{name}") and option in menu[g]]
    if len(groups) == 1:
        raise ConfigError(f"unknown key {name!r}: write {groups[0]}={option}")


def names_below(key: str, value: object, base: DictConfig) -> list[str]:
    """The keys that a mapping such as `checkpoints={every:5}` sets in an existing one."""
    if not isinstance(value, dict):
        return []
    node = OmegaConf.select(base, key)
    if not isinstance(node, DictConfig) or "_target_" in node:
        return []
    return [f"{key}.{name}" for name in value]


def _is_added(override: Override) -> bool:
    return override.is_add() or override.is_force_add()


def _may_grow(base: DictConfig, key: str) -> bool:
    """Whether a key may be an argument that its YAML leaves out; binding checks it."""
    parent, _, _ = key.rpartition(".")
    node = OmegaConf.select(base, parent) if parent else None
    return key.startswith("hydra.") or (isinstance(node, DictConfig) and "_target_" in node)


def list_keys(cfg: DictConfig, prefix: str = "") -> list[str]:
    """Every key of a configuration, inner nodes included, as written on the command line."""
    found = []
    for name in cfg:
        key = f"{prefix}{name}"
        if not str(name).startswith("_"):
            found.append(key)
        node = cfg._get_node(name)
        if is_open(node):
            found += list_keys(node, f"{key}.")
    return found


def refuse_empty(name: str, folder: object) -> None:
    """Raise ConfigError for an empty folder name, which would mean the working directory."""
    if folder == "":
        raise ConfigError(f"{name}='': give a folder; {name}=. is the one that you are in")
