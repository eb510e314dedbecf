"""The requirements between a preference loss, its rows and its data, one line each."""

import shlex

import pytest

from tandem.config import ConfigError, check, compose
from tandem.config.composition import conf_folder

PAIRS = "algorithm=dpo data=sort_pairs ~recipe"
KTO = "algorithm=kto data=sort_pairs ~recipe"
WRONG = {
    "algorithm=dpo data=sort_letters ~recipe": (
        "data=sort_letters has no chosen and rejected answers; set data=sort_pairs, data=jsonl "
        "with such rows, or algorithm=dpo_online, which samples them"
    ),
    f"{PAIRS} group_size=4": (
        "group_size=4: a pair is a chosen and a rejected answer; set group_size=2"
    ),
    f"{KTO} prompts_per_step=1": (
        "prompts_per_step=1: mismatched answers are those to other prompts; "
        "set prompts_per_step=2 or more"
    ),
    f"{PAIRS} algorithm/weights=token_mean": (
        "algorithm/weights=token_mean: dpo has one value for all steps of a row; "
        "set algorithm/weights=sequence_mean"
    ),
    f"{PAIRS} algorithm/advantage=group_relative": (
        "algorithm/advantage=group_relative: dpo compares a row of +1 with a row of -1; set "
        "algorithm/advantage=preferred"
    ),
    "algorithm=dpo_online ~recipe algorithm/importance_sampling=token_tis": (
        "algorithm/importance_sampling=token_tis: dpo compares whole rows, without weights of "
        "steps; set algorithm/importance_sampling=none"
    ),
    f"{PAIRS} algorithm.normalize_advantages=true": (
        "algorithm.normalize_advantages=true changes the labels +1 and -1 of dpo; set it to false"
    ),
    "algorithm=dpo_online ~recipe algorithm/sampling_strategy=on_policy": (
        "algorithm/sampling_strategy=on_policy: dpo compares two rows of a group; set "
        "algorithm/sampling_strategy=preference_pairs (from data) or best_and_worst (of "
        "samples)"
    ),
    f"{KTO} algorithm/sampling_strategy=preference_pairs": (
        "algorithm/sampling_strategy=preference_pairs: kto compares with rows that are not "
        "trained; "
        "set algorithm/sampling_strategy=kto_kl"
    ),
    "algorithm=kto ~recipe algorithm/sampling_strategy=remax": (
        "algorithm/sampling_strategy=remax: kto compares with rows that are not trained; "
        "set algorithm/sampling_strategy=kto_kl"
    ),
    "algorithm=reinforce ~recipe algorithm/advantage=remax": (
        "algorithm/sampling_strategy=on_policy: remax compares with rows that are not trained; "
        "set algorithm/sampling_strategy=remax"
    ),
    "algorithm=grpo ~recipe algorithm/sampling_strategy=remax": (
        "algorithm/sampling_strategy=remax makes baseline rows, but nothing reads them; set "
        "algorithm/advantage=remax, algorithm/loss=kto or another algorithm/sampling_strategy"
    ),
    f"{PAIRS} algorithm.loss.beta=0": "algorithm.loss.beta=0.0: must be positive",
    "algorithm=orpo data=sort_pairs ~recipe algorithm.loss.odds=0": (
        "algorithm.loss.odds=0.0: must be positive"
    ),
    f"{PAIRS} algorithm.loss.label_smoothing=0.5": (
        "algorithm.loss.label_smoothing=0.5: must be at least 0, and below 0.5"
    ),
    f"{PAIRS} algorithm/loss=exo algorithm.loss.label_smoothing=0": (
        "algorithm.loss.label_smoothing=0.0: must be above 0, and below 0.5"
    ),
}


@pytest.mark.parametrize(("line", "answer"), WRONG.items())
def test_a_contradiction_is_answered_by_the_check(line, answer):
    cfg = compose(shlex.split(line))
    with pytest.raises(ConfigError) as refused:
        check(cfg)
    assert str(refused.value) == answer


LOSSES = (
    "dpo dpo_robust dpo_hinge dpo_norm dpo_reference_free ipo simpo orpo nca exo sppo_hard apo_zero"
)


@pytest.mark.parametrize("loss", LOSSES.split())
def test_every_loss_of_pairs_is_an_option_of_the_presets(loss):
    for preset in ("dpo data=sort_pairs", "dpo_online"):
        settings = check(compose(shlex.split(f"algorithm={preset} ~recipe algorithm/loss={loss}")))
        assert settings.choices["algorithm"] == preset.split()[0]


@pytest.mark.parametrize("loss", ["dpo", "simpo", "kto", "nca"])
def test_a_temperature_is_in_units_of_the_dynamics(loss):
    collect = "kto" if loss == "kto" else "dpo"
    line = f"algorithm={collect} data=sort_pairs ~recipe algorithm/loss={loss}"
    once, twice = (
        compose([*shlex.split(line), f"dynamics.preference_scale={unit}"]).algorithm.loss.beta
        for unit in (1.0, 3.0)
    )
    assert twice == pytest.approx(3 * once)


@pytest.mark.parametrize("name", ["dpo", "dpo_online", "ipo", "simpo", "orpo", "kto"])
def test_a_preset_opens_with_its_paper_and_its_published_numbers(name):
    first, second = (conf_folder() / f"algorithm/{name}.yaml").read_text().splitlines()[:2]
    assert "arXiv:" in first
    assert second.startswith("# Published: ")
