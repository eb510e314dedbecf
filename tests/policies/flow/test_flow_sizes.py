"""Batches with several image sizes: each row has the values that it has alone."""

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from at_once import AtOnce
from diffusers.models.embeddings import PatchEmbed
from laws.bench import preset
from loop import Alone
from records import GRPO
from small_flow import KERNELS, KEY, Stream, small
from torch.testing import assert_close

from tandem.data.images import show
from tandem.dynamics.kernels import ode
from tandem.dynamics.schedules import linear_dynamic_shift
from tandem.experience import Budget
from tandem.policies.flow.adapter import Canvas
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.settings.guards import Guards
from tandem.training.batches import BatchPlan
from tandem.training.strategies import kto_kl
from tandem.types import Prompt, Scores, concat, take

SHIFTED = partial(linear_dynamic_shift, base_tokens=4, max_tokens=64, base_shift=0.5, max_shift=4.0)
SIZES = (None, (24, 16), (16, 24), (24, 16))
GROUP = 2
CLOSE = {"atol": 2e-6, "rtol": 0}


class AnySize(TinyFlow):
    """The embedded transformer for images whose sides are multiples of 4 up to 32."""

    def __init__(self, height=16, width=16):
        super().__init__(seed=0, num_layers=1)
        self.image_shape = (height, width, 3)

    def load(self, path, dtype):
        network = super().load(path, dtype)
        self.latent_shape = self.canvas(None).latent_shape
        return network

    def _new(self):
        network = super()._new()
        large = PatchEmbed(
            height=16, width=16, patch_size=4, in_channels=3, embed_dim=64, pos_embed_max_size=8
        )
        network.pos_embed.pos_embed = large.pos_embed
        network.pos_embed.pos_embed_max_size = 8
        return network

    @property
    def tokens(self):
        return self.canvas(None).tokens, 5

    def canvas(self, resolution, frames=None):
        sides = resolution if isinstance(resolution, tuple) else (resolution,) * 2
        high, wide = self.image_shape[:2] if resolution is None else sides
        if high % 4 or wide % 4 or not 0 < high <= 32 or not 0 < wide <= 32:
            raise ValueError(f"{high} x {wide} are no multiples of 4 up to 32")
        return Canvas(latent_shape=(3, high, wide), tokens=high * wide // 16)


def make(height=16, width=16, needs=frozenset(), **options):
    sampling = {"schedule": SHIFTED, "max_rows": 3} | options.pop("sampling", {})
    return small(needs, adapter=AnySize(height, width), sampling=sampling, steps=4, **options)


def ask(sizes=SIZES):
    return [Prompt(id=i, source="s", text=f"a {i}", size=size) for i, size in enumerate(sizes)]


def sample(policy, prompts, slots):
    return policy.sample(prompts, GROUP, key=KEY, slots=slots)


def alone(prompt, slot, **options):
    """A policy of that image size, and its rows of the prompt."""
    policy = make(*(prompt.size or (16, 16)), **options)
    return policy, sample(policy, [replace(prompt, size=None)], [slot])


def gradient(policy, loss):
    policy.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.trainable().values()])


def test_each_row_is_sampled_as_if_all_were_of_its_size():
    rollout = sample(make(), ask(), range(4))
    assert rollout.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [p.id for p in rollout.prompts] == rollout.group.tolist()
    for slot, prompt in enumerate(ask()):
        _, want = alone(prompt, slot)
        got = take(rollout, torch.tensor([2 * slot, 2 * slot + 1]))
        high, wide = want.sample.x0.shape[-2:]
        assert_close(got.sample.x0[..., :high, :wide], want.sample.x0, **CLOSE)
        assert_close(got.behaviour_logp, want.behaviour_logp, **CLOSE)
        assert all(map(torch.equal, got.outputs, want.outputs))
        assert got.outputs[0].shape == (*(prompt.size or (16, 16)), 3)


def cut(policy, rollout, rows=3):
    budget = Budget(rows=rows)
    sizes = [prompt.size for prompt in rollout.prompts]
    return budget.cut(policy.row_cost(rollout), sizes=sizes)


def test_the_log_probabilities_and_the_gradient_of_a_batch_are_those_of_its_rows_alone():
    needs = frozenset({"old_logp", "ref_logp", "kl_to_old", "kl_to_ref"})
    policy = make(needs=needs)
    rollout = sample(policy, ask(), range(4))
    full = policy.complete(rollout, needs)
    weight = torch.arange(24).reshape(8, 3).float() / 24
    parts = cut(policy, full)
    assert sorted(torch.cat(parts).tolist()) == [*range(8)]
    said = [policy.evidence(take(full, part), needs).logp for part in parts]
    loss = sum((logp * weight[part]).sum() for logp, part in zip(said, parts, strict=True))
    got, want = gradient(policy, loss), 0
    for slot, prompt in enumerate(ask()):
        other, rows = alone(prompt, slot, needs=needs)
        rows = other.complete(rows, needs)
        own = torch.tensor([2 * slot, 2 * slot + 1])
        assert_close(full.old_logp[own], rows.old_logp, **CLOSE)
        assert_close(full.ref_logp[own], rows.ref_logp, **CLOSE)
        assert policy.row_cost(full)[own].tolist() == other.row_cost(rows).tolist()
        logp = other.evidence(rows, needs).logp
        want = want + gradient(other, (logp * weight[own]).sum())
    assert_close(got, want, atol=1e-5 * float(want.abs().max()), rtol=1e-4)
    together = policy.evidence(full, needs)  # in one call, as probes of the sampler ask
    in_order = torch.cat(said)[torch.cat(parts).argsort()]
    assert_close(together.logp, in_order, **CLOSE)


