"""Transformer passes per update of each preset: `make forwards` writes docs/forwards.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from laws.bench import OF_FLOWS, Published, load_preset, of_errors
from loop import Alone
from omegaconf import DictConfig
from policies.flow.small_flow import Brightness, make_prompts

from tandem.config import build, compose
from tandem.config.composition import conf_folder
from tandem.data.images import show
from tandem.experience import Budget, Experience, counting_rows
from tandem.policies.base import REUSED
from tandem.policies.flow.families.tiny_flow import TinyUNetFlow
from tandem.policies.flow.policy import FlowPolicy
from tandem.settings.guards import Guards
from tandem.training.batches import BatchPlan

PAGE = Path(__file__).parents[1] / "docs" / "forwards.md"
FILES = sorted((conf_folder() / "algorithm").glob("[!_]*.yaml"))
OF_ERRORS = [path.stem for path in FILES if of_errors(path)]
# As flow_grpo; but the live weights evaluate a reference that was just renewed.
RENEWED = {"gardo"}
PRESETS = sorted([*OF_ERRORS, *(OF_FLOWS - RENEWED), "dpo", "dpo_online", "grpo", "sft"])
# Field of a loss -> the network of its forward pass. The sampler gives old_logp of its steps.
OF = {
    "old_error": "old",
    "fast_error": "fast",
    "ref_error": "ref",
    "ref_logp": "ref",
    "kl_to_ref": "ref",
    "std": "teacher",
    "real_x0": "ref",
}
NAMES = ("live", "old", "fast", "ref", "teacher")

INTRODUCTION = """# Forward passes per update

Forward passes of a training step beyond sampling, per image and noise level (or step) of the
update. An update evaluates velocities of the live policy and of the networks that its loss
compares it with: the policy that sampled (`old`), the frozen reference (`ref`), an average that
follows within a few updates (`fast`), a teacher, a network that trains beside it (`fake`,
`surrogate`). Each is evaluated once per point, and no other network is. Networks with the live
weights are not evaluated again: a copied `old` before the first update of an iteration, `fast`
while its decay is 0. With classifier-free guidance a velocity takes two passes.

`first` is the first update of a run, `later` the last of its third iteration, with the published
numbers of each preset for updates, averages and penalties. `make forwards` writes this page by
counting, and a test compares it with the code.
"""
NOTES = """
* The old log-probabilities of sampled steps are the sampler's, if training finds on 16 rows of the
  first rollout that its own are equal. Otherwise they are computed once per iteration.
* A reference for log-probabilities (`dpo`) is evaluated once per iteration, one for velocities in
  every update: each of several `epochs` has its own points, but for `diffusion_opd`.
* {statistics} read all rows of an update before any of them is trained. If the update
  is cut to fit into memory, that takes one more pass of each network, without gradient; otherwise
  none.
* In iterations that do not train the generator of `dmd2` and `tdm`, its own pass has no gradient
  and the reference is not evaluated: two passes, of the generator and of the fake score.
