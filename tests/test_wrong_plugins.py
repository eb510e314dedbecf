"""Parts from outside the package that are wrong end the run in one line that names them."""

import sys

import pytest
import torch
from gate import each
from written_plugin import words_of

import tandem
from tandem.config import ConfigError, check, compose
from tandem.contracts.outputs import COMPARED

pytestmark = pytest.mark.usefixtures("unregistered")

ROWS = """
from dataclasses import replace

import torch
from tandem import register_truncation
from tandem.types import take

@register_truncation
def writing(scores, rollout):
    scores.total.add_(1)
    return scores, rollout

@register_truncation
def alone(scores, rollout):
    return scores

@register_truncation
def whole(scores, rollout):
    return replace(scores, total=scores.total.long()), rollout

@register_truncation
def counted(scores, rollout):
    return scores, replace(rollout, mask=rollout.mask.float())

@register_truncation
def misaligned(scores, rollout):
    return take(scores, torch.arange(len(scores.total) - 1)), rollout

@register_truncation
def shorter(scores, rollout):
    kept = torch.arange(len(scores.total) - 1)
    return take(scores, kept), take(rollout, kept)
"""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("writing", "which others read; compute a tensor of its own"),
        ("alone", "returned Scores; return (scores, rollout)"),
        ("misaligned", "returned 15 scores of 16 rows"),
        ("whole", "returned a Scores.total of torch.int64; return float32"),
        ("counted", "returned a Rollout.mask of torch.float32; return bool"),
    ],
)
def test_a_truncation_handling_that_returns_something_else_than_shaped_rows(plugin, name, fault):
    said = words_of(plugin(ROWS), f"algorithm/truncation_handling={name}")
    assert f"{name} at wrong.py:" in said and said.endswith(fault)


def test_a_truncation_handling_may_leave_out_rows(plugin):
    result = tandem.train(*plugin(ROWS), "algorithm/truncation_handling=shorter")
    assert result.metrics["optim/updates"] == 1


MEASURED = """
from tandem import register_correction, register_policy_loss
from tandem.metrics import masked_mean
def measured(batch):
    return VALUE

@register_policy_loss(reads={"old_logp"}, metrics=measured)
def loss(batch):
    return -(batch.logp - batch.old_logp).exp() * batch.advantages

@register_correction(reads={"behaviour_logp"}, metrics=measured)
def correction(batch):
    return (batch.logp - batch.behaviour_logp).detach().exp()
"""
AS_RECORD = "return actor/x as a record of tandem.metrics, such as masked_mean(x, batch.mask)"


@pytest.mark.parametrize(
    ("word", "value", "fault"),
    [
        ("loss=loss", '{"actor/x": 1.0}', f"returned a float; {AS_RECORD}"),
        ("loss=loss", '{"actor/x": batch.logp.mean()}', f"returned torch.float32 []; {AS_RECORD}"),
        ("loss=loss", "None", "returned a NoneType; return a dict of names to records of tandem.m"),
        ("importance_sampling=correction", '{"actor/x": 1}', f"returned a int; {AS_RECORD}"),
    ],
)
def test_metrics_of_a_loss_or_a_correction_are_records(plugin, word, value, fault):
    said = words_of(plugin(MEASURED.replace("VALUE", value)), f"algorithm/{word}")
    assert said.startswith(f"measured at wrong.py:4 {fault}")


@pytest.mark.parametrize("part", each(2, ["loss", "importance_sampling"]))
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Max(batch.logp.amax(1))", "a Max of torch.float32 ["),
        ("Sum(batch.logp, batch.mask.sum())", "a Sum of torch.float32 ["),
        ("Sum(None, batch.mask.sum())", "a Sum of a NoneType"),
    ],
)
def test_records_of_metrics_hold_scalars(plugin, part, value, shown):
    name = {"loss": "loss"}.get(part, "correction")
    text = MEASURED.replace("VALUE", f'{{"actor/x": {value}}}')
    text = text.replace("import masked_mean", "import Max, Sum")
    said = words_of(plugin(text), f"algorithm/{part}={name}")
    assert said.startswith(f"{name} at wrong.py:") and f" measures 'actor/x' as {shown}" in said
    assert said.endswith("; give it scalars, such as x.sum() or x.max()")


