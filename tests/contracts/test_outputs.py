"""Return values of components: plugins and built-in ones go through the same code."""

import re
from dataclasses import dataclass, replace
from functools import partial

import pytest
import records
import torch
from loop import PLAN, Loop
from records import GRPO

from tandem.advantages.group import batch_relative, centre, group_relative, group_sum
from tandem.algorithm.part_checks import as_if_moved, refuse_dependence, refuse_width
from tandem.contracts import declare
from tandem.contracts.outputs import ADVANTAGE, LOSS
from tandem.contracts.parts import place_of
from tandem.contracts.wrong_output import WrongOutput
from tandem.experience import Budget
from tandem.losses import importance
from tandem.losses.policy import reinforce
from tandem.losses.reduction import sequence_mean, token_mean
from tandem.losses.sequence import gspo
from tandem.stop import Stop
from tandem.types import CoupledBatch

WHOLE = replace(PLAN, num_minibatches=1, epochs=1)


def plugged(folder, **parts):
    return Loop(algorithm=replace(GRPO, **parts), plan=WHOLE, folder=folder)


def mean_loss(batch):
    return reinforce(batch).mean()


def per_row(batch):
    return reinforce(batch).sum(1)


def per_sample(batch):
    return reinforce(batch).sum(1, keepdim=True)


def detached(batch):
    return reinforce(batch).detach()


def narrow(batch):
    return reinforce(batch).bfloat16()


def elsewhere(batch):
    return reinforce(batch).to("meta")


def sparse(batch):
    return reinforce(batch).to_sparse()


def new_parameter(batch):
    return torch.nn.Parameter(reinforce(batch).detach())


def writes(batch):
    return reinforce(replace(batch, advantages=batch.advantages.mul_(2)))


def drawn(batch):
    return reinforce(batch) * torch.rand_like(batch.logp)


LOSSES = {
    writes: r"^loss writes writes on advantages, which others read; compute a tensor of its own",
    elsewhere: r"^loss elsewhere returned a tensor on meta; return one on cpu",
    sparse: r"^loss sparse returned a tensor of torch\.sparse_coo; add \.to_dense\(\)",
    new_parameter: r"^loss new_parameter has no gradient",
    mean_loss: r"^loss mean_loss returned one number.* leave out \.mean\(\).* here \[24, 5\]",
    per_row: r"^loss per_row returned \[B\], here \[24\]; return x\[:, None\] \* batch\.mask",
    per_sample: r"^loss per_sample returned \[B, 1\].* declare per='sample'",
    detached: r"^loss detached has no gradient; leave out \.detach\(\)",
    narrow: r"^loss narrow returned torch\.bfloat16; return float32 or float64",
    lambda batch: 1.0: r"^loss <lambda> returned float; return a tensor \[B, T\]",
}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_a_loss_of_another_shape_or_without_a_gradient_is_one_line(tmp_path, loss):
    with pytest.raises(WrongOutput, match=LOSSES[loss]) as seen:
        plugged(tmp_path, loss=loss).go()
    assert "\n" not in str(seen.value)
    assert isinstance(seen.value, Stop) and isinstance(seen.value, ValueError)


def of_good_rows(batch):
    return torch.where(batch.advantages > 0, reinforce(batch), 0)


def test_a_loss_may_be_a_constant_0_where_nothing_counts(tmp_path):
    def early(batch):
        if not (batch.advantages > 0).any():
            return torch.zeros_like(batch.logp)
        return of_good_rows(batch)

    row_by_row = replace(WHOLE, budget=Budget(rows=1))
    mine, other = (
        Loop(algorithm=replace(GRPO, loss=loss), plan=row_by_row, folder=tmp_path).go()
        for loss in (early, of_good_rows)
    )
    assert torch.equal(mine.gradients[0], other.gradients[0])
    assert mine.gradients[0].any()


def test_what_a_loss_says_outside_the_mask_is_ignored_whatever_it_is(tmp_path):
    def broken_outside(batch):
        return reinforce(batch) / batch.mask  # 0 / 0 there

    mine, other = (plugged(tmp_path, loss=loss).go() for loss in (broken_outside, reinforce))
    assert torch.equal(mine.gradients[0], other.gradients[0])
    assert mine.gradients[0].any()


