"""The divergence from a teacher in each state: its value, its memory, and self-teachers."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from small_language import NOTHING, questions
from test_teachers import NARROW, sample_rows, write
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tandem import distributed
from tandem.losses.divergence import forward_kl, jsd, reverse_kl
from tandem.policies.language import reprompts
from tandem.policies.language.logprob import ChunkLimits
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.teachers import TokenTeachers
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.lora import Lora
from tandem.policies.request import Request
from tandem.stop import Stop

NEEDS = frozenset({"divergence"})
ITSELF = {"others": "self"}


def taught(folders, *, of=jsd, options=None, lora=None, sampling=None, **policy):
    learning = LanguagePolicy(build=partial(tiny_lm, seed=0, **NARROW), lora=lora, **policy)
    teachers = TokenTeachers(folders=folders, divergence=of, **(options or {}))
    sampling = sampling or Sampling(max_new_tokens=8)
    learning.load(Request(sampling=sampling, needs=NEEDS, teachers=teachers))
    return learning


def gradients(policy, loss):
    parameters = list(policy.trainable().values())
    return torch.autograd.grad(loss, parameters, retain_graph=True)


def move(policy, by=0.05):
    """The policy with weights other than it was loaded with."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return policy


def by_hand(policy, teacher, rollout, of, temperature=1.0):
    """[B, T], from the logits of whole rows."""
    sample, steps = rollout.sample, torch.arange(rollout.mask.shape[1])
    column = (sample.prompt_length[:, None] + steps - 1).clamp(max=sample.tokens.shape[1] - 1)
    row = torch.arange(len(column))[:, None]
    student, other = (
        (network(input_ids=sample.tokens).logits[row, column] / temperature).log_softmax(-1)
        for network in (policy.network, teacher)
    )
    apart = of(student.flatten(0, 1), other.flatten(0, 1).detach()).view(column.shape)
    return torch.where(rollout.mask, apart, 0)


@pytest.mark.parametrize("of", [forward_kl, jsd, reverse_kl])
@pytest.mark.parametrize("budget", [2**20, 400])
def test_it_is_that_of_all_logits_in_any_chunks(tmp_path, of, budget):
    policy = taught({"others": write(tmp_path, 1, hidden_size=48)}, of=of)
    policy.scorer.memory = ChunkLimits(logits=budget, tokens=200)
    rollout = sample_rows(policy, temperature=1.5)
    got = policy.evidence(rollout, NEEDS)
    teacher = policy.teachers.scorers["others"].model
    want = by_hand(policy, teacher, rollout, of, temperature=1.5)
    assert_close(got.divergence, want, atol=1e-5, rtol=0)
    assert_close(got.logp, policy.evidence(rollout, NOTHING).logp)
    assert got.divergence.max() > 1e-3
    pairs = (gradients(policy, x.divergence.sum() if x is got else x.sum()) for x in (got, want))
    for one, other in zip(*pairs, strict=True):
        assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize("of", [forward_kl, jsd, reverse_kl])
@pytest.mark.parametrize("options", [{}, {"top_k": 5}], ids=["all", "likeliest"])
def test_a_teacher_with_the_weights_of_the_student_is_at_0_exactly(tmp_path, of, options):
    policy = taught({"others": write(tmp_path, 0)}, of=of, options=options)
    rollout = sample_rows(policy)
    apart = policy.evidence(rollout, NEEDS).divergence
    assert apart.requires_grad and not apart.any()
    assert not any(gradient.any() for gradient in gradients(policy, apart.sum()))


