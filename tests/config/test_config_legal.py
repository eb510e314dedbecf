"""Parts that are meaningless for what is trained on: each is refused with its line."""

import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tandem.algorithm.regularizers import KLInLoss
from tandem.algorithm.truncation import CheckedStrategy
from tandem.config import ConfigError, build, check, compose
from tandem.contracts import numbers_of
from tandem.legality.updates import optimizers_take_their_numbers, state_is_kept_by_advantages

ENTROPY = "that of a Gaussian step depends only on its noise level"
PROBABILITY = (
    "it compares probabilities of tokens, but a Gaussian step has a density; set "
    "algorithm=flow_dppo, which bounds the exact KL"
)
SECOND_ORDER = (
    "it is quadratic in a log ratio, which here is a mean over D latent dimensions, so it would be "
    "D times too small; set algorithm/kl=auto, which is exact"
)
FINISHED = (
    "on dynamics=flow_sde: a picture is never truncated; set algorithm/truncation_handling=train"
)
PATH = (
    "needs log-probabilities of random steps; dynamics=ode takes none; set "
    "dynamics=flow_sde, dance_sde or cps"
)

ON_STEPS = {
    "algorithm/kl=k3 algorithm.kl.coef=.1": f"algorithm/kl=k3 on dynamics=flow_sde: {SECOND_ORDER}",
    "algorithm=reinforce_pp_baseline": f"algorithm/kl=k2 on dynamics=flow_sde: {SECOND_ORDER}",
    "algorithm=dppo dynamics=cps": f"algorithm/loss=dppo on dynamics=cps: {PROBABILITY}",
    "algorithm=dppo algorithm/loss=dppo_kl": (
        f"algorithm/loss=dppo on dynamics=flow_sde: {PROBABILITY}"
    ),
    "algorithm=clip_cov dynamics=dance_sde": (
        f"algorithm/loss=clip_cov on dynamics=dance_sde: it preserves the policy's entropy, but "
        f"{ENTROPY}; set algorithm/loss=ppo"
    ),
    "algorithm=kl_cov": (
        f"algorithm/loss=kl_cov on dynamics=flow_sde: it preserves the policy's entropy, but "
        f"{ENTROPY}; set algorithm/loss=ppo"
    ),
    "algorithm/loss=top_entropy": (
        "algorithm/loss=top_entropy on dynamics=flow_sde: the entropy of a Gaussian step is a "
        "constant of its noise level, so it would pick noise levels; set algorithm/loss=ppo"
    ),
    "algorithm/loss=opsm": (
        "algorithm/loss=opsm on dynamics=flow_sde: it drops samples at `delta` nats per step, "
        "which a mean over latent dimensions never reaches; set algorithm=flow_dppo, which bounds "
        "the exact KL"
    ),
    "algorithm=vespo": (
        "algorithm/loss=vespo on dynamics=flow_sde: its weight decays as the ratio of a whole "
        "sample leaves 1, but a ratio of means over latent dimensions hardly does, so nothing "
        "would bound the update; set algorithm/loss=ppo"
    ),
    "algorithm/truncation_handling=overlong": f"algorithm/truncation_handling=overlong {FINISHED}",
    "algorithm/truncation_handling=mask": f"algorithm/truncation_handling=mask {FINISHED}",
    "algorithm/truncation_handling=penalise": f"algorithm/truncation_handling=penalise {FINISHED}",
    "algorithm.entropy.coef=.1": (
        "algorithm.entropy on dynamics=flow_sde: the entropy of a Gaussian step is a constant of "
        "its noise level, which nothing trained can raise; set algorithm.entropy.coef=0"
    ),
    "algorithm=remax": (
        "algorithm/sampling_strategy=remax on dynamics=flow_sde: a flow has no greedy sample to "
        "compare with; set algorithm=rloo"
    ),
    "algorithm=dpo_online algorithm/loss=orpo": (
        "algorithm/loss=orpo on dynamics=flow_sde: odds need a probability, but a Gaussian step "
        "has a density; set algorithm/loss=dpo"
    ),
    "algorithm=dpo_online algorithm/loss=simpo": (
        "algorithm/loss=simpo on dynamics=flow_sde: the log-probability of a random step measures "
        "only its noise unless a reference is subtracted; set "
        "algorithm/loss=dpo"
    ),
    "algorithm/kl=timeless algorithm.kl.coef=.1 dynamics=cps": (
        "algorithm/kl=timeless leaves out the duration of an SDE step, and steps of "
        "dynamics=cps have none; set algorithm/kl=gaussian"
    ),
    "algorithm=grpo_guard algorithm/old_logprobs=rollout algorithm/importance_sampling=none "
    "rollout.staleness=2": (
        "algorithm/old_logprobs=rollout: grpo_guard compares with the means of the trainer's "
        "weights before the update, and samples are of older ones; set rollout.staleness=0, or "
        "algorithm/old_logprobs=recompute algorithm/importance_sampling=token_tis"
    ),
    "algorithm=grpo_guard dynamics=cps": (
        "dynamics/logp=unscaled: grpo_guard needs the log-density of a step; set "
        "dynamics/logp=gaussian"
    ),
}
ON_PICTURES = {
    "algorithm=grpo dynamics=ode": f"algorithm=grpo {PATH}",
    "algorithm=ppo dynamics=ode": f"algorithm=ppo {PATH}",
    "algorithm=simpo": (
        "algorithm/loss=simpo on rows of data under dynamics=flow_sde: a regression error equals a "
        "log-likelihood only up to a constant per picture, which only a reference cancels; "
        "set algorithm/loss=dpo"
    ),
    "algorithm=orpo": (
        "algorithm/loss=orpo on rows of data under dynamics=flow_sde: odds need a probability, but "
        "a regression error is not one; set algorithm/loss=dpo"
    ),
    "algorithm=dpo": (
        "data=shapes has no chosen and rejected answers; set data=shapes_pairs, data=jsonl "
        "with such rows, or algorithm=dpo_online, which samples them"
    ),
    "algorithm=dpo_online dynamics=ode algorithm/importance_sampling=token_tis": (
        "algorithm/importance_sampling=token_tis on dynamics=ode: the probability that the "
        "sampler makes a finished picture is unknown; set algorithm/importance_sampling=none"
    ),
    "algorithm=dpo_online dynamics=ode algorithm/old_logprobs=rollout": (
        "algorithm/old_logprobs=rollout on dynamics=ode: the probability that the sampler "
        "makes a finished picture is unknown; set algorithm/old_logprobs=recompute"
    ),
    "algorithm=dpo_online dynamics=ode algorithm.kl.coef=.1": (
        "algorithm/kl=gaussian on dynamics=ode: a finished picture is not a Gaussian step; set "
        "algorithm.kl.coef=0"
    ),
    "algorithm=dpo_online dynamics=ode algorithm/kl=in_reward algorithm.kl.coef=.1": (
        "algorithm/kl=in_reward on dynamics=ode: a KL in the reward is charged per step, and "
        "the policy's steps are not known here; set algorithm.kl.coef=0"
    ),
    "algorithm=reinforce algorithm/sampling_strategy=offline algorithm/importance_sampling=none "
    "group_size=1": (
        "algorithm=reinforce needs log-probabilities of sampled steps; rows of data under "
        "dynamics=flow_sde have none; set algorithm=sft"
    ),
}
ON_TOKENS = {
    "algorithm/kl=gaussian algorithm.kl.coef=.1": (
        "algorithm/kl=gaussian on dynamics=autoregressive: tokens are not Gaussian steps; set "
        "algorithm/kl=auto"
    ),
    "algorithm.objective=denoising": (
        "algorithm=grpo trains on finished pictures, but dynamics=autoregressive is for tokens"
    ),
}
MODELS = {"tiny_flow": ON_STEPS | ON_PICTURES, "tiny_lm": ON_TOKENS}
LINES = [(model, *line) for model, lines in MODELS.items() for line in lines.items()]