def test_a_statistic_of_rows_is_found_in_a_loss_that_is_broken_outside_the_mask(tmp_path):
    def centred(batch):
        return reinforce(batch) / batch.mask - reinforce(batch).mean()

    with pytest.raises(WrongOutput, match="it takes a statistic of the rows beside them"):
        plugged(tmp_path, loss=centred).go()


def test_a_loss_that_declares_one_number_for_a_sample_may_return_it(tmp_path):
    one = declare(per="sample")(per_sample)
    other = plugged(tmp_path, loss=lambda batch: one(batch) * batch.mask, weights=sequence_mean)
    mine = plugged(tmp_path, loss=one, weights=sequence_mean)
    assert torch.equal(mine.go().gradients[0], other.go().gradients[0])


def test_an_advantage_that_writes_on_its_scores_is_refused_before_they_are_logged(tmp_path):
    def zeroes(scores, rollout):
        return scores.total.zero_()[:, None] * rollout.mask

    with pytest.raises(WrongOutput, match=r"^advantage zeroes writes on total, which others read"):
        plugged(tmp_path, advantage=zeroes).go()


FOUND = {
    "returned a NoneType; return [B, T], here [": lambda batch: None,
    "returned a float; return [B, T], here [": lambda batch: 1.0,
    "writes on advantages, which others read": lambda batch: batch.advantages.mul_(2),
}


@pytest.mark.parametrize("says", FOUND)
def test_statistics_of_an_update_are_one_tensor_and_leave_the_rows_as_they_are(tmp_path, says):
    def loss(batch, statistics):
        return reinforce(batch)

    declared = declare(batch_statistics=FOUND[says])(loss)
    with pytest.raises(WrongOutput, match=re.escape(says)):
        plugged(tmp_path, loss=declared).go()


@pytest.mark.parametrize("wrong", [lambda batch: batch.logp.sum(1), lambda batch: 1.0])
def test_the_summary_of_rows_is_one_number_for_each_step(tmp_path, wrong):
    def loss(batch, statistics):
        return reinforce(batch)

    facts = {"batch_statistics": lambda rows: 1.0 * rows.mask, "summary": wrong}
    with pytest.raises(
        WrongOutput, match=r"; return a tensor \[B, T\], whose last axes are here \["
    ):
        plugged(tmp_path, loss=declare(**facts)(loss)).go()


@dataclass(frozen=True)
class Nested:
    mask: torch.Tensor
    inner: object = None


@pytest.mark.parametrize(
    ("writes_on", "named"),
    [
        (lambda one, two: one.inner.mask, r"inner\.mask"),
        (lambda one, two: one.inner.inner["a"], r"inner\.inner\.a"),
        (lambda one, two: one.mask, "mask"),
        (lambda one, two: two.mask, "mask"),
    ],
)
def test_nested_records_mappings_and_an_equal_name_in_another_record_are_watched(writes_on, named):
    def broken(one, two):
        writes_on(one, two).zero_()
        return torch.ones(2, 3)

    one = Nested(torch.ones(2, 3), Nested(torch.ones(2, 3), {"a": torch.ones(2)}))
    with pytest.raises(WrongOutput, match=rf"^advantage broken writes on {named}, which"):
        ADVANTAGE.ask(broken, one, Nested(torch.ones(2, 3)), mask=torch.ones(2, 3).bool())


def test_a_tensor_of_inference_mode_has_no_version_and_is_let_through():
    with torch.inference_mode():
        one = Nested(torch.ones(2, 3).bool())
    assert ADVANTAGE.ask(lambda one: torch.ones(2, 3), one, mask=one.mask).all()


def test_an_infinite_derivative_outside_the_mask_leaves_the_weights_as_they_were(tmp_path):
    def root(batch):  # the derivative at 0, outside the mask, is infinite
        return (-batch.logp[:, :1] * batch.mask).sqrt() + reinforce(batch)

    loop = plugged(tmp_path, loss=root)
    before = loop.policy.table.detach().clone()
    line = (
        r"loss \{'policy': '-?\d[^']*'\} or gradient norm nan is not finite; "
        "the weights are unchanged"
    )
    with pytest.raises(Stop, match=line):
        loop.go()
    assert torch.equal(loop.policy.table.detach(), before)


