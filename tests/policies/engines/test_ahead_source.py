"""Rows that a server samples ahead of training: the same run for any order of arrival."""

import copy
import random
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from at_once import AtOnce
from loop import Alone
from loopback import Habits, Loopback, serving
from records import GRPO
from small_language import questions
from two_ranks import on_both

from tandem import distributed
from tandem.advantages.baselines import remax
from tandem.contracts import declare
from tandem.data.stream import Curriculum, DrawnAhead, PromptStream
from tandem.experience import Budget
from tandem.losses.policy import reinforce
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.rewards import Reward, Rewards
from tandem.settings.guards import Guards
from tandem.stop import Abandoned, EngineUnavailable, Stop
from tandem.training import collect, strategies
from tandem.training.ahead import Ticket
from tandem.training.ahead_source import AheadSource
from tandem.training.batches import BatchPlan
from tandem.types import Scores, concat

SLOW = pytest.mark.slow
PLAN = BatchPlan(
    seed=0, iterations=4, prompts_per_step=3, group_size=2, num_minibatches=2, epochs=1,
    budget=Budget(), max_grad_norm=1.0,
)  # fmt: skip
ONCE = GRPO
DYNAMIC = replace(ONCE, sampling_strategy=partial(strategies.dynamic_sampling, max_rounds=2))
REMAX = replace(ONCE, sampling_strategy=strategies.remax, advantage=remax, loss=reinforce)
PROMPTS = [
    replace(prompt, id=10 * n + prompt.id, source=f"letters{prompt.id % 2}")
    for n in range(3)
    for prompt in questions()
]


class Lengths(AtOnce):
    """Short answers score; calls of `begin` are counted."""

    components = ("short",)

    def __init__(self):
        self.begun, self.lock = 0, threading.Lock()

    def begin(self, outputs, prompts, group, *, iteration=0, faults=None):
        with self.lock:
            self.begun += 1
        return super().begin(outputs, prompts, group)

    def __call__(self, outputs, prompts):
        total = torch.tensor([1.0 / (1 + len(output)) for output in outputs])
        return Scores(total=total, parts={"short": total}, scored=torch.ones(len(total)).bool())


def late(seconds, seed=0):
    """A `spoil` that answers rows in random order."""
    draws = random.Random(seed)

    def spoil(path, said):
        if path.endswith(("/completions", "/generate")):
            time.sleep(draws.random() * seconds)

    return spoil


@contextmanager
def runs(folder, tmp_path, staleness, *, queue=True, algorithm=ONCE, spoil=None, stream=None,
         servers=1, urls=(), patience=8.0, rewards=None, **sampling):  # fmt: skip
    """A training loop with its server; `queue`: samples ahead, otherwise waits for each iteration
    with older weights."""
    with ExitStack() as stack:
        states = [Loopback(folder, Habits(spoil=spoil)) for _ in range(0 if urls else servers)]
        urls = list(urls) or [stack.enter_context(serving(state)) for state in states]
        quick = {"timeout": 5.0, "patience": patience, "concurrency": 16}
        server = VllmServer(url=urls, folder=str(tmp_path / str(random.random())), **quick)
        policy = LanguagePolicy(path=folder)
        own = Sampling(max_new_tokens=4, staleness=staleness, engine=server, **sampling)
        policy.load(algorithm.request(own))
        policy.samples_ahead = queue and staleness > 0
        loop = Alone(
            policy=policy, algorithm=algorithm, rewards=rewards or Lengths(),
            stream=(stream or PromptStream)(PROMPTS, seed=0), plan=PLAN,
            guards=Guards(max_missing_rewards=1.0),
            optimizer=partial(torch.optim.Adam, lr=1e-2), folder=tmp_path,
        )  # fmt: skip
        loop.states = states
        yield loop


def go(loop, iterations=PLAN.iterations):
    """Run iterations as the loader and Lightning would."""
    for _ in range(iterations):
        prompts = loop.source.stream.draw(loop.iteration, loop.plan.prompts_per_step)
        loop.training_step(prompts, 0)
        loop.reports.append(loop.report)
        loop.ages = getattr(loop, "ages", [])
        gap = loop.rollout.version_gap
        loop.ages.append(None if gap is None else gap[loop.rollout.mask].unique().tolist())
    return loop.reports, {n: p.detach().clone() for n, p in loop.policy.trainable().items()}


