"""The chain policy: a language model writes what to paint, and a flow model paints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from tandem import rng
from tandem.policies.chain.keys import admit_in_segment, in_segment, keys_of
from tandem.policies.chain.pair import PairedPolicy
from tandem.policies.chain.records import (
    ChainSampling,
    drop_refused,
    join,
    join_evidence,
    merge_fields,
    part,
    picture_prompt,
    picture_rows,
    with_instruction,
    with_original_prompts,
)
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Description
from tandem.policies.request import Request
from tandem.types import PICTURE, TEXT, Admission, Evidence, Prompt, Rollout

ALONE = frozenset({"values", "old_values", "new_reference"})  # not supported for a pair


class ChainPolicy(PairedPolicy):
    """Any language policy and any flow policy. A row is a text and its picture, with one score.

    No gradient flows from a picture into its text, except through that score: the text is a
    constant input of the flow model.
    """

    paints = True
    varies_by = "rollout.text.temperature"

    def __init__(
        self,
        *,
        text: LanguagePolicy,  # the language model
        picture: FlowPolicy,  # the flow model
        path: str | None = None,
        instruction: str | None = None,
    ) -> None:
        """`path`: a folder with `text` and `picture` in it, which wins over their own paths.

        `instruction`: system message for a chat model; None: the prompt alone.
        """
        super().__init__()
        self.text, self.picture, self.instruction = text, picture, instruction
        # Not a ModuleDict: its weights would be saved twice.
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
        """Load both, each with a reference if its segment needs one; frozen ones train nothing."""
        self.request, self.sampling = request, request.sampling
        self.load_parts(request)
        for name in request.frozen:
            for parameter in self.own_weights(name).values():
                parameter.requires_grad_(False)
        self.picture.library.fleeting = True  # prompts of the flow model are new in each iteration
        self.exact = all(policy.exact for policy in self.parts.values())

    def load_parts(self, request: Request) -> None:
        for name, policy in self.parts.items():
            with keys_of(name):
                policy.load(self.request_of(name, request))

    def own_weights(self, name: str) -> dict[str, nn.Parameter]:
        """Weights trained by that segment alone, by their names in its policy."""
        return self.parts[name].trainable()

    def request_of(self, name: str, request: Request) -> Request:
        needs = request.needs - request.unread.get(name, frozenset())
        # The text is a single move, which no environment answers.
        own = {"sampling": request.sampling.segments[name], "needs": needs, "environment": None}
        return replace(request, **own)

    def needs_of(self, name: str, needs: frozenset[str]) -> frozenset[str]:
        """The fields that are needed of that segment."""
        return needs - self.request.unread.get(name, frozenset())

    @contextmanager
    def summon_full_params(
        self, sampling: ChainSampling | None = None, needs: frozenset[str] = frozenset()
    ) -> Iterator[None]:
        with ExitStack() as stack:
            for name, policy in self.parts.items():
                own = None if sampling is None else sampling.segments[name]
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
        """`group_size` rows per prompt; each `pictures_per_text` of them share a text.

        The noise of each segment is a function of key, slot and sample, under its own name.
        """
        each = (sampling or self.request.sampling).pictures_per_text
        texts = group_size // each
        written = self.text.sample(
            [self.with_instruction(prompt) for prompt in prompts],
            texts,
            key=rng.key(key, TEXT),
            slots=slots,
            sampling=None if sampling is None else sampling.text,
        )
        asked = tuple(prompt for prompt in prompts for _ in range(texts))
        written = replace(written, prompts=asked)  # for rewards and tables: without instruction
        rows = zip(asked, written.outputs, strict=True)
        painted = self.picture.sample(
            [picture_prompt(prompt, text) for prompt, text in rows],
            each,
            key=rng.key(key, PICTURE),
            slots=written.key.tolist(),  # one slot per text
            sampling=None if sampling is None else sampling.picture,
        )
        if sampling is not None:  # of an evaluation: nothing reads these texts again
            self.picture.library.evict()
        return join(picture_rows(written, each), painted, self.request.frozen)

    def encode(self, examples: Sequence[Prompt], *, key: int, slots: Sequence[int]) -> Rollout:
        """Demonstrations: the answer is the text, and its image the picture."""
        told = [self.with_instruction(example) for example in examples]
        written = replace(self.text.encode(told, key=key, slots=slots), prompts=tuple(examples))
        asked = [picture_prompt(example, example.answer) for example in examples]
        painted = self.picture.encode(asked, key=key, slots=slots)
        return join(written, painted, self.request.frozen)

    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        parts = part(rollout)
        again = self.picture.resample_noise(parts[PICTURE], epoch)
        return merge_fields(rollout, {**parts, PICTURE: again})

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """The training forwards, with gradient; their graphs are separate."""
        parts = part(rollout)
        said = {
            name: policy.evidence(parts[name], self.needs_of(name, needs))
            for name, policy in self.learning.items()
        }
        return join_evidence(said, parts)

    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        """Fill in what is needed of the steps of each trained policy."""
        parts = dict(part(rollout))
        for name, policy in self.learning.items():
            parts[name] = policy.complete(parts[name], self.needs_of(name, needs))
        return merge_fields(rollout, parts, needs)

    def row_cost(self, rollout: Rollout) -> Tensor:
        """Tokens that the forward passes of both read, [B] int64."""
        parts = part(rollout)
        return sum(policy.row_cost(parts[name]) for name, policy in self.parts.items())

    def refuse_all(self, prompts: Sequence[Prompt], request: Request) -> str | None:
        """The reason of the first model that refuses every prompt, with its keys."""
        for name, policy in self.parts.items():
            reason = policy.refuse_all(prompts, self.request_of(name, request))
            if reason is not None:
                return in_segment(name, reason)
        return None

    def admit(
        self, prompts: Sequence[Prompt], samplings: Sequence[ChainSampling] = ()
    ) -> Admission:
        """Prompts that the language model accepts, and the flow model whatever text is written, and
        the others with a reason."""
        told = [self.with_instruction(prompt) for prompt in prompts]
        judged = admit_in_segment(TEXT, self.text.admit, told, [one.text for one in samplings])
        kept, dropped = with_original_prompts(prompts, judged)
        unwritten, others = (
            [picture_prompt(one, "") for one in kept],
            [x.picture for x in samplings],
        )
        judged = admit_in_segment(PICTURE, self.picture.admit, unwritten, others, written=False)
        return drop_refused(kept, dropped, judged[1])

    def admit_answered(self, examples: Sequence[Prompt]) -> Admission:
        """Demonstrations that have both a text and a picture, and the others with a reason."""
        told = [self.with_instruction(example) for example in examples]
        judged = admit_in_segment(TEXT, self.text.admit_answered, told)
        kept, dropped = with_original_prompts(examples, judged)
        asked = [picture_prompt(example, example.answer) for example in kept]
        judged = admit_in_segment(PICTURE, self.picture.admit_answered, asked)
        return drop_refused(kept, dropped, judged[1])

    def describe_prompt(self, prompt: Prompt) -> str:
        """The text as the language model reads it."""
        return self.text.describe_prompt(self.with_instruction(prompt))

    def with_instruction(self, prompt: Prompt) -> Prompt:
        """The prompt with the instruction, as the language model reads it."""
        return with_instruction(prompt, self.instruction)
