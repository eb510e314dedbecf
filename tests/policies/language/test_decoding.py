import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from small_language import NOTHING, questions, small, train_briefly
from torch.testing import assert_close

from tandem import rng
from tandem.policies.language import decoding
from tandem.policies.language.decoding import Local, Rows
from tandem.policies.language.records import Endings, Sampling
from tandem.policies.language.sampling import cuts
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.progress import PROGRESS

KEY = 7
TWO = Sampling(max_new_tokens=2)


def sample(policy, prompts=None, group_size=4, slots=None, **changes):
    prompts = questions() if prompts is None else prompts
    return policy.sample(
        prompts,
        group_size,
        key=KEY,
        slots=range(len(prompts)) if slots is None else slots,
        sampling=replace(policy.sampling, **changes),
    )


def responses(rollout):
    """The token ids of each answer."""
    rows = zip(
        rollout.sample.tokens.tolist(),
        rollout.sample.prompt_length.tolist(),
        rollout.length.tolist(),
        strict=True,
    )
    return [tokens[start : start + length] for tokens, start, length in rows]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_sampler_reports_what_the_training_forward_gives(policy, temperature):
    rollout = sample(policy, temperature=temperature)
    again = policy.evidence(rollout, frozenset({"entropy"}))
    assert_close(again.logp, rollout.behaviour_logp, atol=5e-6, rtol=0)
    assert_close(again.entropy, rollout.entropy, atol=5e-6, rtol=0)


def test_the_cut_into_passes_changes_nothing(policy):
    whole = sample(policy, max_rows=1000)
    for max_rows in (12, 4, 3, 1):
        parts = sample(policy, max_rows=max_rows)
        assert responses(parts) == responses(whole)
        assert_close(parts.behaviour_logp, whole.behaviour_logp, atol=1e-6, rtol=0)


def test_every_token_is_progress(policy, monkeypatch):
    reports = []
    monkeypatch.setattr(PROGRESS, "report", lambda: reports.append("report"))
    longest = sample(policy).length.max()
    assert len(reports) == longest > 1


def test_the_order_of_prompts_changes_nothing(policy):
    prompts, slots = questions(), list(range(8))
    forth = sample(policy, prompts, slots=slots)
    back = sample(policy, prompts[::-1], slots=slots[::-1])
    order = [4 * (7 - i) + j for i in range(8) for j in range(4)]
    assert [responses(back)[i] for i in order] == responses(forth)
    assert back.group[order].tolist() == forth.group.tolist()
    assert_close(back.behaviour_logp[order], forth.behaviour_logp, atol=1e-6, rtol=0)


def test_a_prefill_for_the_group_is_a_prefill_for_each_row(policy):
    group = sample(policy)
    rows = [prompt for prompt in policy.chat.encode(questions()) for _ in range(4)]
    keys = rng.key(KEY, torch.arange(8)[:, None], torch.arange(4)).reshape(32, 1)
    endings = Endings(tokens=policy.ends, strings=(), decode=policy.chat.decode_all)
    each = Local(policy.network).answer(rows, keys, sampling=policy.sampling, endings=endings)
    assert_close(each.tokens, group.sample.tokens.new_tensor(pad(responses(group))))
    assert_close(each.logp, group.behaviour_logp, atol=1e-6, rtol=0)


def pad(rows):
    longest = max(map(len, rows))
    return [row + [0] * (longest - len(row)) for row in rows]


def test_every_position_has_a_noise_of_its_own():
    policy = small()
    with torch.no_grad():
        policy.network.model.norm.weight.zero_()  # all tokens equally likely
    answers = responses(sample(policy, group_size=32))
    pairs = [(a, b) for tokens in answers for a, b in itertools.pairwise(tokens)]
    assert len(pairs) > 1000
    assert sum(a == b for a, b in pairs) / len(pairs) < 2 / 40


def test_a_prompt_drawn_twice_is_answered_twice(policy):
    prompt = questions()[:1]
    rollout = sample(policy, prompt * 2, group_size=8)
    answers = responses(rollout)
    assert answers[:8] != answers[8:]
    assert rollout.group.tolist() == [0] * 8 + [1] * 8


