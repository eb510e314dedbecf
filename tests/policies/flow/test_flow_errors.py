"""Velocity errors of images and of paths: the policy's own, and those that it is compared with."""

import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from small_flow import KERNELS, NOTHING, TEXTS, gradients_of, make_prompts, sample_rows, small
from tiny_sd3 import pipeline
from torch.testing import assert_close

from tandem import rng
from tandem.data.images import show
from tandem.dynamics.decays import EmaSchedule, constant
from tandem.dynamics.kernels import ode
from tandem.dynamics.regression import Regression, discrete
from tandem.dynamics.weighting import plain
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.policies.flow.teachers import LoadedVelocityTeachers, VelocityTeachers
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.lora import Lora
from tandem.policies.weights import Precision
from tandem.types import Prompt

OTHERS = frozenset({"old_error", "ref_error", "fast_error"})
OF_STEPS = frozenset({"std", "velocity_gain"})
COPIED = EmaSchedule(decay=lambda count: 0.0, every="iteration", counts="iteration")
HALF = EmaSchedule(decay=partial(constant, decay=0.5))
TWO_LEVELS = Regression(levels=discrete, weighting=plain, count=2, shared=False)
ADAPTERS = Lora(r=2, alpha=4, target_modules="attention")
CLOSE = {"atol": 2e-5, "rtol": 1e-5}
EVERYWHERE = pytest.mark.parametrize("kernel", ["ode", *KERNELS])


def regressing(needs=OTHERS, **options):
    """A policy of three steps that is trained on finished images."""
    own = {
        "sampling": {"kernel": ode},
        "timesteps": TWO_LEVELS,
        "objective": "denoising",
        "snapshots": {"old": COPIED, "fast": HALF},
    }
    return small(needs, steps=3, **(own | options))


def pictures(policy, **options):
    return sample_rows(policy, 2, texts=TEXTS[:2], **options)


def move(policy, by=0.05):
    """An update."""
    with torch.no_grad():
        for number, parameter in enumerate(policy.trainable().values()):
            parameter += by * rng.normal(rng.key("moved", number), tuple(parameter.shape))
    policy.notify("update")


def frozen(policy):
    """The velocity field of the current weights."""
    return VelocityModel(copy.deepcopy(policy.model.network), policy.adapter, precision=Precision())


@torch.no_grad()
def by_hand(policy, rollout, field, *, scale=1.0):
    """Level by level: the velocity at (1 - s) x0 + s e, minus (e - x0). [B, T, D]"""
    x0, key = rollout.sample.x0, rollout.sample.key
    noise = rng.normal(rng.key(key, "noise"), (2, 3, 16, 16))
    asked = policy.library.rows(rollout.prompts, policy.device, guided=scale > 1)
    errors = []
    for level, sigma in enumerate(policy.schedule()[:2]):  # of three steps the first two
        sigma = sigma.expand(len(x0))
        s = sigma.view(-1, 1, 1, 1)
        x = (1 - s) * x0 + s * noise[:, level]
        velocity = field.predict(x, sigma, asked.prompted)
        if scale > 1:
            away = field.predict(x, sigma, asked.unprompted)
            velocity = away + scale * (velocity - away)
        errors.append((velocity - (noise[:, level] - x0)).flatten(1))
    return torch.stack(errors, 1)


@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["all weights", "adapters"])
def test_each_error_is_that_of_its_own_weights(lora):
    policy = regressing(lora=lora)
    rollout, reference = pictures(policy), frozen(policy)
    move(policy)
    policy.notify("iteration")
    old = frozen(policy)
    move(policy)
    live = frozen(policy)
    average = copy.deepcopy(policy)  # by hand: ((first + second) / 2 + third) / 2
    weights = [dict(field.network.named_parameters()) for field in (reference, old, live)]
    with torch.no_grad():
        for name, parameter in average.model.network.named_parameters():
            first, second, third = (by_time[name] for by_time in weights)
            parameter.copy_(((first + second) / 2 + third) / 2)
    said = policy.errors(rollout, OTHERS)
    assert torch.equal(said["sigma"][0], policy.schedule()[:2])
    fields = {
        "error": live,
        "old_error": old,
        "ref_error": reference,
        "fast_error": frozen(average),
    }
    for name, field in fields.items():
        assert_close(said[name].detach(), by_hand(policy, rollout, field), **CLOSE)
        assert said[name].requires_grad == (name == "error")
    several = [said[name].detach() for name in fields]
    assert all((a - b).abs().max() > 1e-3 for a, b in pairwise(several))