WRONG = {
    "advantage": (
        lambda scores, rollout: scores.total - scores.total.mean(),
        r"^advantage <lambda> returned \[B\], here \[\d+\]; return x\[:, None\] \* rollout\.mask",
    ),
    "weights": (lambda mask: torch.tensor(1 / 24), r"^weights <lambda> returned one number"),
    "importance_sampling": (
        declare(reads={"old_logp", "behaviour_logp"})(lambda batch: batch.logp.exp() * batch.mask),
        r"^correction <lambda> has a gradient, which it must not have",
    ),
    "old_logprobs": (lambda batch: batch.logp[0].detach(), r"^old policy <lambda> returned \[5\]"),
}


@pytest.mark.parametrize("part", WRONG)
def test_every_other_part_is_checked_by_the_same_sentences(tmp_path, part):
    function, says = WRONG[part]
    with pytest.raises(WrongOutput, match=says):
        plugged(tmp_path, **{part: function}).go()


def relative_to_0(scores, rollout):
    return batch_relative(scores, rollout) / 0


@declare(reads={"old_logp"})
def divided_by_0(batch):
    return batch.old_logp / 0


def lost(batch):
    return batch.logp * torch.nan


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"advantage": relative_to_0}, r"^advantage relative_to_0 returned \d+ values .* not fini"),
        (
            {"importance_sampling": divided_by_0},
            r"^correction divided_by_0 returned \d+ values that are not finite",
        ),
        ({"importance_sampling": divided_by_0, "loss": lost}, "loss {'policy': 'nan'}"),
    ],
)
def test_what_is_not_finite_is_named_where_it_is_made(tmp_path, parts, says):
    with pytest.raises(Stop, match=says):
        plugged(tmp_path, **parts).go()


@pytest.mark.parametrize("loss", [reinforce, gspo, partial(gspo, clip_low=0.1, clip_high=0.1)])
def test_what_is_right_passes_and_a_correction_may_be_of_whole_samples(tmp_path, loss):
    def by_sample(batch):
        return importance.geometric_ratio(batch)

    own = declare(reads={"old_logp", "behaviour_logp"})(by_sample)
    report = plugged(tmp_path, loss=loss, importance_sampling=own).go().report
    assert report["optim/grad_norm"] > 0


def test_an_advantage_may_be_of_whole_samples_where_it_says_so(tmp_path):
    def of_samples(scores, rollout):
        return centre(scores, rollout.group)[:, None]

    with pytest.raises(WrongOutput, match="declare per='sample'"):
        plugged(tmp_path, advantage=of_samples).go()
    pair = (declare(per="sample")(of_samples), partial(group_relative, scale=None))
    mine, other = (plugged(tmp_path, advantage=advantage).go() for advantage in pair)
    assert torch.equal(mine.gradients[0], other.gradients[0])


def hidden_mean(batch):
    return -batch.logp * (batch.advantages - batch.advantages.mean())


def group_mean(batch):
    gain = batch.advantages - group_sum(batch.advantages.sum(1), batch.group)[:, None] / 4
    return -batch.logp * gain


def counting_up(batch, seen=[]):  # noqa: B006
    seen.append(1)
    return reinforce(batch) * len(seen)


def thinned(mask):
    return token_mean(mask) * torch.rand(mask.shape)


def tossed(scores, rollout):
    return torch.rand(rollout.mask.shape) * rollout.mask


@declare(reads={"logp"})
def normalised(batch):
    weight = batch.logp.detach().exp()
    return weight / weight[batch.mask].mean()


@declare(reads={"old_logp"})
def normalised_ratio(batch):
    """Before the first update every ratio is 1, and so is their mean over any rows."""
    ratio = (batch.logp - batch.old_logp).exp()
    return -ratio / ratio[batch.mask].mean().detach() * batch.advantages


