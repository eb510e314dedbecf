"""A plugin's part is admitted, refused and swept like the built-in one of its kind."""

import shlex
import sys
import types
from dataclasses import fields, replace
from functools import partial
from itertools import product

import pytest
from gate import each
from legality import GROUPS as OF_PAGE

from tandem.advantages.group import unbiased_std
from tandem.config import ConfigError, build, check, compose
from tandem.config.checks import make_case
from tandem.contracts import REGISTERED, Facts, Registrar, facts_of, options_of
from tandem.legality import check as complaints
from tandem.legality.units import warning
from tandem.losses.policy import ppo
from tandem.rewards.text import exact_match

pytestmark = pytest.mark.usefixtures("unregistered")

# Arguments without a default, or without one that can be checked.
NUMBERS = {"k": 2, "scale": unbiased_std, "length": 8, "max_rounds": 2, "limit": 9, "buffer": 3}
MADE = {"loss": ppo, "delta": 0.1, "of": None, "shares": {}, "reprompt": None}  # of classes
GROUPS = [group for group in OF_PAGE if group != "kl"]  # it is nested in a coefficient
COMPOSITIONS = (
    "algorithm=grpo group_size=1",
    "algorithm=dapo group_size=4 algorithm/truncation_handling=penalise",
    "algorithm=gspo",
    "algorithm=opo num_minibatches=4 algorithm/kl=in_reward algorithm.kl.coef=0.1",
    "algorithm=remax",
    "algorithm=sft algorithm.normalize_advantages=true",
    "algorithm=dpo data=sort_pairs",
    "algorithm=dpo data=sort_ladder algorithm/truncation_handling=penalise",
    "algorithm=kto data=sort_pairs",
    "algorithm=grpo algorithm/importance_sampling=token_tis",
    "algorithm=grpo algorithm/old_logprobs=rollout",
    "algorithm=grpo algorithm/old_logprobs=current",
    "algorithm=maxrl algorithm/sampling_strategy=remax",
    "model=tiny_flow algorithm=tempflow_grpo",
    "model=tiny_flow algorithm=grpo_guard dynamics=cps",
    "model=tiny_flow algorithm=dpo_online dynamics=ode",
    "model=tiny_flow algorithm=nft",
    "model=tiny_flow algorithm=dgpo algorithm.timestep_sampling.shared=false",
    "model=tiny_flow algorithm=diffusion_opd 'algorithm.teachers.folders={others: runs/x}'",
    "model=tiny_flow algorithm=sft dynamics=ode",
)


def twin(name, component):
    """A copy of the code under another name in a module outside the package."""
    own = f"my_{name}"
    if isinstance(component, type):
        copy = type(own, (component,), {"__module__": "twins"})
        copy.__qualname__ = own
    else:
        code, scope = component.__code__.replace(co_filename="twins.py"), component.__globals__
        copy = types.FunctionType(code, scope, own, component.__defaults__, component.__closure__)
        copy.__kwdefaults__, copy.__annotations__ = component.__kwdefaults__, {}
        copy.__module__, copy.__qualname__ = "twins", own
    return own, copy


def register(group):
    """name -> a built-in component and its twin, registered by the decorator of the group."""
    pairs = {}
    for name, component in options_of(group).items():
        facts = facts_of(component)
        said = {f.name: getattr(facts, f.name) for f in fields(Facts) if f.name != "option"}
        own, copy = twin(name, component)
        pairs[name] = component, Registrar(group)(own, **said)(copy)
    return pairs


def bind_required(component):
    """The component with its required arguments."""
    if isinstance(component, type):
        names = component.__init__.__annotations__ or component.__init__.__code__.co_varnames
        return component(**{name: x for name, x in MADE.items() if name in names})
    names = component.__code__.co_varnames
    return partial(component, **{name: x for name, x in NUMBERS.items() if name in names})


def first(case):
    return next(complaints(case), None)


@pytest.fixture(scope="module")
def cases():
    return {line: make_case(compose([*shlex.split(line), "~recipe"])) for line in COMPOSITIONS}


