"""Chains: one sample that is a text and then its image."""

from dataclasses import replace

import pytest
import torch
from chain_policy import BOTH, grpo, riddles, small, unified
from records import scores
from torch.testing import assert_close

from tandem.algorithm.regularizers import KLInLoss, KLInReward
from tandem.data.images import show
from tandem.experience import Experience, select_rows
from tandem.losses import importance
from tandem.losses.kl import gaussian, k3
from tandem.losses.segments import BySegment, Segment
from tandem.metrics import reduce_metrics
from tandem.policies.base import DIFFERENT, REUSED
from tandem.policies.chain.records import ChainSampling, part
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling
from tandem.types import SEGMENTS, WRITTEN, Evidence, pad_steps, take

KEY = 7
OLD = frozenset({"old_logp"})
EITHER = pytest.mark.parametrize("make", [small, unified])  # of two networks, and of one


def sample_rows(policy, group_size=3, slots=(0, 1)):
    return policy.sample(riddles(), group_size, key=KEY, slots=list(slots))


def experience_of(algorithm, rollout):
    reward = torch.arange(float(len(rollout.mask)))
    return algorithm.experience(scores(reward), rollout)


def outcome_of(algorithm, policy, rows):
    own = algorithm.training_objective
    return own(policy, replace(rows, weights=own.weigh(rows)))


def with_kl(algorithm):
    """A KL to the reference for both segments."""
    loss = BySegment(text=k3, picture=gaussian)
    return replace(algorithm, kl=KLInLoss(coef=0.1, loss=loss))


def test_a_row_is_its_steps_and_then_its_tokens():
    rollout = sample_rows(small())
    steps = (rollout.segment == SEGMENTS.index("picture")).sum(1)
    assert steps.tolist() == [3] * 6  # of four, the last is not random
    assert rollout.mask[:, :3].all() and rollout.segment[:, :3].all()
    assert rollout.mask.sum(1).equal(3 + rollout.length)
    assert rollout.entropy[:, :3].eq(0).all() and rollout.entropy[:, 3].gt(0).all()


def test_rewards_see_the_question_the_text_and_the_picture():
    rollout = sample_rows(small())
    assert [p.text for p in rollout.prompts] == [p.text for p in riddles() for _ in range(3)]
    texts = [prompt.fields[WRITTEN] for prompt in rollout.prompts]
    assert all(isinstance(text, str) for text in texts) and len(set(texts)) > 1
    assert rollout.prompts[0].fields["level"] == 1 and rollout.prompts[0].answer == "red circle"
    assert all(picture.shape == (16, 16, 3) for picture in rollout.outputs)


def test_a_picture_is_that_of_its_text_and_not_of_the_question():
    """The same text sampled twice with different noise is painted from one condition."""
    policy = small()
    painted = part(sample_rows(policy))["picture"]
    assert [p.text for p in painted.prompts] == list(part(sample_rows(policy))["text"].outputs)
    policy.picture.library.recent.clear()
    sample_rows(policy)
    assert {one.text for one in policy.picture.library.recent} == {p.text for p in painted.prompts}


def test_each_segment_has_its_columns_of_the_mask_before_truncation_was_handled():
    rollout = sample_rows(small())
    parts = part(replace(rollout, sampled=rollout.mask, mask=rollout.mask & False))
    before = part(rollout)
    assert all(torch.equal(parts[name].sampled, before[name].mask) for name in before)


def count_encodings(policy, monkeypatch):
    """The numbers of texts for which the encoders are loaded, from now on."""
    adapter, loads = policy.picture.adapter, []
    encode = adapter.encode

    def counted(inputs, device):
        loads.append(len(inputs))
        return encode(inputs, device)

    monkeypatch.setattr(adapter, "encode", counted)
    return loads


def test_encoders_load_once_for_the_texts_of_an_iteration_which_are_let_go_after_it(monkeypatch):
    """However many they are: each epoch reads all of them in turn."""
    policy = small()
    library, loads = policy.picture.library, count_encodings(policy, monkeypatch)
    library.keep = 2
    rows = sample_rows(policy)
    texts = {one.text for one in part(rows)["picture"].prompts}
    for row in [*range(len(rows.mask))] * 2:
        policy.evidence(take(rows, torch.tensor([row])), frozenset())
    assert loads == [len(texts)] and len(texts) > 2
    policy.notify("update")
    assert library.folder is None and len(library.recent) == len(texts)
    policy.notify("iteration")
    assert len(library.recent) == 2


def test_texts_of_an_evaluation_are_let_go_after_each_of_its_batches(monkeypatch):
    policy = small()
    library, loads = policy.picture.library, count_encodings(policy, monkeypatch)
    library.keep = 2
    for slot in range(3):
        policy.sample(riddles()[:1], 3, key=KEY, slots=[slot], sampling=policy.sampling)
        assert len(library.recent) == 2
    assert len(loads) == 3