* The samples of a branch in `tempflow_grpo` start from one state; each is evaluated separately.
* [The page on masked diffusion](masked.md#passes) has the table for masked-diffusion text, where a
  pass is a state of masks.
* `gradient_checkpointing`, and parts of more rows than `model.row_budget`, repeat the live pass in
  backward, which is not counted here.
"""


class Watch:
    """Counts the rows of forward passes by the weights that computed them."""

    def __init__(self, policy: FlowPolicy) -> None:
        self.rows: Counter = Counter()
        answer = policy.adapter.velocity

        def velocity(network, x, sigma, condition):
            weights = b"".join(p.detach().numpy().tobytes() for p in network.parameters())
            self.rows[id(network), hash(weights)] += len(x)
            return answer(network, x, sigma, condition)

        policy.adapter.velocity = velocity  # also for the copies of teachers

    def taken(self) -> tuple[int, ...]:
        """Rows of each set of weights since the last call."""
        rows, self.rows = tuple(self.rows.values()), Counter()
        return rows


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One update: its points, the networks that it should evaluate there, and the rows of each."""

    points: int
    names: tuple[str, ...]
    rows: tuple[int, ...]  # of each set of weights

    @property
    def times(self) -> float:
        """Passes per point."""
        return sum(self.rows) / self.points


class Rows(torch.nn.Module):
    """Four prompts, each with an image and a pair of images."""

    def draw(self, iteration, count, *, round=0):
        pictures = torch.arange(2 * count, dtype=torch.uint8).mul(20).view(-1, 2)
        shown = [[show(torch.full((16, 16, 3), int(x)).byte()) for x in pair] for pair in pictures]
        return [
            replace(prompt, media=one, chosen_media=one, rejected_media=two)
            for prompt, (one, two) in zip(make_prompts()[:count], shown, strict=True)
        ]

    def observe(self, sources, success):
        pass


class Counting(Alone):
    """A few images of one preset. A pass between two updates counts for the second."""

    def __init__(
        self, algorithm: Published, policy, sampling, folder: Path, budget: Budget
    ) -> None:
        self.watch = Watch(policy)
        policy.load(algorithm.request(sampling))
        policy.sampler.fill_(REUSED)  # as measured on rows of the first rollout
        super().__init__(
            policy=policy,
            algorithm=algorithm,
            rewards=Brightness(),
            stream=Rows(),
            optimizer=partial(torch.optim.SGD, lr=1e-2),
            plan=BatchPlan(
                seed=0,
                iterations=3,
                prompts_per_step=4,
                group_size=algorithm.group_size,
                num_minibatches=algorithm.num_minibatches,
                epochs=1,
                budget=budget,
                max_grad_norm=1.0,
            ),
            guards=Guards(),
            folder=folder,
        )
        self.seen: list[Asked] = []
        sample, complete = policy.sample, policy.complete

        def unwatched(*args, **options):
            rollout = sample(*args, **options)
            self.watch.taken()
            return rollout

        def before(rollout, needs):
            completed = complete(rollout, needs)
            self.before = self.watch.taken()
            return completed

        policy.sample, policy.complete = unwatched, before

    def update(self, minibatch: Experience) -> None:
        asked, objective = self.watch.taken(), self.objective
        rows = counting_rows(
            minibatch,
            zero_at_zero_advantage=objective.zero_at_zero_advantage,
            whole_groups=objective.whole_groups,
        )
        mask = minibatch.rollout.mask
        fresh = minibatch.rollout.sample.trajectory is None
        levels = self.policy.request.timesteps.count // mask.shape[1] if fresh else 1
        points = int(mask[rows].sum()) * levels
        # Passes before the updates cover all rows, each of which is trained in one update.
        once = [number // self.plan.updates for number in self.before]
        self.seen.append(Asked(points=points, names=self.names(), rows=(*asked, *once)))
        super().update(minibatch)

    def names(self) -> tuple[str, ...]:
        """The networks whose velocities the loss reads, without those that equal the live one."""
        read = {OF[name] for name in self.algorithm.training_objective.needs if name in OF}
        model = self.policy.model
        averages = [own for own in model.averages.values() if own.following]
        live = {
            n for own in averages or [model.snapshots] for n in ("old", "fast") if own.is_live(n)
        }
        return ("live", *(n for n in NAMES[1:] if n in read - live), *self.algorithm.networks)


@cache
def configure(name: str, *overrides: str) -> DictConfig:
    """A preset with its own numbers, on one layer."""
    shared = ("model=tiny_flow", "~recipe", "warm_start=null", "rollout.steps=6")
    cfg = compose([f"algorithm={name}", "model.adapter.channels=[16]", *shared, *overrides])
    if cfg.algorithm.get("teachers") is not None:
        cfg.algorithm.teachers.folders = {"others": "nowhere yet"}
    return cfg


def count(name: str, *overrides: str, budget: Budget | None = None) -> list[Asked]:
    """The passes of every update in three iterations."""
    with TemporaryDirectory() as folder:
        cfg = configure(name, *overrides).copy()
        if cfg.algorithm.get("teachers") is not None:
            adapter = TinyUNetFlow(seed=1, channels=[16])
            adapter.save(adapter.load(None, None), Path(folder))
            cfg.algorithm.teachers.folders.others = folder
        algorithm = load_preset(cfg)
        algorithm = replace(algorithm, group_size=min(3, algorithm.group_size), policy_every=1)
        loop = Counting(
            algorithm, build(cfg.model), build(cfg.rollout), Path(folder), budget or Budget()
        )
        return loop.go(3).seen


def row(name: str) -> str:
    first, *_, later = count(name)
    cells = [f"{one.times:g} | {', '.join(one.names)}" for one in (first, later)]
    return f"| {name} | {' | '.join(cells)} |"


def statistics() -> list[str]:
    """The presets whose losses first compute statistics over all rows."""
    return [
        name for name in OF_ERRORS if build(configure(name).algorithm).training_objective.statistics
    ]


def notes() -> str:
    *others, last = (f"`{name}`" for name in statistics())
    return NOTES.format(statistics=f"{', '.join(others)} and {last}")


def page() -> str:
    head = ("| algorithm | first | networks | later | networks |", "|---|:-:|---|:-:|---|")
    return "\n".join([INTRODUCTION, *head, *map(row, PRESETS), notes()])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
