"""Refusals for masked-diffusion text before weights are loaded, and lines of the banner."""

import pytest

from tandem.config import ConfigError, build, check, compose
from tandem.legality.masked import notice

REFUSED = {
    "rollout=vllm_server rollout.engine.url=http://127.0.0.1:8000": "by autoregressive steps",
    "dynamics=autoregressive": "whose dynamics are masked",
    "algorithm=ppo": "depends on the order of steps",
    "algorithm=fipo": "depends on the order of steps",
    "algorithm/likelihood=elbo": "algorithm/kl=k3_unbiased .* set algorithm/kl=k2_sequence",
    "algorithm/likelihood=elbo algorithm.kl.coef=0": "algorithm/importance_sampling=none",
    "algorithm=espo algorithm/old_logprobs=rollout": "algorithm/old_logprobs=recompute",
    "algorithm=espo algorithm.entropy.coef=0.1": "has no entropy",
    "algorithm=espo rollout.staleness=1": "rollout.staleness=1",
    "algorithm=sft algorithm/likelihood=path": "set algorithm/likelihood=elbo",
    "algorithm=espo algorithm.likelihood.levels=gauss": "set algorithm.likelihood.masks=counted",
    "algorithm=spg algorithm.likelihood.weighted=false": "set algorithm.likelihood.masks=coupled",
    "algorithm=espo algorithm.likelihood.least=0.1": "set algorithm.likelihood.masks=independent",
    "algorithm=espo algorithm.likelihood.least=0": "must be above 0",
    "algorithm=coupled_grpo algorithm.likelihood.high=1": "must be above 0, and below 1",
    "algorithm=grpo algorithm.likelihood.trailing=hidden": "expected 'counted' or 'shown'",
    "algorithm=espo algorithm.target_kl=0.02": "algorithm.target_kl=0.02: .* set it to null",
    "algorithm=espo algorithm.kl.kl_target=0.01": "algorithm.kl.kl_target=0.01: .* set it to null",
    "algorithm=espo algorithm/kl=auto": "algorithm/kl=k3_unbiased .* set algorithm/kl=k2_sequence",
    "model.packing=true": "unknown key 'model.packing'",
    "evaluation.steps=[20]": "evaluation.steps=\\[20\\]: 20 is not possible, as each of",
    "rollout.steps=20": "rollout.steps=20: each of the 1 blocks needs the same number of steps",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_of_masked_text_is_refused(words):
    with pytest.raises(ConfigError, match=REFUSED[words]):
        check(compose(["model=tiny_masked", "~recipe", "algorithm.entropy.coef=0", *words.split()]))


@pytest.mark.parametrize(
    "words", ["rollout=unmask", "dynamics=masked", "algorithm/likelihood=elbo"]
)
def test_what_is_of_masked_text_is_refused_of_other_text(words):
    with pytest.raises(ConfigError, match="model=tiny_lm"):
        check(compose([words, "~recipe"]))


@pytest.mark.parametrize(
    "words",
    [
        "levels=gauss masks=counted states=3",
        "weighted=false masks=coupled",
        "least=0.1 masks=independent",
    ],
)
def test_numbers_of_a_bound_that_are_read_are_legal(words):
    own = [f"algorithm.likelihood.{word}" for word in words.split()]
    check(compose(["model=tiny_masked", "algorithm=espo", "~recipe", *own]))


@pytest.mark.parametrize(
    ("preset", "parts"), [("espo", True), ("diffu_grpo", False), ("grpo", False)]
)
def test_ratios_and_kls_are_measured_of_token_values_and_not_of_parts_of_a_bound(preset, parts):
    cfg = compose(["model=tiny_masked", "~recipe", f"algorithm={preset}"])
    assert build(cfg.algorithm).training_objective.of_parts == parts


@pytest.mark.parametrize("model", ["tiny_lm", "tiny_flow"])
@pytest.mark.parametrize("preset", ["diffu_grpo", "coupled_grpo", "trace_rl", "wd1"])
def test_what_goes_by_states_of_masks_is_refused_where_there_are_none(model, preset):
    with pytest.raises(ConfigError, match=f"algorithm={preset} depends on .*{model} has no"):
        check(compose([f"model={model}", f"algorithm={preset}", "~recipe"]))


def test_a_bound_is_log_p_itself_of_other_texts():
    check(compose(["model=tiny_lm", "algorithm=sft", "~recipe"]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.unmask_order=confidence"], True),
        (["rollout.unmask_order=entropy"], False),
        (["rollout.unmask_order=confidence", "rollout.entropy_bound=0.1"], False),
        (["algorithm=espo"], False),
    ],
)
def test_the_banner_says_that_confidence_is_not_counted(words, said):
    cfg = compose(["model=tiny_masked", *words])
    line = notice(build(cfg.algorithm), check(cfg), build(cfg.rollout))
    assert (line is not None) == said
