"""The scope of a precision: the passes of the policy, and nothing that other parts compute."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from loop import PLAN, ShareOfThrees, Stream
from policies import small_language
from policies.flow import small_flow
from policies.masked.small_masked import small_masked
from records import GRPO
from table_policy import TablePolicy

from tandem.contracts import declare
from tandem.dynamics.kernels import ode
from tandem.dynamics.regression import Regression, discrete
from tandem.dynamics.weighting import plain
from tandem.launch.devices import set_float32_precision
from tandem.launch.trainer import trainer_for
from tandem.losses.divergence import StateDivergence
from tandem.metrics import masked_mean
from tandem.policies.masked.states import one_step
from tandem.policies.weights import Precision
from tandem.settings.guards import Guards
from tandem.settings.settings import Devices
from tandem.training.module import PostTraining
from tandem.types import Scores

MIXED = Precision(mixed=True)
PRECISIONS = ("32-true", "bf16-mixed")
CPU = Devices(accelerator="cpu", devices=1, num_nodes=1, strategy="auto", precision="32-true")
UNEVEN = torch.tensor([[1.001, 0.3], [0.7, 0.9]])


def product(x):
    """x times about 1, by a matrix product that autocast would compute in bfloat16."""
    return x * (UNEVEN @ UNEVEN).sum()


class Products(ShareOfThrees):
    def __call__(self, outputs, prompts) -> Scores:
        said = super().__call__(outputs, prompts)
        return replace(said, total=product(said.total), parts={"accuracy": product(said.total)})


def advantage(scores, rollout):
    return product(scores.total - scores.total.mean())[:, None] * rollout.mask


def measure(batch):
    return {"own/product": masked_mean(product(batch.logp), batch.mask)}


@declare(reads={"old_logp"}, metrics=measure)
def loss(batch):
    return product(-batch.advantages * (batch.logp - batch.old_logp).exp())


def reports(precision, folder):
    """The reports of two iterations over a policy without matrix products, under Lightning."""
    found = []

    class Module(PostTraining):
        def end_of_iteration(self, *of):
            super().end_of_iteration(*of)
            found.append(self.report)

    module = Module(
        policy=TablePolicy(), algorithm=replace(GRPO, advantage=advantage, loss=loss),
        rewards=Products(), stream=Stream(), optimizer=partial(torch.optim.SGD, lr=1.0),
        schedule=lambda iteration, iterations: 1.0, plan=replace(PLAN, iterations=2),
        guards=Guards(), folder=folder,
    )  # fmt: skip
    trainer_for(replace(CPU, precision=precision), []).fit(module)
    return found, module.policy.table.detach()


def test_rewards_advantages_losses_and_metrics_are_the_same_under_every_precision(tmp_path):
    (full, weights), (mixed, others) = (reports(name, tmp_path) for name in PRECISIONS)
    assert full == mixed
    assert torch.equal(weights, others)
    assert full[1]["optim/grad_norm"] > 0


def test_divergences_from_a_teacher_are_the_same_under_every_precision():
    """They are computed in the pass of the student, chunk by chunk."""
    student, teacher = torch.randn(2, 3, 5, generator=torch.manual_seed(0)).log_softmax(-1)
    ids = torch.arange(2).expand(3, 2)
    distance = StateDivergence(of=lambda s, t: product((s - t).square().sum(-1)))
    for ask in (
        partial(distance, student, teacher),
        partial(distance.among, student, ids, teacher[:, :2]),
    ):
        full = ask()
        with MIXED.on(student.device):
            assert torch.equal(ask(), full)


class Watched:
    """Records whether each pass of some networks is under autocast."""

    def __init__(self, *networks):
        self.seen = []
        for network in networks:
            network.register_forward_pre_hook(lambda *_: self.seen.append(self.on()))

    @staticmethod
    def on():
        return torch.is_autocast_enabled("cpu")

    def during(self, call):
        """The result of a call whose passes are all in mixed precision, and nothing after them."""
        self.seen.clear()
        said = call()
        assert self.seen and all(self.seen) and not self.on()
        return said


def test_every_pass_of_a_language_policy_is_in_mixed_precision():
    reads = frozenset({"old_logp", "ref_logp", "old_values", "values", "entropy"})
    policy = small_language.small(reads, mixed=True)
    watched = Watched(policy.network.get_decoder(), policy.reference.trunk.layers)
    ask = partial(policy.sample, small_language.questions(), 2, key=1, slots=range(8))
    rollout = watched.during(ask)
    rollout = watched.during(lambda: policy.complete(rollout, reads))
    evidence = watched.during(lambda: policy.evidence(rollout, reads))
    assert evidence.logp.dtype == evidence.values.dtype == torch.float32
    evidence.logp.sum().backward()


def test_every_pass_of_a_flow_policy_is_in_mixed_precision():
    reads = frozenset({"old_logp", "kl_to_ref", "transition", "ref_logp"})
    policy = small_flow.small(reads, precision=MIXED, row_budget=3)
    watched = Watched(policy.model.network, policy.model.frozen.network)
    rollout = watched.during(
        lambda: policy.sample(small_flow.make_prompts(), 2, key=1, slots=range(4))
    )
    rollout = watched.during(lambda: policy.complete(rollout, reads))
    evidence = watched.during(lambda: policy.evidence(rollout, reads))
    assert evidence.logp.dtype == torch.float32
    watched.during(evidence.logp.sum().backward)  # this recomputes them


def test_errors_of_a_flow_are_those_of_passes_in_mixed_precision():
    reads = frozenset({"ref_error"})
    own = {"timesteps": Regression(weighting=plain, levels=discrete), "objective": "denoising"}
    policy = small_flow.small(reads, precision=MIXED, sampling={"kernel": ode}, **own)
    watched = Watched(policy.model.network, policy.model.frozen.network)
    rollout = policy.sample(small_flow.make_prompts(), 2, key=1, slots=range(4))
    said = watched.during(lambda: policy.errors(rollout, reads))
    assert {x.dtype for x in said.values()} == {torch.float32}


def test_the_likelihood_of_masked_texts_is_the_same_under_every_precision():
    """Its states and their weights; the passes over them are in mixed precision."""
    seen = []

    def likelihood(rows):
        seen.append(Watched.on())
        return one_step(rows)

    policy = small_masked(likelihood, mixed=True)
    watched = Watched(policy.network.get_decoder())
    rollout = policy.sample(small_language.questions(), 1, key=1, slots=range(8))
    watched.during(lambda: policy.evidence(rollout, small_language.NOTHING))
    assert seen and not any(seen)


@pytest.mark.parametrize("mixed", [False, True])
def test_sampling_asks_the_weights_as_training_does(mixed):
    """In any precision the sampler's log-probabilities equal those of training."""
    policy = small_language.small(mixed=mixed)
    rollout = policy.sample(small_language.questions(), 2, key=1, slots=range(8))
    said = policy.evidence(rollout, small_language.NOTHING).logp
    gap = torch.where(rollout.mask, said - rollout.behaviour_logp, 0).abs().max()
    assert gap < (0.05 if mixed else 1e-5)


@pytest.mark.parametrize(("precision", "rounds"), [("highest", False), ("high", True)])
def test_convolutions_round_to_tf32_only_where_matrix_products_may(precision, rounds, monkeypatch):
    """torch's own default rounds them, and the steps of a U-Net then depend on the batch."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not rounds)
    before = torch.get_float32_matmul_precision()
    try:
        set_float32_precision(replace(CPU, float32_matmul_precision=precision))
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cudnn.allow_tf32 is rounds
    finally:
        torch.set_float32_matmul_precision(before)