class Counted(TinyFlow):
    """Counts the rows of its networks' passes."""

    rows = 0

    def velocity(self, network, x, sigma, condition):
        self.rows += len(x)
        return super().velocity(network, x, sigma, condition)


def test_old_is_the_very_error_of_the_policy_until_an_update_is_made():
    policy = regressing(frozenset({"old_error"}), adapter=Counted(seed=0, num_layers=1))
    rollout = pictures(policy)
    policy.adapter.rows = 0
    first = policy.errors(rollout, frozenset({"old_error"}))
    assert torch.equal(first["old_error"], first["error"])
    assert policy.adapter.rows == 4 * 2
    move(policy)
    then = policy.errors(rollout, frozenset({"old_error"}))
    assert torch.equal(then["old_error"], first["old_error"])
    assert policy.adapter.rows == 3 * 4 * 2
    assert (then["error"] - then["old_error"]).abs().max() > 1e-3
    policy.notify("iteration")
    again = policy.errors(rollout, frozenset({"old_error"}))
    assert torch.equal(again["old_error"], again["error"])
    assert torch.equal(again["error"], then["error"])


def test_who_is_compared_with_leaves_the_graph_of_the_policy_whole():
    policy = regressing()
    rollout = pictures(policy)
    move(policy)
    weight = rng.normal(1, (4, 2, 768))
    alone = gradients_of(policy, (weight * policy.errors(rollout, NOTHING)["error"]).sum())
    for rows in (64, 3):  # with three rows per part, velocities are recomputed in backward
        policy.forward_pass.max_rows = rows
        said = policy.errors(rollout, OTHERS)
        among = gradients_of(policy, (weight * said["error"]).sum())
        for name, gradient in alone.items():
            assert_close(among[name], gradient, atol=1e-3, rtol=1e-4)
        if rows == 64:
            whole = said
    for name, value in whole.items():
        assert_close(said[name], value, **CLOSE)


def test_the_policy_and_its_reference_are_guided_by_scales_of_their_own():
    guided = replace(TWO_LEVELS, guidance_scale=3.0, ref_guidance_scale=5.0)
    policy = regressing(timesteps=guided, negative_prompt="green")
    rollout, reference = pictures(policy), frozen(policy)
    move(policy)
    said = policy.errors(rollout, OTHERS)
    assert_close(
        said["error"].detach(), by_hand(policy, rollout, frozen(policy), scale=3.0), **CLOSE
    )
    assert_close(said["old_error"], by_hand(policy, rollout, reference, scale=3.0), **CLOSE)
    assert_close(said["ref_error"], by_hand(policy, rollout, reference, scale=5.0), **CLOSE)
    assert (rollout.sample.guidance == 1).all(), "the scale of the rollout is another one"
    assert (policy.row_cost(rollout) == 2 * 2 * sum(policy.adapter.tokens)).all()
    one = small(
        frozenset({"ref_logp"}),
        sampling={"kernel": ode},
        timesteps=guided,
        negative_prompt="green",
    )
    told = one.complete(pictures(one), frozenset({"ref_logp", "old_logp"}))
    assert (told.ref_logp - told.old_logp).abs().min() > 1e-4, "of one network, by two scales"


@pytest.mark.parametrize("name", ["guidance_scale", "ref_guidance_scale"])
def test_guidance_in_training_needs_a_negative_prompt(name):
    policy = regressing(timesteps=replace(TWO_LEVELS, **{name: 4.5}))
    kept, dropped = policy.admit(make_prompts())
    assert not kept and len(dropped) == 4
    assert f"which algorithm.timestep_sampling.{name} above 1 needs" in dropped[0][1]
    assert policy.admit(make_prompts(negative_prompt=""))[1] == []


