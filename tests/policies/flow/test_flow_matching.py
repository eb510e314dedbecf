"""A few-step generator with its fake score and a reward surrogate: one transformer each, in one
loop."""

import copy
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from laws.bench import preset
from loop import Alone
from policies.flow.small_flow import Brightness, Stream, make_prompts, sample_rows, small
from torch.testing import assert_close
from two_ranks import on_both

from tandem.algorithm.matching import Network
from tandem.contracts import declare
from tandem.dynamics.kernels import ode
from tandem.dynamics.regression import energy
from tandem.experience import Budget
from tandem.losses.matching import tdm
from tandem.metrics import masked_mean
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.policies.flow.teachers import VelocityTeachers
from tandem.policies.memory.estimate import Workload
from tandem.policies.memory.flow_estimate import points_of
from tandem.settings.guards import Guards
from tandem.training.batches import BatchPlan
from tandem.types import Scores

PLAN = BatchPlan(
    seed=0,
    iterations=4,
    prompts_per_step=2,
    group_size=3,
    num_minibatches=1,
    epochs=1,
    budget=Budget(),
    max_grad_norm=1.0,
)
STEPS = 3
WORK = Workload(
    samples=32, per_update=32, max_tokens=None, rows=None, narrow=False, state=lambda dtype: 8.0
)  # fmt: skip
ADAM = partial(torch.optim.Adam, lr=3e-3)
EACH = pytest.mark.parametrize("name", ["dmd2", "tdm", "tdm_r1"])


def policy_of(algorithm, **options):
    request = algorithm.request(None)
    names = ("objective", "timesteps", "query", "every_state", "networks", "snapshots", "teachers")
    asked = {name: getattr(request, name) for name in names}
    return small(request.needs, steps=STEPS, sampling={"kernel": ode}, **asked, **options)


class Loop(Alone):
    def __init__(self, algorithm, folder, **options):
        super().__init__(
            policy=policy_of(algorithm, **options),
            algorithm=algorithm,
            rewards=Brightness(),
            stream=Stream(),
            optimizer=ADAM,
            plan=PLAN,
            guards=Guards(no_signal=99),
            folder=folder,
        )

    def networks(self):
        """The weights of each network, by name."""
        groups = self.policy.groups().items()
        return {name: [p.detach().clone() for p in own] for name, own in groups}


def move(before, after):
    return {
        name
        for name, weights in after.items()
        if any(not torch.equal(x, y) for x, y in zip(before[name], weights, strict=True))
    }


def often(name, every=1):
    return replace(preset(name), policy_every=every)


@EACH
def test_every_network_begins_as_the_policy_and_has_a_rate_of_its_own(name, tmp_path):
    loop = Loop(often(name), tmp_path)
    networks = loop.networks()
    for other in networks.values():
        for one, two in zip(networks["policy"], other, strict=True):
            assert torch.equal(one, two)
    rates = [group["lr"] for group in loop.only.param_groups]
    assert rates == [3e-3, *(network.lr for network in loop.algorithm.networks.values())]


def test_while_the_policy_rests_the_others_learn_alone(tmp_path):
    loop = Loop(often("tdm", every=3), tmp_path)
    for iteration in range(6):
        before = loop.networks()
        loop.go()
        learns = iteration in (2, 5)
        assert move(before, loop.networks()) == ({"policy", "fake"} if learns else {"fake"})
        assert ("loss/policy" in loop.report) == learns


def of_two_iterations(folder):
    """For each update whether every parameter has a gradient, and the final weights."""
    complete = []

    class Watched(Loop):
        def update(self, minibatch):
            complete.append(all(p.grad is not None for p in self.parameters()))
            super().update(minibatch)

    networks = Watched(often("dmd2", every=2), folder).go(2).networks()
    return complete, {name: [p.numpy() for p in own] for name, own in networks.items()}


@pytest.mark.slow
def test_while_the_policy_rests_every_rank_has_its_gradients_and_moves_as_one_does(tmp_path):
    _, alone = of_two_iterations(tmp_path)
    for complete, networks in on_both(partial(of_two_iterations, tmp_path)):
        assert complete == [True, True]
        assert networks.keys() == alone.keys() == {"policy", "fake"}
        for name, own in networks.items():
            for got, want in zip(own, alone[name], strict=True):
                assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_a_generator_at_its_reference_has_no_direction_until_the_fake_score_has_learnt(tmp_path):
    loop = Loop(often("dmd2"), tmp_path).go()
    assert loop.report["actor/score_gap"] < 1e-12
    loop.go()
    assert loop.report["actor/score_gap"] > 1e-9


