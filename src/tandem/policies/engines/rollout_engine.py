"""Rollout-engine support of policies: weight sync, staleness, log-prob mismatch."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.policies.base import Policy
from tandem.policies.engines import mismatch
from tandem.policies.engines.diagnosis import diagnose
from tandem.policies.engines.mismatch_evidence import testimony
from tandem.policies.engines.protocol import Engine
from tandem.policies.engines.weight_files import WeightFiles
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.language.decoding import Local
from tandem.policies.language.logprob import TokenLogProbComputer
from tandem.policies.language.sampling import Sampling
from tandem.policies.lora import Lora
from tandem.policies.precision import Precision
from tandem.types import Rollout

log = logging.getLogger(__name__)

SAME = 1e-4  # nats: below it, what the sampler reported is what the training forward gives
NOTICED = 1e-3  # nats per token on average: above it people hear of it, though the run goes on


class EngineMixin(Policy):
    """A policy of tokens that an engine samples for: our own loop, or a server."""

    sampling: Sampling
    network: nn.Module
    scorer: TokenLogProbComputer
    precision: Precision
    lora: Lora | None
    supply: WeightSync | None = None  # of an engine with weights of its own; None: it has none
    suspect: Rollout | None = None  # some rows of the last rollout of such an engine
    measured = False

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sampler", torch.tensor(mismatch.UNKNOWN))

    def host(self) -> Engine:
        """The engine of the weights that were loaded."""
        option = self.sampling.engine
        if option is None:
            return Local(self.scorer.model, self.precision)
        self.supply = WeightSync(option.host(self), self.files, sleeps=option.sleeps)
        return self.supply

    @property
    def vocabulary(self) -> int:
        return self.scorer.model.config.get_text_config().vocab_size

    @property
    def files(self) -> WeightFiles:
        return WeightFiles(self.network, adapter=self.lora is not None)

    # The weights of the engine.

    def ready(self) -> None:
        if self.supply is not None:
            self.supply.refresh()

    def updated(self) -> None:
        if self.supply is not None:
            self.supply.outdated()

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        if self.supply is not None:
            self.supply.outdated()

    # Whether it says what training says.

    @property
    def exact(self) -> bool:
        """Whether a log-probability comes out the same in any batch, to 1e-4."""
        return self.precision.is_exact(self.network)

    def trusts(self, rollout: Rollout) -> bool:
        """Measured once, on a few rows of the first rollout; the verdict is part of the state.

        A server computes in ways of its own, and may be another one tomorrow.
        """
        if self.supply is not None:
            return False
        if self.sampler == mismatch.UNKNOWN:
            verdict = mismatch.judge(rollout, self._logp, same=SAME)
            self.sampler.fill_(verdict if self.exact else mismatch.DIFFERENT)
        return bool(self.sampler == mismatch.REUSED)

    def examine(self, rollout: Rollout) -> None:
        """Rows of an engine with weights of its own: looked at closely once, and kept until the
        next ones come, in case that a guard asks. The engine may rest from here on."""
        if self.supply is None or rollout.behaviour_logp is None:
            return
        self.suspect = mismatch.few(rollout)
        self._measure(self.suspect)
        self.supply.rest()

    def _measure(self, rows: Rollout) -> None:
        """For nothing where the trainer's numbers are there; else on the first rows alone."""
        first, self.measured = not self.measured, True
        if rows.old_logp is not None:
            self.disagreement = mismatch.mean_gap(rows, lambda rows: rows.old_logp)
        elif first:
            self.disagreement = mismatch.mean_gap(rows, self._logp)
        if first and self.disagreement > NOTICED:
            log.warning(
                "the engine's log-probabilities differ from the trainer's by %.2g nats per token "
                "on average: %s",
                self.disagreement,
                self.suspicion(),
            )

    def suspicion(self) -> str:
        if self.suspect is None:
            return super().suspicion()
        # The rows of the first rank speak for all, which come here together.
        own = diagnose(testimony(self, self.suspect)) if distributed.is_first() else ""
        return distributed.listed([own])[0]

    def state(self) -> dict[str, Tensor]:
        """What the policy remembers beside its weights."""
        return {"sampler": self.sampler}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.sampler.copy_(state["sampler"])

    def _logp(self, rows: Rollout) -> Tensor:
        return self.scorer.in_parts(rows.sample, rows.mask).logp