def test_scalars_of_metrics_may_be_numbers(plugin):
    counts = '{"actor/x": Sum(batch.mask.sum(), len(batch.mask)), "actor/y": Max(1.5)}'
    text = MEASURED.replace("VALUE", counts).replace("import masked_mean", "import Max, Sum")
    metrics = tandem.train(
        *plugin(text), "algorithm/loss=loss", "max_tokens_per_microbatch=40"
    ).metrics
    assert metrics["actor/x"] == metrics["response/length_mean"] and metrics["actor/y"] == 1.5


TWICE = """
import torch
from tandem import register_sampling_strategy
from tandem.types import take

@register_sampling_strategy
def twice(source, prompts):
    rows = torch.arange(16).repeat(2)
    return [take(one, rows) for one in source.sample(prompts)]
"""


def test_a_sampling_strategy_returns_no_row_twice(plugin):
    said = words_of(plugin(TWICE), "algorithm/sampling_strategy=twice")
    assert said == (
        "sampling strategy twice at wrong.py:6 returned 32 rows to train on and took 16: row 16 "
        "is row 0 again; return each row once"
    )


LOGGED = """
from tandem import register_sampling_strategy

@register_sampling_strategy
def strategy(source, prompts):
    rollout, scores = source.sample(prompts)
    source.log({"actor/x": VALUE})
    return rollout, scores
"""


@pytest.mark.parametrize(
    ("value", "kind"), [("0.5", "float"), ("scores.total.mean()", "Tensor"), ("(1, 2)", "tuple")]
)
def test_metrics_of_a_sampling_strategy_are_records(plugin, value, kind):
    said = words_of(plugin(LOGGED.replace("VALUE", value)), "algorithm/sampling_strategy=strategy")
    assert said == (
        f"source.log: actor/x is a {kind}; log a record of tandem.metrics, such as "
        "masked_mean(x, rollout.mask)"
    )


@pytest.mark.parametrize(
    ("first", "second", "fault"),
    [
        ("0.5", "0.25", "is a float; log a record of tandem.metrics, such as masked_mean("),
        ("Max(scores.total.max())", "0.25", "is a float; log a record of tandem.metrics, "),
        ("Max(scores.total.max())", "Min(scores.total.min())", "is a Max, and then a Min; log "),
        ("Max(scores.total)", "Max(scores.total)", "is a Max of torch.float32 [16]; log scalars"),
    ],
)
def test_what_is_logged_twice_in_an_iteration_is_one_kind_of_record(plugin, first, second, fault):
    line = '    source.log({"actor/x": VALUE})\n'
    text = LOGGED.replace(line, line.replace("VALUE", first) + line.replace("VALUE", second))
    text = f"from tandem.metrics import Max, Min\n{text}"
    said = words_of(plugin(text), "algorithm/sampling_strategy=strategy")
    assert said.startswith(f"source.log: actor/x {fault}")


ELSEWHERE = """
from tandem import register_policy_loss, register_sampling_strategy
from tandem.metrics import masked_mean

@register_policy_loss(
    reads={"old_logp"}, metrics=lambda batch: {"NAME": masked_mean(batch.logp, batch.mask)}
)
def loss(batch):
    return -(batch.logp - batch.old_logp).exp() * batch.advantages

@register_sampling_strategy
def strategy(source, prompts):
    rollout, scores = source.sample(prompts)
    source.log({"NAME": masked_mean(scores.total, scores.scored)})
    return rollout, scores
"""
TAKEN = "which is another metric's name; choose one of its own"
RESERVED = (
    "which is no name of a component's; name it as actor/x, in none of the groups that the run "
    "fills itself, such as loss, reward and eval, and without spaces"
)
BOTH = (
    "twice, by a component and by the run itself or another component; give that of your component "
    "another name"
)