@pytest.mark.parametrize("shared", [True, False])
def test_the_samples_of_a_group_share_their_noise_where_they_should(shared):
    policy = regressing(timesteps=replace(TWO_LEVELS, shared=shared))
    keys = pictures(policy).sample.key.view(2, 2)
    assert (keys[:, 0] == keys[:, 1]).all() == shared
    assert len(keys.unique()) == (2 if shared else 4)


@EVERYWHERE
def test_pictures_as_a_whole_have_a_step_for_each_level_whoever_sampled_them(kernel):
    policy = regressing(sampling={"kernel": {"ode": ode, **KERNELS}[kernel]})
    rollout = pictures(policy)
    assert rollout.mask.shape == (4, 2) and rollout.mask.all() and (rollout.length == 2).all()
    assert rollout.sample.trajectory is None and rollout.behaviour_logp is None
    said = policy.errors(rollout, OTHERS)
    assert said["sigma"].shape == (4, 2)
    assert_close(said["error"].detach(), by_hand(policy, rollout, frozen(policy)), **CLOSE)


def test_demonstrations_have_as_many_steps():
    policy = regressing()
    shown = [
        replace(prompt, media=show(torch.full((16, 16, 3), 50 * prompt.id, dtype=torch.uint8)))
        for prompt in make_prompts()
    ]
    rollout = policy.encode(shown, key=0, slots=[7, 8, 7, 9])
    assert rollout.mask.shape == (4, 2)
    assert rollout.group.tolist() == [7, 8, 7, 9] and len(rollout.sample.key.unique()) == 3
    said = policy.errors(rollout, NOTHING)["error"].detach()
    assert_close(said, by_hand(policy, rollout, frozen(policy)), **CLOSE)


@pytest.mark.parametrize("taught", [False, True], ids=["pictures", "paths"])
def test_outside_the_mask_all_is_zero_and_every_weight_is_reached(taught, tmp_path):
    options, needs = ({}, OTHERS) if not taught else (by_teachers(tmp_path), OF_STEPS)
    policy = regressing(needs, **options)
    rollout = pictures(policy)
    part = rollout.mask.clone()
    part[1], part[:, 1] = False, False
    whole, some = policy.errors(rollout, needs), policy.errors(replace(rollout, mask=part), needs)
    nothing = policy.errors(replace(rollout, mask=torch.zeros_like(part)), needs)
    for name in whole:
        assert (some[name][~part] == 0).all() and (nothing[name] == 0).all()
        assert_close(some[name][part], whole[name][part], **CLOSE)
    gradients = gradients_of(policy, nothing["error"].sum())
    assert all((gradient == 0).all() for gradient in gradients.values())


# The states at which teachers are evaluated.


def write(folder, seed, *, run=False):
    """A teacher in diffusers' layout, or in a run directory."""
    adapter = TinyFlow(seed=seed, num_layers=1)
    network = adapter.load(None, None)
    adapter.save(network, folder / "model" if run else folder)
    return VelocityModel(network, adapter, precision=Precision())


def by_teachers(folder, **folders):
    """Options of a policy with teachers; one other network by default."""
    if not folders:
        write(folder / "one", 1)
        folders = {"others": str(folder / "one")}
    return {"teachers": VelocityTeachers(folders=folders, fraction=0.7), "objective": "teacher"}


@EVERYWHERE
def test_a_teacher_is_asked_at_the_states_of_the_path(tmp_path, kernel):
    one = write(tmp_path / "one", 1)
    policy = regressing(
        OF_STEPS,
        sampling={"kernel": {"ode": ode, **KERNELS}[kernel]},
        **by_teachers(tmp_path, others=str(tmp_path / "one")),
    )
    rollout = pictures(policy)
    taken = rollout.sample.trajectory
    assert rollout.mask.shape == (4, 2), "of three steps the first seven tenths"
    said = policy.errors(rollout, OF_STEPS)
    condition = policy.library.rows(rollout.prompts, policy.device, guided=False).prompted
    for step in range(2):
        x, sigma = taken.path[:, step], policy.schedule()[step].expand(4)
        with torch.no_grad():
            apart = policy.model.field.predict(x, sigma, condition) - one.predict(
                x, sigma, condition
            )
        assert_close(said["error"][:, step].detach(), apart.flatten(1), **CLOSE)
        assert torch.equal(said["sigma"][:, step], sigma)
    assert torch.equal(said["std"], taken.std) and (said["std"] > 0).all() == (kernel != "ode")
    assert (said["velocity_gain"] < 0).all()
    faculty = policy.model.teachers.fields.values()
    assert not any(p.requires_grad for field in faculty for p in field.network.parameters())


