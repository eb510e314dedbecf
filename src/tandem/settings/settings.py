"""Top-level keys of a configuration: the type of each, and what its value affects.

Defaults are in conf/config.yaml: a key without a value is missing, and gets no default here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Literal, get_type_hints

from tandem.contracts import at_least, at_most, positive, waiting
from tandem.evaluation.settings import Answers, Pictures, Size
from tandem.settings.guards import Guards
from tandem.settings.keys import AT_HOME, Key, key

Precision = Literal["32-true", "bf16-mixed"]


# Groups whose nodes describe objects to build.
COMPONENTS = {
    "rollout": Key(shared=True),
    "algorithm": Key(),
    "model": Key(shared=True, start=True),
    "data": Key(shared=True),
    "environment": Key(shared=True),
    "reward": Key(),
    "optimizer": Key(),
    "schedule": Key(),
    "logger": Key(**AT_HOME, resumable=True),
    "callbacks": Key(**AT_HOME, resumable=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """How often a checkpoint is written, in iterations, and how many of them are kept."""

    every: Size  # iterations between two checkpoints
    keep: Size  # the newest checkpoints that are kept; older ones are removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamics:
    """How a policy takes a step, for `rollout` and the algorithm."""

    clip_scale: float  # clip numbers of one step are multiplied by it
    sequence_scale: float  # clip numbers of a whole sample are multiplied by it
    preference_scale: float  # nats of a whole sample per unit of a preference temperature
    entropy_scale: float  # factor of the coefficient of an entropy bonus
    horizon: int  # largest number of steps of a sample
    kl: Callable  # distance to the reference that algorithm.kl uses
    latent_size: int | None = None  # dimensions of a state of a flow model
    # Factor of clip numbers of a denoising step, also in a chain with a text.
    step_clip_scale: float | None = None
    # Kind of the steps of a text: those that its sampler takes. The option says it in comparisons.
    kind: str = field(default="autoregressive", metadata=key(compared=False))
    step_kl: Callable | None = None  # distance of denoising steps to the reference
    kernel: Callable | None = None  # the random step
    logp: Callable | None = None  # log-probability of a random step
    schedule: Callable | None = None  # noise levels of the steps
    solver: Callable | None = None  # solver of steps without noise; null: Euler's
    stochastic: Callable | None = None  # which steps are random


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The arguments of Lightning's Trainer that a user may choose."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"]  # kind of device
    devices: int | list[int] | Literal["auto"]  # devices of each node
    num_nodes: Size  # number of machines
    # How ranks share a model: ddp copies it, fsdp2 shards it.
    strategy: Literal["auto", "ddp", "fsdp2"]
    # Precision of the forward passes; losses and statistics have their own.
    precision: Precision = field(metadata=key(resumable=True))
    # Precision of all float32 matrix products and convolutions in the process.
    float32_matmul_precision: Literal["highest", "high"] = field(
        default="highest", metadata=key(resumable=True)
    )
    # Seconds that a rank waits for the others in one collective.
    timeout: Annotated[float, waiting] = 1800.0
    # Parts kept in host memory between uses: those of `Description.offloads`, and "optimizer".
    offload: list[str] = field(default_factory=list, metadata=key(resumable=True, compared=False))

    @property
    def is_mixed(self) -> bool:
        """Whether passes compute in bfloat16 with float32 weights."""
        return self.precision == "bf16-mixed"

    @property
    def ranks(self) -> int | None:
        """The number of processes; None: one per device of the machine."""
        return None if self.devices == "auto" else self.num_nodes * len(self.indices(0))

    def indices(self, count: int) -> Sequence[int]:
        """The numbers of the devices that the run uses on each node, which has `count` of them."""
        match self.devices:
            case "auto":
                return range(count)
            case int():
                return range(self.devices)
        return self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The keys of conf/config.yaml, each with what its value affects."""

    seed: Annotated[int, at_least(0), at_most(2**63 - 1)] = field(
        metadata=key(shared=True, compared=False, mirrored=False)
    )
    iterations: Size = field(metadata=key(resumable=True))
    prompts_per_step: Size
    group_size: Size
    num_minibatches: Size
    epochs: Size
    max_tokens_per_microbatch: Size | None = field(metadata=key(resumable=True, compared=False))
    micro_batch_size: Size | None = field(metadata=key(resumable=True, compared=False))
    max_grad_norm: Annotated[float, positive]
    # Number of the model's parameters.
    parameters: Annotated[float, positive] | None = field(metadata=key(shared=True))
    threads: Size | None = field(metadata=key(compared=False))
    # How, and how often, held-out prompts are measured.
    evaluation: Answers | Pictures = field(metadata=key(weights=False, resumable=True))
    # How often checkpoints are written, and how many are kept.
    checkpoints: Checkpoints = field(metadata=key(weights=False, resumable=True, compared=False))
    guards: Guards = field(metadata=key(resumable=True))
    dynamics: Dynamics  # how a policy takes a step
    # Devices, and how they share a model.
    trainer: Devices = field(metadata=key(resumable=True, compared=False))
    warm_start: list[str] | None = field(metadata=key(start=True))  # overrides of a run to train
    continue_from: str | None = field(metadata=key(start=True))  # a run directory
    resume: str | None = field(metadata=key(compared=False, mirrored=False))  # a run directory
    evaluate: bool = field(metadata=key(resumable=True, compared=False, mirrored=False))
    estimate: bool = field(metadata=key(compared=False, mirrored=False))
    dry_run: bool = field(metadata=key(resumable=True, compared=False, mirrored=False))
    # Modules of the user that are imported first; a warm start's name depends on their code.
    plugins: list[str] = field(metadata=key(**AT_HOME, shared=True))
    run_dir: str = field(metadata=key(**AT_HOME))
    # Folder of the sweep that the run belongs to.
    sweep_dir: str | None = field(metadata=key(**AT_HOME))
    # Words of the command line that started it.
    overrides: list[str] = field(metadata=key(**AT_HOME))
    # Those that its experiment stood for when it began, for the warm start.
    inherited: list[str] = field(metadata=key(**AT_HOME))
    cache_dir: str = field(metadata=key(**AT_HOME, shared=True, resumable=True))
    choices: Mapping[str, str | None] = field(metadata=key(**AT_HOME))  # group -> its option
    replaced: Mapping[str, list[str]] = field(metadata=key(**AT_HOME))  # numbers of replaced parts