@pytest.mark.parametrize(
    ("part", "name", "fault"),
    [
        ("loss=loss", "actor/nll", f"loss at wrong.py:5 measures 'actor/nll', {TAKEN}"),
        ("loss=loss", "loss/policy", f"loss at wrong.py:5 measures 'loss/policy', {RESERVED}"),
        ("loss=loss", "iteration", f"loss at wrong.py:5 measures 'iteration', {RESERVED}"),
        (
            "loss=loss",
            "time/iteration",
            f"loss at wrong.py:5 measures 'time/iteration', {RESERVED}",
        ),
        ("loss=loss", " eval/x", f"loss at wrong.py:5 measures ' eval/x', {RESERVED}"),
        ("loss=loss", "staleness/gap", f"measures 'staleness/gap', {RESERVED}"),
        ("loss=loss", "optim/lr", f"metric 'optim/lr' is measured {BOTH}"),
        ("loss=loss", "optim/grad_norm", f"metric 'optim/grad_norm' is measured {BOTH}"),
        ("loss=loss", "actor/adv_mean", f"metric 'actor/adv_mean' is measured {BOTH}"),
        (
            "sampling_strategy=strategy",
            "eval/x",
            f"strategy at wrong.py:11 measures 'eval/x', {RESERVED}",
        ),
        ("sampling_strategy=strategy", "reward/faults", f"measures 'reward/faults', {RESERVED}"),
        ("sampling_strategy=strategy", "actor/nll", f"metric 'actor/nll' is measured {BOTH}"),
    ],
)
def test_a_metric_of_a_component_replaces_none_of_the_run(plugin, part, name, fault):
    said = words_of(plugin(ELSEWHERE.replace("NAME", name)), f"algorithm/{part}")
    assert said.endswith(fault)


OTHER_FORM = """
from tandem import register_policy_loss

@register_policy_loss
def loss(old_logp, logp, advantages, mask):
    return -((logp - old_logp).exp() * advantages)[mask].mean(), {"nll": 1.0}
"""


def test_a_metric_of_a_loss_in_another_form_is_told_with_its_place(plugin):
    said = words_of(plugin(OTHER_FORM), "algorithm/loss=loss", "algorithm/importance_sampling=none")
    assert said == f"loss at wrong.py:4 measures 'actor/nll', {TAKEN}"


DISTANCE = """
from tandem import register_kl
from tandem.metrics import masked_mean

@register_kl(
    reads={"old_logp"}, metrics=lambda batch: {"actor/gap": masked_mean(batch.logp, batch.mask)}
)
def distance(batch):
    return (batch.logp - batch.old_logp).square()
"""


def test_a_loss_of_two_terms_has_its_metrics_twice(plugin, tmp_path):
    mine = (
        "defaults: [awm, override kl: distance, _self_]\nema_kl: {loss: {_target_: wrong.distance}}"
    )
    plugin(DISTANCE, algorithm__mine=mine)
    words = [
        "plugins=[wrong]", "model=tiny_flow", "algorithm=mine", "algorithm.kl.coef=0.1",
        "iterations=1", "prompts_per_step=2", "group_size=2", "evaluation.every=null",
        "rollout.steps=4", "warm_start=null", "~recipe", "reward=jpeg_compressibility",
        f"run_dir={tmp_path}/run",
    ]  # fmt: skip
    metrics = tandem.train(*words).metrics
    assert metrics["actor/gap"] == metrics["actor/gap.ema_kl"]


