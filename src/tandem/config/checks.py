"""Checks of a configuration before weights are loaded, each failing with one line."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tandem.config import trust
from tandem.config.binding import Call, bind, bind_call
from tandem.config.building import make
from tandem.config.kinds import refuse_foreign_evaluation, refuse_foreign_steps
from tandem.config.names import ConfigError, UnknownKeyError, WrongValueError, nearest
from tandem.config.overrides import TOGETHER
from tandem.config.plain import (
    iterate_leaves,
    list_missing,
    reads_environment,
    source_of,
    target_of,
    to_plain,
)
from tandem.config.refusals import refusing
from tandem.config.remotes import remotes_can_be_asked
from tandem.config.targets import resolve
from tandem.config.values import refuse_empty
from tandem.contracts import bound_parts_of, facts_of, name_of, options_of
from tandem.legality import Case, check, check_kinds
from tandem.registry import declared
from tandem.settings.settings import COMPONENTS, Settings
from tandem.training.offload import OPTIMIZER
from tandem.types import CoupledBatch, DecoupledBatch, MatchingBatch, Rollout

# Fields that data, sampling strategies and the algorithm provide.
OWN = {"demonstrations", "pairs", "baseline", "returns", "version_gap"}
RECORDS = (CoupledBatch, DecoupledBatch, MatchingBatch, Rollout)  # that components read
LOGGED = {"likeliest"}  # that only metrics read, which are skipped without them
STAND_INS = ("UNSET", {"UNSET": "UNSET"}, ["UNSET"])  # for missing values
FOLDERS = ("run_dir", "sweep_dir", "cache_dir")  # that a run writes to
OPTIONAL = ("environment",)  # groups that may be empty
OF_EPISODES = {"turn", "feedback", "state"}  # fields that an environment provides
OF_SAMPLES = {"behaviour_logp", "key"}  # fields that rows of data lack


def check_config(cfg: DictConfig) -> Settings:
    """The settings of a configuration in which every call binds and no rule is broken.

    Raises ConfigError for the first rule that is broken.
    """
    _refuse_foreign_parts(cfg)
    case = _make_case_of_run(cfg)
    remote = remotes_can_be_asked({"reward": case.rewards, "rollout": case.rollout})
    for broken in chain(remote, check(case)):
        raise ConfigError(broken)
    _refuse_unmet_needs(case)
    return case.plan


def _make_case_of_run(cfg: DictConfig) -> Case:
    """The case of a new run, or of a recorded one, whose functions may have changed since."""
    try:
        return make_case(cfg)
    except WrongValueError as error:
        raise ConfigError(f"{source_of(cfg, error.key)}{error.reason}") from error
    except UnknownKeyError as error:
        if cfg.resume is None:
            raise
        raise ConfigError(
            f"{error}; the run was recorded with it: if the code renamed it, rename it in "
            f"{cfg.resume}/config.yaml too; if not, continue_from={cfg.resume} starts a new run "
            "from its weights"
        ) from error


def _refuse_foreign_parts(cfg: DictConfig) -> None:
    """Raise for parts of different kinds before values that one of them lacks are asked for."""
    missing = list_missing(cfg)
    for stand_in in STAND_INS if missing else ():
        filled = copy.deepcopy(cfg)
        for key in missing:
            OmegaConf.update(filled, key, stand_in)
        try:
            case = make_case(filled)
        except ConfigError:
            continue  # another type, or a contradiction that is found again with the value
        for broken in check_kinds(case):
            raise ConfigError(broken)
        return


def make_case(cfg: DictConfig) -> Case:
    """The case that rules examine, with every call bound to its signature. The algorithm is built,
    but no part that costs time or memory."""
    _refuse_secrets(cfg)
    _refuse_missing_groups(cfg)
    refuse_foreign_steps(cfg)
    refuse_foreign_evaluation(cfg)
    config = to_plain(cfg)
    for name in FOLDERS:
        refuse_empty(name, config.get(name))
    trust.refuse_unsaid(config, recorded=cfg.resume is not None)
    given = {name: value for name, value in config.items() if name not in COMPONENTS}
    bound = bind_call(Settings, given, "", partial=False)
    components = {group: _bind_component(config, group) for group in COMPONENTS}
    environment = components["environment"]
    for broken in remotes_can_be_asked({"environment": environment}):  # it is built below
        raise ConfigError(broken)
    return Case(
        # First, because the evaluation repeats some of its numbers.
        sampling=_make(components["rollout"]),
        plan=_make(bound),
        algorithm=_make(components["algorithm"]),
        rollout=components["rollout"],
        model=components["model"],
        environment=None if environment is None else _make(environment),
        data=components["data"],
        rewards=components["reward"],
        optimizer=components["optimizer"],
        schedule=components["schedule"],
        left_out=dict(_find_left_out(config["choices"])),
    )


def _find_left_out(choices: Mapping[str, str]) -> Iterator[tuple[str, Callable]]:
    """The chosen options, by group, whose part the model leaves out."""
    for group, name in choices.items():
        if "/" not in group:
            continue
        if (option := declared.options().get((group, name))) is not None:
            yield group, resolve(option.node["_target_"], group)
        elif name in options_of(group):
            yield group, options_of(group)[name]


def _make(call: Call) -> Any:
    with refusing():  # a record checks its own numbers
        return make(call)


def _bind_component(config: Mapping[str, Any], group: str) -> Any:
    """The call of a group's node; for groups with several options, the calls by name."""
    node = config.get(group)
    if group in OPTIONAL and not node:
        return None
    if group in TOGETHER and isinstance(node, Mapping):
        return {name: _bind(part, f"{group}.{name}") for name, part in node.items()}
    if target_of(node) is None:
        raise ConfigError(f"{group} is missing: choose one of the options of conf/{group}")
    return bind(node, group)