def test_the_errors_of_a_part_are_those_of_its_rows_alone_at_their_noise_levels():
    regressing = {"objective": "denoising", "sampling": {"kernel": ode}}
    policy = make(**regressing)
    rollout = sample(policy, ask(), range(4))
    found = {}
    for part in cut(policy, rollout):
        assert len({rollout.prompts[row].size for row in part.tolist()}) == 1
        said = policy.errors(take(rollout, part), frozenset())
        found |= {row: (said["error"][i], said["sigma"][i]) for i, row in enumerate(part.tolist())}
    for slot, prompt in enumerate(ask()):
        other, rows = alone(prompt, slot, **regressing)
        want = other.errors(rows, frozenset())
        for place, row in enumerate((2 * slot, 2 * slot + 1)):
            assert_close(found[row][0], want["error"][place], **CLOSE)
            assert_close(found[row][1], want["sigma"][place], **CLOSE)


def test_pictures_of_several_sizes_are_learnt_from_each_at_its_own():
    policy = make(objective="any", sampling={"kernel": ode})
    generator = torch.Generator().manual_seed(0)
    examples = [
        replace(p, media=show(torch.randint(256, (*(p.size or (16, 16)), 3), generator=generator)
                              .byte()))
        for p in ask()
    ]  # fmt: skip
    kept, dropped = policy.admit_answered(examples)
    assert kept == examples and not dropped
    rollout = policy.encode(examples, key=3, slots=range(4))
    got = policy.evidence(rollout, frozenset()).logp
    for slot, example in enumerate(examples):
        other = make(*(example.size or (16, 16)), objective="any", sampling={"kernel": ode})
        rows = other.encode([replace(example, size=None)], key=3, slots=[slot])
        assert_close(got[slot : slot + 1], other.evidence(rows, frozenset()).logp, **CLOSE)


def test_the_answers_to_another_prompt_bring_their_size():
    policy = make(objective="any", sampling={"kernel": ode}, needs=frozenset({"ref_logp"}))
    pairs = [
        replace(prompt, chosen_media=show(white), rejected_media=show(0 * white))
        for prompt in ask(((24, 16), (16, 24)))
        for white in [torch.full((*prompt.size, 3), 255, dtype=torch.uint8)]
    ]
    found = {}

    def encode(prompts, *, baseline=False):
        rows = [prompt.sides[side] for side in (0, 1) for prompt in prompts.values()]
        rollout = policy.encode(rows, key=0, slots=[*prompts, *prompts])
        found[baseline] = rollout
        total = torch.zeros(len(rows))
        marks = torch.full_like(rollout.truncated, True) if baseline else None
        scored = torch.ones(len(rows)).bool()
        return replace(rollout, baseline=marks), Scores(total=total, parts={}, scored=scored)

    kto_kl(SimpleNamespace(prompts=lambda: pairs, pairs=encode), dict(enumerate(pairs)))
    sizes = [(prompt.id, prompt.size) for prompt in found[True].prompts]
    assert sizes == [(0, (16, 24)), (1, (24, 16))] * 2
    assert [tuple(x.shape[:2]) for x in found[True].outputs] == [size for _, size in sizes]


# The loop.


class Sized(Stream):
    def draw(self, iteration, count, *, round=0):
        return ask()[:count]


class Red(AtOnce):
    """The mean red value of each image, from 0 to 1."""

    def __call__(self, outputs, prompts):
        total = torch.tensor([float(x[..., 0].double().mean()) / 255 for x in outputs])
        return Scores(total=total, parts={"red": total}, scored=torch.ones(len(total)).bool())


def learns(name, rows, folder):
    """A run over prompts of all sizes; `rows`: the largest micro-batch."""
    if name == "grpo":
        algorithm, policy = GRPO, make(needs=GRPO.needs)
    else:
        algorithm = preset(name)
        levels = replace(algorithm.timestep_sampling, count=2)
        algorithm = replace(algorithm, timestep_sampling=levels)
        policy = make(
            needs=algorithm.needs, timesteps=levels, snapshots=algorithm.ema,
            objective=algorithm.objective,
            sampling={"kernel": ode, "weights": algorithm.rollout_weights},
        )  # fmt: skip
    plan = BatchPlan(
        seed=0, iterations=3, prompts_per_step=4, group_size=4, num_minibatches=2, epochs=1,
        budget=Budget(rows=rows), max_grad_norm=1.0,
    )  # fmt: skip
    return Alone(
        policy=policy, algorithm=algorithm, rewards=Red(), stream=Sized(),
        optimizer=partial(torch.optim.SGD, lr=1.0), plan=plan, guards=Guards(), folder=folder,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["grpo", "nft", pytest.param("dgpo", marks=pytest.mark.slow)])