STEPS = """
import itertools
from dataclasses import replace

import torch
from tandem import register_dynamics, register_noise_schedule
from tandem.contracts.registration import register_stochastic_steps
from tandem.dynamics.kernels import sde_step

calls = itertools.count(1)

def sde(x, velocity, sigma, next_sigma, **changed):
    step = sde_step(x, velocity, sigma, next_sigma, 0.5 * sigma.double())
    return replace(step, **{name: change(getattr(step, name)) for name, change in changed.items()})

@register_noise_schedule
def listed(steps, tokens):
    return torch.linspace(1, 0, steps + 1).tolist()

@register_noise_schedule
def nested(steps, tokens):
    return torch.linspace(1, 0, steps + 1)[None]

@register_noise_schedule
def rising(steps, tokens):
    levels = torch.linspace(1, 0, steps + 1)
    levels[2] = 0.95
    return levels

@register_noise_schedule
def repeated(steps, tokens):
    levels = torch.linspace(1, 0, steps + 1)
    levels[2] = levels[1]
    return levels

@register_noise_schedule
def short(steps, tokens):
    return torch.linspace(1, 0, steps)

@register_noise_schedule
def drifting(steps, tokens):
    return torch.linspace(1, 0, steps + 1) ** next(calls)

@register_noise_schedule
def of_ten(steps, tokens):
    return torch.linspace(1, 0, 11)

@register_noise_schedule
def tabled(steps, tokens):
    return {10: torch.linspace(1, 0, 11)}[steps]

@register_stochastic_steps
def with_last(steps, iteration, seed):
    return tuple(range(steps))

@register_stochastic_steps
def unsorted(steps, iteration, seed):
    return (2, 0)

@register_stochastic_steps
def none_at_all(steps, iteration, seed):
    return ()

@register_stochastic_steps
def counting(steps, iteration, seed):
    return (next(calls) % (steps - 1),)

@register_stochastic_steps
def nowhere(steps, iteration, seed):
    return None

@register_dynamics(of_sde=True)
def failing(x, velocity, sigma, next_sigma):
    return x @ sigma[:, None, None, None]

@register_dynamics(of_sde=True)
def pair(x, velocity, sigma, next_sigma):
    return x, sigma

@register_dynamics(of_sde=True)
def writing(x, velocity, sigma, next_sigma):
    return sde(x, velocity.mul_(0.9), sigma, next_sigma)

@register_dynamics(of_sde=True)
def flat(x, velocity, sigma, next_sigma):
    return sde(x, velocity, sigma, next_sigma, mean=lambda mean: mean.flatten(1))

@register_dynamics(of_sde=True)
def wide(x, velocity, sigma, next_sigma):
    return sde(x, velocity, sigma, next_sigma, std=lambda std: std[:, None])

@register_dynamics(of_sde=True)
def narrow(x, velocity, sigma, next_sigma):
    return sde(x, velocity, sigma, next_sigma, mean=lambda mean: mean.half())

@register_dynamics(of_sde=True)
def detached(x, velocity, sigma, next_sigma):
    return sde(x, velocity, sigma, next_sigma, mean=lambda mean: mean.detach())

@register_dynamics(of_sde=True)
def quiet(x, velocity, sigma, next_sigma):
    return sde(x, velocity, sigma, next_sigma, std=lambda std: 0 * std)

@register_dynamics(of_sde=True)
def tenfold(x, velocity, sigma, next_sigma):
    return sde(x, velocity, sigma, next_sigma, velocity_gain=lambda gain: 10 * gain)
"""
WRONG_STEPS = {
    "dynamics/schedule=listed": "returned a list; return a float tensor [steps + 1], here [11]",
    "dynamics/schedule=nested": "returned torch.float32 [1, 11]; return a float tensor",
    "dynamics/schedule=rising": "returned the noise levels [1.0, 0.9, 0.95, 0.7, 0.6, 0.5, 0.4",
    "dynamics/schedule=repeated": "0.9, 0.9, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0], not 11 (",
    "dynamics/schedule=short": "not 11 (steps + 1) that fall strictly from 1 to exactly 0; correct",
    "dynamics/schedule=drifting": "returned other noise levels when called again",
    "dynamics/stochastic=with_last": "choose at least one, each once and in order, of 0 to 8",
    "dynamics/stochastic=unsorted": "chose the steps (2, 0) of 10; choose at least one",
    "dynamics/stochastic=none_at_all": "chose the steps () of 10; choose at least one",
    "dynamics/stochastic=counting": "chose other steps when called again; keep no state",
    "dynamics/stochastic=nowhere": "chose the steps None of 10; choose at least one",
    "dynamics=failing": "raises RuntimeError: ",
    "dynamics=pair": "returned a tuple; return a Step(mean=, std=, velocity_gain=)",
    "dynamics=writing": "writes on x or velocity, which others read",
    "dynamics=flat": "returned a mean [9, 8] for x [9, 2, 2, 2]; return [9, 2, 2, 2]",
    "dynamics=wide": "returned a std [9, 1] for x [9, 2, 2, 2]; return [9]",
    "dynamics=narrow": "returned a mean of torch.float16 for x of torch.float32",
    "dynamics=detached": "returned a mean without the gradient of velocity",
    "dynamics=quiet": "returned a std of 0 for a random step",
    "dynamics=tenfold": "and d mean / d velocity is ",
}


@pytest.mark.parametrize(("word", "fault"), each(2, WRONG_STEPS.items()))
def test_the_steps_of_a_flow_are_tried_before_anything_is_loaded(plugin, word, fault):
    plugin(STEPS)
    words = ["plugins=[wrong]", "model=tiny_flow", "algorithm=flow_grpo", "~recipe", word]
    with pytest.raises(ConfigError) as refused:
        check(compose(words))
    said = str(refused.value)
    assert word in said and fault in said and "\n" not in said


def test_a_schedule_that_raises_is_told_with_its_error(plugin):
    plugin(STEPS.replace("torch.linspace(1, 0, steps)", "steps + None"))
    words = ["plugins=[wrong]", "model=tiny_flow", "algorithm=flow_grpo", "~recipe"]
    with pytest.raises(ConfigError, match=r"^dynamics\.schedule of rollout\.steps=10: TypeError: "):
        check(compose([*words, "dynamics/schedule=short"]))