def test_one_state_of_a_path_is_drawn_or_all_are_taken():
    one, every = (sample_rows(policy_of(often(name)), 8).mask for name in ("dmd2", "tdm"))
    assert every.shape == one.shape == (32, STEPS)
    assert every.all()
    assert (one.sum(1) == 1).all()
    assert one.any(0).all(), "each state is somebody's"


def flat(said, networks):
    """The outputs of the policy, and those of each network as NAME.FIELD."""
    own = {
        f"{name}.{one.name}": getattr(answer, one.name)
        for name, answer in networks.items()
        for one in fields(answer)
    }
    return {name: x for name, x in {**said, **own}.items() if x is not None}


def test_what_a_network_says_has_its_own_gradient_and_no_others():
    algorithm = often("tdm_r1")
    policy = policy_of(algorithm)
    rollout = sample_rows(policy, 3)
    said, networks = policy.matching(rollout, algorithm.needs, rests=False)
    owners = {"x0": "policy"} | {f"{name}.error": name for name in networks}
    assert [*networks] == ["fake", "surrogate"]
    for field, value in flat(said, networks).items():
        assert value.requires_grad == (field in owners), field
        if field not in owners:
            continue
        for name, weights in policy.groups().items():
            grads = torch.autograd.grad(
                value.sum(), weights, retain_graph=True, allow_unused=True
            )  # fmt: skip
            assert any(g is not None for g in grads) == (owners[field] == name)


def test_where_it_rests_nobody_else_is_asked():
    algorithm = often("dmd2", every=5)
    policy = policy_of(algorithm)
    needs = algorithm.resting_objective.needs
    said, networks = policy.matching(sample_rows(policy, 2), needs, rests=True)
    assert not said["x0"].requires_grad
    assert networks["fake"].error.requires_grad
    assert "real_x0" not in said


def test_what_all_expect_is_of_one_query_on_the_pictures_of_the_generator():
    algorithm = often("tdm")
    policy = policy_of(algorithm)
    rollout = sample_rows(policy, 2)
    with torch.no_grad():
        said, networks = policy.matching(rollout, algorithm.needs, rests=False)
    fake = networks["fake"]
    # All weights are equal, and x = x0 + sigma target: so an error of the fake score is its
    # distance from the generator's picture, over minus sigma.
    assert_close(fake.x0, said["real_x0"])
    back = said["x0"] - said["sigma"][..., None] * fake.error
    assert_close(fake.x0, back, atol=1e-4, rtol=1e-4)
    last = said["x0"][:, -1].view_as(rollout.sample.x0)
    assert_close(last, rollout.sample.x0, atol=1e-5, rtol=1e-5)
    trajectory = rollout.sample.trajectory
    assert (said["sigma"] < trajectory.sigma).all()
    assert (said["sigma"] > trajectory.next_sigma).all()
    assert_close(said["importance"][:, -1], torch.ones(len(said["x0"])).to(said["importance"]))
    assert (said["importance"][:, 0] != 1).any()


def test_guidance_of_the_reference_is_what_a_prompt_adds_and_none_of_the_others_is_guided():
    plain, guided = ({}, {})
    for scale, said in ((1.0, plain), (3.0, guided)):
        algorithm = often("tdm_r1")
        regression = replace(algorithm.timestep_sampling, ref_guidance_scale=scale)
        algorithm = replace(algorithm, timestep_sampling=regression)
        policy = policy_of(algorithm, negative_prompt="green")
        policy.admit(make_prompts())
        rollout = sample_rows(policy, 2)
        with torch.no_grad():
            said |= flat(*policy.matching(rollout, algorithm.needs, rests=False))
    assert not plain["of_prompt"].any() and guided["of_prompt"].any()
    added = 2.0 * guided["of_prompt"]
    assert_close(guided["real_x0"] - plain["real_x0"], added, atol=1e-5, rtol=1e-4)
    # The surrogate still is the reference, and is guided where it draws the generator.
    assert_close(guided["surrogate.x0"], guided["real_x0"])
    for name in ("x0", "fake.x0", "fake.error", "surrogate.error"):
        assert_close(guided[name], plain[name])


