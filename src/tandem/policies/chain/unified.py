"""The chain of a single transformer with a token head and a velocity head."""

from __future__ import annotations

from torch import nn

from tandem.policies.base import Policy
from tandem.policies.chain.keys import keys_of
from tandem.policies.chain.policy import ChainPolicy
from tandem.policies.chain.records import flatten_segments
from tandem.policies.flow.adapter import SharesLayers
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.request import Request
from tandem.types import PICTURE, SEGMENTS, TEXT

SHARED = "shared"  # the group of weights that both segments train


class UnifiedPolicy(ChainPolicy):
    """A chain whose flow model shares the layers of its language model and has heads of its own.

    Both segments are trained at once, so the gradient of a shared weight is the sum of both. Shared
    weights are a group with their own clip and learning rate. A frozen segment freezes its head;
    the other segment still trains the layers.
    """

    def __init__(
        self,
        *,
        text: LanguagePolicy,
        picture: FlowPolicy,
        path: str | None = None,
        instruction: str | None = None,
    ) -> None:
        super().__init__(text=text, picture=picture, path=path, instruction=instruction)
        if not isinstance(picture.adapter, SharesLayers):
            raise ValueError(
                f"model.picture.adapter: {type(picture.adapter).__name__} has a transformer of its "
                "own; set model=chain"
            )
        if picture.model.lora is not None:
            raise ValueError(
                "model.picture.lora: the layers belong to the language model; set model.text.lora"
            )
        if picture.ema is not None:
            raise ValueError(
                "model.picture.ema would average layers that also write; set model.picture.ema=null"
            )

    def load_parts(self, request: Request) -> None:
        """Load the language model first; both segments share one frozen copy of its layers."""
        with keys_of(TEXT):
            self.text.load(self.request_of(TEXT, request))
        self.picture.adapter.share(self.layers, self.text.chat.tokenizer)
        with keys_of(PICTURE):
            self.picture.load(self.request_of(PICTURE, request))
        reference, frozen = self.text.reference, self.picture.model.frozen
        if reference is not None and frozen is not None:
            frozen.network.layers = reference.model.get_decoder()

    @property
    def layers(self) -> nn.Module:
        """Embeddings and blocks, shared by both segments."""
        return self.text.scorer.model.get_decoder()

    def own_weights(self, name: str) -> dict[str, nn.Parameter]:
        """Weights trained by that segment alone, by their names in its policy."""
        shared = {*self.layers.parameters()}
        return {key: p for key, p in self.parts[name].trainable().items() if p not in shared}

    def trainable(self) -> dict[str, nn.Parameter]:
        """Trained weights; shared layers have their names in the language model."""
        own = {PICTURE: self.own_weights(PICTURE)}
        return flatten_segments({TEXT: self.text.trainable()} | own)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The shared layers, and the weights of each segment."""
        apart = {name: [*self.own_weights(name).values()] for name in SEGMENTS}
        both = [p for p in self.layers.parameters() if p.requires_grad]
        return {name: group for name, group in ({SHARED: both} | apart).items() if group}

    load_weights = Policy.load_weights
    shard = Policy.shard  # raises: either segment would gather the shared blocks