@pytest.mark.parametrize("name", ["of_ten", "tabled"])
def test_a_schedule_has_levels_for_the_steps_of_evaluation_too(plugin, name):
    plugin(STEPS)
    words = ["plugins=[wrong]", "model=tiny_flow", "algorithm=flow_grpo", "~recipe"]
    words += [f"dynamics/schedule={name}", "rollout.steps=10"]
    check(compose([*words, "evaluation.steps=10"]))
    check(compose([*words, "evaluation.steps=20", "evaluation.every=null"]))
    with pytest.raises(ConfigError, match=r"dynamics.schedule.* evaluation\.steps=20") as refused:
        check(compose([*words, "evaluation.steps=20"]))
    assert "\n" not in str(refused.value)


DIVERGENCES = """
from tandem import register_divergence

def kl(student, teacher):
    return (student.exp() * (student - teacher)).sum(-1)

@register_divergence
def of_tokens(student, teacher):
    return student - teacher

@register_divergence
def averaged(student, teacher):
    return kl(student, teacher).mean()

@register_divergence
def detached(student, teacher):
    return kl(student, teacher).detach()

@register_divergence
def centred(student, teacher):
    return kl(student, teacher) - kl(student, teacher).mean()

@register_divergence
def writing(student, teacher):
    return kl(student, teacher.mul_(0.5))

@register_divergence
def infinite(student, teacher):
    return kl(student, teacher) / 0

@register_divergence
def right(student, teacher):
    return 0.5 * kl(student, teacher)
"""
WRONG_DIVERGENCES = {
    "of_tokens": "returned [6, 5] for log-probabilities [6, 5]; return float32 [6]",
    "averaged": "returned [] for log-probabilities [6, 5]; return float32 [6]",
    "detached": "has no gradient in the student",
    "centred": "gives a state another value beside other states",
    "writing": "writes on its arguments, which others read",
    "infinite": "returned values that are not finite",
}


@pytest.mark.parametrize(("name", "fault"), WRONG_DIVERGENCES.items())
def test_a_divergence_is_tried_on_a_few_states(plugin, name, fault):
    words = [*plugin(DIVERGENCES), "algorithm=gkd", "algorithm.teachers.folders={others: x}"]
    check(compose([*words, "algorithm/teachers/divergence=right"]))
    with pytest.raises(ConfigError) as refused:
        check(compose([*words, f"algorithm/teachers/divergence={name}"]))
    start = f"algorithm/teachers/divergence={name} at wrong.py:"
    assert str(refused.value).startswith(start) and fault in str(refused.value)


REPROMPTS = """
from dataclasses import replace

from tandem import register_environment, register_reprompt

@register_reprompt
def of_one(prompt, outputs, scores):
    return [prompt]

@register_reprompt
def nothing(prompt, outputs, scores):
    return None

@register_reprompt
def texts(prompt, outputs, scores):
    return ["x"] * len(outputs)

@register_environment
class Silent:
    def __init__(self):
        pass

    def describe(self):
        return None

    def begin(self, prompt, key):
        return None
"""
WRONG_REPROMPTS = {
    "of_one": "returned a list of 1 for 4 outputs; return a list with a Prompt or None for each",
    "nothing": "returned None for 4 outputs; return a list with a Prompt or None for each",
    "texts": "returned a list of 4 with str for 4 outputs; return a list with a Prompt or None "
    "for each",
}


@pytest.mark.parametrize(("name", "fault"), WRONG_REPROMPTS.items())
def test_a_reprompt_gives_each_output_a_prompt_or_none(plugin, name, fault):
    words = [*plugin(REPROMPTS), "algorithm=sdpo", f"algorithm/sampling_strategy/reprompt={name}"]
    said = words_of(words)
    assert said.startswith(f"reprompt {name} at wrong.py:") and said.endswith(fault)


def test_an_environment_that_does_not_describe_itself_is_named(plugin):
    words = [*plugin(REPROMPTS), "environment=Silent"]
    with pytest.raises(ConfigError, match=r"Silent\.describe\(\) returned a NoneType; return"):
        check(compose(words))