def test_encoders_load_once_for_the_demonstrations_of_an_iteration(monkeypatch):
    """Only those are held, not all that were admitted."""
    policy = small()
    library, loads = policy.picture.library, count_encodings(policy, monkeypatch)
    library.keep = 1
    picture = show(torch.full((16, 16, 3), 90, dtype=torch.uint8))
    colours = ("red", "green", "blue")
    examples = [
        replace(riddles()[0], id=number, answer=f"{colour} circle", media=picture)
        for number, colour in enumerate(colours)
    ]
    kept, dropped = policy.admit_answered(examples)
    assert len(kept) == 3 and not dropped and not library.recent
    rows = policy.encode(kept, key=KEY, slots=[0, 1, 2])
    for row in range(3):
        policy.evidence(take(rows, torch.tensor([row])), frozenset())
    assert loads == [3]


@EITHER
def test_a_sample_does_not_depend_on_those_beside_it(make):
    policy = make()
    together, first = sample_rows(policy), policy.sample(riddles()[:1], 3, key=KEY, slots=[0])
    assert [p.fields[WRITTEN] for p in together.prompts[:3]] == [
        p.fields[WRITTEN] for p in first.prompts
    ]
    for one, other in zip(together.outputs, first.outputs, strict=False):
        assert (one.int() - other.int()).abs().max() <= 1
    assert len({picture.numpy().tobytes() for picture in together.outputs}) == 6


@EITHER
def test_the_first_ratio_is_exactly_1_for_both_segments(make):
    algorithm = grpo()
    policy = make(algorithm)
    for own in policy.parts.values():
        own.sampler.fill_(DIFFERENT)  # the trainer computes it again
    rollout = policy.complete(sample_rows(policy), OLD)
    assert (rollout.old_logp - rollout.behaviour_logp).abs().max() > 0
    seen = reduce_metrics(outcome_of(algorithm, policy, experience_of(algorithm, rollout)).metrics)
    for name in SEGMENTS:
        assert seen[f"actor/{name}/log_ratio_max"] == 0 and seen[f"actor/{name}/ratio_mean"] == 1
        assert seen[f"actor/{name}/clip_frac"] == 0
        assert seen[f"rollout_corr/{name}/abs_logp_diff"] < 1e-4


def test_the_mismatch_of_both_segments_is_that_of_the_first_update_unless_recomputed():
    names = replace(grpo(), old_logprobs=importance.rollout).training_objective.of_first_update
    assert {f"rollout_corr/{name}/abs_logp_diff" for name in SEGMENTS} < names
    assert not grpo().training_objective.of_first_update


def test_the_sampler_of_either_is_trusted_by_itself():
    policy = small()
    policy.text.sampler.fill_(REUSED)
    policy.picture.sampler.fill_(DIFFERENT)
    rollout = sample_rows(policy)
    heard = replace(rollout, behaviour_logp=rollout.behaviour_logp + rollout.mask)
    old_logp = policy.complete(heard, OLD).old_logp
    tokens = rollout.segment == 0
    assert torch.equal(old_logp[tokens], heard.behaviour_logp[tokens])
    assert_close(old_logp[~tokens], rollout.behaviour_logp[~tokens])


def test_what_one_finds_on_its_way_is_not_taken_for_the_others():
    """The text policy returns log p of its tokens with their KL, the flow policy the KL alone."""
    policy = small(replace(grpo(), kl=KLInReward(coef=0.05)))
    rollout = policy.complete(sample_rows(policy), frozenset({"behaviour_logp", "old_kl_to_ref"}))
    assert rollout.old_kl_to_ref is not None
    assert rollout.old_logp is None and rollout.ref_logp is None


def test_what_is_read_of_one_segment_is_not_computed_of_the_other():
    algorithm = grpo()
    needs = {"ref_logp", "kl_to_ref", "entropy", "transition"}
    request = small(algorithm).request
    policy = small(algorithm)
    policy.request = replace(
        request, needs=frozenset(needs),
        unread={"text": frozenset({"kl_to_ref", "transition"}),
                "picture": frozenset({"ref_logp", "entropy"})},
    )  # fmt: skip
    assert policy.needs_of("text", frozenset(needs)) == {"ref_logp", "entropy"}
    assert policy.needs_of("picture", frozenset(needs)) == {"kl_to_ref", "transition"}
    said = policy.evidence(sample_rows(policy), frozenset({"entropy", "transition"}))
    assert said.transition.std[:, 3:].eq(0).all() and said.transition.std[:, :3].gt(0).all()
    assert said.entropy[:, :3].eq(0).all() and said.logp.requires_grad


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_frozen_part_is_sampled_and_neither_asked_nor_moved(name, monkeypatch):
    algorithm = with_kl(grpo(**{name: Segment(weight=0.0)}))
    policy = small(algorithm)
    assert (policy.text.reference is None, policy.picture.model.frozen is None) == (
        name == "text", name == "picture",
    )  # fmt: skip
    other = next(one for one in SEGMENTS if one != name)
    rollout = sample_rows(policy)
    assert not rollout.mask[rollout.segment == SEGMENTS.index(name)].any()

    def asked(*_):
        raise AssertionError("asked")

    monkeypatch.setattr(policy.parts[name], "evidence", asked)
    monkeypatch.setattr(policy.parts[name], "complete", asked)
    rollout = policy.complete(rollout, OLD | algorithm.needs)
    outcome_of(algorithm, policy, experience_of(algorithm, rollout)).loss.backward()
    assert {key.partition(".")[0] for key in policy.weights()} == {other}
    assert list(policy.groups()) == [other]
    moved = {key: any(p.grad is not None for p in part.parameters())
             for key, part in policy.parts.items()}  # fmt: skip
    assert moved == {name: False, other: True}


