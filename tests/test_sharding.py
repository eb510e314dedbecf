"""Copies on two ranks (DDP) and shards of every weight (FSDP2) learn what one process learns."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ladder import FEW
from lightning.pytorch.callbacks import LambdaCallback
from loaded import load_configured
from torch.testing import assert_close
from two_ranks import on_two_ranks

from tandem import distributed
from tandem.config import build, check, compose
from tandem.data import Data
from tandem.evaluation.evaluate import evaluate
from tandem.evaluation.preference_accuracy import compare_pairs
from tandem.launch.assembly import assemble
from tandem.launch.trainer import trainer_for
from tandem.losses.preference import dpo
from tandem.policies.flow.velocity_model import ChunkedForward
from tandem.policies.sharding import blocks_of
from tandem.rewards import Reward, Rewards, waits
from tandem.settings.settings import Settings
from tandem.training.module import PostTraining
from tandem.types import Prompt

STRATEGIES = ("ddp", "fsdp2")
# Three prompts: one rank has two groups and the other one, so their cuts differ in number.
UNEQUAL = (
    "warm_start=null", "~recipe", "iterations=1", "prompts_per_step=3", "group_size=3",
    "num_minibatches=2", "evaluation.every=null", "guards.no_signal=9", "micro_batch_size=2",
    "max_tokens_per_microbatch=null", "trainer.accelerator=cpu", "schedule=constant",
    "optimizer.lr=1e-6",  # Adam's first step is a sign: a larger rate would amplify rounding
)  # fmt: skip
TOKENS = (*FEW, "reward=target_length", "reward.target_length.function.target=5")
PICTURES = (
    "model=tiny_flow", "reward=colour_share", "rollout.steps=3", "~model.adapter.channels",
    # A transformer: adapters of a new U-Net have no gradient.
    "model.adapter={_target_: tandem.policies.flow.families.tiny_flow.TinyFlow, num_layers: 2}",
)  # fmt: skip
GRPO = (*TOKENS, "algorithm=grpo", "algorithm.kl.coef=0.1")  # with a frozen reference
PAIRED = ("algorithm=dpo", "group_size=2", "data=jsonl", "data.path=PAIRS")
AVERAGED = (
    "algorithm=nft", "model/ema=constant", "evaluation.weights=ema", "evaluation.samples=2",
)  # fmt: skip
LORA = "model.lora={r: 2, alpha: 4, target_modules: all-linear}"
SAVING = ("model.gradient_checkpointing=true",)
CASES = {
    # Its head is cut into chunks, which are recomputed, and is tied to the embeddings.
    "grpo": (*GRPO, "model.logit_budget=1000"),
    "dpo lora": (*PAIRED, LORA, *SAVING),
    # One rank has fewer parts than the other, and takes part with an idle one.
    "flow_grpo": (*PICTURES, "algorithm=flow_grpo", "model.row_budget=1"),
    "nft lora": (*PICTURES, "algorithm=nft", LORA),
}
MORE = {
    "grpo lora": (*GRPO, LORA, *SAVING),
    "dpo": PAIRED,
    "ppo": (*TOKENS, "algorithm=ppo", *SAVING),
    "ppo separate": (*TOKENS, "algorithm=ppo", "model.critic=separate"),
    "flow_grpo ref": (*PICTURES, "algorithm=flow_grpo", "algorithm.kl.coef=0.1", *SAVING),
    "nft": (*PICTURES, "algorithm=nft", "epochs=2", "model.row_budget=2"),
    # It reads all rows first, in parts of which one rank has more.
    "dgpo": (*PICTURES, "algorithm=dgpo"),
    "crd": (*PICTURES, "algorithm=crd", "model.row_budget=2"),
    "kto": (*PAIRED, "algorithm=kto"),
}
# Left to the long tests: the quick ones shard adapters of tokens, and copy those of images.
LATER = {"ddp dpo lora": "dpo lora", "fsdp2 nft lora": "nft lora"}
ODD = 5  # held-out prompts
PAIRS = [
    {"prompt": word, "chosen": "".join(sorted(word)), "rejected": word[: 1 + i % 2]}
    for i, word in enumerate(f"{a}{b}{c}" for a in "dhk" for b in "abe" for c in "cfg")
]
HELD_OUT = [
    Prompt(id=i, source="p", text=f"{asked}>", chosen=chosen, rejected=rejected)
    for i, (asked, chosen, rejected) in enumerate(map(dict.values, PAIRS[:ODD]))
]
# Before the first update a policy has no preference: rounding decides.
OF_TIES = ("preference/accuracy",)


def learnt(
    overrides: tuple[str, ...],
    *trainer: str,
    begin: Callable[[PostTraining], None] = lambda module: None,
    end: Callable[[PostTraining, Settings, Data], Mapping[str, float]] = lambda *of_run: {},
    wide: bool = True,
) -> tuple[list[dict], dict]:
    """The whole gradients of every update of a run, and its report with the results of `end`.

    `wide`: in float64 instead of the run's dtypes.
    """
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.jsonl"
        pairs.write_text("\n".join(map(json.dumps, PAIRS)))
        cfg = compose([*UNEQUAL, *overrides, *trainer, f"run_dir={folder}"])
        if "path" in cfg.data:
            cfg.data.path = str(pairs)
        settings = check(cfg)
        module, data = assemble(cfg, settings, build(cfg.data), Path(folder), None)
        if wide:
            widen(module.policy)
        begin(module)
        seen, update = [], module.update

        def watched(minibatch):
            learns = module.policy.trainable().items()
            seen.append(
                {name: distributed.full_tensor(p.grad).numpy().copy() for name, p in learns}
            )
            update(minibatch)

        module.update = watched
        found = {}
        at_end = LambdaCallback(on_train_end=lambda *_: found.update(end(module, settings, data)))
        trainer_for(settings.trainer, [at_end]).fit(module)
    return seen, module.report | found


@waits
def near_five(output: str, prompt: Prompt) -> float:
    return -abs(len(output) - 5.0)


def ask_early(module: PostTraining) -> None:
    """A reward that is called for a part while the rest is sampled."""
    module.rewards = module.source.rewards = Rewards({"near_five": Reward(near_five)})


def measure(module: PostTraining, settings: Settings, data: Data) -> Mapping[str, float]:
    """Metrics of held-out prompts and pairs, after one rank was told to stop."""
    policy, prompts, own = module.policy, data.eval[:ODD], settings.evaluation
    ask = partial(evaluate, policy, module.rewards, prompts, own, key=7, full=False)
    if distributed.world_size() > 1:
        assert ask(stop=lambda: distributed.rank() == 1) is None
    found = ask(stop=lambda: False).metrics
    pairs = HELD_OUT if policy.unit == "tokens" else []
    compared = compare_pairs(policy, partial(dpo, beta=0.1), pairs, own, key=7)
    return {name: value for name, value in {**found, **compared}.items() if isfinite(value)}


def widen(policy: torch.nn.Module) -> None:
    """float64 everywhere; frozen copies are not part of the module."""
    policy.double()
    copies = [part.frozen for part in policy.modules() if getattr(part, "frozen", None)]
    networks = [field.network for field in copies]
    if getattr(policy, "reference", None) is not None:
        networks.append(policy.reference.model)
    for network in networks:
        network.double()


# Each rank processes one prompt at a time, and one rank has one more than the other.
AT_OWN_PACE = {
    "asked early": partial(learnt, (*GRPO, "rollout.max_rows=3"), begin=ask_early, end=measure),
    "average": partial(learnt, (*PICTURES, *AVERAGED, "rollout.max_rows=3"), end=measure),
}


# In the dtypes of large models, whose sums round differently on several ranks.
NARROW = {
    "bfloat16 under adapters": partial(
        learnt, (*GRPO, LORA, "model.dtype=bfloat16", *SAVING), wide=False
    ),
    "autocast": partial(
        learnt,
        (*GRPO, "trainer.precision=bf16-mixed", "model.logit_budget=1000", "algorithm.kl.coef=0"),
        wide=False,
    ),
}
OF_BFLOAT16 = 0.01  # of the largest gradient


def jobs_of(cases: dict) -> dict:
    return {name: partial(learnt, overrides) for name, overrides in cases.items()}


def everywhere(jobs: dict, strategies: Sequence[str] = STRATEGIES) -> dict:
    return {
        f"{strategy} {name}": partial(job, f"trainer={strategy}", "trainer.devices=2")
        for strategy in strategies
        for name, job in jobs.items()
    }


@pytest.fixture(scope="module")
def few():
    jobs = everywhere(jobs_of(CASES)) | everywhere(AT_OWN_PACE, ["fsdp2"])
    return on_two_ranks({where: job for where, job in jobs.items() if where not in LATER})


@pytest.fixture(scope="module")
def more():
    cases = everywhere(jobs_of(CASES))
    jobs = {where: cases[where] for where in LATER} | everywhere(jobs_of(MORE))
    return on_two_ranks(jobs | everywhere(NARROW, ["fsdp2"]))


def compare(found: dict, name: str, job: Callable) -> None:
    want, report = job("trainer=cpu")
    compared = {metric: value for metric, value in report.items() if metric not in OF_TIES}
    of_job = [answer for (_, where), answer in found.items() if where.split(" ", 1)[1] == name]
    assert of_job
    for got, said in of_job:
        assert len(got) == len(want) > 0
        for one, other in zip(got, want, strict=True):
            same_gradients(one, other)
        assert said == pytest.approx(said | compared, rel=1e-6, abs=1e-9)


def same_gradients(got: dict, want: dict, close: float = 1e-6) -> None:
    assert got.keys() == want.keys()
    largest = max(abs(gradient).max() for gradient in want.values())
    assert largest > 0
    for name, gradient in want.items():
        both = torch.tensor(got[name]), torch.tensor(gradient)
        assert_close(*both, rtol=close, atol=close * largest)


def test_blocks_are_the_layers_with_and_without_adapters():
    for chosen in (TOKENS, (*TOKENS, LORA)):
        policy = load_configured(compose(["warm_start=null", *chosen]))
        layers = policy.scorer.model.get_decoder().layers
        assert blocks_of(policy.network) == list(layers)
    policy = load_configured(compose(["warm_start=null", *PICTURES]))
    assert blocks_of(policy.model.network) == list(policy.model.network.transformer_blocks)


def test_a_rank_with_fewer_rows_makes_as_many_passes_some_of_them_over_none():
    seen = []

    def field(x, sigma, conditioning, *, scale):
        seen.append(x.flatten().tolist())
        return 10 * x

    field.weights = SimpleNamespace(passes=lambda wanted: wanted + 2)
    library = SimpleNamespace(rows=lambda prompts, device, guided: None)
    points = ["a", "b"], torch.tensor([[1.0], [2.0]]), torch.ones(2)
    velocity, _ = ChunkedForward(library, max_rows=1)(field, *points, scale=1.0)
    assert velocity.tolist() == [[10.0], [20.0]]
    assert seen == [[1.0], [2.0], [1.0], [1.0]]


@pytest.mark.system
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_have_the_gradients_of_one(name, few):
    compare(few, name, jobs_of(CASES)[name])


@pytest.mark.system
@pytest.mark.parametrize("name", AT_OWN_PACE)
def test_ranks_that_sample_and_measure_unequally_often_wait_for_nobody(name, few):
    compare(few, name, AT_OWN_PACE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MORE, *LATER.values()])
def test_two_ranks_have_the_gradients_of_one_in_every_corner(name, more):
    compare(more, name, jobs_of(MORE | CASES)[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_the_dtypes_of_large_models_learn_the_same_on_two_ranks(name, more):
    want, _ = NARROW[name]("trainer=cpu")
    for rank in range(2):
        got, _ = more[rank, f"fsdp2 {name}"]
        assert len(got) == len(want) > 0
        # Before the first update nothing but the order of sums differs.
        same_gradients(got[0], want[0], close=OF_BFLOAT16)