class Widest(TorchDispatchMode):
    """The largest number of logits in any tensor: elements whose rows are a vocabulary long."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.most = vocabulary, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            of_weights = isinstance(x, torch.Tensor) and x.shape[-2:] in self.weights
            if isinstance(x, torch.Tensor) and x.ndim and not of_weights:
                rows = x.numel() if x.shape[-1] == self.vocabulary else 0
                self.most = max(self.most, rows)
        return result

    weights = (torch.Size([40, 32]), torch.Size([32, 40]))


def test_no_more_logits_than_a_chunk_are_ever_held(tmp_path):
    """Of student and teacher, forward and backward."""
    policy = taught({"others": write(tmp_path, 1)})
    rollout = sample_rows(policy)
    whole, budget = int(rollout.mask.sum()) * 40, 400
    assert whole > 5 * budget

    def most(limit):
        for scorer in (policy.scorer, policy.teachers.scorers["others"]):
            scorer.memory = ChunkLimits(logits=limit, tokens=100)
        with Widest(40) as seen:
            policy.evidence(rollout, NEEDS).divergence.sum().backward()
        return seen.most

    assert most(budget) <= budget
    assert most(2**20) == whole, "what is looked for would be seen"


def test_each_source_is_compared_with_its_own_teacher(tmp_path):
    folders = {s: write(tmp_path / s, seed) for seed, s in enumerate(("sort", "others"), 1)}
    policy = taught(folders)
    prompts = [replace(p, source=("sort", "sums")[i % 2]) for i, p in enumerate(questions())]
    rollout = sample_rows(policy, prompts)
    got = policy.evidence(rollout, NEEDS)
    assert_close(got.logp, policy.evidence(rollout, NOTHING).logp)
    for rows, source in ((slice(0, 2), "sort"), (slice(2, 4), "others")):
        alone = taught({"others": folders[source]}).evidence(rollout, NEEDS).divergence
        assert_close(got.divergence[rows], alone[rows], atol=1e-6, rtol=0)


def test_rows_beyond_the_tokenizer_of_either_side_are_left_out(tmp_path):
    """A student with 40 logits and a teacher with 48."""
    model, tokenizer = tiny_lm(seed=1, **NARROW)
    plain = write(tmp_path / "plain", 1)
    model.resize_token_embeddings(48, mean_resizing=False)
    model.get_output_embeddings().weight.data[40:] = 3.0
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "wide")
    rollout = sample_rows(policy := taught({"others": plain}))
    want = policy.evidence(rollout, NEEDS).divergence
    got = taught({"others": str(tmp_path / "wide")}).evidence(rollout, NEEDS).divergence
    assert_close(got, want, atol=1e-6, rtol=0)


# The policy as its own teacher.


def tell(rollout, words, rows=None):
    """More words in the prompts of some rows; the others have no teacher."""
    rows = range(len(rollout.prompts)) if rows is None else rows
    prompts = [
        replace(prompt, text=f"{words} {prompt.text}") if row in rows else None
        for row, prompt in enumerate(rollout.prompts)
    ]
    judged = torch.tensor([prompt is not None for prompt in prompts])
    return replace(rollout, reprompts=tuple(prompts), taught=judged)


def test_it_reads_the_very_answer_behind_another_prompt():
    policy = taught(ITSELF, options={"average": 0.0})
    rollout = sample_rows(policy)
    full = policy.complete(tell(rollout, "abc"), NEEDS | {"teacher_logp"})
    sample = full.sample.for_teacher
    for row in range(len(rollout.prompts)):
        start, end = sample.prompt_length[row], rollout.length[row]
        own = rollout.sample.prompt_length[row]
        answer = sample.tokens[row, start : start + end]
        assert torch.equal(answer, rollout.sample.tokens[row, own : own + end])
        ids = policy.chat.encode([full.reprompts[row]])[0]
        assert sample.tokens[row, :start].tolist() == ids
    alone = replace(rollout, sample=sample)
    assert_close(full.teacher_logp, policy.evidence(alone, NOTHING).logp.detach())
    assert (full.teacher_logp - policy.logp(rollout)).abs().max() > 0.01
    assert policy.evidence(full, NEEDS).divergence.max() > 1e-4


def test_rows_that_nobody_tells_more_are_not_judged_and_have_no_gradient():
    policy = taught(ITSELF, options={"average": 0.0})
    rollout = sample_rows(policy)
    few = policy.complete(tell(rollout, "abc", rows=range(3)), NEEDS | {"teacher_logp"})
    assert few.taught.tolist() == [True] * 3 + [False] * 13
    assert not few.teacher_logp[3:].any()
    apart = policy.evidence(few, NEEDS).divergence
    whole = policy.evidence(policy.complete(tell(rollout, "abc"), NEEDS), NEEDS).divergence
    assert_close(apart[:3], whole[:3], atol=1e-6, rtol=0)
    assert not apart[3:].any() and apart.requires_grad
    nobody = policy.complete(tell(rollout, "abc", rows=()), NEEDS)
    assert policy.evidence(nobody, NEEDS).divergence.requires_grad


def test_a_prompt_that_leaves_no_room_is_not_judged_and_unknown_characters_are_named():
    policy = taught(ITSELF, options={"average": 0.0})
    rollout = sample_rows(policy)
    assert not policy.complete(tell(rollout, 60 * "a"), NEEDS).taught.any()
    strange = tell(rollout, "a\n")
    with pytest.raises(Stop, match=r"a re-prompt has '\\n'.*reprompt\.template"):
        policy.complete(strange, NEEDS)
    few = replace(strange, reprompts=(*tell(rollout, "a").reprompts[:2], *strange.reprompts[2:]))
    assert policy.complete(few, NEEDS).taught.tolist() == [True] * 2 + [False] * 14


def test_a_rank_whose_prompts_are_all_unreadable_goes_on_where_others_can_read(monkeypatch, caplog):
    policy = taught(ITSELF, options={"average": 0.0})
    strange = tell(sample_rows(policy), "a\n")
    reprompts._warn_once.cache_clear()
    monkeypatch.setattr(distributed, "all_sum", lambda counts: counts + torch.tensor([1, 1]))
    for _ in range(2):
        assert not policy.complete(strange, NEEDS).taught.any()
    assert caplog.text.count("some re-prompts contain characters") == 1
    # No rank can read one, and this rank has none: it ends with the others.
    monkeypatch.setattr(distributed, "all_sum", lambda counts: torch.tensor([3, 0]))
    monkeypatch.setattr(distributed, "all_gather_object", lambda own: [*own, "has 'é'"])
    with pytest.raises(Stop, match="a re-prompt has 'é', and so do all others"):
        policy.complete(tell(strange, "a", rows=()), NEEDS)


@pytest.mark.parametrize("lora", [None, Lora(r=4, alpha=8)], ids=["whole", "adapters"])
def test_its_weights_are_an_average_that_a_checkpoint_holds(lora):
    rate = 0.25
    policy = taught(ITSELF, options={"average": rate}, lora=lora)
    start = {name: p.detach().clone() for name, p in policy.teachers.average.live.items()}
    move(policy).notify("update")
    once = {
        name: (1 - rate) * start[name] + rate * p.detach()
        for name, p in policy.teachers.average.live.items()
    }
    move(policy).notify("update")
    copies = dict(policy.teachers.average.network.named_parameters())
    for name, live in policy.teachers.average.live.items():
        assert_close(copies[name], (1 - rate) * once[name] + rate * live.detach())
    again = taught(ITSELF, options={"average": rate}, lora=lora)
    again.load_weights(policy.weights())
    again.load_state(policy.state())
    rollout = sample_rows(policy)
    both = [p.evidence(rollout, NEEDS).divergence for p in (policy, again)]
    assert torch.equal(*both) and both[0].max() > 0
    for one in (policy, again):
        move(one).notify("update")
    both = [p.evidence(rollout, NEEDS).divergence for p in (policy, again)]
    assert torch.equal(*both)


def test_without_a_rate_it_stays_as_the_policy_began():
    policy = taught(ITSELF, options={"average": 0.0})
    rollout = sample_rows(policy)
    assert not policy.evidence(rollout, NEEDS).divergence.any()
    first = policy.logp(rollout)
    move(policy).notify("update")
    assert not any(name.startswith("teacher/") for name in policy.state())
    said = policy.complete(rollout, frozenset({"teacher_logp"})).teacher_logp
    assert torch.equal(said, first)


def test_the_base_under_adapters_is_there_once():
    policy = taught(ITSELF, options={"average": 0.1}, lora=Lora(r=4, alpha=8))
    live = dict(policy.scorer.model.named_parameters())
    for name, parameter in policy.teachers.average.network.named_parameters():
        assert (parameter is live[name]) != (name in policy.teachers.average.live)


@pytest.mark.filterwarnings("ignore:bfloat16 weights")
def test_an_average_of_narrow_weights_moves_by_steps_that_they_cannot_hold():
    policy = taught(ITSELF, options={"average": 1e-3}, dtype="bfloat16")
    average = policy.teachers.average
    name, live = next(iter(average.live.items()))
    with torch.no_grad():
        live.add_(0.125)
    before = average.averages[name].clone()
    for _ in range(50):
        policy.notify("update")
    want = before.lerp(live.detach().float(), 1 - (1 - 1e-3) ** 50)
    assert_close(average.averages[name], want, atol=1e-5, rtol=0)
    assert dict(average.network.named_parameters())[name].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"folders": ITSELF}, r"average=null, but the policy is its own teacher; set it"),
        (
            {"folders": {"others": "x"}, "average": 0.1},
            r"average=0\.1 needs a teacher that is the policy itself",
        ),
        ({"folders": {"others": "x"}, "top_k": 5}, r"top_k, tail and support need a divergence"),
    ],
    ids=["no rate", "a rate for nobody", "tokens of no divergence"],
)
def test_settings_that_nobody_reads_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        TokenTeachers(**options)