def check_line(model, line):
    """Check the line; for images the default is an algorithm of sampled steps."""
    steps = model == "tiny_flow" and "algorithm=" not in line
    own = ["algorithm=tempflow_grpo"] if steps else []
    check(compose([f"model={model}", "~recipe", *own, *shlex.split(line)]))


@pytest.mark.parametrize(("model", "line", "answer"), LINES, ids=[line for _, line, _ in LINES])
def test_it_is_refused_with_its_reason(model, line, answer):
    with pytest.raises(ConfigError) as refused:
        check_line(model, line)
    assert str(refused.value) == answer


OPTION = re.compile(r"set (algorithm[/.]\S+=\w+|dynamics\S*=\w+)")
FOLLOWED = [(model, line, found[1]) for model, line, a in LINES if (found := OPTION.search(a))]


@pytest.mark.parametrize(("model", "line", "advice"), FOLLOWED, ids=[x[1] for x in FOLLOWED])
def test_what_it_says_to_set_is_right(model, line, advice):
    key = advice.partition("=")[0]
    kept = [part for part in line.split() if part.partition("=")[0] != key]
    if advice == "algorithm/loss=dpo" and "algorithm=dpo_online" not in line:
        kept.append(
            "algorithm/sampling_strategy=best_and_worst"
        )  # of the sampled steps of its preset
    check_line(model, " ".join([*kept, advice]))


