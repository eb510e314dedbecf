"""Loading on sharded ranks: the first one reads the checkpoint and sends its weights."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from hub_language_models import SIZE, write_qwen3
from two_ranks import on_both, on_two_ranks

from tandem import distributed
from tandem.config import build, check, compose
from tandem.launch.assembly import assemble
from tandem.launch.trainer import trainer_for
from tandem.policies.language import pretrained
from tandem.settings.settings import Settings
from tandem.training.module import PostTraining

RUN = (
    "warm_start=null", "~recipe", "iterations=1", "prompts_per_step=3", "group_size=3",
    "evaluation.every=null", "guards.no_signal=9", "trainer.accelerator=cpu", "logger=none",
    "model=hf", "model.dtype=float32", "data=sort_letters",
    "rollout.max_new_tokens=4", "reward=target_length",
    "reward.target_length.function.target=5", "trainer=fsdp2", "trainer.devices=2",
)  # fmt: skip
LORA = "model.lora={r: 2, alpha: 4, target_modules: all-linear}"
CASES = {
    "with a reference": ("algorithm=grpo", "algorithm.kl.coef=0.1", "model.path=ROOT/tied"),
    "untied": ("algorithm=grpo", "model.path=ROOT/untied"),
    "adapters": ("algorithm=grpo", "model.path=ROOT/tied", "model.dtype=auto", LORA),
    "critic of its own": ("algorithm=ppo", "model.path=ROOT/tied", "model.critic=separate"),
    "scaled logits": ("algorithm=grpo", "model.path=ROOT/scaled"),
}
QUICK = ("with a reference", "scaled logits")
OTHERS = tuple(name for name in CASES if name not in QUICK)
TOKENS = {"vocab_size", "eos_token_id", "bos_token_id", "pad_token_id", "intermediate_size"}
LARGE = {"num_hidden_layers": 12, "hidden_size": 256, "intermediate_size": 1024}


def write_scaled(folder: Path) -> Path:
    """Its logits are those of head(trunk) times a number, which only a forward pass shows."""
    from transformers import AutoModelForCausalLM, CohereConfig

    known = AutoModelForCausalLM.from_pretrained(write_qwen3(folder))
    shared = {name: x for name, x in known.config.to_dict().items() if name in {*SIZE, *TOKENS}}
    made_of = CohereConfig(**shared, logit_scale=0.25)
    made = AutoModelForCausalLM.from_config(made_of, dtype=torch.float32)
    made.generation_config = known.generation_config
    made.save_pretrained(folder)
    return folder


def write_large(folder: Path) -> Path:
    """Large beside the rest of a process: 50 MB."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    known = Qwen3Config.from_pretrained(write_qwen3(folder)).to_dict() | LARGE
    AutoModelForCausalLM.from_config(
        Qwen3Config(**known | {"layer_types": None}), dtype=torch.float32
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_qwen3(folder / "tied")
    write_qwen3(folder / "untied", tied=False)
    write_scaled(folder / "scaled")
    return folder


def module_of(overrides: tuple[str, ...], folder: Path) -> tuple[PostTraining, Settings]:
    words = [word.replace("ROOT", str(folder)) for word in (*RUN, *overrides)]
    cfg = compose([*words, f"run_dir={folder}/run"])
    settings = check(cfg)
    return assemble(cfg, settings, build(cfg.data), folder, None)[0], settings


def tensors_of(module: PostTraining) -> list[tuple[str, torch.dtype, list]]:
    """Name, dtype and values of every weight and buffer; weights that layers share occur twice."""
    policy = module.policy
    frozen = policy.reference and policy.reference.model
    networks = [x for x in (policy.network, policy.critic, frozen) if x is not None]
    named = [
        one
        for network in networks
        for one in (*network.named_parameters(remove_duplicate=False), *network.named_buffers())
    ]
    return [
        (name, x.dtype, distributed.full_tensor(x.detach()).double().tolist()) for name, x in named
    ]


@contextmanager
def counting(reads: list[str]) -> Iterator[None]:
    """A block in which checkpoints that this process reads are listed."""
    read = pretrained.with_weights

    def counted(made_by, place, config, **options):
        reads.append(place)
        return read(made_by, place, config, **options)

    pretrained.with_weights = counted
    try:
        yield
    finally:
        pretrained.with_weights = read


def trained(overrides: tuple[str, ...], folder: Path, *, each_reads: bool, what: Callable) -> dict:
    """What this rank reads, `what` it starts with, and the report of a run."""
    reads: list[str] = []
    first, begin, started = distributed.is_first, PostTraining.on_fit_start, {}
    distributed.is_first = (lambda: True) if each_reads else first
    try:
        with counting(reads):
            module, settings = module_of(overrides, folder)
    finally:
        distributed.is_first = first
    module.on_fit_start = lambda: (started.update(start=what(module)), begin(module))
    trainer_for(settings.trainer, []).fit(module)
    scorer = module.policy.scorer
    return started | {
        "reads": len(reads),
        "report": {k: x for k, x in module.report.items() if not k.startswith(("time/", "perf/"))},
        "ends": module.policy.ends,
        "structure": (scorer.splits, scorer.packs, scorer.shares, module.plan.budget.packed),
    }


def peak() -> int:
    """The most host memory that this process ever held, in bytes."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def memory_of_loading(folder: Path, *, each_reads: bool) -> float:
    """Peak host memory of loading and sharding the large model, in units of its weights."""
    trained(CASES["untied"], folder, each_reads=each_reads, what=tensors_of)  # imports libraries
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what it holds
    before = peak()

    def grown(module: PostTraining) -> float:
        return (peak() - before) / sum(4 * p.numel() for p in module.policy.network.parameters())

    large = ("algorithm=grpo", "model.path=ROOT/large")
    return trained(large, folder, each_reads=each_reads, what=grown)["start"]


@pytest.fixture(scope="module")
def results(models):
    """Of some cases, both ways, on both ranks."""

    @functools.cache
    def of(names: tuple[str, ...]) -> dict:
        ways = itertools.product(names, (False, True))
        return on_two_ranks(
            {
                f"{name}, {each}": partial(
                    trained, CASES[name], models, each_reads=each, what=tensors_of
                )
                for name, each in ways
            }
        )

    return of


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "beside"),
    [
        *((name, QUICK) for name in QUICK),
        *(pytest.param(name, OTHERS, marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_weights_of_the_first_rank_are_those_that_each_rank_would_read(name, beside, results):
    found = results(beside)
    for rank in range(2):
        got, want = dict(found[rank, f"{name}, False"]), dict(found[rank, f"{name}, True"])
        assert (got.pop("reads"), want.pop("reads")) == (1 if rank == 0 else 0, 1)
        for own, other in zip(got.pop("start"), want.pop("start"), strict=True):
            assert own == other
        assert got == want
    assert found[1, f"{name}, False"]["structure"][0] is (name != "scaled logits")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux measures the peak")
def test_a_rank_that_reads_no_checkpoint_never_holds_it(models):
    write_large(models / "large")
    held = {
        each_reads: on_both(partial(memory_of_loading, models, each_reads=each_reads))
        for each_reads in (False, True)
    }
    assert held[False][1] < held[True][1] - 1, held
    assert held[False][0] < held[True][0] + 0.5, held  # the first rank holds no more than before