@EITHER
def test_padding_and_the_rows_beside_a_row_do_not_matter(make):
    algorithm = grpo()
    policy = make(algorithm)
    rows = experience_of(algorithm, policy.complete(sample_rows(policy), OLD))
    rows = replace(rows, weights=algorithm.training_objective.weigh(rows))
    whole = outcome_of(algorithm, policy, rows).loss
    own = algorithm.training_objective
    cut = [
        own(policy, select_rows(rows, torch.tensor(part))).loss for part in ([4, 0], [1, 2, 5, 3])
    ]
    assert_close(sum(cut), whole, rtol=1e-4, atol=1e-7)
    wide = rows.rollout.mask.shape[1] + 3

    def padded(x):
        return x if x.ndim == 1 else pad_steps(x, wide)

    names = ("mask", "segment", "old_logp", "behaviour_logp", "entropy")
    more = {name: padded(getattr(rows.rollout, name)) for name in names}
    broad = Experience(
        rollout=replace(rows.rollout, **more), scores=rows.scores,
        advantages=padded(rows.advantages), weights={"policy": padded(rows.weights["policy"])},
    )  # fmt: skip
    assert_close(own(policy, broad).loss, whole, rtol=1e-4, atol=1e-7)


@EITHER
def test_both_are_saved_and_loaded_and_go_by_their_names(make, tmp_path):
    policy = make(seed=1)
    policy.save(tmp_path)
    assert (tmp_path / "text" / "config.json").is_file()
    assert (tmp_path / "picture" / "transformer" / "config.json").is_file()
    again = make(seed=2)
    again.load_weights(policy.weights())
    for name, weight in policy.weights().items():
        assert torch.equal(weight, again.weights()[name])
    assert {name.partition(".")[0] for name in policy.weights()} == {*SEGMENTS}
    assert {name.partition(".")[0] for name in policy.state()} == {*SEGMENTS}
    one, other = sample_rows(policy), sample_rows(again)
    assert [p.fields for p in one.prompts] == [p.fields for p in other.prompts]
    assert all(map(torch.equal, one.outputs, other.outputs))


@EITHER
def test_demonstrations_show_the_text_that_is_painted(make):
    algorithm = replace(grpo(), objective="any")
    policy = make(algorithm)
    picture = show(torch.full((16, 16, 3), 90, dtype=torch.uint8))
    shown = [replace(p, answer=f"{c} circle", media=picture)
             for p, c in zip(riddles(), ("red", "green"), strict=True)]  # fmt: skip
    kept, dropped = policy.admit_answered([*shown, replace(riddles()[0], id=9, media=None)])
    assert kept == shown and "no picture" in dropped[0][1]
    rollout = policy.encode(shown, key=KEY, slots=[0, 1])
    assert rollout.length.tolist() == [3, 3]  # two words and the end token
    assert [p.text for p in part(rollout)["picture"].prompts] == ["red circle", "green circle"]
    said = policy.evidence(rollout, frozenset({"likeliest"}))
    assert said.logp.shape == (2, 4) and said.logp.isfinite().all()
    assert isinstance(said, Evidence) and said.likeliest[:, 0].eq(0).all()


def test_what_a_chain_cannot_sample_is_refused():
    text = Sampling(max_new_tokens=4)
    with pytest.raises(ValueError, match=r"rollout\.picture\.shared_noise=true"):
        ChainSampling(text=text, picture=FlowSampling(steps=4, shared_noise=True))
    with pytest.raises(ValueError, match=r"rollout\.text: a chain samples with its live weights"):
        ChainSampling(text=replace(text, staleness=1), picture=FlowSampling(steps=4))


def test_guards_and_units_are_of_each_segment():
    assert BOTH["picture"].convert(0.2, "clip") == pytest.approx(2e-4)
    assert BOTH["text"].convert(0.2, "clip") == 0.2


def test_a_prompt_that_the_flow_model_cannot_paint_is_refused_before_its_text_is_written():
    policy = small()
    first, second = riddles()[:2]
    kept, dropped = policy.admit([replace(first, size=(33, 33)), second])
    assert [prompt.id for prompt in kept] == [second.id]
    assert "asks for a picture of 33 x 33" in dropped[0][1]
    sampling = policy.sampling.picture
    guided = replace(policy.sampling, picture=replace(sampling, guidance_scale=4.5))
    kept, dropped = policy.admit([second], [guided])
    assert not kept and "set model.picture.negative_prompt" in dropped[0][1]
