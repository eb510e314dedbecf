"""The requirements of a generator for its networks, dynamics and settings, one line each."""

import shlex
from dataclasses import replace

import pytest

from tandem.config import ConfigError, check, compose
from tandem.config.checks import make_case
from tandem.contracts import declare
from tandem.legality import check as complaints

DMD2, TDM, TDM_R1, NFT = (
    f"model=tiny_flow ~recipe algorithm={name}" for name in ("dmd2", "tdm", "tdm_r1", "nft")
)
GUIDED = "algorithm.timestep_sampling.ref_guidance_scale=3"
SEE = "see algorithm=dmd2, tdm or tdm_r1"
WRONG = {
    f"{NFT} algorithm/loss=tdm": (
        "algorithm.objective=denoising: tdm reads the predictions of networks beside the "
        "policy; set algorithm=tdm"
    ),
    f"{DMD2} algorithm/loss=ppo": (
        "algorithm.objective=matching: ppo reads no predictions of the networks beside the "
        "policy; set algorithm/loss=dmd2 or tdm"
    ),
    f"{TDM} dynamics/solver=heun": (
        "algorithm.objective=matching: a solver keeps no states to train; set "
        "dynamics/solver=euler"
    ),
    f"{TDM} algorithm/loss=tdm_r1": (
        f"algorithm.networks.surrogate=null: tdm_r1 reads its predictions; {SEE}"
    ),
    f"{DMD2} algorithm.networks.fake=null": (
        f"algorithm.networks.fake=null: dmd2 reads its predictions; {SEE}"
    ),
    f"{DMD2} algorithm.fake.lr=1": (
        "algorithm.fake.lr=1 was renamed to algorithm.networks.fake.lr=1"
    ),
    f"{TDM_R1} algorithm/loss=tdm": (
        "algorithm.networks.surrogate: tdm does not read it; set it to null"
    ),
    f"{DMD2} algorithm/kl=regressed algorithm.kl.coef=1": (
        "algorithm.kl.coef: algorithm.objective=matching regularises the policy by the "
        "reference score; set it to 0"
    ),
    f"{DMD2} iterations=4": (
        "algorithm.policy_every=5 of iterations=4 never trains the policy; set it lower"
    ),
    f"{NFT} +algorithm.policy_every=2": (
        "algorithm.policy_every=2: there are no networks to train in between; set it to 1"
    ),
    f"{DMD2} algorithm.rollout_weights=old": (
        "algorithm.rollout_weights: a generator trains on its own pictures; set it to live"
    ),
    f"{DMD2} rollout.staleness=1": (
        "rollout.staleness=1: algorithm=dmd2 does not correct for the weights that sampled; "
        "set rollout.staleness=0, or algorithm=nft or flow_grpo"
    ),
    f"{DMD2} algorithm.timestep_sampling.count=4": (
        "algorithm.timestep_sampling.count=4: algorithm.query sets the noise levels; leave it out"
    ),
    f"{TDM_R1} algorithm.every_state=false": (
        "algorithm.every_state=false: surrogate compares the samples of a prompt at the same "
        "states; set it to true"
    ),
    f"{TDM_R1} algorithm.timestep_sampling.shared=false": (
        "algorithm.timestep_sampling.shared=false: surrogate compares the samples of a prompt "
        "at the same noise; set it to true"
    ),
    f"{TDM_R1} algorithm.loss.prompt_coef=0.5": (
        "algorithm.loss.prompt_coef=0.5: the reference is not guided, so this has no effect; "
        "set algorithm.timestep_sampling.ref_guidance_scale above 1"
    ),
    f"{TDM} rollout.guidance_scale=4 algorithm.timestep_sampling.guidance_scale=1": (
        "algorithm.timestep_sampling.guidance_scale=1: the states were sampled at "
        "rollout.guidance_scale=4; leave it out"
    ),
    f"{DMD2} algorithm/advantage=group_relative group_size=4": (
        "algorithm/advantage=group_relative: dmd2 reads no advantages; set "
        "algorithm/advantage=given"
    ),
    f"{TDM} algorithm.normalize_advantages=true": (
        "algorithm.normalize_advantages=true: tdm reads no advantages; set it to false"
    ),
    f"{DMD2} algorithm.networks.fake.lr=0": "algorithm.networks.fake.lr=0.0: must be positive",
    f"{DMD2} algorithm.query.low=0.9 algorithm.query.high=0.1": (
        "algorithm.query.low=0.9 algorithm.query.high=0.1: the first must be "
        "below the second"
    ),
    "algorithm=dmd2": (
        "algorithm=dmd2 trains on finished pictures, but model=tiny_lm makes tokens; set another "
        "algorithm, or a model of pictures, such as model=tiny_flow"
    ),
}  # fmt: skip


