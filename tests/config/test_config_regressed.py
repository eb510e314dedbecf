"""The requirements of algorithms on finished images for losses, snapshots, noise and teachers."""

import shlex

import pytest
from omegaconf import OmegaConf

from tandem.config import ConfigError, build, check, compose
from tandem.legality.pictures import notice

ONLINE = "model=tiny_flow algorithm=dpo_online dynamics=ode"
NFT = "model=tiny_flow algorithm=nft ~recipe"
DGPO = "model=tiny_flow algorithm=dgpo ~recipe"
OPD = "model=tiny_flow algorithm=diffusion_opd 'algorithm.teachers.folders={others: runs/x}'"
KEEP_FAST = "algorithm.ema.fast is missing, but a loss or penalty reads it; restore it"
WRONG = {
    f"{NFT} algorithm.objective=any": (
        "algorithm.objective=any: nft reads velocity errors; set it to denoising"
    ),
    f"{OPD} algorithm.objective=any": (
        "algorithm.objective=any: distillation reads velocity errors; set it to distillation"
    ),
    f"{NFT} algorithm/loss=distillation algorithm.objective=denoising": (
        "algorithm.objective=denoising: distillation queries a teacher at sampled states; set "
        "it to distillation, as in algorithm=diffusion_opd"
    ),
    "model=tiny_flow algorithm=awm ~recipe algorithm.objective=distillation": (
        "algorithm.objective=distillation: ppo reads log-probabilities, and a teacher predicts "
        "velocities; set algorithm/loss=distillation"
    ),
    f"{NFT} algorithm.objective=distillation": (
        "algorithm.objective=distillation needs algorithm.teachers.folders; see "
        "algorithm=diffusion_opd"
    ),
    f"{OPD} algorithm.objective=denoising algorithm/loss=nft algorithm/kl=regressed": (
        "algorithm.teachers are not read under algorithm.objective=denoising; set it to "
        "distillation"
    ),
    f"{ONLINE} algorithm/kl=regressed algorithm.kl.coef=1": (
        "algorithm.kl: regressed reads velocity errors, which algorithm.objective=any does not "
        "compute; set algorithm.kl.coef=0"
    ),
    f"{OPD} algorithm.kl.coef=.1": (
        "algorithm/kl=gaussian on dynamics=ode: a finished picture is not a Gaussian step; set "
        "algorithm.kl.coef=0, or algorithm/kl=regressed, a distance between velocities"
    ),
    f"{OPD} dynamics/solver=heun": (
        "algorithm.objective=distillation: a solver keeps no states for a teacher; set "
        "dynamics/solver=euler"
    ),
    f"{OPD} dynamics=cps algorithm/loss/target=x0": (
        "algorithm/loss/target=x0 on dynamics=cps: a random step depends only on its mean; set "
        "algorithm/loss/target=xt, or dynamics=ode"
    ),
    f"{DGPO} ~algorithm.ema.fast": KEEP_FAST,
    f"{NFT} algorithm.ema_kl.coef=1 ~algorithm.ema.fast": KEEP_FAST,
    f"{NFT} algorithm.rollout_weights=odl": (
        "algorithm.rollout_weights: unknown snapshot 'odl': did you mean 'old'?"
    ),
    "model=tiny_flow algorithm=grpo ~recipe algorithm.rollout_weights=old": (
        "algorithm.rollout_weights=old: log-probabilities of sampled steps need samples of the "
        "live weights; set it to live"
    ),
    # The rules read the algorithm and the dynamics, and the sampler its copy of their values.
    f"{NFT} rollout.weights=live rollout.staleness=1": (
        "rollout.weights=live: rollout.weights repeats algorithm.rollout_weights, which other "
        "parts read; set that"
    ),
    f"{NFT} rollout.weights_from=50": (
        "rollout.weights_from=50: rollout.weights_from repeats algorithm.rollout_weights_start, "
        "which other parts read; set that"
    ),
    f"{NFT} ~rollout.kernel": (
        "~rollout.kernel: rollout.kernel repeats dynamics.kernel, which other parts read; set that"
    ),
    "model=tiny_flow algorithm=flow_grpo rollout.kernel.noise_level=0.9": (
        "rollout.kernel.noise_level=0.9: rollout.kernel.noise_level repeats "
        "dynamics.kernel.noise_level, which other parts read; set that"
    ),
    "model=tiny_flow algorithm=dpo data=shapes_pairs algorithm.rollout_weights=old": (
        "algorithm.rollout_weights=old: nothing is sampled; set it to live"
    ),
    f"{NFT} algorithm.rollout_weights=live algorithm.rollout_weights_start=50": (
        "algorithm.rollout_weights_start: the live weights always sample; set it to 0"
    ),
    f"{NFT} algorithm.target_kl=0.01 num_minibatches=2": (
        "algorithm.target_kl is in nats of sampled steps, and here finished pictures are "
        "trained; set it to null, and algorithm.kl.coef or algorithm.ema_kl.coef instead"
    ),
    "model=tiny_flow algorithm=kto data=shapes_pairs ~recipe algorithm.objective=denoising": (
        "algorithm.objective=denoising has one log-probability per noise level, and kto needs "
        "one per picture; set algorithm.objective=any, which averages over levels"
    ),
    f"{NFT} rollout.steps=1": (
        "algorithm.timestep_sampling of rollout.steps=1: no step of the sampler is left to draw "
        "from; raise rollout.steps, or widen algorithm.timestep_sampling.levels.among"
    ),
    f"{DGPO} algorithm.timestep_sampling.shared=false": (
        "algorithm.timestep_sampling.shared=false: dgpo compares the samples of a prompt at "
        "the same noise; set it to true"
    ),
    f"{ONLINE} algorithm.timestep_sampling.shared=false": (
        "algorithm.timestep_sampling.shared=false: dpo compares the samples of a prompt at the "
        "same noise; set it to true"
    ),
    f"{NFT} algorithm.timestep_sampling.count=0": (
        "algorithm.timestep_sampling.count=0: must be at least 1"
    ),
}