def outcomes(group, cases, put, half):
    """(complaint about a built-in component, that about its twin under the former's name), of each
    component in one half of the cases, and of its neighbour in the other."""
    for place, (name, pair) in enumerate(register(group).items(), half):
        for line, case in [*cases.items()][place % 2 :: 2]:
            said, of_twin = (first(put(case, part)) for part in pair)
            own = None if of_twin is None else of_twin.replace(f"my_{name}", name)
            yield (name, line, said), (name, line, own)


@pytest.mark.parametrize(("group", "half"), each(2, product(GROUPS, (0, 1))))
def test_the_parts_of_an_algorithm_are(group, half, cases):
    def put(case, part):
        return replace(case, algorithm=replace(case.algorithm, **{group: bind_required(part)}))

    said = list(outcomes(f"algorithm/{group}", cases, put, half))
    assert [own for own, _ in said] == [own for _, own in said]
    assert len({own[2] for own, _ in said}) > 5, "hardly anything was refused"


@pytest.mark.parametrize("half", each(2, (0, 1)))
def test_distances_are(half, cases):
    def put(case, part):
        kl = case.algorithm.kl
        own = part(coef=0.1) if isinstance(part, type) else None
        own = own or type(cases[COMPOSITIONS[0]].algorithm.kl)(coef=0.1, loss=bind_required(part))
        return replace(case, algorithm=replace(case.algorithm, kl=own)) if kl else case

    said = list(outcomes("algorithm/kl", cases, put, half))
    assert [own for own, _ in said] == [own for _, own in said]


def test_rewards_are(cases):
    case = cases["model=tiny_flow algorithm=nft"]
    own, copy = twin("exact_match", exact_match)
    Registrar("reward")(own, judges="texts")(copy)
    said = []
    for function in (exact_match, copy):
        part = types.SimpleNamespace(target=function)
        reward = types.SimpleNamespace(arguments={"function": part})
        said.append(first(replace(case, rewards={"mine": reward})))
    assert said[0] == said[1]
    assert said[0].startswith("reward.mine reads texts")