def test_an_update_over_several_sizes_is_the_same_however_it_is_cut(name, tmp_path):
    start = {key: x.clone() for key, x in make().weights().items()}
    one, many = (learns(name, rows, tmp_path).go(1).policy.weights() for rows in (4, 20))
    moved = max((many[key] - x).abs().max() for key, x in start.items())
    assert moved > 1e-5
    for key, x in one.items():
        assert_close(many[key], x, atol=1e-4 * float(moved), rtol=1e-4)


def test_a_run_over_several_sizes_goes_on_bit_for_bit(tmp_path):
    whole = learns("grpo", 8, tmp_path).go(2)
    first = learns("grpo", 8, tmp_path).go(1)
    again = learns("grpo", 8, tmp_path)
    again.policy.load_weights(first.policy.weights())
    again.load_state(first.state())
    again.iteration = 1
    for key, x in again.go(1).policy.weights().items():
        assert torch.equal(whole.policy.weights()[key], x)


def test_a_size_that_the_family_has_not_is_told_by_its_row():
    policy = make()
    odd, small_, good = ask(((22, 16), (16, 0), (24, 16)))
    alone = replace(good, id=9, size=None, fields={"height": 24})
    other = replace(good, id=8, media=show(torch.zeros(16, 16, 3).byte()))
    kept, dropped = policy.admit([odd, small_, good, alone])
    assert kept == [good]
    reasons = [reason for _, reason in dropped]
    assert reasons[0].startswith("asks for a picture of 22 x 16: ")
    assert reasons[1].startswith("asks for a picture of 16 x 0: ")
    assert reasons[2] == "has only a height, or one that is not a number"
    assert policy.admit_answered([other])[1][0][1] == (
        "has a picture of 16x16x3, but its row asks for 24x16x3"
    )


def test_evaluation_at_a_size_of_its_own_is_of_that_size_for_all():
    policy = make()
    clean = replace(policy.sampling, resolution=24)
    outputs = policy.sample(ask(), 1, key=KEY, slots=range(4), sampling=clean).outputs
    assert {tuple(output.shape) for output in outputs} == {(24, 24, 3)}


def test_what_is_shown_is_cut_to_the_resolution_of_an_evaluation():
    policy, seen = make(), show(torch.zeros(8, 8, 3).byte())
    prompts = [replace(prompt, images=(seen,)) for prompt in ask()]
    clean = replace(policy.sampling, resolution=24)
    policy.sample(prompts, 1, key=KEY, slots=range(4), sampling=clean)
    assert {one.size for one in policy.library.recent} == {(24, 24)}


def test_rows_of_several_sizes_never_share_a_part_and_groups_stay_whole():
    sizes = [None, None, (1, 2), (1, 2), None, None, (2, 1), (2, 1)]
    cost = torch.tensor([4, 4, 9, 9, 4, 4, 2, 2])
    group = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    for own, budget in ((None, Budget(rows=3)), (group, Budget(rows=2)), (group, Budget())):
        parts = [part.tolist() for part in budget.cut(cost, own, sizes)]
        assert sorted(itertools.chain(*parts)) == [*range(8)]
        assert all(len({sizes[row] for row in part}) == 1 for part in parts)
        if own is not None:
            assert all(part.count(row) == part.count(row ^ 1) for part in parts for row in part)
    same = Budget(rows=3).cut(cost, None, [(1, 2)] * 8)
    assert [x.tolist() for x in same] == [x.tolist() for x in Budget(rows=3).cut(cost)]


def test_records_of_latents_of_several_sizes_join_and_no_others_do():
    join = concat([{"x": torch.ones(1, 2, 3, 4)}, {"x": torch.ones(2, 2, 5, 2)}])["x"]
    assert join.shape == (3, 2, 5, 4) and join.sum() == 24 + 40
    join = concat([{"x": torch.ones(1, 2, 3, 4, 4)}, {"x": torch.ones(1, 2, 5, 2, 4)}])["x"]
    assert join.shape == (2, 2, 5, 4, 4) and join[0, :, :3].sum() == join.sum() - 80 == 96
    with pytest.raises(RuntimeError):
        concat([{"x": torch.ones(1, 2, 3)}, {"x": torch.ones(1, 2, 4)}])


def test_random_steps_need_no_size_of_their_own():
    """The embedded model has one size, which a row may name."""
    policy = small(sampling={"kernel": KERNELS["cps"]})
    own, other = ask(((16, 16), (16, 24)))
    kept, dropped = policy.admit([replace(own, text="red circle"), replace(other, text="x")])
    assert len(kept) == 1 and "16 x 24" in dropped[0][1]
    assert policy.sample(kept, 1, key=KEY, slots=[0]).outputs[0].shape == (16, 16, 3)
