"""Two losses of a chain, one per segment: both are judged, like one loss for both segments."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
from gate import each

from tandem.algorithm.regularizers import KLInLoss
from tandem.config import compose
from tandem.config.checks import make_case
from tandem.contracts import declare
from tandem.legality import check as complaints
from tandem.losses.classification import real
from tandem.losses.entropy_cov import TopEntropy, clip_cov
from tandem.losses.gaussian import grpo_guard
from tandem.losses.off_policy import topr
from tandem.losses.policy import ppo, reinforce
from tandem.losses.preference import dpo
from tandem.losses.segments import BySegment
from tandem.losses.sequence import gspo, vespo
from tandem.losses.wrappers import LossWrapper
from tandem.types import SEGMENTS


def beside_ppo(segment, loss):
    """The loss of one segment, with PPO for the other."""
    return BySegment(**{"text": ppo, "picture": ppo, segment: loss})


def with_loss(line, loss):
    case = make_case(compose(["model=tiny_chain", "algorithm=grpo", "~recipe", *line.split()]))
    return replace(case, algorithm=replace(case.algorithm, loss=loss))


def first(line, loss):
    return next(complaints(with_loss(line, loss)), None)


@declare()
def silent(batch, *, width=0.2):
    return -batch.advantages * width * batch.logp


@dataclass(frozen=True, kw_only=True)
class Halved(LossWrapper):
    """A wrapper of a user, whose number has no unit."""

    says = "halved"
    width: float = 0.3

    def metrics(self, batch):
        return {}

    def __call__(self, batch):
        return self.width * self.loss(batch)


REFUSED = [
    ("epochs=4", reinforce, "reinforce has no ratio for samples of older weights"),
    ("algorithm/importance_sampling=token_tis", topr, "topr already corrects for the sampler"),
    ("algorithm/weights=token_mean", gspo, "gspo has one ratio per sample"),
    ("rollout.pictures_per_text=4", real, "algorithm/loss=real compares the rows of a group"),
    ("", dpo, "dpo compares a row of +1 with a row of -1"),
    (
        "",
        partial(ppo, clip_high=0.2, ratio_max=1.1),
        "ratio_max=1.1 caps ratios that clip_high=0.2",
    ),
    ("", silent, "width=0.2 of silent has no unit"),
    ("", Halved(loss=ppo), "width=0.3 of Halved has no unit"),
    ("", clip_cov, "algorithm/loss=clip_cov reads a statistic of a whole update"),
]


@pytest.mark.parametrize("segment", each(2, SEGMENTS))
@pytest.mark.parametrize(("line", "loss", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_the_loss_of_either_segment_is_refused_like_that_of_both(line, loss, said, segment):
    alone, beside = first(line, loss), first(line, beside_ppo(segment, loss))
    assert said in alone
    assert beside.replace(f"algorithm.loss.{segment}", "algorithm.loss") == alone
    assert first(line, beside_ppo(segment, ppo)) is None


def test_the_ratio_of_either_needs_an_old_policy():
    line = "algorithm/old_logprobs=current algorithm/importance_sampling=none"
    for loss in (beside_ppo("text", reinforce), beside_ppo("picture", reinforce)):
        assert "the ratio of ppo would always be 1" in first(line, loss)
    assert first(line, reinforce) is None


def test_a_wrapper_of_one_segment_that_looks_at_the_update_is_refused():
    assert first("", beside_ppo("text", TopEntropy(loss=ppo))) == (
        "algorithm/loss=top_entropy reads a statistic of a whole update, which mixes tokens and "
        "denoising steps in a chain; set algorithm/loss=ppo"
    )


def test_a_kl_that_looks_at_the_update_is_refused():
    @declare(reads={"ref_logp"})
    def uncentred(batch):
        return (batch.logp - batch.ref_logp).square()

    @declare(reads={"ref_logp"}, batch_statistics=uncentred)
    def centred(batch, statistics):
        return uncentred(batch) - statistics

    chain = with_loss("", ppo)

    def with_kl(loss):
        kl = KLInLoss(coef=0.1, loss=loss)
        return complaints(replace(chain, algorithm=replace(chain.algorithm, kl=kl)))

    assert next(with_kl(uncentred), None) is None
    assert next(with_kl(centred)) == (
        "algorithm/kl=centred reads a statistic of a whole update, which mixes tokens and "
        "denoising steps in a chain; set algorithm/kl=auto"
    )


def test_a_loss_that_does_not_apply_to_its_segment_is_named():
    assert first("", beside_ppo("text", vespo)) is None
    said = first("", beside_ppo("picture", vespo))
    assert said.startswith("algorithm/loss=vespo on the picture of a chain: its weight decays")


def test_the_density_that_the_loss_of_pictures_reads_is_the_scaled_one():
    assert first("", beside_ppo("picture", grpo_guard)) is None
    said = first("dynamics/logp=unscaled", beside_ppo("picture", grpo_guard))
    assert said.startswith("dynamics/logp=unscaled: grpo_guard needs the log-density of a step")
