"""Rollout-engine support of policies: weight sync, staleness, log-prob mismatch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from tandem import distributed
from tandem.policies.base import Policy, is_fresh, mean_gap, take_few
from tandem.policies.engines.answer_checks import CheckedEngine
from tandem.policies.engines.diagnosis import diagnose
from tandem.policies.engines.mismatch_evidence import collect_mismatch_evidence
from tandem.policies.engines.protocol import Engine
from tandem.policies.engines.weight_files import WeightFiles
from tandem.policies.engines.weight_sync import WeightSync
from tandem.policies.language.logprob import TokenLogProbComputer
from tandem.policies.language.pretrained import vocabulary_of
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.policies.weights import Precision, gather_all
from tandem.types import Rollout

log = logging.getLogger(__name__)

NOTICED = 1e-3  # nats per token on average; a larger difference is logged as a warning


class EngineMixin(Policy):
    """A token policy whose sampling is done by an engine: the local loop or a server."""

    sampling: Sampling
    network: nn.Module
    scorer: TokenLogProbComputer
    precision: Precision
    lora: Lora | None
    suspect: Rollout | None = None  # some rows of the last rollout of such an engine
    explained = ""  # cause of a difference on rows of older weights, found while these were loaded
    measured = False

    def host(self) -> Engine:
        """The engine of the loaded weights."""
        option = self.sampling.engine
        if option is None:
            from tandem.policies.language.decoding import Local  # it imports transformers

            return Local(self.model, self.precision, self.scorer.inputs)
        engine = option.host(self)
        if option.shares_weights:
            return CheckedEngine(engine, self.vocabulary)
        self.supply = WeightSync(
            engine,
            self.files,
            sleeps=option.sleeps,
            handover=self.sampling.handover_of(adapter=self.lora is not None),
            staleness=self.sampling.staleness,
            vocabulary=self.vocabulary,
        )
        self.samples_ahead = self.sampling.staleness > 0
        return self.supply

    @property
    def model(self) -> nn.Module:
        """The network without peft's wrapper; adapters stay in place."""
        return self.scorer.model

    @property
    def vocabulary(self) -> int:
        return vocabulary_of(self.model)

    @property
    def files(self) -> WeightFiles:
        return WeightFiles(self.network, adapter=self.lora is not None)

    # The weights of the engine.

    def sampled_weights(self) -> dict[str, Tensor]:
        """All trained parameters except the critic's. Of any shape [...]."""
        return {n: p for n, p in self.trainable().items() if not n.startswith("critic.")}

    @contextmanager
    def lagging(self) -> Iterator[int]:
        """Sample with older weights; the engine gets the live ones before its next call."""
        with super().lagging() as gap:
            if gap and self.supply is not None:
                self.supply.mark_outdated()
            yield gap
        if gap and self.supply is not None:
            self.supply.mark_outdated()

    # The log-probabilities of the engine and of the trainer.

    def compare_with_sampler(self, rollout: Rollout) -> None:
        """Compare as for any policy. An engine uses other kernels, so only the mean difference is
        checked."""
        super().compare_with_sampler(rollout)
        if self.supply is None:
            return
        self.largest_disagreement, self.explained = 0.0, ""
        if self.disagreement > NOTICED:
            self.suspect = take_few(rollout)
            self.explained = self.suspicion()
        self._report()

    def examine(self, rollout: Rollout) -> None:
        """Check rows of an engine with a copy of the weights: closely once, and kept until the next
        rollout, in case a guard asks for a diagnosis. The engine may sleep from here on."""
        self.suspect = take_few(rollout)
        self._measure(self.suspect)
        self.supply.rest()

    def _measure(self, rows: Rollout) -> None:
        """Measure the difference: always if the trainer's numbers are there, else only once. Rows
        of older weights were compared while those weights were loaded."""
        if not is_fresh(rows):
            return
        if rows.old_logp is not None:
            self.disagreement = mean_gap(rows, rows.old_logp)
        elif not self.measured:
            self.disagreement = mean_gap(rows, self.logp(rows))
        self._report()

    def _report(self) -> None:
        """Log the difference of the first rows that were measured."""
        first, self.measured = not self.measured, True
        if first and self.disagreement > NOTICED:
            log.warning(
                "the engine's log-probabilities differ from the trainer's by %.2g nats per token "
                "on average: %s",
                self.disagreement,
                self.suspicion(),
            )

    def suspicion(self) -> str:
        if self.explained:
            return self.explained
        if self.suspect is None:
            return super().suspicion()
        # Collective: the rows of the first rank stand for all.
        with gather_all(self.scorer.weights):
            own = (
                diagnose(collect_mismatch_evidence(self, self.suspect))
                if distributed.is_first()
                else ""
            )
        return distributed.all_gather_object([own])[0]

    def state(self) -> dict[str, Tensor]:
        """State beside the weights. Scalars."""
        return {"sampler": self.sampler} | self.lagged.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`. Scalars."""
        self.sampler.copy_(state["sampler"])
        self.lagged.load_state(state)