@pytest.mark.parametrize(("words", "said"), WRONG.items(), ids=WRONG)
def test_a_contradiction_is_named_with_the_flag_to_set(words, said):
    with pytest.raises(ConfigError) as error:
        check(compose(shlex.split(words)))
    assert str(error.value) == said


@pytest.mark.parametrize(
    "words",
    [
        NFT,
        f"{DGPO} dynamics=cps",
        f"{OPD} dynamics=flow_sde algorithm/loss/target=xt",
        f"{DGPO} algorithm/loss=dgpo_fast",
        f"{NFT} algorithm.ema_kl.coef=1",
        f"{NFT} algorithm/ema@algorithm.ema.old=linear",
        "model=tiny_flow algorithm=awm ~recipe algorithm/loss=gspo",
    ],
)
def test_what_goes_together_composes(words):
    check(compose(shlex.split(words)))


PICTURES_ALONE = "only objectives on finished pictures read it"
BY_TEACHER = "a teacher is queried at sampled states"
GRPO = "algorithm=grpo model=tiny_flow"
GUIDED = "algorithm.timestep_sampling.ref_guidance_scale=4.5"
UNREAD = {
    f"{GRPO} algorithm/timestep_sampling=uniform": PICTURES_ALONE,
    f"{GRPO} algorithm.ema.old.every=update": PICTURES_ALONE,
    f"{OPD} algorithm/timestep_sampling=uniform": BY_TEACHER,
    f"{OPD} algorithm.timestep_sampling.count=4": BY_TEACHER,
    f"{NFT} algorithm/timestep_sampling/weighting=ghuber": "nft reads unweighted errors",
    f"{NFT} algorithm.kl.coef=0 {GUIDED}": "nothing reads a reference",
    f"{NFT} algorithm/old_logprobs=current": "nft reads velocity errors, of snapshots of",
    f"{DGPO} algorithm.ema.old.decay.decay=0.5": "nothing reads algorithm.ema.old",
}
READ = (
    "algorithm=sft model=tiny_flow algorithm.timestep_sampling.count=3",
    f"{OPD} algorithm.timestep_sampling.guidance_scale=1",
    f"{NFT} {GUIDED}",
    f"{OPD} {GUIDED}",
    f"{DGPO} algorithm.ema.fast.decay.decay=0.5",
    f"{NFT} algorithm/ema@algorithm.ema.old=linear",
)


@pytest.mark.parametrize(("words", "reason"), UNREAD.items(), ids=UNREAD)
def test_a_setting_of_whole_pictures_that_nobody_reads_is_refused(words, reason):
    words = shlex.split(words)
    cfg = compose(words)
    cfg.overrides = words
    with pytest.raises(ConfigError, match=f"{words[-1].lstrip('~')}: {reason}"):
        check(cfg)


@pytest.mark.parametrize("words", READ)
def test_one_that_somebody_reads_is_taken(words):
    words = shlex.split(words)
    cfg = compose(words)
    cfg.overrides = words
    check(cfg)


def test_a_snapshot_is_not_called_what_other_weights_are():
    cfg = compose(shlex.split(NFT))
    OmegaConf.update(cfg, "algorithm.ema.live", cfg.algorithm.ema.old, force_add=True)
    with pytest.raises(ConfigError, match="live names the weights that are trained"):
        check(cfg)


def test_what_pictures_alone_are_asked_is_no_key_of_a_run_of_tokens():
    assert not {"timestep_sampling", "ema", "ema_kl", "teachers"} & {*compose().algorithm}
    for key in (
        "algorithm.timestep_sampling.count",
        "algorithm.rollout_weights",
        "algorithm.ema_kl.coef",
    ):
        with pytest.raises(
            ConfigError, match=rf"^{key}: language models have no algorithm\.\w+; leave it out"
        ):
            compose([f"{key}=3"])


def test_images_with_guidance_that_is_not_trained_are_not_those_of_the_old_policy():
    """DGPO, published so, compares with averages that need not have sampled."""

    def said(*words):
        cfg = compose(["model=tiny_flow", *words])
        return notice(build(cfg.algorithm), build(cfg.rollout))

    guided = "rollout.guidance_scale=4.5"
    for name in ("nft", "awm", "crd"):
        assert said(f"algorithm={name}", guided).endswith("set rollout.guidance_scale=1")
    trained = "algorithm.timestep_sampling.guidance_scale=4.5"
    for words in (["algorithm=dgpo", guided], ["algorithm=nft", guided, trained], []):
        assert said(*words) is None


@pytest.mark.parametrize("pair", [("large", "nft"), ("medium", "awm"), ("medium", "crd")])
def test_what_is_published_without_guidance_is_sampled_and_measured_without(pair):
    size, name = pair
    cfg = compose([f"model=sd3_5_{size}", f"algorithm={name}", "data.path=a.txt"])
    assert cfg.rollout.guidance_scale == cfg.evaluation.guidance_scale == 1
    asked = cfg.algorithm.timestep_sampling
    assert (asked.guidance_scale, asked.ref_guidance_scale) == (1, 4.5 if name == "crd" else 1)
