"""Keyed draws: functions of their key alone, with the stated distribution."""

import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tandem import rng


def test_bits_are_those_of_splitmix64():
    # The first outputs of SplitMix64 seeded with 1234567 (Rosetta Code's published values).
    want = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = [value % 2**64 for value in rng.bits(1234567, (3,)).tolist()]
    assert got == want


def test_a_tensor_of_names_gives_the_keys_of_its_numbers():
    slots = torch.tensor([3, 0, 7])
    rows = rng.key(0, "rollout", slots, 5)
    one_by_one = [rng.key(0, "rollout", slot, 5) for slot in slots.tolist()]
    assert [key % 2**64 for key in rows.tolist()] == one_by_one


def test_a_key_is_the_same_folded_at_once_or_further():
    rows = torch.tensor([-1, 0, 1 << 62])
    for first in (3, -(2**63), rows):
        whole, further = rng.key("a", first, "b", rows), rng.key("b", after=rng.key("a", first))
        assert torch.equal(rng.key(rows, after=further), whole)
    assert rng.key(7, after=rng.key(2, "x")) == rng.key(2, "x", 7)


def test_a_key_makes_no_tensor_from_numbers_as_an_accelerator_would_be_waited_for():
    called = set()

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.add(function.overloadpacket)
            return function(*args, **kwargs or {})

    with Calls():
        rng.key(3, "step", torch.arange(4), 7, "x", after=5)
    made = {torch.ops.aten.lift_fresh, torch.ops.aten._to_copy, torch.ops.aten.scalar_tensor}
    assert called and not made & called


def test_no_name_can_be_moved_into_its_neighbour():
    keys = {
        rng.key(*names) for names in [(0, 1), (1, 0), (0, 0, 1), (1,), (0, 1, 0), ("1",), (-1,)]
    }
    assert len(keys) == 7


def test_one_row_draws_the_same_alone_and_in_a_batch():
    keys = rng.key(1, torch.arange(5))
    assert_close(rng.normal(keys, (8,))[3], rng.normal(rng.key(1, 3), (8,)), atol=0, rtol=0)


def test_a_longer_draw_begins_with_the_shorter_one():
    assert_close(rng.uniform(9, (100,))[:10], rng.uniform(9, (10,)), atol=0, rtol=0)


def test_a_draw_of_no_shape_is_the_first_of_many():
    assert_close(rng.uniform(9), rng.uniform(9, (3,))[0], atol=0, rtol=0)
    assert_close(rng.normal(9), rng.normal(9, (3,))[0], atol=0, rtol=0)


def test_drawing_changes_nothing_it_is_given():
    keys, index = rng.key(1, torch.arange(3)), torch.arange(3)
    drawn = rng.at(keys, index)
    before = drawn.clone()
    rng.unit(drawn), rng.gumbel(drawn)
    assert_close(drawn, before, atol=0, rtol=0)
    assert_close(keys, rng.key(1, torch.arange(3)), atol=0, rtol=0)
    assert index.tolist() == [0, 1, 2]


def test_uniform_and_normal_have_their_moments():
    u, n = rng.uniform(0, (200_000,)), rng.normal(1, (200_000,)).double()
    assert_close(u.mean().item(), 0.5, atol=0.003, rtol=0)
    assert_close(u.var().item(), 1 / 12, atol=0.001, rtol=0)
    assert_close(n.mean().item(), 0.0, atol=0.01, rtol=0)
    assert_close(n.var().item(), 1.0, atol=0.015, rtol=0)
    assert_close((n**4).mean().item(), 3.0, atol=0.1, rtol=0)
    assert u.min() > 0 and u.max() < 1
    assert rng.unit(torch.tensor([0, -1])).min() > 0 and rng.unit(torch.tensor(-1)) < 1


def test_argmax_of_logits_plus_gumbel_draws_from_the_softmax():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    noise = rng.gumbel(rng.at(rng.bits(3, (40_000,))[:, None], torch.arange(4)))
    counts = (logits + noise).argmax(1).bincount(minlength=4)
    expected = 40_000 * logits.softmax(0)
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 16.3  # 99.9 % of a chi-square with 3 degrees of freedom


def test_a_permutation_holds_every_index_once_and_depends_on_its_key():
    first, second = rng.permutation(1, 50), rng.permutation(2, 50)
    assert sorted(first.tolist()) == list(range(50))
    assert first.tolist() != second.tolist()