def _refuse_unmet_needs(case: Case) -> None:
    """Raise if the algorithm reads a field that the policy does not provide."""
    algorithm, policy = case.algorithm, _make(case.model)
    request = replace(algorithm.request(case.sampling), environment=case.environment)
    said = policy.describe(request)
    _refuse_absent(case.plan, said.offloads)
    if case.environment is not None:
        _refuse_environment(case, said.provides, sees=policy.sees)
    provided = said.provides - (OF_SAMPLES if case.is_offline else frozenset())
    if missing := sorted(algorithm.needs - provided - OWN - LOGGED):
        raise ConfigError(_explain_missing(case, missing, provided))


def _refuse_environment(case: Case, provided: frozenset[str], *, sees: bool) -> None:
    """Raise for an environment that the model cannot answer or see."""
    chosen = case.plan.choices
    if "turn" not in provided:
        raise ConfigError(
            f"environment={chosen['environment']} answers between moves, and "
            f"model={chosen['model']} makes only one move; set environment=none"
        )
    if case.environment.about.shows and not sees:
        raise ConfigError(
            f"environment={chosen['environment']} shows pictures, and model={chosen['model']} "
            "reads only texts; set model=tiny_vlm, or model=vlm with model.path"
        )


def _explain_missing(case: Case, missing: Sequence[str], provided: frozenset[str]) -> str:
    """The message about fields that nothing provides. Raises for a name that no record has."""
    chosen = case.plan.choices
    if "key" in missing and case.is_offline:
        return (
            f"algorithm/loss={name_of(case.loss)} draws steps by the sampling noise, and rows of "
            f"data={chosen['data']} were not sampled; set another algorithm/loss or an algorithm "
            "that samples"
        )
    if OF_EPISODES.issuperset(missing):
        parts = bound_parts_of(case.algorithm)
        readers = dict.fromkeys(name_of(x) for x in parts if facts_of(x).reads & {*missing})
        return (
            f"{' and '.join(readers)}, of algorithm={chosen['algorithm']}, needs the "
            f"{' and the '.join(missing)} of each move, and environment={chosen['environment']} "
            "has none; set data=hilo, another environment with states, or parts that do not need "
            "it, as algorithm=grpo has"
        )
    for name in missing:
        _refuse_unknown_field(name, provided)
    source = f"rows of data={chosen['data']}" if case.is_offline else f"model={chosen['model']}"
    fields = ", ".join(missing)
    return f"algorithm={chosen['algorithm']} needs {fields}, which {source} does not provide"


def _refuse_unknown_field(name: str, provided: frozenset[str]) -> None:
    """Raise for a name in `reads` that no record has."""
    known = provided | OWN | LOGGED | OF_EPISODES | OF_SAMPLES
    known |= {one.name for record in RECORDS for one in fields(record)}
    if name not in known:
        meant = nearest(name, sorted(known))
        said = "read a data field through a reward of weight 0, scores.reward(NAME)"
        said = said if meant is None else f"did you mean {meant!r}?"
        raise ConfigError(f"reads={{{name!r}}}: no record has such a field; {said}")


def _refuse_absent(plan: Settings, parts: frozenset[str]) -> None:
    """Raise for a part in trainer.offload that the run does not have."""
    there = sorted({*parts, OPTIMIZER})
    for name in plan.trainer.offload:
        if name not in there:
            raise ConfigError(
                f"trainer.offload={plan.trainer.offload}: model={plan.choices['model']} under "
                f"algorithm={plan.choices['algorithm']} has no {name} beside its weights; set "
                f"trainer.offload to {' or '.join(there)}"
            )


def _bind(node: Any, where: str) -> Call:
    if target_of(node) is not None:
        return bind(node, where)
    raise ConfigError(f"{where}: expected a node with _target_, like the options of its group")


def _refuse_missing_groups(cfg: DictConfig) -> None:
    for group in ("model", "dynamics", "rollout", "algorithm", "reward"):
        if not isinstance(cfg.get(group), DictConfig) or cfg[group] == {}:
            raise ConfigError(f"{group} is missing: choose one of the options of conf/{group}")


def _refuse_secrets(cfg: DictConfig) -> None:
    """Raise for a value from the environment, since the run records resolved values."""
    for key, value in iterate_leaves(cfg):
        if isinstance(value, str) and reads_environment(value):
            raise ConfigError(f"{key}: only PROJECT_ROOT may be read from the environment")
