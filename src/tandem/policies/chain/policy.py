"""The chain policy: a language model writes what to paint, and a flow paints it, in one sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from tandem import rng
from tandem.policies.chain.pair import PairedPolicy
from tandem.policies.chain.records import (
    ChainSampling,
    as_given,
    asked_to_paint,
    filled,
    instructed,
    join,
    join_evidence,
    painted_from,
    part,
)
from tandem.policies.flow.admission import Split
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Description
from tandem.policies.request import Request
from tandem.types import PICTURE, TEXT, Evidence, Prompt, Rollout

ALONE = frozenset({"values", "old_values", "new_reference"})  # that one of the two could say


class ChainPolicy(PairedPolicy):
    """Any language policy and any flow policy. Of one row the text and its picture share a score.

    No gradient flows from a picture into its text but through that score: what the painter reads of
    a text is a constant.
    """

    paints = True
    varies_by = "rollout.text.temperature"

    def __init__(
        self,
        *,
        text: LanguagePolicy,
        picture: FlowPolicy,
        path: str | None = None,
        instruction: str | None = None,
    ) -> None:
        """`path`: a folder with `text` and `picture` in it, which wins over those of the two.

        `instruction`: what a chat model is told before the prompt; None: it is sent the prompt.
        """
        super().__init__()
        self.text, self.picture, self.instruction = text, picture, instruction
        # A mapping of its own: what a module holds twice it would save twice.
        self.parts: Mapping[str, LanguagePolicy | FlowPolicy] = {TEXT: text, PICTURE: picture}
        if path is not None:
            for name, own in self.parts.items():
                own.path = str(Path(path) / name)

    def describe(self, request: Request) -> Description:
        said = [p.describe(self.request_of(name, request)) for name, p in self.parts.items()]
        known = frozenset().union(*(one.provides for one in said))
        beside = frozenset().union(*(one.offloads for one in said))
        return Description(kind="chain", provides=known - ALONE, offloads=beside)

    def load(self, request: Request) -> None:
        """Both, each with the reference that its own segment needs; a frozen one learns nothing."""
        self.request, self.sampling = request, request.sampling
        self.load_parts(request)
        for name in request.frozen:
            for parameter in self.own_weights(name).values():
                parameter.requires_grad_(False)
        self.picture.library.fleeting = True  # what is painted was written a moment ago
        self.exact = all(policy.exact for policy in self.parts.values())

    def load_parts(self, request: Request) -> None:
        for name, policy in self.parts.items():
            policy.load(self.request_of(name, request))

    def own_weights(self, name: str) -> dict[str, nn.Parameter]:
        """What learns in that segment alone, by the names of its policy."""
        return self.parts[name].trainable()

    def request_of(self, name: str, request: Request) -> Request:
        needs = request.needs - request.unread.get(name, frozenset())
        # What is painted follows the writer's one move: there is nobody to answer it.
        own = {"sampling": getattr(request.sampling, name), "needs": needs, "environment": None}
        return replace(request, **own)

    def needs_of(self, name: str, needs: frozenset[str]) -> frozenset[str]:
        """What is read of the steps of that segment."""
        return needs - self.request.unread.get(name, frozenset())

    @contextmanager
    def summon_full_params(
        self, sampling: ChainSampling | None = None, needs: frozenset[str] = frozenset()
    ) -> Iterator[None]:
        with ExitStack() as stack:
            for name, policy in self.parts.items():
                own = None if sampling is None else getattr(sampling, name)
                stack.enter_context(policy.summon_full_params(own, self.needs_of(name, needs)))
            yield

    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: ChainSampling | None = None,
    ) -> Rollout:
        """`group_size` rows for every prompt, of which each `pictures_per_text` share a text.

        The noise of either segment is a function of key, slot and sample, under a name of its own.
        """
        each = (sampling or self.request.sampling).pictures_per_text
        texts = group_size // each
        written = self.text.sample(
            [self.told(prompt) for prompt in prompts],
            texts,
            key=rng.key(key, TEXT),
            slots=slots,
            sampling=None if sampling is None else sampling.text,
        )
        asked = tuple(prompt for prompt in prompts for _ in range(texts))
        written = replace(written, prompts=asked)  # what rewards and people see
        rows = zip(asked, written.outputs, strict=True)
        painted = self.picture.sample(
            [asked_to_paint(prompt, text) for prompt, text in rows],
            each,
            key=rng.key(key, PICTURE),
            slots=written.key.tolist(),  # a place for each text
            sampling=None if sampling is None else sampling.picture,
        )
        return join(painted_from(written, each), painted, self.request.frozen)

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        """Demonstrations: the answer is what was written, and the picture what it looks like."""
        told = [self.told(example) for example in examples]
        written = replace(self.text.encode(told, key=key, slots=slots), prompts=tuple(examples))
        asked = [asked_to_paint(example, example.answer) for example in examples]
        painted = self.picture.encode(asked, key=key, slots=slots)
        return join(written, painted, self.request.frozen)

    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        parts = part(rollout)
        again = self.picture.resample_noise(parts[PICTURE], epoch)
        return filled(rollout, {**parts, PICTURE: again})

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """The training forwards, with gradient: two graphs beside one another."""
        parts = part(rollout)
        said = {
            name: policy.evidence(parts[name], self.needs_of(name, needs))
            for name, policy in self.learning.items()
        }
        return join_evidence(said, parts)

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Each fills in what is read of its own steps; of frozen ones nobody reads anything."""
        parts = dict(part(rollout))
        for name, policy in self.learning.items():
            parts[name] = policy.complete(parts[name], self.needs_of(name, needs))
        return filled(rollout, parts, needs)

    def row_cost(self, rollout: Rollout) -> Tensor:
        """Tokens that the forward passes of both read for each row, [B] int64."""
        parts = part(rollout)
        return sum(policy.row_cost(parts[name]) for name, policy in self.parts.items())

    def admit(self, prompts: Sequence[Prompt], samplings: Sequence[ChainSampling] = ()) -> Split:
        """The prompts that can be answered, and the others with the reason; what is painted is not
        written yet."""
        self.picture.admit((), [one.picture for one in samplings])
        told = [self.told(prompt) for prompt in prompts]
        return as_given(prompts, self.text.admit(told, [one.text for one in samplings]))

    def admit_answered(self, examples: Sequence[Prompt]) -> Split:
        """The demonstrations that have a text and a picture of it, and the others."""
        told = [self.told(example) for example in examples]
        kept, dropped = as_given(examples, self.text.admit_answered(told))
        asked = [asked_to_paint(example, example.answer) for example in kept]
        reasons = {example.id: why for example, why in self.picture.admit_answered(asked)[1]}
        dropped += [(one, reasons[one.id]) for one in kept if one.id in reasons]
        return [one for one in kept if one.id not in reasons], dropped

    def describe_prompt(self, prompt: Prompt) -> str:
        """The text as the language model sees it."""
        return self.text.describe_prompt(self.told(prompt))

    def told(self, prompt: Prompt) -> Prompt:
        """The prompt as the language model is sent it."""
        return instructed(prompt, self.instruction)