def of_source(source):
    return Prompt(id=0, source=source, text="red circle")


def test_each_source_has_the_teacher_of_its_most_particular_name(tmp_path):
    names = {"shapes/red": 1, "shapes": 2, "others": 3}
    folders = {}
    for source, seed in names.items():
        folder = tmp_path / str(seed)
        write(folder, seed, run=seed == 2)
        folders[source] = str(folder)
    policy = regressing(OF_STEPS, **by_teachers(tmp_path, **folders))
    prompts = [of_source(source) for source in ("colours", "shapes/red", "shapes/blue", "shapes")]
    rollout = policy.sample(prompts, 1, key=1, slots=range(4))
    together = policy.errors(rollout, OF_STEPS)["error"].detach()
    for row, source in enumerate(("others", "shapes/red", "shapes", "shapes")):
        alone = regressing(OF_STEPS, **by_teachers(tmp_path, others=folders[source]))
        want = alone.errors(rollout, OF_STEPS)["error"][row].detach()
        assert_close(together[row], want, **CLOSE)
    first, second = (together[row] for row in (0, 1))
    assert (first - second).abs().max() > 1e-3


def test_a_source_that_nobody_teaches_is_an_error(tmp_path):
    write(tmp_path, 1)
    policy = regressing(OF_STEPS, **by_teachers(tmp_path, shapes=str(tmp_path)))
    rollout = policy.sample([of_source("colours")], 1, key=1, slots=[0])
    with pytest.raises(ValueError, match="has no teacher for prompts of colours; add colours: RUN"):
        policy.errors(rollout, OF_STEPS)


def test_a_teacher_of_other_pictures_is_an_error_that_names_both(tmp_path):
    pipeline().transformer.save_pretrained(tmp_path / "transformer")
    with pytest.raises(ValueError, match="others=") as refused:
        regressing(OF_STEPS, **by_teachers(tmp_path, others=str(tmp_path)))
    assert str(refused.value) == (
        f"algorithm.teachers.folders.others={tmp_path}: its latents are 4 x 8 x 8, but "
        "those of the policy are 3 x 16 x 16; choose a teacher with latents of the same size"
    )


def test_a_teacher_that_cannot_be_loaded_is_named_as_one(tmp_path):
    write(tmp_path, 1)
    (tmp_path / "transformer" / "config.json").write_text("{")
    with pytest.raises(
        ValueError, match=r"^algorithm\.teachers\.folders\.others=.*cannot be loaded"
    ):
        regressing(OF_STEPS, **by_teachers(tmp_path, others=str(tmp_path)))


@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["all weights", "adapters"])
def test_who_is_taught_by_itself_has_nothing_to_learn(tmp_path, lora):
    student = regressing(NOTHING, lora=lora)
    move(student)
    student.save(tmp_path)
    again = regressing(
        OF_STEPS, lora=None, path=str(tmp_path), **by_teachers(tmp_path, others=str(tmp_path))
    )
    said = again.errors(pictures(again), OF_STEPS)["error"]
    assert_close(said, torch.zeros_like(said), atol=2e-5, rtol=0)


def test_teachers_follow_the_policy_to_its_device(tmp_path):
    faculty = LoadedVelocityTeachers({"others": write(tmp_path, 1)})
    ((field, places),) = faculty.of([of_source("a"), of_source("b")], torch.device("meta"))
    assert {p.device.type for p in field.network.parameters()} == {"meta"} == {places.device.type}