PLUGIN = """
from typing import Annotated

from tandem.contracts import above, at_least, between
from tandem.losses import policy, sequence
from tandem.advantages import group
from tandem import register_adv_estimator, register_policy_loss
from tandem.contracts import register_likelihood
from tandem.dynamics import likelihood

CLIPS = {"clip_low": "clip", "clip_high": "clip", "ratio_max": "ratio"}


@register_policy_loss(
    reads={"old_logp"}, per="sample", clips=1.5e-3,
    units={"clip_low": "sequence", "clip_high": "sequence"},
)
def my_gspo(
    batch, *, clip_low: Annotated[float, between(0, 1)] = 3e-4, clip_high: float = 4e-4
):
    return sequence.gspo(batch, clip_low=clip_low, clip_high=clip_high)


@register_policy_loss(reads={"old_logp"}, clips=1.0, units=CLIPS)
def my_ppo(batch, *, clip_low: float = 0.2, clip_high: float = 0.2, ratio_max: float | None = None):
    return policy.ppo(batch, clip_low=clip_low, clip_high=clip_high)


@register_adv_estimator(compares="group")
def my_relative(scores, rollout):
    return group.leave_one_out(scores, rollout)


@register_policy_loss
def silent(batch, *, width: Annotated[float, above(0)] = 0.2):
    return -batch.advantages * width * batch.logp


@register_likelihood(unscaled=True, clip_scale=0.013)
def my_unscaled(next_x, step, *, factor: Annotated[float, above(0)] = 1.0):
    return factor * likelihood.unscaled_logp(next_x, step)


@register_likelihood
def without_scale(next_x, step):
    return likelihood.unscaled_logp(next_x, step)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "judged_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "plugins=[judged_plugin]"
    sys.modules.pop("judged_plugin", None)


def refusal(plugin, line):
    try:
        check(compose([plugin, *shlex.split(line), "~recipe"]))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("built_in", "own"),
    [
        ("algorithm=gspo algorithm/weights=token_mean", "algorithm/loss=my_gspo"),
        ("algorithm=rloo group_size=1", "algorithm/advantage=my_relative"),
        ("algorithm=gspo algorithm.loss.clip_low=1.5", "algorithm/loss=my_gspo"),
        (
            "model=tiny_flow algorithm=grpo_guard dynamics/logp=unscaled",
            "dynamics/logp=my_unscaled",
        ),
    ],
)
def test_a_command_line_with_a_plugin_s_part_is_refused_by_the_same_sentence(built_in, own, plugin):
    said = refusal(plugin, built_in)
    names = ("gspo", "leave_one_out", "unscaled")
    of_plugin = refusal(plugin, f"{built_in} {own}")
    for name, twin_name in zip(names, ("my_gspo", "my_relative", "my_unscaled"), strict=True):
        of_plugin = of_plugin.replace(twin_name, name)
    assert said == of_plugin is not None


@pytest.mark.parametrize(
    ("built_in", "own"),
    [
        ("algorithm=grpo", "algorithm/loss=my_ppo"),
        ("algorithm=gspo", "algorithm/loss=my_gspo"),
        ("model=tiny_flow algorithm=flow_grpo", "algorithm/loss=my_ppo"),
    ],
)
def test_the_clips_of_a_plugin_s_loss_are_swept_in_its_unit(built_in, own, plugin):
    swept = "algorithm.loss.clip_low=${clip_ratio:0.2}"
    numbers = [
        build(compose([plugin, *shlex.split(line), "~recipe", swept]).algorithm.loss).keywords
        for line in (built_in, f"{built_in} {own}")
    ]
    assert numbers[0]["clip_low"] == numbers[1]["clip_low"] > 0


def test_a_plugin_s_numbers_come_in_the_units_of_the_dynamics(plugin):
    own = compose([plugin, "model=tiny_flow", "algorithm=grpo", "algorithm/loss=my_ppo", "~recipe"])
    built_in = compose(["model=tiny_flow", "algorithm=grpo", "~recipe"])
    assert own.algorithm.loss.clip_low == built_in.algorithm.loss.clip_low < 0.05


def test_the_clips_of_a_plugin_s_log_probability_come_in_its_scale(plugin):
    def of(*words):
        words = ("model=tiny_flow", "algorithm=flow_grpo", *words)
        return compose([plugin, *words, "~recipe"])

    own, built_in = (of(f"dynamics/logp={name}") for name in ("my_unscaled", "unscaled"))
    assert own.algorithm.loss.clip_low == built_in.algorithm.loss.clip_low
    assert own.algorithm.loss.clip_low < of().algorithm.loss.clip_low / 5  # that of a density
    check(of("dynamics/logp=my_unscaled", "dynamics.logp.factor=2"))
    with pytest.raises(ConfigError, match=r"^dynamics.logp.factor=0.0: must be positive"):
        check(of("dynamics/logp=my_unscaled", "dynamics.logp.factor=0"))
    with pytest.raises(ConfigError, match=r"^dynamics.step_clip_scale is not set: add"):
        check(of("dynamics/logp=without_scale"))
    check(of("dynamics/logp=without_scale", "dynamics.step_clip_scale=0.01"))


def test_a_number_without_a_unit_is_named_where_a_flow_is_trained(plugin):
    def said(*words):
        case = make_case(compose([plugin, *words, "~recipe"]))
        return warning(case.algorithm, case.plan)

    own = ("algorithm=grpo", "algorithm/loss=silent")
    assert "algorithm.loss.width=0.2 of silent has no unit" in said("model=tiny_flow", *own)
    assert said(*own) is None
    assert said("model=tiny_flow", "algorithm=grpo") is None


def test_every_number_of_a_built_in_loss_has_a_unit():
    for name, loss in options_of("algorithm/loss").items():
        numbers = {} if isinstance(loss, type) else dict(loss.__kwdefaults__ or {})
        real = {n for n, x in numbers.items() if isinstance(x, float) or n == "ratio_max"}
        assert real <= facts_of(loss).units.keys(), name
    assert ("algorithm/loss", "ppo") in REGISTERED