def test_a_teacher_may_stand_for_the_reference(tmp_path):
    """A few-step student continues to train towards a many-step model."""
    adapter = TinyFlow(seed=1, num_layers=1)
    adapter.save(adapter.load(None, None), tmp_path)
    algorithm = often("tdm")
    taught = replace(algorithm, teachers=VelocityTeachers(folders={"others": str(tmp_path)}))
    policy, alone, other = policy_of(taught), policy_of(algorithm), policy_of(algorithm)
    assert policy.model.frozen is None
    teacher = adapter.load(str(tmp_path), None).state_dict()
    other.model.frozen.network.load_state_dict(teacher)
    said, own, wanted = (
        flat(*one.matching(sample_rows(one, 2), algorithm.needs, rests=True))
        for one in (policy, alone, other)
    )
    assert said["x0"].shape[1] == STEPS
    assert_close(said["real_x0"], wanted["real_x0"])
    assert (said["real_x0"] - own["real_x0"]).abs().max() > 1e-2
    assert_close(said["fake.x0"], own["fake.x0"])


def test_the_samples_of_a_prompt_are_asked_by_one_noise():
    algorithm = often("tdm_r1")
    policy = policy_of(algorithm)
    said, _ = policy.matching(sample_rows(policy, 3), algorithm.needs, rests=True)
    sigma = said["sigma"].view(4, 3, STEPS)
    assert torch.equal(sigma, sigma[:, :1].expand_as(sigma))
    assert not torch.equal(sigma[0], sigma[1])


@pytest.mark.parametrize("scale", [1.0, 2.0])
@EACH
def test_the_estimate_has_as_many_points_of_a_micro_batch_as_training_cuts(name, scale):
    algorithm = often(name)
    regression = replace(algorithm.timestep_sampling, guidance_scale=scale)
    policy = policy_of(replace(algorithm, timestep_sampling=regression))
    rollout = sample_rows(policy, 8)
    budget = Budget(max_tokens=8 * int(policy.row_cost(rollout)[0]))
    points = [int(rollout.mask[part].sum()) for part in budget.cut(policy.row_cost(rollout))]
    work = replace(WORK, max_tokens=budget.max_tokens)
    outline = SimpleNamespace(policy=policy, request=policy.request, adapter=policy.adapter)
    assert points_of(outline, work) == (scale, max(points))


def test_a_picture_without_a_score_is_the_fake_scores_and_none_of_its_group():
    algorithm = often("tdm_r1")
    policy = policy_of(algorithm)
    with torch.no_grad():
        for weight in policy.groups()["surrogate"]:
            weight *= 1.05
    rollout, total = sample_rows(policy, 3), torch.arange(12).double()
    scores = Scores(total=total, parts={"a": total}, scored=total > 0)
    objective, rows = algorithm.training_objective, algorithm.experience(scores, rollout)
    record = objective.record(policy, rows)
    seen = objective.by_term(record)
    assert seen["fake"].mask.all() and seen["policy"].mask.all()
    assert seen["surrogate"].mask.all(1).tolist() == scores.scored.tolist()
    weights = objective.weigh(rows)
    assert_close(weights["fake"], torch.full((12, STEPS), 1 / 12 / STEPS))
    assert_close(weights["surrogate"][1:], torch.full((11, STEPS), 1 / 11 / STEPS))
    assert not weights["surrogate"][0].any()
    error = record.networks["surrogate"].error
    worse = (error.square() - record.ref_error.square()).mean(-1)
    (whole,) = objective.add_statistics(policy, rows, Budget()).statistics.values()
    want = 10.0 * (rows.advantages * worse)[1:3].mean(0)  # of each step
    assert_close(whole[1:3], want.expand(2, STEPS).to(whole), rtol=1e-4, atol=1e-6)


def test_another_epoch_asks_at_other_noise():
    algorithm = often("dmd2")
    policy = policy_of(algorithm)
    rollout = sample_rows(policy, 2)
    again = policy.resample_noise(rollout, 1)
    sigmas = [
        policy.matching(rows, algorithm.needs, rests=True)[0]["sigma"] for rows in (rollout, again)
    ]
    assert torch.equal(rollout.mask, again.mask)
    assert not torch.equal(*sigmas)


