"""The flow policy: any transformer that predicts velocities, with the adapter of its family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.dynamics.decays import Decay, EmaSchedule
from tandem.policies.base import Policy
from tandem.policies.flow import admission, rows
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.admission import Split
from tandem.policies.flow.completion import completed
from tandem.policies.flow.denoising_loss import DenoisingErrors
from tandem.policies.flow.embeddings import PromptEmbeddingCache, text_of
from tandem.policies.flow.logprob import StepLogProbComputer
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.sampling import SamplingPlan, noise_keys, paint
from tandem.policies.flow.snapshots import EMA, LIVE
from tandem.policies.flow.solvers import noise_levels
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.language.pretrained import Numerics
from tandem.policies.language.records import Description
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.types import OF_SNAPSHOTS, Evidence, Prompt, Rollout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

OF_PICTURES = frozenset({"key", "old_logp", "ref_logp", "ref_error", *OF_SNAPSHOTS})
OF_TEACHERS = frozenset({"std", "velocity_gain"})
OF_KL = frozenset({"kl_to_ref", "old_kl_to_ref"})
OF_REFERENCE = OF_KL | {"ref_logp", "ref_error"}
OF_STEPS = OF_KL | {"behaviour_logp", "transition", "kl_to_old", "values", "old_values"}
# Nats per latent dimension that float32 may lose; guards.first_update_ratio is no less.
SAME = 1e-6


class FlowPolicy(Policy):
    """Denoises pictures, and says how likely its steps are. It has no weights before `load`."""

    unit = "steps"
    disagrees_by = (
        "another rollout.guidance_scale, dynamics.kernel or dynamics/logp on one side; states "
        "that were rounded after they were used (rollout.storage); another noise schedule; a "
        "lower dtype"
    )
    varies_by = "dynamics.kernel.noise_level"
    same = SAME

    def __init__(
        self,
        *,
        adapter: Adapter,
        latent_size: int | None = None,
        path: str | None = None,
        seed: int = 0,
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        gradient_checkpointing: bool = False,
        torch_compile: bool = False,
        lora: Lora | None = None,
        ema: Decay | None = None,
        negative_prompt: str | None = None,
        cache_dir: str | None = None,
        row_budget: int = 1024,
    ) -> None:
        """`path`: a folder in diffusers' layout; `seed`: of new adapters and of random steps.

        `ema`: how much an average of the weights keeps at every update; None: there is none.
        `latent_size`: the dimensions of one latent picture that the configuration reckons with.
        `row_budget`: rows of one forward pass of training, memory and nothing else.
        """
        super().__init__()
        self.adapter, self.path, self.seed = adapter, path, seed
        self.latent_size, self.ema, self.row_budget = latent_size, ema, row_budget
        numerics = Numerics(
            dtype=dtype, gradient_checkpointing=gradient_checkpointing, torch_compile=torch_compile
        )
        self.model = FlowModel(adapter, numerics, lora)
        cache = None if cache_dir is None else Path(cache_dir)
        self.library = PromptEmbeddingCache(adapter, cache=cache, negative=negative_prompt)

    def describe(self, request: Request) -> Description:
        provides = OF_PICTURES if request.sampling.deterministic else OF_PICTURES | OF_STEPS
        taught = frozenset() if request.teachers is None else OF_TEACHERS
        return Description(kind="flow", provides=provides | taught)

    def load(self, request: Request) -> None:
        """Weights; a frozen copy of them only if a reference is needed without adapters, and a
        critic only if "values" are."""
        self.request, self.sampling = request, request.sampling
        self.scorer = StepLogProbComputer(self.library, self.sampling, max_rows=self.row_budget)
        self.regressor = DenoisingErrors(
            self.library, request.timesteps, schedule=self.schedule, max_rows=self.row_budget
        )
        self.model.load(
            self.path,
            seed=self.seed,
            with_reference=bool(request.needs & OF_REFERENCE),
            with_critic="values" in request.needs,
            following=self.followed(),
            teachers=request.teachers,
            precision=request.precision,
        )
        admission.check_size(self.adapter, self.latent_size, path=self.path)

    def followed(self) -> dict[str, EmaSchedule]:
        """The snapshots that are read, sampled from, or evaluated."""
        kept = self.request.followed()
        return kept if self.ema is None else kept | {EMA: EmaSchedule(decay=self.ema)}

    def schedule(self) -> Tensor:
        """The noise levels of the sampler, from noise to 0: [steps + 1]."""
        own = self.sampling
        if own.solver is not None:
            return noise_levels(own.solver, own.steps)
        return own.schedule(own.steps, self.adapter.tokens[0])

    @property
    def device(self) -> torch.device:
        return self.sampler.device

    @property
    def exact(self) -> bool:
        """Whether a log-probability comes out the same in any batch, to 1e-4."""
        return self.model.field.precision.is_exact(self.model.network)

    @contextmanager
    def summon_full_params(
        self, sampling: FlowSampling | None = None, needs: frozenset[str] = frozenset()
    ) -> Iterator[None]:
        weights = (self._own_sampling() if sampling is None else sampling).weights
        of_reference = bool(needs & OF_REFERENCE)
        # In this order: what is gathered is what the ranks hold at that moment.
        with self.model.snapshots.under(weights), self.model.gathered(with_reference=of_reference):
            yield

    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: FlowSampling | None = None,
    ) -> Rollout:
        """`group_size` pictures for every prompt, prompt by prompt; group = slot of the prompt.

        The noise of a picture is a function of key, slot, sample and step. What is trained must be
        sampled with the policy's own `sampling`; another one is for evaluation.
        """
        sampling = self._own_sampling() if sampling is None else sampling
        asked = [prompt for prompt in prompts for _ in range(group_size)]
        texts = self.library.texts(prompts, guided=sampling.guidance_scale > 1)
        self.library.prepare(texts, self.device)
        group = torch.tensor(slots, device=self.device)
        of_group, keys = noise_keys(key, group, group_size)
        starts = of_group if sampling.shared_noise else keys
        course = SamplingPlan.of(
            sampling,
            tokens=self.adapter.canvas(sampling.resolution).tokens,
            iteration=self.iteration,
            seed=self.seed,
            keep_mean="kl_to_old" in self.request.needs,
            kept=self.request.kept_steps(sampling.steps),
        )
        with self.summon_full_params(sampling):
            finished, pictures = paint(self.model, self.library, asked, keys, starts, course)
        rollout = rows.sampled(
            asked,
            finished,
            pictures,
            group=group.repeat_interleave(group_size),
            key=rng.key(of_group if self.request.timesteps.shared else keys, "regression"),
            guidance=sampling.guidance_scale,
            steps=self.request.steps_of_a_picture,
        )
        return replace(rollout, key=keys)

    def _own_sampling(self) -> FlowSampling:
        """A snapshot may take over only after so many updates."""
        if self.model.snapshots.counts["update"] >= self.sampling.weights_from:
            return self.sampling
        return replace(self.sampling, weights=LIVE)

    def branches(self) -> list[FlowSampling]:
        """Ways to sample in this iteration, each with one random step of the policy's own."""
        return self.sampling.branches(self.iteration, self.seed)

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        """Pictures of demonstrations, each one step or one for each noise level.

        Their noise levels and noise are functions of key and slot: the rows of a slot share them,
        whatever `regression.shared` says of samples.
        """
        group = torch.tensor(slots, device=self.device)
        pictures = torch.stack([admission.shown(example, self.adapter) for example in examples])
        parts = pictures.split(self.sampling.max_rows)
        x0 = torch.cat([self.adapter.latents(part, self.device) for part in parts])
        return rows.demonstrated(
            examples,
            x0,
            pictures,
            group=group,
            key=rng.further(key, group),
            steps=self.request.steps_of_a_picture,
        )

    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        """Pictures as a whole get new levels and noise. Log-probabilities that `complete` filled
        are of the old ones, so where those may be read all stays as it is."""
        return rows.renewed(rollout, epoch) if self.request.whole else rollout

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """The training forward, with gradient: `logp`, and with any of "transition", "kl_to_old"
        and "kl_to_ref" the transition, in which a KL is there only if it was named."""
        if rollout.sample.trajectory is None:
            scale = self.request.timesteps.guidance_scale
            return Evidence(logp=self.regressor.logp(self.model.field, rollout, scale=scale))
        return self.scorer.evidence(self.model, rollout, needs)

    def errors(self, rollout: Rollout, needs: frozenset[str]) -> dict[str, Tensor]:
        """ "error" [B, T, D], with gradient, "sigma" [B, T], and what is named of "old_error",
        "ref_error", "fast_error" [B, T, D], "std" and "velocity_gain" [B, T]."""
        return self.regressor.errors(self.model, rollout, needs)

    def _logp(
        self, field: VelocityModel, rollout: Rollout, *, of_reference: bool = False
    ) -> Tensor:
        """[B, T], without gradient."""
        if rollout.sample.trajectory is not None:
            return self.scorer.logp(field, rollout)
        own = self.request.timesteps
        scale = own.ref_guidance_scale if of_reference else own.guidance_scale
        with torch.no_grad():
            return self.regressor.logp(field, rollout, scale=scale)

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Fill the log-probabilities, values and old means that are read and were not given."""
        with self.model.gathered():
            return completed(
                rollout,
                needs,
                model=self.model,
                scorer=self.scorer,
                logp=self._logp,
                trusted=self.trusts,
            )

    def row_cost(self, rollout: Rollout) -> Tensor:
        """Tokens that a forward pass reads for each row, [B] int64."""
        points = self.regressor.points_per_step(rollout) * rollout.length
        guided = rollout.sample.guidance.gt(1).long()
        if rollout.sample.trajectory is None or self.request.teachers is not None:
            guided = int(self.request.timesteps.guidance_scale > 1)
        return sum(self.adapter.tokens) * (1 + guided) * points

    def admit(self, prompts: Sequence[Prompt], samplings: Sequence[FlowSampling] = ()) -> Split:
        """The prompts that can be painted by the policy's own sampling and by these, encoded by
        now, and the others with the reason."""
        for sampling in samplings:
            self.adapter.canvas(sampling.resolution)  # which refuses what it cannot paint
        setting = admission.guided_by(self.sampling, samplings, self.request.timesteps)
        kept, dropped = admission.paintable(prompts, self.library, guided_by=setting)
        self.library.prepare(self.library.texts(kept, guided=setting is not None), self.device)
        return kept, dropped

    def admit_answered(self, examples: Sequence[Prompt]) -> Split:
        """The demonstrations that have a picture of the right size, and the others."""
        shown, without = admission.pictured(examples, self.adapter)
        kept, dropped = self.admit(shown)
        return kept, without + dropped

    def describe_prompt(self, prompt: Prompt) -> str:
        """The text as the encoders see it."""
        return text_of(prompt)

    def notify(self, event: Literal["update", "iteration"]) -> None:
        """Snapshots follow."""
        self.model.snapshots.follow(event)

    def shard(self, mesh: DeviceMesh) -> None:
        """All but teachers."""
        self.model.shard(mesh)

    def trainable(self) -> dict[str, nn.Parameter]:
        """All that learns, by name."""
        return self.model.trainable()

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """What an optimiser treats alike; a critic, if there is one, comes last."""
        return self.model.groups()

    def state(self) -> dict[str, Tensor]:
        """What the policy remembers beside its weights; snapshots as snapshot/weight."""
        return {"sampler": self.sampler} | self.model.snapshots.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.sampler.copy_(state["sampler"])
        others = {name: value for name, value in state.items() if name != "sampler"}
        self.model.snapshots.load_state(others)

    def save(self, folder: str | Path) -> None:
        """In the layout of diffusers; adapters are merged, and lie beside it in `lora`. An average
        of the weights is a whole model too, in `ema`."""
        self.model.save(Path(folder))
        if self.ema is not None:
            with self.model.snapshots.under(EMA):
                self.model.save(Path(folder) / EMA)