def same(one, other):
    assert one[0] == other[0]
    for name, tensor in one[1].items():
        assert torch.equal(tensor, other[1][name]), name


@pytest.mark.parametrize("staleness", [pytest.param(1, marks=SLOW), 2, pytest.param(4, marks=SLOW)])
def test_in_order_the_run_is_that_of_older_weights_bit_for_bit(folder, tmp_path, staleness):
    with runs(folder, tmp_path, staleness, queue=False) as loop:
        simulated = go(loop)
    with runs(folder, tmp_path, staleness, spoil=late(0.03, staleness)) as loop:
        ahead = go(loop)
        assert loop.ages == [[min(i, staleness)] for i in range(PLAN.iterations)]
    same(ahead, simulated)


def test_without_staleness_the_queue_is_the_loop_of_always(folder, tmp_path):
    with runs(folder, tmp_path, 0) as loop:
        assert type(loop.source) is collect.RolloutSource
        always = go(loop)
    with runs(folder, tmp_path, 0, spoil=late(0.03)) as loop:
        stream = DrawnAhead(loop.stream, ahead=0, kept=0)
        loop.source = AheadSource(
            policy=loop.policy, rewards=loop.rewards, stream=stream, plan=PLAN, clock=loop.clock
        )
        queued = go(loop)
    for report in queued[0]:
        assert [report.pop(f"staleness/{x}") for x in ("gap_mean", "gap_max", "share_0")] == [
            0.0, 0.0, 1.0,
        ]  # fmt: skip
        report.pop("rollout_corr/abs_logp_diff_fresh")
    same(queued, always)


@pytest.mark.parametrize(
    ("algorithm", "stream"), [(DYNAMIC, None), (REMAX, None), (ONCE, Curriculum)],
    ids=["refills", "greedy rows", "curriculum"],
)  # fmt: skip
def test_strategies_and_streams_are_those_of_older_weights_too(folder, tmp_path, algorithm, stream):
    made = {"algorithm": algorithm, "stream": stream}
    with runs(folder, tmp_path, 2, queue=False, **made) as loop:
        simulated = go(loop)
    with runs(folder, tmp_path, 2, spoil=late(0.02), **made) as loop:
        same(go(loop), simulated)


@declare(gives={"baseline"})
def in_parts(source, prompts):
    """The first slot, and then the others with their greedy answers."""
    first, *others = ({slot: prompt} for slot, prompt in prompts.items())
    asked = [source.sample(first)]
    asked += [source.sample(one) for one in others]
    asked += [source.sample_greedily(one) for one in others]
    assert [rollout.group.unique().tolist() for rollout, _ in asked] == [[0], [1], [2], [1], [2]]
    return tuple(map(concat, zip(*asked[:3], strict=True)))


def test_a_strategy_may_ask_for_the_slots_one_by_one(folder, tmp_path):
    with runs(folder, tmp_path, 1) as loop:
        whole = go(loop)
        handovers = loop.policy.supply.published
    with runs(folder, tmp_path, 1, algorithm=replace(ONCE, sampling_strategy=in_parts)) as loop:
        parts = go(loop)
        assert loop.policy.supply.published == handovers
        assert loop.ages == [[0], [1], [1], [1]]
    for name, tensor in whole[1].items():
        assert torch.equal(tensor, parts[1][name]), name


def test_greedy_answers_are_sampled_ahead_for_a_strategy_that_declares_them(folder, tmp_path):
    def undeclared(source, prompts):
        return source.sample_greedily(prompts)

    own = replace(ONCE, sampling_strategy=undeclared)
    with (
        runs(folder, tmp_path, 1, algorithm=own) as loop,
        pytest.raises(Stop, match=r'declares gives=\{"baseline"\}; declare it, or set rollout\.st'),
    ):
        go(loop, 1)


def test_greedy_answers_to_further_prompts_are_theirs(folder, tmp_path):
    with runs(folder, tmp_path, 1, algorithm=REMAX) as loop:
        go(loop, 1)
        further = loop.source.extra_prompts(1)
        rollout, _ = loop.source.sample_greedily(further)
        assert rollout.prompts == tuple(further.values())
        assert rollout.group.tolist() == [*further]