@declare(reads={"version_gap"})
def normalised_decay(batch):
    weight = 0.5**batch.version_gap
    return weight / weight[batch.mask].mean()


@declare(reads={"old_logp"}, per="sample")
def mean_over_columns(batch):
    ratio = (batch.logp - batch.old_logp).mean(1, keepdim=True).exp()
    return -ratio * batch.advantages


@declare(reads={"old_logp"}, zero_at_zero_advantage=True)
def of_unlikely_steps(batch):
    """As a focal loss: there is a root of 1 - p for a probability alone."""
    p = batch.old_logp.exp()
    return -torch.where(batch.mask, 1 - p, 1).sqrt() * batch.advantages * batch.logp


@declare(reads={"version_gap"})
def by_a_table_of_ages(batch):
    return torch.tensor([1.0, 0.5])[batch.version_gap.long()] * reinforce(batch)


@declare(whole_groups=True)
def declared_group_mean(batch):
    return group_mean(batch)


def unannounced(batch):
    return -batch.logp * batch.ref_logp


def unannounced_below(batch):
    penalty = batch.logp.exp()
    return penalty + batch.entropy.exp()


def undeclared_weight(batch):
    return batch.entropy * batch.mask


def test_a_loss_with_a_hidden_mean_over_rows_is_refused_in_the_first_update(tmp_path):
    line = hidden_mean.__code__.co_firstlineno
    with pytest.raises(
        WrongOutput, match=rf"hidden_mean at \S*test_outputs.py:{line} .*batch_stat"
    ):
        plugged(tmp_path, loss=hidden_mean).go(1)


def test_a_mean_over_rows_is_found_behind_a_first_micro_batch_of_one_row(tmp_path):
    def cut(self, *_, **__):
        return [torch.tensor([0]), torch.arange(1, 24)]

    loop = plugged(tmp_path, loss=normalised_ratio)
    loop.plan = replace(WHOLE, budget=type("Cut", (), {"cut": cut})())
    with pytest.raises(WrongOutput, match="cut in two"):
        loop.go(1)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (
            {"loss": drawn},
            r"loss drawn .*again; keep no state .*rng\.uniform\(rows\.key\).* global generator",
        ),
        ({"loss": counting_up}, "loss counting_up .* called again; keep no state"),
        ({"advantage": tossed}, r"advantage tossed at \S*test_outputs.py:\d+ .* called again"),
        ({"weights": thinned}, r"weights thinned at \S*test_outputs.py:\d+ .* called again"),
        ({"importance_sampling": normalised}, "correction normalised .* cut in two.* leave it out"),
        ({"importance_sampling": normalised_decay}, "correction normalised_decay .* cut in two"),
        ({"loss": normalised_ratio}, "loss normalised_ratio .* cut in two.*batch_statistics="),
        ({"loss": mean_over_columns}, r"loss mean_over_columns .* longer row.*batch\.mask\.sum"),
    ],
)
def test_what_other_rows_or_another_call_would_change_is_named(tmp_path, part, says):
    with pytest.raises(WrongOutput, match=says):
        plugged(tmp_path, **part).go(1)


def test_a_weight_outside_the_mask_counts_nowhere(tmp_path):
    def everywhere(mask):
        return torch.where(mask, token_mean(mask), torch.nan)

    mine, other = (plugged(tmp_path, weights=weights).go() for weights in (everywhere, token_mean))
    assert torch.equal(mine.gradients[0], other.gradients[0])
    assert mine.gradients[0].any()


def test_a_mean_over_a_group_passes_where_it_is_declared_and_not_elsewhere(tmp_path):
    plugged(tmp_path, loss=declared_group_mean).go(1)
    with pytest.raises(WrongOutput, match="gives rows other values"):
        plugged(tmp_path, loss=group_mean).go(1)


@pytest.mark.parametrize("loss", [of_unlikely_steps, by_a_table_of_ages])
def test_moved_rows_are_still_of_probabilities_and_of_young_weights(tmp_path, loss):
    loop = plugged(tmp_path, loss=loss)
    loop.policy.table.data *= 8  # most steps are almost certain
    assert loop.go(1).gradients[0].any()