def test_what_stands_left_of_a_prompt_is_not_read(policy):
    """The longest prompt pads the others; alone they need no padding and no mask."""
    together = sample(policy)
    for slot, prompt in enumerate(questions()):
        alone = sample(policy, [prompt], slots=[slot])
        rows = slice(4 * slot, 4 * slot + 4)
        assert responses(alone) == responses(together)[rows]
        width = alone.mask.shape[1]
        together_logp = together.behaviour_logp[rows, :width]
        assert_close(alone.behaviour_logp, together_logp, atol=1e-6, rtol=0)


def test_rows_that_are_dropped_leave_the_others_alone(policy):
    """Finished rows are removed in batches, without effect on the others."""
    rows = Rows(policy.network, policy.chat.encode(questions()), torch.zeros(8, 1).long(), TWO)
    token = torch.full((8,), 5)
    rows.advance(token)
    want = rows.logits[[1, 4, 6]]
    rows = Rows(policy.network, policy.chat.encode(questions()), torch.zeros(8, 1).long(), TWO)
    rows.advance(token, torch.tensor([1, 4, 6]))
    assert rows.index.tolist() == [1, 4, 6]
    assert_close(rows.logits, want, atol=1e-6, rtol=0)


def test_answers_that_are_alike_so_far_share_a_row(monkeypatch):
    policy = train_briefly(small(), steps=20)
    rows, forward = [], Rows.forward

    def noting(self, tokens, *given, **more):
        rows.append(len(tokens))
        return forward(self, tokens, *given, **more)

    monkeypatch.setattr(Rows, "forward", noting)
    with monkeypatch.context() as patched:
        patched.setattr(decoding, "COPY_BELOW", 0)  # so low that no row is ever shared
        apart = sample(policy, group_size=8)
    of_own = sum(rows)
    rows.clear()
    together = sample(policy, group_size=8)
    assert 0 < sum(rows) < 0.8 * of_own
    assert len({*map(tuple, responses(together))}) > 2 * 8  # they diverge, some of them late
    assert responses(together) == responses(apart)
    for name in ("behaviour_logp", "entropy"):
        assert_close(getattr(together, name), getattr(apart, name), atol=1e-6, rtol=0)


@pytest.mark.parametrize("stop", [(), tuple(str(number) for number in range(10, 100))])
@pytest.mark.parametrize("every", [2, 3, 5, 100])
def test_how_often_rows_are_looked_at_changes_nothing(monkeypatch, every, stop):
    """An accelerator is synchronised once per block of tokens, and rows end within it."""
    policy = small()
    want = sample(policy, group_size=16, stop=stop)
    monkeypatch.setattr(decoding, "LOOK_EVERY", {"cpu": every})
    got = sample(policy, group_size=16, stop=stop)
    assert responses(got) == responses(want)
    assert got.truncated.tolist() == want.truncated.tolist()
    assert 0 < sum(got.truncated) < len(got.truncated)
    for name in ("behaviour_logp", "entropy"):
        assert_close(getattr(got, name), getattr(want, name), atol=1e-6, rtol=0)


def test_a_cache_with_room_remembers_what_one_without_does(monkeypatch):
    policy = small()
    want = sample(policy, group_size=8)
    monkeypatch.setattr(decoding, "ROOM", 3)  # it must grow twice
    assert responses(sample(policy, group_size=8)) == responses(want)
    monkeypatch.setattr(decoding, "RoomyLayer", lambda layer, room: layer)
    plain = sample(policy, group_size=8)
    assert responses(plain) == responses(want)
    assert_close(plain.behaviour_logp, want.behaviour_logp, atol=1e-6, rtol=0)


def test_a_cache_of_mixed_precision_holds_what_attention_would_round_it_to(monkeypatch):
    policy = small(mixed=True)
    got, dtypes = sample(policy, group_size=8), set()
    init = decoding.RoomyLayer.__init__

    def wide(self, layer, room):
        init(self, layer, room)
        dtypes.update(part.dtype for part in self.rooms)
        self.rooms = self.keys, self.values = layer.keys, layer.values

    monkeypatch.setattr(decoding.RoomyLayer, "__init__", wide)
    want = sample(policy, group_size=8)
    assert dtypes == {torch.bfloat16}
    assert responses(got) == responses(want)
    assert torch.equal(got.behaviour_logp, want.behaviour_logp)