@pytest.mark.parametrize("ahead", [1, pytest.param(2, marks=SLOW)])
def test_what_is_ready_is_trained_once_and_in_time(folder, tmp_path, ahead):
    seen = []
    with runs(folder, tmp_path, 2, order="ready", ahead=ahead, spoil=late(0.05)) as loop:
        for _ in range(PLAN.iterations):
            go(loop, 1)
            seen += loop.rollout.key.tolist()
            assert max(loop.ages[-1]) <= 2
            assert loop.rollout.group.unique().tolist() == [0, 1, 2]
    assert len(seen) == len(set(seen)) == PLAN.iterations * 6


def without_updates(loop):
    """The loop with gradients that are not finite, so that all its updates are skipped."""

    def poison(loss):
        for weight in loop.policy.trainable().values():
            weight.grad = torch.full_like(weight, torch.nan)

    loop.guards, loop.manual_backward = Guards(non_finite="skip:99"), poison
    return loop


def refuse_to_wait_for_ever(loop, seconds):
    check, end = loop.source.threads.check, time.monotonic() + seconds

    def check_in_time():
        check()
        assert time.monotonic() < end, "it waits for rows that no thread will sample"

    loop.source.threads.check = check_in_time


@pytest.mark.parametrize("order", ["exact", "ready"])
def test_iterations_without_an_update_count_as_newer_weights(folder, tmp_path, order):
    with runs(folder, tmp_path, 1, order=order) as loop:
        refuse_to_wait_for_ever(without_updates(loop), 30.0)
        go(loop)
        assert loop.skipped == 2 * PLAN.iterations
        assert max(max(ages) for ages in loop.ages) == 1


def test_later_rows_are_sampled_and_judged_while_an_iteration_is_trained(folder, tmp_path):
    with runs(folder, tmp_path, 2) as loop:
        go(loop, 1)
        loop.source.threads.finish()
        assert loop.rewards.begun == 9  # groups of three iterations


def test_what_a_thread_raises_ends_the_run_when_it_asks_next(folder, tmp_path):
    with runs(folder, tmp_path, 1) as loop:
        go(loop, 1)
        loop.source.threads.finish()

        def broken(*_, iteration, faults):
            raise ZeroDivisionError("of a reward")

        loop.rewards.begin = broken
        with pytest.raises(ZeroDivisionError, match="of a reward") as raised:
            go(loop, 3)
        assert any("_sample_rows" in str(entry.name) for entry in raised.traceback)


def test_a_server_that_goes_away_ends_the_run_with_all_that_is_there(folder, tmp_path):
    gone = threading.Event()

    def spoil(path, said):
        return (503, b"") if gone.is_set() and "weight" not in path else None

    with runs(folder, tmp_path, 1, spoil=spoil, patience=4.0) as loop:
        go(loop, 2)
        loop.source.threads.finish()
        gone.set()
        with pytest.raises(EngineUnavailable):
            go(loop, 2)
        assert "ahead.admitted" in loop.state()


def test_the_guard_judges_the_server_although_all_rows_are_old(folder, tmp_path):
    with runs(folder, tmp_path, 1) as loop:
        go(loop, 1)
        loop.source.threads.finish()
        loop.states[0].habits.temperature = 2.0
        with pytest.raises(Stop, match="fit temperature 2, and the trainer uses 1"):
            go(loop, 1)


def test_the_guard_judges_the_server_of_a_resumed_run_at_once(folder, tmp_path, caplog):
    with runs(folder, tmp_path, 2) as loop:
        go(loop, 2)
        state = loop.state()
    with runs(folder, tmp_path, 2) as loop:
        loop.load_state(state)
        loop.states[0].habits.temperature = 2.0
        loop.guards = replace(loop.guards, max_mismatch=0.01)
        assert loop.iteration == 2
        with pytest.raises(Stop, match="fit temperature 2, and the trainer uses 1"):
            go(loop, 1)
    assert "the engine's log-probabilities differ" in caplog.text