INNER = """
import torch
from tandem.contracts import (
    register_centre, register_error_weighting, register_fit, register_step_distance,
    register_step_weight, register_tilt,
)

@register_step_weight
def for_rows(transition):
    return transition.std[:, 0]

@register_step_distance
def constant(transition):
    return 0.0

@register_centre
def no_pool(rows):
    return None

@register_tilt
def one_tilt(rewards):
    return torch.zeros_like(rewards)

@register_fit
def averaged(implied, given):
    return (implied - given).square().mean()

@register_error_weighting
def of_a_batch(sigma, energy):
    return energy.mean()
"""
STEPS_AND_ROWS = "a tensor [B, T], whose last axes are here ["
WRONG_INNER = {
    "algorithm=grpo_guard algorithm/loss/weight=for_rows": STEPS_AND_ROWS,
    "algorithm=flow_dppo algorithm/loss/distance=constant": STEPS_AND_ROWS,
    "algorithm=crd algorithm/loss/centre=no_pool": "a tensor [B], whose last axes",
    "algorithm=crd algorithm/loss/tilt=one_tilt": "a tensor [N, B, T], whose last axes",
    "algorithm=crd algorithm/loss/fit=averaged": "a tensor [B, T, N], whose last axes",
    "algorithm=awm algorithm/timestep_sampling/weighting=of_a_batch": "a tensor [B, T], whose",
}


@pytest.mark.parametrize(("words", "fault"), WRONG_INNER.items())
def test_a_part_inside_a_loss_returns_the_shape_that_the_loss_takes(plugin, words, fault):
    given = plugin(INNER, reward="model=tiny_flow")
    said = words_of([word for word in given if not word.startswith("data.")], *words.split())
    name = words.rpartition("=")[2]
    assert f"{name} at wrong.py:" in said and f"; return {fault}" in said


TRIED = """
import torch
from tandem.contracts import (
    register_ema_decay, register_error_weighting, register_level_candidates, register_query,
    register_solver, register_stochastic_steps, register_window_pace,
)

def values(value):
    return {"none": None, "shape": torch.ones(3, 3), "holes": float("nan"), "raising": None}[value]

@register_window_pace
def pace(start, steps, *, gives):
    known = {"low": -3, "half": 2.5, "never": 0}
    return known[gives] if gives in known else raised(gives)

@register_query
def query(u, sigma, next_sigma, *, gives):
    if gives == "low":
        return 1 + u, torch.zeros_like(u)
    if gives == "holes":
        return u * float("nan"), torch.zeros_like(u)
    if gives == "writing":
        u.numpy()[:] = 0.5
        return u, torch.zeros_like(u)
    return raised(gives)

@register_level_candidates
def among(schedule, *, gives):
    return torch.tensor([999]) if gives == "low" else raised(gives)

@register_solver
def solver(levels, *, gives):
    return raised(gives)

@register_ema_decay
def decay(count, *, gives):
    return 1.5 if gives == "low" else raised(gives)

@register_error_weighting
def weighting(sigma, energy, *, gives):
    if gives == "writing":
        sigma.numpy()[:] = 0.5
        return energy
    return energy * float("nan") if gives == "low" else raised(gives)

def raised(gives):
    if gives == "raising":
        raise KeyError("absent")
    return values(gives)
"""
AMONG = "algorithm.timestep_sampling.levels.among"
PLACES = {
    "pace": (
        "algorithm=flow_grpo dynamics/stochastic=sliding_window dynamics/stochastic/stay=pace",
        "dynamics.stochastic.stay",
    ),
    "query": ("algorithm=dmd2 algorithm/query=query", "algorithm.query"),
    "among": (f"algorithm=awm algorithm/timestep_sampling/among@{AMONG}=among", AMONG),
    "solver": ("algorithm=nft dynamics/solver=solver", "dynamics.solver"),
    "decay": ("algorithm=nft model/ema=decay", "model.ema"),
    "weighting": (
        "algorithm=awm algorithm/timestep_sampling/weighting=weighting",
        "algorithm.timestep_sampling.weighting",
    ),
}
WRONG_NUMBERS = {
    ("pace", "none"): "returned a NoneType for start=0; return iterations, an int from 0",
    ("pace", "low"): "returned -3 for start=0; return iterations, an int from 0",
    ("pace", "half"): "returned 2.5 for start=0; return iterations, an int from 0",
    ("pace", "never"): "returned 0 for every start; return iterations, above 0 for at least one",
    ("pace", "raising"): "raises KeyError: 'absent'",
    ("query", "none"): "returned a NoneType; return two float tensors [N], here [10]",
    ("query", "shape"): "returned torch.float32 [3, 3]; return two float tensors [N]",
    ("query", "low"): "returned the level 1.05 and 0 for noise that goes on; the level lies above",
    ("query", "holes"): "returned the level nan and 0 for noise that goes on",
    ("query", "writing"): "writes on an argument, which others read",
    ("query", "raising"): "raises KeyError: 'absent'",
    ("among", "none"): "returned a NoneType; return an int64 tensor [n] of steps from 0 to 9",
    ("among", "shape"): "returned torch.float32 [3, 3]; return an int64 tensor [n]",
    ("among", "low"): "returned the steps [999]; return an int64 tensor [n] of steps from 0 to 9",
    ("solver", "none"): "returned a NoneType without sigmas, step, timesteps; return a diffusers",
    ("solver", "raising"): "raises KeyError: 'absent'",
    ("decay", "none"): "returned a NoneType for count=0; return a float from 0 to 1",
    ("decay", "low"): "returned 1.5 for count=0; return a float from 0 to 1",
    ("decay", "holes"): "returned a float for count=0; return a float from 0 to 1",
    ("weighting", "none"): "returned a NoneType; return a tensor [B, T], whose last axes are",
    ("weighting", "low"): "returned values that are not finite",
    ("weighting", "writing"): "writes on an argument, which others read",
}


