"""Numbers outside their range, for algorithms on finished images, one line each."""

import shlex

import pytest

from tandem.config import ConfigError, check, compose

LEVELS = "algorithm.timestep_sampling.levels"
OLD, FAST = (f"algorithm.ema.{name}.decay" for name in ("old", "fast"))
UNIFORM, NORMAL = (
    f"nft algorithm/timestep_sampling={name}" for name in ("uniform", "logit_normal")
)
BY_TIME = "nft algorithm/timestep_sampling/among@algorithm.timestep_sampling.levels.among=time"
SLIDING = "flow_grpo dynamics=flow_sde dynamics/stochastic=sliding_window dynamics/stochastic/stay"
TAUGHT = "diffusion_opd algorithm.teachers.folders={others:teacher}"
POSITIVE = "must be positive"
PART = "must lie in 0 ... 1"
TIS, BAND = (f"grpo algorithm/importance_sampling={name}" for name in ("token_tis", "icepop"))
WRONG = {  # preset and key=number -> the message
    "nft algorithm.loss.beta=0.0": POSITIVE,
    "nft algorithm.loss.beta=-1.0": POSITIVE,
    "nft algorithm.loss.advantage_clip=0.0": POSITIVE,
    "dgpo algorithm.loss.beta=0.0": POSITIVE,
    "dgpo algorithm.loss.clip_low=-0.1": PART,
    "dgpo algorithm.loss.clip_high=-0.1": "must not be negative",
    "crd algorithm.loss.beta=0.0": POSITIVE,
    "crd algorithm.loss.advantage_clip=-5.0": POSITIVE,
    "crd algorithm/loss/tilt=two_sided algorithm.loss.tilt.temperature=0.0": POSITIVE,
    "crd algorithm.kl.loss.least=1.5": PART,
    "crd algorithm.kl.loss.advantage_clip=0.0": POSITIVE,
    "flow_grpo algorithm/loss=group_preference algorithm.loss.beta=0.0": POSITIVE,
    "awm algorithm.timestep_sampling.weighting.p=0.0": POSITIVE,
    "awm algorithm.ema_kl.coef=-1.0": "must not be negative",
    "dgpo algorithm.rollout_weights_start=-1": "must not be negative",
    f"{UNIFORM} {LEVELS}.high=1.5": PART,
    f"nft {LEVELS}.among.start=-0.5": PART,
    f"{UNIFORM} {LEVELS}.shift=0.0": POSITIVE,
    f"{NORMAL} {LEVELS}.shift=-1.0": POSITIVE,
    f"{NORMAL} {LEVELS}.std=0.0": POSITIVE,
    f"{TAUGHT} algorithm.teachers.fraction=0.0": "must be above 0, and 1 at most",
    f"{TAUGHT} algorithm.teachers.fraction=1.5": "must be above 0, and 1 at most",
    f"nft {OLD}.decay=1.1": PART,
    f"nft {OLD}.start=-0.1": PART,
    f"nft {OLD}.slope=-0.1": "must not be negative",
    f"nft {FAST}.warmup=0": POSITIVE,
    f"{TIS} algorithm.importance_sampling.ratio_max=-2.0": POSITIVE,
    f"{BAND} algorithm.importance_sampling.low=-0.5": "must not be negative",
    "flow_grpo algorithm/loss=weighted_ppo algorithm.loss.weight.scale=-1.0": POSITIVE,
    f"{SLIDING}=linearly_fewer dynamics.stochastic.stay.least=0": POSITIVE,
}
ENDS = [  # preset and both ends
    f"{UNIFORM} {LEVELS}.low=0.5 {LEVELS}.high=0.5",
    f"{NORMAL} {LEVELS}.low=0.6 {LEVELS}.high=0.5",
    f"{BY_TIME} {LEVELS}.among.low=0.7 {LEVELS}.among.high=0.2",
    f"nft {LEVELS}.among.start=0.5 {LEVELS}.among.end=0.5",
    "nft model/ema=warmup_cosine model.ema.warmup=100 model.ema.length=100",
]


def refusal_of(words):
    preset, *others = shlex.split(words)
    with pytest.raises(ConfigError) as said:
        check(compose([f"algorithm={preset}", "model=tiny_flow", "~recipe", *others]))
    return str(said.value)


@pytest.mark.parametrize(("words", "why"), WRONG.items(), ids=WRONG)
def test_a_number_out_of_its_range_is_named(words, why):
    assert refusal_of(words) == f"{words.split()[-1]}: {why}"


@pytest.mark.parametrize("words", ENDS)
def test_ends_that_do_not_rise_are_named(words):
    assert (
        refusal_of(words) == f"{' '.join(words.split()[-2:])}: the first must be below the second"
    )