def compose_line(words):
    """The configuration of a command line."""
    cfg = compose(words)
    cfg.overrides = words
    return cfg


@pytest.mark.parametrize(("words", "line"), WRONG.items(), ids=WRONG)
def test_a_contradiction_is_one_line_that_names_the_flag(words, line):
    with pytest.raises(ConfigError) as told:
        check(compose_line(shlex.split(words)))
    assert str(told.value) == line


@pytest.mark.parametrize(
    "words",
    [
        f"{TDM} algorithm/query=reverse algorithm.query.shift=3",
        f"{TDM} algorithm/loss=dmd2 algorithm.every_state=false",
        f"{TDM_R1} algorithm.policy_every=2 epochs=2 num_minibatches=2",
        f"{TDM_R1} algorithm.loss.prompt_coef=0.5 {GUIDED}",
        f"{TDM_R1} algorithm.normalize_advantages=true",
        f"{DMD2} rollout.steps=1 model.lora={{r:4,alpha:8}}",
        f"{TDM} algorithm/teachers=velocities algorithm.teachers.folders={{others:runs/x}}",
    ],
)
def test_what_makes_sense_is_admitted(words):
    check(compose(shlex.split(words)))


def test_a_loss_of_ones_own_is_told_of_its_networks_as_a_built_in_one_is():
    led = declare(reads={"real_x0"}, networks={"fake", "taste"}, matches=True, taught=True)(
        lambda batch: batch.x0.mean(-1)
    )
    case = make_case(compose(shlex.split(f"{TDM} algorithm.policy_every=2")))
    own = replace(case.algorithm, loss=led)
    line = "algorithm.networks.taste=null: <lambda> reads its predictions; "
    assert [*complaints(replace(case, algorithm=own))] == [line + SEE]
    networks = own.networks | {"taste": own.networks["fake"]}
    assert not [*complaints(replace(case, algorithm=replace(own, networks=networks)))]
    line = "algorithm.networks.taste: tdm does not read it; set it to null"
    unread = replace(case.algorithm, networks=networks)
    assert [*complaints(replace(case, algorithm=unread))] == [line]


def test_a_network_has_a_name_of_its_own_and_guidance_a_guided_reference():
    case = make_case(compose(shlex.split(f"{TDM} algorithm.policy_every=2")))
    fake = case.algorithm.networks["fake"]
    for name in ("policy", "kl", "value", "critic", "keys", "training", "a.b", "a:b", ""):
        own = replace(case.algorithm, networks={"fake": fake, name: fake})
        line = f"algorithm.networks.{name}: names consist of letters, digits and _, and must "
        assert next(iter(complaints(replace(case, algorithm=own)))).startswith(line)
    for guided, lines in ((True, 1), (False, 0)):
        own = replace(case.algorithm, networks={"fake": replace(fake, guided=guided)})
        plan = replace(case.plan, overrides=[f"algorithm.networks.fake.guided={guided}"])
        found = [*complaints(replace(case, algorithm=own, plan=plan))]
        assert len(found) == lines and all("is not guided" in one for one in found)


@pytest.mark.parametrize(
    ("name", "rate", "beside"), [("dmd2", 1e-5, 1e-5), ("tdm_r1", 7.5e-5, 3e-4)]
)
def test_published_rates_guidance_and_steps_are_those_of_the_recipe(name, rate, beside):
    cfg = compose(["model=sd3_5_medium", f"algorithm={name}", "rollout.steps=3"])
    networks = [*cfg.algorithm.networks.values()]
    assert cfg.optimizer.lr == rate
    assert [network.lr for network in networks] == pytest.approx([beside] * len(networks))
    asked = cfg.algorithm.timestep_sampling
    assert (asked.guidance_scale, asked.ref_guidance_scale) == (1.0, 4.5)
    assert cfg.evaluation.steps == 3


def test_elsewhere_the_fake_score_is_no_slower_and_the_reference_guided_as_the_model_is_used():
    cfg = compose(["model=sd3_5_medium", "algorithm=tdm", "~recipe"])
    assert cfg.algorithm.networks.fake.lr == cfg.optimizer.lr
    assert cfg.algorithm.timestep_sampling.ref_guidance_scale == 4.5