@pytest.mark.parametrize("name", ["dmd2", "tdm_r1"])
def test_a_run_goes_on_bit_for_bit_with_all_its_networks(name, tmp_path):
    algorithm = often(name, every=2 if name == "dmd2" else 1)
    through = Loop(algorithm, tmp_path).go(4)
    first = Loop(algorithm, tmp_path).go(2)
    again = Loop(algorithm, tmp_path)
    again.policy.load_weights({key: x.clone() for key, x in first.policy.weights().items()})
    again.only.load_state_dict(copy.deepcopy(first.only.state_dict()))
    again.load_state({key: x.clone() for key, x in first.state().items()})
    again.go(2)
    assert move(first.networks(), through.networks()) == {*through.networks()}
    assert move(through.networks(), again.networks()) == set()
    for key, value in through.state().items():
        assert torch.equal(again.state()[key], value), key
    assert through.report == again.report


def test_the_surrogate_is_compared_with_an_average_of_itself_alone(tmp_path):
    loop = Loop(often("tdm_r1"), tmp_path).go(2)
    model = loop.policy.model
    average = model.averages["surrogate"]
    assert [*average.following] == ["fast"]
    assert not model.averages["fake"].following
    assert not model.snapshots.following
    live = dict(model.learners["surrogate"].named_parameters())
    name = max(live, key=lambda key: live[key].numel())
    gap = (average.weights["fast"][name] - live[name]).abs().max()
    assert 0 < gap < 0.01


@declare(reads={"real_x0"}, networks={"fake", "taste"}, matches=True, taught=True)
def led_by_taste(batch):
    """A custom loss: that of TDM, plus the distance to a third network's prediction."""
    return tdm(batch) + energy(batch.x0 - batch.networks["taste"].x0)


def step_sizes(batch):
    gap = energy(batch.error - batch.fast_error)
    return {"actor/gap": masked_mean(gap, batch.mask), "optim/gap": masked_mean(gap, batch.mask)}


@declare(reads={"fast_error"}, on_errors=True, taught=True, metrics=step_sizes)
def steady(batch):
    """The custom loss of that network: the policy's images, near its own average."""
    return energy(batch.error) + energy(batch.error - batch.fast_error)


def test_a_third_network_of_ones_own_learns_and_leads_the_policy_without_a_line_of_tandem(tmp_path):
    algorithm = often("tdm")
    networks = algorithm.networks | {"taste": Network(loss=steady, lr=2e-3, guided=True)}
    loop = Loop(replace(algorithm, loss=led_by_taste, networks=networks), tmp_path)
    before = loop.networks()
    assert [*before] == ["policy", "fake", "taste"]
    assert loop.only.param_groups[-1]["lr"] == 2e-3
    loop.go()
    assert move(before, loop.networks()) == {"policy", "fake", "taste"}
    own = {name for name in loop.report if name.startswith("networks/taste/")}
    assert own == {f"networks/taste/{x}" for x in ("velocity_error", "actor/gap", "optim/gap")}
    averages = loop.policy.model.averages
    assert [*averages["taste"].following] == ["fast"]
    assert not averages["fake"].following  # its loss reads none


def test_what_is_saved_is_the_generator(tmp_path):
    loop = Loop(often("tdm"), tmp_path).go(2)
    loop.policy.save(tmp_path / "model")
    saved = loop.policy.adapter.load(str(tmp_path / "model"), None)
    for one, two in zip(saved.parameters(), loop.networks()["policy"], strict=True):
        assert torch.equal(one, two)
    assert not list((tmp_path / "model").rglob("*fake*"))


def test_adapters_of_every_network_learn_and_their_bases_stay(tmp_path):
    from tandem.policies.lora import Lora

    loop = Loop(often("tdm_r1"), tmp_path, lora=Lora(r=2, alpha=4))
    assert all(".lora_" in name for name in loop.policy.trainable())
    bases = {name: copy.deepcopy(x.state_dict()) for name, x in loop.policy.model.learners.items()}
    before = loop.networks()
    loop.go(2)
    assert move(before, loop.networks()) == {"policy", "fake", "surrogate"}
    for name, network in loop.policy.model.learners.items():
        for key, value in network.state_dict().items():
            if ".lora_" not in key:
                assert torch.equal(value, bases[name][key])
