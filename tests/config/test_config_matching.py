"""What a generator asks of its networks, its dynamics and its settings, one line each."""

import shlex

import pytest

from tandem.config import ConfigError, check, compose

DMD2, TDM, TDM_R1, NFT = (
    f"model=tiny_flow ~recipe algorithm={name}" for name in ("dmd2", "tdm", "tdm_r1", "nft")
)
SEE = "see algorithm=dmd2, tdm or tdm_r1"
WRONG = {
    f"{NFT} algorithm/loss=tdm": (
        "algorithm.objective=denoising: tdm reads the pictures that networks beside the policy "
        "expect; set algorithm=tdm"
    ),
    f"{DMD2} algorithm/loss=ppo": (
        "algorithm.objective=matching: ppo reads nothing of the networks beside the policy; set "
        "algorithm/loss=dmd2 or tdm"
    ),
    f"{TDM} dynamics/solver=heun": (
        "algorithm.objective=matching: a solver keeps no states to train; set "
        "dynamics/solver=euler"
    ),
    f"{TDM} algorithm/loss=tdm_r1": (
        f"algorithm.surrogate=null: tdm_r1 reads what it expects; {SEE}"
    ),
    f"{DMD2} algorithm.fake=null": f"algorithm.fake=null: dmd2 reads what it expects; {SEE}",
    f"{TDM_R1} algorithm/loss=tdm": (
        "algorithm.surrogate: tdm does not read it; set it to null"
    ),
    f"{DMD2} algorithm/kl=regressed algorithm.kl.coef=1": (
        "algorithm.kl.coef: under algorithm.objective=matching the score of the reference holds "
        "the policy; set it to 0"
    ),
    f"{DMD2} iterations=4": (
        "algorithm.policy_every=5 of iterations=4 leaves none to the policy; set it lower"
    ),
    f"{NFT} +algorithm.policy_every=2": (
        "algorithm.policy_every=2: nothing learns beside the policy while it rests; set it to 1"
    ),
    f"{DMD2} algorithm.rollout_weights=old": (
        "algorithm.rollout_weights: a generator is judged by its own pictures; set it to live"
    ),
    f"{DMD2} rollout.staleness=1": (
        "rollout.staleness=1: algorithm=dmd2 compares with no policy that sampled its pictures; "
        "set rollout.staleness=0, or take algorithm=nft or flow_grpo"
    ),
    f"{DMD2} algorithm.timestep_sampling.count=4": (
        "algorithm.timestep_sampling.count=4: algorithm.query says where pictures are noised "
        "again; leave it out"
    ),
    f"{DMD2} algorithm.query.low=0.9 algorithm.query.high=0.1": (
        "algorithm.query.low=0.9 algorithm.query.high=0.1: must rise"
    ),
    "algorithm=dmd2": (
        "dynamics=ode takes steps of pictures, but model=tiny_lm makes tokens; take another "
        "algorithm, or leave dynamics=auto"
    ),
}  # fmt: skip


def composed(words):
    """As of a command line."""
    cfg = compose(words)
    cfg.overrides = words
    return cfg


@pytest.mark.parametrize(("words", "line"), WRONG.items(), ids=WRONG)
def test_a_contradiction_is_one_line_that_names_the_flag(words, line):
    with pytest.raises(ConfigError) as told:
        check(composed(shlex.split(words)))
    assert str(told.value) == line


@pytest.mark.parametrize(
    "words",
    [
        f"{TDM} algorithm/query=reverse algorithm.query.shift=3",
        f"{TDM} algorithm/loss=dmd2 algorithm.every_state=false",
        f"{TDM_R1} algorithm.policy_every=2 epochs=2 num_minibatches=2",
        f"{DMD2} rollout.steps=1 model.lora={{r:4,alpha:8}}",
        f"{TDM} algorithm/teachers=velocities algorithm.teachers.folders={{others:runs/x}}",
    ],
)
def test_what_makes_sense_is_admitted(words):
    check(compose(shlex.split(words)))
