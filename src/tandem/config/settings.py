"""What is configured beside the components: every key of the top level, with its type.

The values are those of conf/config.yaml: a key without one is missing, not defaulted here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tandem.guards import Guards
from tandem.passes import Answers, Pictures

# Groups whose nodes name what to build.
COMPONENTS = (
    "rollout",
    "algorithm",
    "model",
    "data",
    "reward",
    "optimizer",
    "schedule",
    "logger",
    "callbacks",
)

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    every: int  # iterations
    keep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamics:
    """How a policy takes a step; `rollout` and the algorithm read of it what they need."""

    name: Literal["autoregressive", "ode", "flow_sde", "dance_sde", "cps"]
    clip_unit: float
    sequence_unit: float
    preference_unit: float
    entropy_unit: float
    horizon: int
    kl: Callable
    # Of flows alone.
    kernel: Callable | None = None
    logp: Callable | None = None
    schedule: Callable | None = None
    solver: Callable | None = None
    stochastic: Callable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What of Lightning's Trainer a user may choose."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"]
    devices: int | list[int] | Literal["auto"]  # of each node
    num_nodes: int
    strategy: Literal["auto", "ddp", "ddp_fork", "fsdp2"]
    precision: Precision  # of the policy's passes; what is computed of them has its own

    @property
    def mixed(self) -> bool:
        """Whether passes are computed in bfloat16, from weights that are not."""
        return self.precision == "bf16-mixed"

    @property
    def ranks(self) -> int | None:
        """How many processes there will be; None: as many as the machine has devices."""
        if self.devices == "auto":
            return None
        return self.num_nodes * (
            len(self.devices) if isinstance(self.devices, list) else self.devices
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    seed: int
    iterations: int
    prompts_per_step: int
    group_size: int
    num_minibatches: int
    epochs: int
    max_tokens_per_microbatch: int | None
    micro_batch_size: int | None
    max_grad_norm: float
    parameters: float | None  # of the model
    threads: int | None
    evaluation: Answers | Pictures
    checkpoints: Checkpoints
    guards: Guards
    dynamics: Dynamics
    trainer: Devices
    warm_start: list[str] | None  # overrides of the run whose weights this one starts from
    continue_from: str | None  # a run directory
    resume: str | None  # a run directory
    evaluate: bool
    estimate: bool
    dry_run: bool
    plugins: list[str]
    run_dir: str
    sweep_dir: str | None  # of the sweep that the run is part of
    overrides: list[str]  # of the command line that began the run
    cache_dir: str
    choices: Mapping[str, str | None]  # group -> the option that was composed