def _describe(record: type) -> dict[str, Key]:
    """The facts of the fields of a record and of nested records, by dotted key."""
    hints, found = get_type_hints(record), {}
    for own in fields(record):
        found |= {own.name: own.metadata["key"]} if "key" in own.metadata else {}
        if is_dataclass(hints[own.name]):
            found |= {f"{own.name}.{name}": x for name, x in _describe(hints[own.name]).items()}
    return found


# How much is computed at once. Results differ by rounding alone, in a warm start too.
AT_ONCE = {
    "rollout": ("max_rows", "cuda_graphs"),
    "model": ("logit_budget", "token_budget", "row_budget", "gradient_checkpointing", "mlp_tile"),
}
KEYS = {
    **_describe(Settings),
    **COMPONENTS,
    "model.attn_implementation": Key(resumable=True, shared=True, start=True),
    "model.liger": Key(resumable=True, shared=True, start=True),
    **{
        f"{group}.{name}": Key(shared=True, resumable=True, compared=False)
        for group, names in AT_ONCE.items()
        for name in names
    },
    "rollout.staleness": Key(resumable=True),
    "rollout.ahead": Key(resumable=True),
    "rollout.engine": Key(weights=False, shared=True),  # the engine does not affect what is sampled
    "rollout.engine.url": Key(weights=False, shared=True, compared=False),
    "rollout.engine.folder": Key(weights=False, shared=True, compared=False),
    "hydra": Key(**AT_HOME),  # has none of our keys
}
ORDINARY = Key()


@cache
def key_of(name: str) -> Key:
    """The facts of a dotted key, or of a group written with slashes."""
    parts = name.replace("/", ".").split(".")
    if parts[1:2] in (["text"], ["picture"]):  # a segment of a chain
        del parts[1]
    if parts[-1] == "cache_dir":  # model.cache_dir repeats it
        return KEYS["cache_dir"]
    above = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((KEYS[near] for near in above if near in KEYS), ORDINARY)
