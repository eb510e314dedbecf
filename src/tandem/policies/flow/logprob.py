"""Log-probabilities of a flow's rollout: of random steps, or of whole pictures."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tandem.dynamics.likelihood import gaussian_kl, step_log_ratio
from tandem.policies.flow.denoising_loss import DenoisingErrors
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import FlowSampling, pick, scatter
from tandem.policies.flow.velocity_model import ChunkedForward, VelocityModel
from tandem.types import Evidence, Rollout, Transition

KLS = ("kl_to_old", "kl_to_ref")
TRANSITION = ("std", "sigma", "next_sigma", "velocity_gain")
NOTHING = frozenset()
FILLED = ("old_values", "old_logp", "ref_logp", "old_kl_to_ref")  # by `complete`


class LogProbComputer:
    """Evaluates steps x pictures as N flat rows of the network.

    Random steps have a Gaussian log-probability; other rows use a denoising loss.
    """

    def __init__(
        self, sampling: FlowSampling, denoising: DenoisingErrors, forward: ChunkedForward
    ) -> None:
        self.sampling, self.denoising, self.forward = sampling, denoising, forward

    def evidence(self, model: FlowModel, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """With gradient: `logp`, values if needed, and the transition if "transition", "kl_to_old"
        or "kl_to_ref" is needed; it has only the KLs that are needed."""
        if rollout.sample.trajectory is None:
            return Evidence(logp=self.logp(model.field, rollout))
        numbers = self.of_steps(model.field, rollout, needs, model)
        plain = {"logp": numbers["logp"], "values": numbers.get("values")}
        asked = needs & {"transition", *KLS}
        if not asked:
            return Evidence(**plain)
        assert asked <= {"transition", *numbers}, "complete() was not told that old means are read"
        facts = {name: numbers[name].detach() for name in TRANSITION}
        kls = {name: numbers[name] for name in KLS if name in needs}
        return Evidence(**plain, transition=Transition(**facts, **kls))

    @torch.no_grad()
    def complete(
        self, model: FlowModel, rollout: Rollout, needs: frozenset[str], *, trusted: bool
    ) -> Rollout:
        """Fill in log-probabilities, values and old means that are needed and missing.

        Old log-probabilities and old means have the same source, since losses combine them.
        `trusted`: the sampler's values serve as the trainer's.
        """
        if "kl_to_old" in needs and rollout.sample.trajectory is not None:
            rollout = self._keep_means(model.field, rollout, needs, trusted=trusted)
        field, found = model.field, {}
        missing = {name for name in FILLED if name in needs and getattr(rollout, name) is None}
        if "old_values" in missing:
            found["old_values"] = self.of_steps(field, rollout, {"values"}, model)["values"]
        if "old_logp" in missing:
            found["old_logp"] = rollout.behaviour_logp if trusted else self.logp(field, rollout)
        if "ref_logp" in missing:
            with model.reference() as frozen:
                found["ref_logp"] = self.logp(frozen, rollout, of_reference=True)
        if "old_kl_to_ref" in missing:
            numbers = self.of_steps(field, rollout, {"kl_to_ref"}, model)
            found["old_kl_to_ref"] = numbers["log_ratio_to_ref"]
        return replace(rollout, **found)

    def _keep_means(
        self, field: VelocityModel, rollout: Rollout, needs: frozenset[str], *, trusted: bool
    ) -> Rollout:
        """Compute the means of the steps, and their log-probabilities in the same pass, unless the
        sampler kept the means and its log-probabilities are trusted."""
        taken, new = rollout.sample.trajectory, rollout.old_logp is None
        if taken.mean is not None and (trusted or not new):
            return rollout
        numbers = self.of_steps(field, rollout, {"mean"})
        trajectory = replace(taken, mean=numbers["mean"])
        old_logp = numbers["logp"] if new and "old_logp" in needs else rollout.old_logp
        sample = replace(rollout.sample, trajectory=trajectory)
        return replace(rollout, sample=sample, old_logp=old_logp)

    def logp(self, field: VelocityModel, rollout: Rollout, *, of_reference: bool = False) -> Tensor:
        """Log-probabilities of the rows: [B, T] nats, per latent dimension for Gaussian steps."""
        if rollout.sample.trajectory is None:
            return self.denoising.logp(field, rollout, of_reference=of_reference)
        return self.of_steps(field, rollout)["logp"]

    def of_steps(
        self,
        field: VelocityModel,
        rollout: Rollout,
        needs: frozenset[str] = NOTHING,
        model: FlowModel | None = None,
    ) -> dict[str, Tensor]:
        """Values of the recorded steps by name: [B, T], "mean" [B, T, ...]; 0 outside the mask.

        `model`: has the reference, for "kl_to_ref", and the critic, for "values".
        """
        row, step = pick(rollout.mask)
        taken = rollout.sample.trajectory
        place = taken.place[row, step]
        x, next_x = (taken.path[row, place + after].float() for after in (0, 1))
        levels = taken.sigma[row, step], taken.next_sigma[row, step]
        where = [rollout.prompts[i] for i in row.tolist()], x, levels[0]
        scale = one_scale(rollout.sample.guidance[row])
        kernel, reference = self.sampling.kernel, None
        if "kl_to_ref" in needs:
            with torch.no_grad(), model.reference() as frozen:
                reference = kernel(x, self.forward(frozen, *where, scale=scale)[0], *levels)
        critic = model.values if "values" in needs else None
        velocity, values = self.forward(field, *where, scale=scale, critic=critic)
        own = kernel(x, velocity, *levels)
        numbers = {
            "logp": self.sampling.logp(next_x, own),
            "std": own.std,
            "sigma": levels[0],
            "next_sigma": levels[1],
            "velocity_gain": own.velocity_gain,
        }
        if "mean" in needs:
            numbers["mean"] = own.mean
        if values is not None:
            numbers["values"] = values
        if taken.mean is not None:
            numbers["kl_to_old"] = gaussian_kl(own, taken.mean[row, step])
        if reference is not None:
            numbers["kl_to_ref"] = gaussian_kl(own, reference.mean)
            numbers["log_ratio_to_ref"] = step_log_ratio(next_x, own, reference)
        return {name: scatter(x, row, step, rollout.mask) for name, x in numbers.items()}


def one_scale(guidance: Tensor) -> float:
    """The guidance scale of all rows. guidance: [N].

    Raises ValueError if rows differ.
    """
    scales = set(guidance.tolist())
    if len(scales) > 1:
        raise ValueError(
            f"rows with guidance scales {sorted(scales)} cannot share a forward pass; "
            "use one guidance_scale for all samples that are trained together"
        )
    return scales.pop()