@pytest.mark.parametrize(("case", "fault"), each(2, WRONG_NUMBERS.items()))
def test_a_part_that_gives_numbers_is_tried_before_anything_is_loaded(plugin, case, fault):
    (name, gives), (words, key) = case, PLACES[case[0]]
    plugin(TRIED)
    words = [
        "plugins=[wrong]",
        "model=tiny_flow",
        "~recipe",
        *words.split(),
        f"{key}.gives={gives}",
    ]
    with pytest.raises(ConfigError) as refused:
        check(compose(words))
    said = str(refused.value)
    assert f"={name} at wrong.py:" in said and fault in said and "\n" not in said


RIGHT = """
import numpy as np
import torch
from tandem.contracts import register_ema_decay, register_error_weighting, register_window_pace

@register_window_pace
def table(start, steps):  # a window of 4 of 10 steps starts at 0 to 5
    return [2, 0, np.int64(1), 2.0, torch.tensor(1), 0][start]

@register_ema_decay
def half(count):
    return np.float64(0.5)

@register_error_weighting
def linear(sigma, energy):
    return sigma * energy
"""
AS_READ = (
    "algorithm=flow_grpo dynamics/stochastic=sliding_window dynamics/stochastic/stay=table",
    "algorithm=nft model/ema=half",
    "algorithm=awm algorithm/timestep_sampling/weighting=linear",
)


@pytest.mark.parametrize("words", AS_READ)
def test_a_part_that_a_run_can_read_is_accepted_with_and_without_gradients(plugin, words):
    plugin(RIGHT)
    composed = compose(["plugins=[wrong]", "model=tiny_flow", "~recipe", *words.split()])
    with torch.no_grad():
        check(composed)
    tried = vars(sys.modules["wrong"])[words.rpartition("=")[2]]
    assert tried not in COMPARED, "the first call of the run is compared as well"


@pytest.mark.parametrize("words", AS_READ[:2])
def test_numbers_of_numpy_and_torch_train(plugin, words):
    given = plugin(RIGHT, reward="reward=colour_share model=tiny_flow rollout.steps=10")
    given = [word for word in given if not word.startswith("data.")]
    result = tandem.train(*given, *words.split(), "iterations=4")
    assert result.metrics["optim/updates"] > 0


def test_an_error_inside_torch_is_placed_in_the_file_of_the_part(plugin):
    plugin(RIGHT.replace("sigma * energy", "torch.nn.functional.pad(\n        energy, None)"))
    with pytest.raises(ConfigError, match=r"=linear at wrong\.py:1[67] raises \w+Error: "):
        check(compose(["plugins=[wrong]", "model=tiny_flow", "~recipe", *AS_READ[2].split()]))


READ = """
import torch
from tandem import register_adv_estimator, register_weights

def plain(rewards, mask):
    return rewards - rewards.mean(), rewards

register_adv_estimator(plain)

@register_adv_estimator
def nothing(rewards, mask):
    return None

@register_adv_estimator
def through_numpy(scores, rollout):
    scores.total.numpy()[:] = 1
    return (scores.total[:, None] * rollout.mask).float()

@register_weights(adds_to_one=True)
def negative(mask):
    return -mask.float() / mask.sum()
"""
READ_WRONGLY = {
    "advantage=nothing": "nothing(rewards, mask) gives (advantages, returns), two tensors",
    "advantage=through_numpy": "advantage through_numpy writes on total, which others read",
    "weights=negative": "return 0 for what does not count, and put a minus sign into the advantage",
}


