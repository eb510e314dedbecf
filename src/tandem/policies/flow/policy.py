"""The flow policy: a transformer that predicts velocities, with the adapter of its family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import numbers_of, positive
from tandem.dynamics.decays import Decay
from tandem.policies.flow import admission
from tandem.policies.flow.adapter import Adapter, Autoencoding, Decoding
from tandem.policies.flow.denoising_loss import DenoisingErrors
from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.logprob import LogProbComputer
from tandem.policies.flow.matching import MatchingQueries, one_of_each
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.picture_policy import PicturePolicy
from tandem.policies.flow.records import FlowSample, FlowSampling, as_rollout, renew_noise
from tandem.policies.flow.sampling import SamplingPlan
from tandem.policies.flow.sizes import as_large, in_parts, sample_by_size
from tandem.policies.flow.snapshots import (
    NEW_REFERENCE,
    OF_KL,
    OF_REAL,
    KeptWeights,
    reads_reference,
)
from tandem.policies.flow.velocity_model import ChunkedForward
from tandem.policies.language.pretrained import Numerics
from tandem.policies.language.records import Description
from tandem.policies.lora import Lora
from tandem.policies.quantization import Quantization
from tandem.policies.request import Request
from tandem.types import OF_SNAPSHOTS, Evidence, NetworkAnswer, Prompt, Rollout

OF_PICTURES = frozenset({"key", "old_logp", "ref_logp", "ref_error", NEW_REFERENCE, *OF_SNAPSHOTS})
OF_TEACHERS = frozenset({"std", "velocity_gain"})
OF_STEPS = OF_KL | {"behaviour_logp", "transition", "kl_to_old", "values", "old_values"}
SAME = 1e-6  # float32 error in nats per latent dimension; at most first_update_ratio


class FlowPolicy(PicturePolicy):
    """Denoises pictures and computes log-probabilities of its steps. No weights before `load`."""

    unit = "steps"
    disagrees_by = (
        "a different rollout.guidance_scale, dynamics.kernel, dynamics/logp or noise schedule on "
        "one side; states rounded after use (rollout.storage); a lower dtype"
    )
    same = SAME

    def __init__(
        self,
        *,
        adapter: Adapter,
        latent_size: int | None = None,
        path: str | None = None,
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        gradient_checkpointing: bool = False,
        mlp_tile: Annotated[int, positive] | None = None,
        torch_compile: bool = False,
        lora: Lora | None = None,
        quantization: Quantization | None = None,  # storage of the frozen base below lora
        target_components: Sequence[str] | None = None,
        ema: Decay | None = None,
        negative_prompt: str | None = None,
        cache_dir: str | None = None,
        row_budget: int = 1024,
        decoding: Decoding = "batched",
    ) -> None:
        """`path`: a folder in diffusers' layout.

        `target_components`: the trained networks, by folder; None: every transformer.
        `ema`: the decay of an average of the weights per update; None: no average.
        `latent_size`: the dimensions of one latent according to the configuration.
        `decoding`: how a VAE processes pictures.
        """
        super().__init__()
        self.adapter, self.path = adapter, path
        self.sees = adapter.images > 0  # and edits them
        self.latent_size, self.ema, self.row_budget = latent_size, ema, row_budget
        self.decoding = decoding
        admission.check_decoding(adapter, decoding)
        numerics = Numerics(
            dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
            mlp_tile=mlp_tile,
            torch_compile=torch_compile,
        )
        self.model = FlowModel(adapter, numerics, lora, quantization, target_components)
        cache = None if cache_dir is None else Path(cache_dir)
        self.library = PromptEmbeddingCache(adapter, cache=cache, negative=negative_prompt)

    @property
    def varies_by(self) -> str | None:
        """The noise of the random steps; None: an ODE, or a kernel without such a number."""
        has_noise = "noise_level" in numbers_of(self.sampling.kernel)
        return "dynamics.kernel.noise_level" if has_noise else None

    def describe(self, request: Request) -> Description:
        provides = OF_PICTURES if request.sampling.deterministic else OF_PICTURES | OF_STEPS
        taught = frozenset() if request.teachers is None else OF_TEACHERS
        matched = frozenset() if request.query is None else OF_REAL
        beside = {"vae", "encoders"} if isinstance(self.adapter, Autoencoding) else set()
        reads = KeptWeights.of(request, self.ema).reference
        copies = {"reference"} if reads and self.model.lora is None else set()
        return Description(
            kind="flow", provides=provides | taught | matched, offloads=frozenset(beside | copies)
        )

    def load(self, request: Request) -> None:
        """Load the weights; a frozen copy only if a reference is needed without LoRA, a critic
        only if "values" are needed."""
        self.request, self.sampling = request, request.sampling
        self.precision = request.precision
        self.lagged.staleness = self.sampling.staleness
        self.forward_pass = ChunkedForward(self.library, max_rows=self.row_budget)
        self.denoising = DenoisingErrors(request.timesteps, self.schedule, self.forward_pass)
        if request.query is not None:
            self.queries = MatchingQueries(request, request.query, self.forward_pass)
        self.logprobs = LogProbComputer(self.sampling, self.denoising, self.forward_pass)
        self.model.offload = request.offload
        if isinstance(self.adapter, Autoencoding):
            self.adapter.save_memory(request.offload, self.decoding)
        self.model.load(
            self.path,
            seed=request.seed,
            kept=KeptWeights.of(request, self.ema),
            with_critic="values" in request.needs,
            teachers=request.teachers,
            precision=request.precision,
        )
        self.exact = request.precision.is_exact(self.model.network)
        admission.check_size(self.adapter, self.latent_size, path=self.path)
        admission.check_schedule(self.adapter, self.sampling)
        admission.warn_of_schedule(self.adapter, self.sampling, path=self.path)
        self.engine = self.host()

    def schedule(self, size: tuple[int, int] | None = None) -> Tensor:
        """The sampler's noise levels for pictures of that height and width, from noise to 0:
        [steps + 1]."""
        return self.sampling.levels(self.adapter.canvas(size).tokens)

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

        The noise of a picture is a function of key, slot, sample and step. Training needs the
        policy's own `sampling`; another one is for evaluation.
        """
        sampling = self.own_sampling() if sampling is None else sampling
        if sampling.resolution is not None:
            prompts = as_large(prompts, sampling.resolution, self.adapter.image_shape)
        sizes = {prompt.size for prompt in prompts} if sampling.resolution is None else {None}
        self.asks_sizes |= sizes != {None}
        if len(sizes) > 1:
            again = partial(self.sample, group_size=group_size, key=key, sampling=sampling)
            return sample_by_size(
                prompts, slots, group_size, lambda some, own: again(some, slots=own)
            )
        sampling = sampling if sizes == {None} else replace(sampling, resolution=sizes.pop())
        asked = [prompt for prompt in prompts for _ in range(group_size)]
        inputs = self.library.inputs(prompts, guided=sampling.guidance_scale > 1)
        self.library.prepare(inputs, self.device)
        group = torch.tensor(slots, device=self.device)
        of_group = rng.key(key, group).repeat_interleave(group_size)
        keys = rng.key(key, group[:, None], torch.arange(group_size, device=group.device)).flatten()
        starts = of_group if sampling.shared_noise else keys
        plan = SamplingPlan.of(
            sampling,
            self.request,
            tokens=self.adapter.canvas(sampling.resolution, sampling.frames).tokens,
            iteration=self.iteration,
        )
        with self.summon_full_params(sampling):
            output, pictures = self.engine.generate(asked, keys, starts, plan)
        sample = FlowSample(
            x0=output.x0,
            key=rng.key(of_group if self.request.timesteps.shared else keys, "regression"),
            guidance=torch.full_like(keys, sampling.guidance_scale, dtype=torch.float64),
            trajectory=output.trajectory,
        )
        rollout = as_rollout(
            asked,
            sample,
            pictures,
            group=group.repeat_interleave(group_size),
            steps=self.request.steps_of_a_picture,
            logp=output.logp,
        )
        if self.request.query is not None and not self.request.every_state:
            rollout = replace(rollout, mask=one_of_each(rollout.mask, keys))
        return replace(rollout, key=keys)

    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        """Draw new noise levels and noise if the loss is on whole pictures. Otherwise keep them:
        the log-probabilities that `complete` filled in belong to the old ones."""
        fresh = self.request.whole or self.request.query is not None
        return renew_noise(rollout, epoch) if fresh else rollout

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """Log-probabilities and other values by the training forward, [B, T], with gradient."""
        if len({prompt.size for prompt in rollout.prompts}) > 1:
            return in_parts(rollout, lambda part: self.evidence(part, needs))
        return self.logprobs.evidence(self.model, self.crop_to_size(rollout), needs)

    def errors(self, rollout: Rollout, needs: frozenset[str]) -> dict[str, Tensor]:
        """ "error" [B, T, D], with gradient, "sigma" [B, T], and those in `needs` of "old_error",
        "ref_error", "fast_error" [B, T, D], "std" and "velocity_gain" [B, T]."""
        return self.denoising.errors(self.model, self.crop_to_size(rollout), needs)

    def matching(
        self, rollout: Rollout, needs: frozenset[str], *, rests: bool
    ) -> tuple[dict[str, Tensor], dict[str, NetworkAnswer]]:
        """Fields of a `MatchingBatch`: "x0" [B, T, D] with gradient unless `rests`, and those in
        `needs`; and the answers of the other trained networks, with gradients."""
        return self.queries.answers(self.model, self.crop_to_size(rollout), needs, rests=rests)

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Fill in log-probabilities, values and old means that are needed and missing."""
        new = rollout.old_logp is None and not needs.isdisjoint({"old_logp", "kl_to_old"})
        # An engine with a copy of the weights has other numerics.
        heard = new and rollout.behaviour_logp is not None and self.supply is None
        # Ranks with rows of more sizes call the reference more often.
        apart = self.asks_sizes and reads_reference(needs)
        with self.model.gather(with_reference=apart):
            trusted = heard and self.trusts(rollout)
            fill = partial(self.logprobs.complete, self.model, needs=needs, trusted=trusted)
            if len({prompt.size for prompt in rollout.prompts}) > 1:
                return in_parts(rollout, lambda part: fill(rollout=self.crop_to_size(part)))
            return fill(rollout=self.crop_to_size(rollout))
