"""A plugin that samples images with a copy of the weights: `plugins=[painter] rollout=painter`."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tandem import register_rollout_engine
from tandem.policies.flow.engine import PictureEngine
from tandem.policies.flow.sampling import LocalPictures
from tandem.policies.flow.velocity_model import VelocityModel


@register_rollout_engine("painter")
class Painter(PictureEngine):
    def __init__(self, *, every: int = 1) -> None:
        self.every, self.given = every, 0  # one in this many handovers is applied

    def host(self, policy):
        self.policy = policy
        return self

    def sync(self, weights, version):
        if self.given % self.every == 0:
            with TemporaryDirectory() as folder:
                weights.save(Path(folder))
                network = self.policy.adapter.load(folder, torch.float32)
            field = VelocityModel(network, self.policy.adapter, precision=self.policy.precision)
            self.copy = LocalPictures(field, self.policy.library)
        self.given += 1

    def generate(self, prompts, keys, starts, plan):
        return self.copy.generate(prompts, keys, starts, plan)