@pytest.mark.parametrize(("word", "fault"), READ_WRONGLY.items())
def test_what_version_counters_and_shapes_do_not_show_is_refused(plugin, word, fault):
    assert fault in words_of(plugin(READ), f"algorithm/{word}")


def test_a_decorator_may_be_called_plainly(plugin):
    result = tandem.train(*plugin(READ), "algorithm/advantage=plain")
    assert result.metrics["optim/updates"] == 1


STATEFUL = """
import torch
from tandem import register_adv_estimator
from tandem.contracts.stateful import StatefulComponent

class Plain(StatefulComponent):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, scores, rollout):
        return (scores.total - scores.total.mean())[:, None] * rollout.mask

@register_adv_estimator
class Emptied(Plain):
    def __init__(self):
        super().__init__()

    def forward(self, scores, rollout):
        self.seen += float("nan")
        return super().forward(scores, rollout)

@register_adv_estimator
class Ring(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.full((2,), float("nan"), dtype=torch.float64))

    def forward(self, scores, rollout):
        self.seen += 1
        self.last[int(self.seen) % 2] = float("nan") if self.seen % 4 == 3 else 1.0
        return super().forward(scores, rollout) * self.last.nanmean().nan_to_num()

@register_adv_estimator
class Replacing(Plain):
    def __init__(self):
        super().__init__()

    def report(self):
        return {"NAME": 1.0}
"""
REPLACED = (
    "Replacing at wrong.py:34 measures {!r}, which is another metric's name; choose one of its"
)
IN_STATE = {
    ("Emptied", ""): "Emptied at wrong.py:14 sets its buffer 'seen' to NaN in a call",
    ("Replacing", "actor/entropy"): REPLACED.format("actor/entropy"),
    ("Replacing", "actor/adv_mean"): REPLACED.format("actor/adv_mean"),
    ("Replacing", "optim/lr"): REPLACED.format("optim/lr"),
}


@pytest.mark.parametrize(("case", "fault"), IN_STATE.items())
def test_a_part_with_state_keeps_numbers_and_names_of_its_own(plugin, case, fault):
    name, metric = case
    said = words_of(plugin(STATEFUL.replace("NAME", metric)), f"algorithm/advantage={name}")
    assert said.startswith(fault)


def test_a_buffer_that_is_registered_with_nan_may_be_full_and_hold_nan_again(plugin):
    result = tandem.train(*plugin(STATEFUL), "algorithm/advantage=Ring", "iterations=4")
    assert result.metrics["optim/updates"] == 1


AVERAGING = """
from tandem import register_policy_loss

@register_policy_loss
def averaging(old_logp, logp, advantages, mask):
    return -((logp - old_logp).exp() * advantages)[mask].mean(), {}

@register_policy_loss
def unaveraged(old_logp, logp, advantages, mask):
    return None
"""


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["algorithm/loss=averaging", "max_tokens_per_microbatch=64"], "one forward pass has"),
        (["algorithm/loss=unaveraged"], "gives (loss, metrics), a tensor of no dimensions"),
    ],
)
def test_a_loss_that_averages_itself_ends_in_one_line(plugin, words, fault):
    said = words_of(plugin(AVERAGING), "algorithm/importance_sampling=none", *words)
    assert fault in said


VALUED = """
from tandem import register_policy_loss

@register_policy_loss(reads={"values", "returns"})
def valued(batch): return -batch.advantages * batch.logp * (batch.values - batch.returns)
"""


def test_a_loss_that_reads_values_needs_a_critic_and_is_enough_for_one(plugin):
    plugin(VALUED)
    words = ["plugins=[wrong]", "warm_start=null", "~recipe"]
    with pytest.raises(ConfigError) as told:
        check(compose([*words, "algorithm=valued"]))
    assert str(told.value) == (
        "algorithm.critic=null: valued reads the values of a critic; use the one of "
        "algorithm=ppo, or another algorithm/loss"
    )
    beside = ["algorithm=ppo", "algorithm/advantage=group_relative", "group_size=4"]
    check(compose([*words, *beside, "algorithm/loss=valued"]))