@pytest.mark.parametrize(
    ("order", "algorithm"),
    [
        ("exact", ONCE), ("ready", REMAX),
        pytest.param("exact", REMAX, marks=SLOW), pytest.param("ready", ONCE, marks=SLOW),
    ],
    ids=["exact", "ready, greedy rows", "exact, greedy rows", "ready"],
)  # fmt: skip
def test_a_run_goes_on_with_the_rows_that_were_there(folder, tmp_path, order, algorithm):
    made = {"order": order, "algorithm": algorithm}
    with runs(folder, tmp_path, 2, **made) as loop:
        go(loop, 1)
        state = loop.state()
        weights = {n: p.detach().clone() for n, p in loop.policy.trainable().items()}
        optimizer = copy.deepcopy(loop.only.state_dict())
        whole = go(loop, 3)
    with runs(folder, tmp_path, 2, spoil=late(0.02), **made) as loop:
        loop.policy.load_weights(weights)
        loop.only.load_state_dict(optimizer)
        loop.load_state(state)
        resumed = go(loop, 3)
        assert all(max(ages) <= 2 for ages in loop.ages)
    if order == "exact":
        same(resumed, (whole[0][1:], whole[1]))


def short_or_fault(output, prompt):
    if prompt.id % 2:
        raise ValueError("of an odd prompt")
    return 1.0 / (1 + len(output))


def odd_is_missing():
    return Rewards({"short": Reward(short_or_fault), "judge": Reward(short_or_fault, weight=0.0)})


def assert_all_faults_counted(loop, rows):
    """Each missing score of this many rows, and as many of the judge."""
    faults = loop.report["reward/faults"]
    assert faults == loop.report["reward/judge_faults"] == rows * loop.report["reward/missing"] > 0


def test_faults_of_rows_ahead_are_those_of_the_iteration_that_trains_them(folder, tmp_path):
    with runs(folder, tmp_path, 1, rewards=odd_is_missing()) as loop:
        go(loop, 1)
        state = loop.state()  # scores the groups of the next iteration
        for judges in (False, True):  # as the evaluation does after a checkpoint
            assert loop.rewards.pop_faults(judges=judges) == {}
        go(loop, 1)
        assert_all_faults_counted(loop, 6)
    with runs(folder, tmp_path, 1, rewards=odd_is_missing()) as loop:
        loop.load_state(state)
        go(loop, 1)
        assert_all_faults_counted(loop, 6)


def test_a_run_that_ends_halfway_loses_no_batch_that_was_taken(folder, tmp_path):
    with runs(folder, tmp_path, 1) as loop:
        go(loop, 1)
        before = loop.source._take

        def interrupted(*rows, **options):
            before(*rows, **options)
            raise EngineUnavailable("just now")

        loop.source._take = interrupted
        with pytest.raises(EngineUnavailable):
            go(loop, 1)
        state = loop.state()
    with runs(folder, tmp_path, 1) as loop:
        loop.load_state(state)
        go(loop, 2)


def unready():
    raise EngineUnavailable("not yet")


def test_ranks_that_know_each_other_late_share_the_groups(folder, tmp_path, monkeypatch):
    with runs(folder, tmp_path, 1) as loop:  # built before the process group exists, as always
        monkeypatch.setattr(distributed, "world_size", lambda: 2)
        monkeypatch.setattr(distributed, "rank", lambda: 1)
        loop.source._hand_over = unready
        with pytest.raises(EngineUnavailable):
            loop.source.sample({})
        assert loop.source.queue.slots == (1,)
        loop.source.queue.slots = ()
        held = {"admitted": torch.tensor(1), "unfinished": torch.tensor([[0, 0], [0, 1], [0, 2]])}
        loop.source.load_state(held)
        assert loop.source.queue.waiting == [Ticket(0, 1)]
        loop.source.stream.places[0] = torch.arange(3)  # of a group that this rank alone trains
        loop.source.threads.finish, sent = give_up, []
        monkeypatch.setattr(distributed, "all_gather_object", lambda own: sent.append(own) or own)
        assert "drawn/0" in loop.source.state(0).keys() & sent[0][0][0].keys()


@SLOW
def test_two_ranks_train_what_one_does(folder, tmp_path):
    with runs(folder, tmp_path, 1) as loop:
        alone = go(loop)
    with serving(Loopback(folder, Habits())) as url:
        both = on_both(partial(on_a_rank, folder, tmp_path, url))
    for rank, (keys, weights) in enumerate(both):
        assert len(keys) == PLAN.iterations * (4, 2)[rank]
        for name, tensor in alone[1].items():
            assert torch.allclose(weights[name], tensor, atol=1e-5), name
    assert len({key for keys, _ in both for key in keys}) == PLAN.iterations * 6