@pytest.mark.parametrize(
    "line",
    [
        "algorithm=sft",
        "algorithm=sft dynamics=ode",
        "algorithm=dpo_online",
        "algorithm=dpo_online dynamics=ode",
        "algorithm=dpo data=shapes_pairs",
        "algorithm=ipo data=shapes_pairs dynamics=ode",
        "algorithm=kto data=shapes_pairs dynamics=cps",
        "algorithm=ppo",
        "algorithm=dapo",
        "algorithm/kl=k3 algorithm.kl.coef=0",  # it is unused
        "algorithm/kl=timeless algorithm.kl.coef=.1",
        "algorithm=rloo dynamics=dance_sde",
    ],
)
def test_what_makes_sense_of_a_flow_passes(line):
    check_line("tiny_flow", line)


def refuses(weights, lr):
    raise RuntimeError(f"lr={lr}\nis odd")


@pytest.mark.parametrize(
    ("target", "said"), [(torch.optim.Muon, []), (refuses, ["optimizer=mine: lr=0.5 is odd"])]
)
def test_an_optimizer_may_want_matrices_and_its_refusal_is_one_line(target, said):
    call = SimpleNamespace(target=target, arguments={"lr": 0.5})
    plan = SimpleNamespace(choices={"optimizer": "mine"})
    assert [*optimizers_take_their_numbers(SimpleNamespace(optimizer=call, plan=plan))] == said


class Holding(torch.nn.Module):
    def __init__(self, *, trained):
        super().__init__()
        self.x = torch.nn.Parameter(torch.ones(1)) if trained else None
        self.register_buffer("calls", torch.zeros(1))


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"loss": torch.nn.Identity(), "advantage": Holding(trained=False)}, []),
        ({"loss": Holding(trained=False)}, ["loss.calls is kept between calls, but no checkpoint"]),
        ({"loss": Holding(trained=True)}, ["loss.x is kept between calls"]),
        ({"importance_sampling": Holding(trained=True)}, ["importance_sampling.x is kept between"]),
        ({"sampling_strategy": Holding(trained=False)}, ["sampling_strategy.calls is kept"]),
        (
            {"sampling_strategy": CheckedStrategy(Holding(trained=False))},
            ["sampling_strategy.of.calls is kept"],
        ),
        ({"truncation_handling": Holding(trained=False)}, ["truncation_handling.calls is kept"]),
        ({"old_logprobs": Holding(trained=False)}, ["old_logprobs.calls is kept"]),
        (
            {"kl": KLInLoss(coef=0.1, loss=max, gate=Holding(trained=False))},
            ["kl.gate.calls is kept"],
        ),
        ({"kl": KLInLoss(coef=0.1, loss=Holding(trained=False))}, ["kl.loss.calls is kept"]),
        ({"advantage": Holding(trained=True)}, ["advantage.x is a parameter, which no"]),
    ],
)
def test_state_that_no_checkpoint_holds_or_no_optimiser_trains_is_refused(own, said):
    algorithm = replace(build(compose(["algorithm=grpo"]).algorithm), **own)
    case = SimpleNamespace(algorithm=algorithm, parts=numbers_of(algorithm))
    found = [*state_is_kept_by_advantages(case)]
    assert len(found) == len(said)
    assert all(x.startswith(f"algorithm.{y}") for x, y in zip(found, said, strict=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["algorithm=flow_grpo"],
            "needs a flow model for algorithm/kl=timeless, and model=tiny_lm",
        ),
        (["algorithm=grpo_guard"], "needs a flow model for algorithm/loss=grpo_guard, and model="),
        (
            ["algorithm=dance_grpo"],
            "trains on steps of dynamics=dance_sde, but model=tiny_lm makes",
        ),
        (["algorithm=spg"], "needs a masked-diffusion model for algorithm/loss=spg, and model="),
        (["algorithm=espo", "model=tiny_flow"], "needs a masked-diffusion model for algorithm/kl="),
    ],
)
def test_an_algorithm_of_another_kind_of_model_is_named_before_its_parts(words, said):
    cfg = compose(words)
    cfg.overrides = words
    wanted = "tiny_masked" if "masked" in said else "tiny_flow"
    with pytest.raises(ConfigError, match=rf"^{words[0]} {said}.* model={wanted}\b"):
        check(cfg)


def test_an_algorithm_whose_reward_reads_pictures_asks_for_a_model_of_them():
    with pytest.raises(ConfigError) as refused:
        check(compose(["algorithm=gardo"]))
    assert str(refused.value) == (
        "reward.nearest_distance reads pictures, but model=tiny_lm makes texts; "
        "the advantage of algorithm=gardo reads it: set a model of pictures, such as "
        "model=tiny_flow, or another algorithm"
    )


def test_a_part_that_the_command_line_chose_is_named_itself():
    cfg = compose(words := ["algorithm=flow_grpo", "algorithm/kl=gaussian"])
    cfg.overrides = words
    with pytest.raises(ConfigError, match=r"^algorithm/kl=gaussian on .*; set algorithm/kl=auto$"):
        check(cfg)