def difference_of_sums(batch):
    log_ratio = batch.logp.sum(1, keepdim=True) - batch.old_logp.sum(1, keepdim=True)
    return log_ratio.exp() * batch.advantages


def squared_difference_of_sums(batch):
    gap = batch.logp.sum(1, keepdim=True) - batch.old_logp.sum(1, keepdim=True)
    return gap.square() * batch.mask


@pytest.mark.parametrize("steps", [31, 4095])
def test_a_sum_rounded_in_another_order_is_none_of_other_columns(steps):
    drawn = torch.Generator().manual_seed(0)
    mask = torch.arange(steps) < torch.arange(steps - 7, steps + 1)[:, None]
    logp = -torch.rand(8, steps, generator=drawn) * mask
    near = logp + 1e-7 * torch.randn(8, steps, generator=drawn) * mask
    batch = CoupledBatch(
        logp=logp, old_logp=near, advantages=1.0 * mask, mask=mask, group=torch.zeros(8).long()
    )
    for loss in (difference_of_sums, squared_difference_of_sums):
        assert refuse_dependence(LOSS, loss, batch)
        assert refuse_dependence(LOSS, loss, as_if_moved(batch))
        refuse_width(LOSS, loss, as_if_moved(batch))
    with pytest.raises(WrongOutput, match="longer row"):
        refuse_width(LOSS, mean_over_columns, as_if_moved(batch))


def test_a_loss_is_asked_about_two_halves_once_in_a_run(tmp_path):
    seen = []

    def counting(batch):
        seen.append(len(batch.mask))
        return reinforce(batch)

    plugged(tmp_path, loss=counting).go(3)
    rows = max(seen)
    halves = [rows // 2, rows - rows // 2] * 2  # as it is, and with ratios that differ from 1
    assert sorted(seen) == [*sorted(halves), *[rows] * (len(seen) - 4)]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"loss": unannounced}, "ref_logp"),
        ({"loss": unannounced_below}, "entropy"),
        ({"importance_sampling": undeclared_weight}, "entropy"),
    ],
)
def test_a_field_that_was_not_declared_is_one_line_with_its_place(tmp_path, part, name):
    (function,) = part.values()
    line = function.__code__.co_firstlineno + (2 if function is unannounced_below else 1)
    said = rf'{function.__name__} at \S*test_outputs.py:{line} reads {name}, .*reads={{"{name}"}}'
    with pytest.raises(WrongOutput, match=said):
        plugged(tmp_path, **part).go(1)


@pytest.mark.parametrize("lacks", [True, False])
def test_a_field_that_a_row_of_the_data_lacks_is_one_line_with_its_place_and_the_row(lacks):
    rows = records.rollout(torch.ones(3, 2).bool(), torch.arange(3))
    fields = {"level": 1.0}, {"level": 2.0}, {} if lacks else {"level": 3.0}
    prompts = zip(rows.prompts, fields, strict=True)
    rows = replace(rows, prompts=tuple(replace(one, fields=own) for one, own in prompts))

    def levelled(scores, rollout):
        levels = [prompt.fields["level"] for prompt in rollout.prompts]
        return {}["another"] if levels else None

    place = rf"levelled at \S*test_outputs.py:{levelled.__code__.co_firstlineno + 1}"
    said = rf"^advantage {place} reads the field 'level', and prompt 2 of test has none: '\?'; give"
    with pytest.raises(WrongOutput if lacks else KeyError, match=said if lacks else "^'another'"):
        ADVANTAGE.ask(levelled, records.scores(torch.ones(3)), rows, mask=rows.mask)


def test_any_other_error_of_a_part_stays_what_it_is(tmp_path):
    def broken(batch):
        return batch.logp + "text"

    with pytest.raises(TypeError, match="str"):
        plugged(tmp_path, loss=broken).go(1)


class Decorated:
    @torch.no_grad()
    def report(self):
        return None


def test_the_place_of_a_decorated_method_is_where_it_was_written():
    assert "test_outputs.py:" in place_of(Decorated().report)