def on_a_rank(folder, tmp_path, url):
    with ExitStack() as stack:
        with mock.patch(
            "tandem.distributed.world_size", return_value=1
        ):  # Lightning makes it later
            loop = stack.enter_context(runs(folder, tmp_path, 1, urls=[url]))
        keys = []
        for _ in range(PLAN.iterations):
            _, weights = go(loop, 1)
            keys += loop.rollout.key.tolist()
        return keys, weights


def test_a_group_whose_scores_were_given_up_is_asked_for_again(folder, tmp_path):
    with runs(folder, tmp_path, 1) as loop:
        go(loop, 1)
        loop.source.threads.finish()
        rows = loop.source.threads.rows[Ticket(1, 2)]
        rows[0] = replace(rows[0], scores=give_up)
        state = loop.state()
        assert state["ahead.unfinished"].tolist() == [[1, 2]]
        assert not any(name.startswith("ahead.rows/1/2/") for name in state)
    with runs(folder, tmp_path, 1) as loop:
        loop.load_state(state)
        loop.policy.ready()  # a signal during the evaluation before the first iteration
        assert any(name.startswith("ahead.rows/1/2/") for name in loop.state())
        go(loop, 2)


@pytest.mark.parametrize("order", ["exact", "ready"])
def test_a_smaller_bound_still_knows_the_prompts_of_what_was_asked_for(folder, tmp_path, order):
    made = {"ahead": 4} if order == "ready" else {}
    with runs(folder, tmp_path, 4, order=order, **made) as loop:
        go(loop, 2)
        loop.source.threads.finish()
        state = loop.state()
    first = {name: x for name, x in state.items() if not name.startswith("ahead.rows/")}
    first["iteration"] = torch.tensor(4)  # nothing of this request has arrived
    early = 0 if order == "ready" else 4
    first["ahead.unfinished"] = torch.tensor([[early, slot] for slot in range(3)])
    first["ahead.drawn/0"] = torch.arange(3)
    with runs(folder, tmp_path, 1, order=order) as loop:
        loop.load_state(first)
        go(loop, 1)
        asked = {prompt.id for prompt in loop.rollout.prompts}
    drawn = first[f"ahead.drawn/{early}"].tolist()
    assert asked == {PROMPTS[place].id for place in drawn}


def test_a_resumed_run_that_is_told_to_end_before_its_first_handover_saves_what_it_found(
    folder, tmp_path
):
    with runs(folder, tmp_path, 1) as loop:
        go(loop, 1)
        loop.source.threads.finish()
        rows = loop.source.threads.rows[Ticket(1, 2)]
        rows[0] = replace(rows[0], scores=give_up)
        found = loop.state()
    with runs(folder, tmp_path, 1) as loop:
        loop.load_state(found)
        again = loop.state()
        assert not loop.states[0].rows()
    assert again.keys() == found.keys()
    assert all(torch.equal(again[name], found[name]) for name in found)


def test_groups_that_nobody_trains_are_said_to_be_dropped(folder, tmp_path, caplog):
    with runs(folder, tmp_path, 1) as loop:
        go(loop, 1)
        state = loop.state()
    assert not caplog.records
    with runs(folder, tmp_path, 0) as loop:
        loop.load_state(state)
    assert "3 groups that an engine sampled ahead of training are dropped" in caplog.text


def test_rows_that_a_signal_drops_are_said_to_be_asked_for_again(folder, tmp_path, caplog):
    with runs(folder, tmp_path, 1) as loop:
        go(loop, 1)
        loop.source.threads.finish()
        loop.source.threads.finish = give_up
        loop.source.queue.there.discard(Ticket(1, 2))
        del loop.source.threads.rows[Ticket(1, 2)]
        loop.state()
    assert "1 unfinished groups are dropped" in caplog.text


def give_up():
    raise Abandoned


def test_one_of_two_servers_may_be_gone(folder, tmp_path):
    with runs(folder, tmp_path, 2) as loop:
        alone = go(loop)
    with runs(folder, tmp_path, 2, servers=2, patience=4.0, spoil=late(0.02)) as loop:
        start = go(loop, 1)
        loop.states[1].habits.spoil = lambda path, said: (503, b"")
        rest = go(loop, 3)  # the last of them was not asked for yet
        assert any("completions" in p or "generate" in p for p in loop.states[1].paths())
    assert start[0] is rest[0]
    same(rest, alone)