def test_padding_may_be_sampled_and_counts():
    policy = small()  # with random weights all tokens are about equally likely
    rollout = sample(policy, group_size=32)
    inside = [tokens for tokens in responses(rollout) if 0 in tokens]
    assert inside
    assert all(1 not in tokens[:-1] for tokens in responses(rollout))
    again = policy.evidence(rollout, NOTHING).logp
    assert_close(again, rollout.behaviour_logp, atol=5e-6, rtol=0)


def test_any_of_several_end_tokens_ends_an_answer():
    def build():
        model, tokenizer = tiny_lm(seed=0, hidden_size=32, num_layers=1)
        model.generation_config.eos_token_id = [20, 30]
        return model, tokenizer

    rollout = sample(small(build=build), group_size=32)
    ends = {1, 20, 30}  # the tokenizer's own too
    seen = set()
    for tokens, cut in zip(responses(rollout), rollout.truncated.tolist(), strict=True):
        assert not ends & set(tokens[:-1])
        assert cut == (tokens[-1] not in ends)
        assert not cut or len(tokens) == 8
        seen.add(tokens[-1])
    assert ends <= seen


def test_a_stop_string_ends_an_answer():
    policy = small()
    stops = tuple(str(number) for number in range(10, 100))
    rollout = sample(policy, group_size=64, stop=stops)
    texts = policy.chat.decode_all(responses(rollout))
    assert sum(text.endswith(stops) for text in texts) > 10
    for text, cut in zip(texts, rollout.truncated.tolist(), strict=True):
        assert not any(stop in text[:-1] for stop in stops)
        assert cut == (not text.endswith((*stops, "<eos>")))


def test_a_stop_string_may_take_many_tokens_and_name_a_special_one(policy):
    def reached(text, stop):
        ids = torch.tensor(policy.chat.ids([text], special=False))
        endings = Endings(tokens=(), strings=(stop,), decode=policy.chat.decode_all)
        last = range(ids.shape[1] - 1, ids.shape[1])
        return endings.find_strings(ids, last).item()

    assert reached("ab=cdefghijkl", "=cdefghijkl")
    assert not reached("ab=cdefghijk", "=cdefghijkl")
    assert reached("ab<pad>", "<pad>")


def test_tensors_are_zero_right_of_the_end(policy):
    rollout = sample(policy)
    assert rollout.length.min() < rollout.length.max()
    outside = ~rollout.mask
    assert not rollout.behaviour_logp[outside].any()
    assert not rollout.entropy[outside].any()
    assert rollout.length.tolist() == rollout.mask.sum(1).tolist()


def test_rollouts_can_be_trained_on(policy):
    rollout = sample(policy)
    policy.evidence(rollout, NOTHING).logp.sum().backward()
    assert not rollout.behaviour_logp.requires_grad
    assert all(parameter.grad is not None for parameter in policy.trainable().values())


def test_cuts_keep_groups_whole_where_they_fit():
    def rows(*sizes, max_rows):
        return [
            (p.start, s.start, len(range(*p.indices(sizes[0]))), len(range(*s.indices(sizes[1]))))
            for p, s in cuts(*sizes, max_rows=max_rows)
        ]

    assert rows(5, 4, max_rows=9) == [(0, 0, 2, 4), (2, 0, 2, 4), (4, 0, 1, 4)]
    assert rows(2, 5, max_rows=3) == [(0, 0, 1, 3), (0, 3, 1, 2), (1, 0, 1, 3), (1, 3, 1, 2)]


def test_worked_example_of_left_padding(policy, monkeypatch):
    seen, forward = [], Rows.forward

    def noting(self, tokens, *given):
        seen.append((tokens.tolist(), self.mask.tolist()))
        return forward(self, tokens, *given)

    monkeypatch.setattr(Rows, "forward", noting)
    Rows(policy.network, [[5], [6, 7]], torch.zeros(2, 1).long(), TWO)
    assert seen == [([[0, 5], [6, 7]], [[0, 1], [1, 1]])]


def test_a_prompt_beyond_the_positions_is_refused():
    policy = small(build=partial(tiny_lm, seed=0, hidden_size=32, num_layers=1, max_positions=12))
    with pytest.raises(ValueError, match=r"a prompt of 11 tokens and rollout\.max_new_tokens=8"):
        sample(policy)
