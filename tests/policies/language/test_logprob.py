import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_language import NOTHING, questions, small
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tandem.policies.language import logprob
from tandem.policies.language.contexts import longest_context, padded_cost
from tandem.policies.language.inputs import TokenIndex, pad_rows
from tandem.policies.language.logprob import ChunkLimits, token_logp
from tandem.policies.language.records import TokenSample
from tandem.policies.language.tiny_lm import character_tokenizer
from tandem.types import concat, take

ENTROPY = frozenset({"entropy"})


def show(policy):
    return policy.encode(questions(), key=0, slots=range(8))


def test_a_uniform_model_gives_minus_log_of_the_vocabulary():
    policy = small()
    with torch.no_grad():
        policy.network.model.norm.weight.zero_()
    rollout = show(policy)
    evidence = policy.evidence(rollout, ENTROPY)
    want = math.log(40) * rollout.mask
    assert_close(evidence.logp, -want)
    assert_close(evidence.entropy, want)


def test_rows_that_are_alike_are_read_once_and_count_each(policy, monkeypatch):
    """Three answers, one with equal rows, one cut a step earlier, one at another temperature."""
    rollout = take(show(policy), torch.tensor([0, 1, 0, 2, 1, 0, 0]))
    mask, temperature = rollout.mask.clone(), torch.ones(7)
    mask[5, 0], temperature[6] = False, 0.5
    rollout = replace(rollout, mask=mask, sample=replace(rollout.sample, temperature=temperature))
    weights = torch.arange(1.0, 8)[:, None]

    def said():
        policy.network.zero_grad()
        evidence = policy.evidence(rollout, ENTROPY)
        (weights * (evidence.logp + evidence.entropy)).sum().backward()
        gradients = [p.grad.clone() for p in policy.trainable().values()]
        return evidence.logp.detach(), evidence.entropy.detach(), gradients

    read, run = [], policy.scorer.trunk.run
    monkeypatch.setattr(
        policy.scorer.trunk, "run", lambda **given: read.append(given["input_ids"]) or run(**given)
    )
    got = said()
    monkeypatch.setattr(logprob, "find_alike", lambda sample, mask: None)
    want = said()
    once, each = (tokens.count_nonzero() for tokens in read)
    lengths = (rollout.sample.prompt_length + rollout.length - 1).tolist()
    assert (once, each) == (sum(lengths) - lengths[2] - lengths[4], sum(lengths))
    assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_model_that_knows_the_next_token_gives_zero():
    """Shifted by one position, every log-probability would be about -100."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=40, hidden_size=40, num_hidden_layers=0, tie_word_embeddings=False
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(40))
        model.lm_head.weight.copy_(100 * torch.eye(40).roll(1, 0))  # after token i comes i + 1
    policy = small(build=lambda: (model, character_tokenizer()))
    tokens = torch.tensor([[4, 5, 6, 7, 8, 0], [20, 21, 22, 23, 24, 25]])
    sample = TokenSample(
        tokens=tokens, prompt_length=torch.tensor([2, 3]), temperature=torch.ones(2)
    )
    evidence = policy.scorer(sample, torch.ones(2, 3, dtype=torch.bool))
    assert_close(evidence.logp, torch.zeros(2, 3))


def test_log_probabilities_are_those_of_the_whole_model(policy):
    rollout = show(policy)
    tokens, start = rollout.sample.tokens, rollout.sample.prompt_length
    logits = policy.network(input_ids=tokens).logits
    logp = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    want = torch.zeros(rollout.mask.shape)
    for b, t in rollout.mask.nonzero().tolist():
        want[b, t] = logp[b, start[b] + t - 1]
    assert_close(policy.evidence(rollout, NOTHING).logp, want)


def test_temperature_divides_the_logits_of_its_rows(policy):
    rollout = show(policy)
    warm = replace(rollout.sample, temperature=torch.tensor([1.0, 0.5] * 4))
    got = policy.evidence(replace(rollout, sample=warm), ENTROPY)
    plain = policy.evidence(rollout, ENTROPY)
    with torch.no_grad():
        policy.network.model.norm.weight.mul_(2)  # twice the logits
    halved = policy.evidence(rollout, ENTROPY)
    for name in ("logp", "entropy"):
        assert_close(getattr(got, name)[::2], getattr(plain, name)[::2])
        assert_close(getattr(got, name)[1::2], getattr(halved, name)[1::2])


def test_the_likeliest_token_is_the_one_that_greedy_sampling_takes(policy):
    cold = replace(policy.sampling, temperature=0.0)
    greedy = policy.sample(questions(), 1, key=0, slots=range(8), sampling=cold)
    reads = frozenset({"likeliest"})
    taken = policy.evidence(greedy, reads).likeliest
    assert torch.equal(taken.bool(), greedy.mask)
    random = policy.sample(questions(), 4, key=0, slots=range(8))
    likeliest = policy.evidence(random, reads).likeliest
    assert 0 < likeliest.sum() < random.mask.sum()
    assert not likeliest[~random.mask].any()


def test_chunks_change_neither_numbers_nor_gradients(learned):
    """In float64, where they agree to the last digits."""
    results = []
    for budget in (2**24, 40 * 7, 1):
        policy = small(logit_budget=budget)
        policy.load_weights(learned)
        policy.double()
        rollout = show(policy)
        evidence = policy.evidence(rollout, ENTROPY)
        (evidence.logp.sum() + 0.3 * evidence.entropy.square().sum()).backward()
        gradients = [p.grad for p in policy.trainable().values()]
        results.append([evidence.logp, evidence.entropy, *gradients])
    for result in results[1:]:
        for got, want in zip(result, results[0], strict=True):
            assert_close(got, want, atol=1e-12, rtol=1e-10)


def test_chunks_keep_no_logits_for_backward(learned):
    def kept(budget):
        policy = small(logit_budget=budget)
        sizes = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.append(x.numel() if x.shape[-1:] == (40,) else 0) or x, lambda x: x
        )
        rollout = show(policy)
        with hooks:
            policy.evidence(rollout, ENTROPY)
        return sum(sizes)

    assert kept(2**24) >= 40 * show(small()).mask.sum()
    assert kept(40 * 7) == 0


def test_what_stands_right_of_a_row_is_not_read(policy):
    rollout = show(policy)
    tokens = rollout.sample.tokens.clone()
    last = rollout.sample.prompt_length + rollout.length
    tokens[torch.arange(tokens.shape[1]) >= last[:, None]] = 33
    dirty = replace(rollout, sample=replace(rollout.sample, tokens=tokens))
    assert torch.equal(policy.evidence(dirty, NOTHING).logp, policy.evidence(rollout, NOTHING).logp)


def test_neither_order_nor_company_of_rows_matters(policy):
    rollout = show(policy)
    whole = policy.evidence(rollout, ENTROPY)
    order = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    shuffled = policy.evidence(take(rollout, order), ENTROPY)
    assert_close(shuffled.logp, whole.logp[order], atol=1e-6, rtol=0)
    for row in range(8):
        alone = policy.evidence(take(rollout, torch.tensor([row])), ENTROPY)
        assert_close(alone.entropy[0], whole.entropy[row], atol=1e-6, rtol=0)


def test_rows_of_two_rollouts_can_be_joined(policy):
    first, second = show(policy), policy.encode(questions(("a", "cab")), key=0, slots=[8, 9])
    both = policy.evidence(concat([first, second]), NOTHING).logp
    assert_close(both[:8], policy.evidence(first, NOTHING).logp, atol=1e-6, rtol=0)
    short = policy.evidence(second, NOTHING).logp
    assert_close(both[8:, : short.shape[1]], short, atol=1e-6, rtol=0)


def test_a_mask_with_holes_gives_numbers_in_it_alone(policy):
    rollout = show(policy)
    holes = rollout.mask & (torch.arange(rollout.mask.shape[1]) % 2 == 0)
    got = policy.evidence(replace(rollout, mask=holes), NOTHING).logp
    assert_close(got, policy.evidence(rollout, NOTHING).logp * holes, atol=1e-6, rtol=0)


def test_rows_without_a_trained_step_still_run_backward(policy):
    rollout = show(policy)
    evidence = policy.evidence(replace(rollout, mask=torch.zeros_like(rollout.mask)), ENTROPY)
    (evidence.logp.sum() + evidence.entropy.sum()).backward()
    assert not evidence.logp.any()
    assert all(not p.grad.any() for p in policy.trainable().values())


def test_passes_without_gradient_are_cut_by_tokens(learned):
    results = []
    for budget in (2**14, 40, 1):
        policy = small(token_budget=budget)
        policy.load_weights(learned)
        rollout = show(policy)
        results.append(policy.scorer.in_parts(rollout.sample, rollout.mask).logp)
    assert_close(results[1], results[0], atol=1e-6, rtol=0)
    assert_close(results[2], results[0], atol=1e-6, rtol=0)
    assert not results[0].requires_grad


SAVING = ({"gradient_checkpointing": True}, {"mlp_tile": 5})


@pytest.mark.parametrize("saving", [*SAVING, SAVING[0] | SAVING[1]], ids=str)
def test_recomputed_activations_change_no_gradient(learned, saving):
    gradients = []
    for options in ({}, saving):
        policy = small(**options)
        policy.load_weights(learned)
        rollout = show(policy)
        policy.evidence(rollout, NOTHING).logp.sum().backward()
        gradients.append([p.grad for p in policy.trainable().values()])
        assert not any(module.training for module in policy.network.modules())
    for got, want in zip(*gradients, strict=True):
        assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_recomputation_runs_the_function_of_sampling():
    """In train mode, in which libraries recompute, this router adds noise."""
    from transformers import PhimoeConfig, PhimoeForCausalLM

    tokenizer = character_tokenizer()
    config = PhimoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = PhimoeForCausalLM(config)
    policy = small(build=lambda: (model, tokenizer), gradient_checkpointing=True, packing=False)
    rollout = policy.sample(questions(), 1, key=1, slots=range(8))
    logp = policy.evidence(rollout, NOTHING).logp
    assert_close(logp, rollout.behaviour_logp, atol=1e-5, rtol=0)
    logp.sum().backward()
    assert all(p.grad.norm() > 0 for n, p in policy.trainable().items() if "q_proj" in n)


@pytest.mark.parametrize(("saving", "share"), [(SAVING[0], 0.5), (SAVING[1], 0.8)], ids=str)
def test_recomputing_keeps_fewer_activations(learned, saving, share):
    def kept(options):
        policy = small(**options)
        rollout, sizes = show(policy), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.append(x.numel()) or x, lambda x: x
        ):
            policy.evidence(rollout, NOTHING)
        return sum(sizes)

    assert kept(saving) < kept({}) * share


@pytest.mark.slow
def test_a_compiled_trunk_gives_the_same_numbers(learned):
    results = []
    for compiled in (False, True):
        policy = small(torch_compile=compiled)
        policy.load_weights(learned)
        evidence = policy.evidence(show(policy), ENTROPY)
        evidence.logp.sum().backward()
        results.append([evidence.logp, *(p.grad for p in policy.trainable().values())])
    for got, want in zip(*results, strict=True):
        assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_narrow_weights_give_wide_numbers():
    with pytest.warns(UserWarning, match="bfloat16 weights are trained"):
        policy = small(dtype="bfloat16")
    evidence = policy.evidence(show(policy), ENTROPY)
    assert evidence.logp.dtype == evidence.entropy.dtype == torch.float32
    numbers = evidence.logp[evidence.logp != 0]
    assert (numbers != numbers.bfloat16().float()).any()


class Casts(TorchDispatchMode):
    """Counts the casts of a float32 tensor of a shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            self.count += args[0].shape == self.shape and args[0].dtype == torch.float32
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("learns", [True, False])
def test_autocast_casts_a_head_once_for_all_chunks_and_their_recomputation(learns):
    head, steps = nn.Linear(16, 40, bias=False).requires_grad_(learns), torch.arange(12)
    states = torch.randn(12, 16, requires_grad=True)
    places = TokenIndex(
        row=steps, step=steps, column=steps, token=steps, temperature=torch.ones(12)
    )

    def found(call):
        states.grad = head.weight.grad = None
        with Casts(head.weight.shape) as casts, torch.autocast("cpu", cache_enabled=False):
            said = token_logp(states, call, places, vocabulary=40, logit_budget=120, also=())
            said["logp"].sum().backward()
        learnt = [states.grad, *([head.weight.grad] if learns else [])]
        return casts.count, [said["logp"].detach(), *learnt]

    (once, got), (often, want) = found(head), found(lambda states: head(states))
    assert once == 1
    assert often == 2 * 4
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


class Wide(TorchDispatchMode):
    """Counts the operations whose result has a shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += isinstance(out, torch.Tensor) and out.shape == self.shape
        return out


@pytest.mark.parametrize("budget", [12 * 40, 5 * 40])
def test_an_entropy_that_no_loss_reads_costs_no_memory_and_no_backward_pass(budget):
    head, steps = nn.Linear(16, 40), torch.arange(12)
    states = torch.randn(12, 16, requires_grad=True)
    places = TokenIndex(
        row=steps, step=steps, column=steps, token=steps, temperature=torch.ones(12)
    )

    def cost(*also):
        kept = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: kept.update({x.untyped_storage().data_ptr(): x.numel()}) or x, lambda x: x
        ):
            options = {"vocabulary": 40, "logit_budget": budget, "also": also}
            said = token_logp(states, head, places, **options)
        with Wide((12, 40)) as wide:
            learnt = torch.autograd.grad(said["logp"].sum(), [states, *head.parameters()])
        return sum(kept.values()), wide.count, learnt

    (kept, passes, got), (least, fewest, want) = cost("entropy"), cost()
    assert (kept, passes) == (least, fewest)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_head_in_bfloat16_loses_no_precision_with_the_number_of_chunks():
    """Compared with float64: 128 chunks add the rounding of their own gradients to that of one, not
    that of 128 sums in bfloat16, which lost two bits of the weight's and three of the bias's."""
    torch.manual_seed(0)  # one draw in thirty exceeds the bound by chance
    number, width, vocabulary = 512, 32, 100
    head, steps = nn.Linear(width, vocabulary).bfloat16(), torch.arange(number)
    states, weight = torch.randn(number, width).bfloat16(), torch.rand(number)
    token, warm = steps % vocabulary, torch.ones(number)
    places = TokenIndex(row=steps, step=steps, column=steps, token=token, temperature=warm)
    exact = copy.deepcopy(head).double()

    def gradients(head, chunks):
        options = {"vocabulary": vocabulary, "logit_budget": vocabulary * number // chunks}
        said = token_logp(states.to(head.weight.dtype), head, places, also=(), **options)
        return torch.autograd.grad((said["logp"] * weight).sum(), list(head.parameters()))

    def lost(chunks):
        pairs = zip(gradients(head, chunks), gradients(exact, 1), strict=True)
        return torch.stack([(got - want).norm() / want.norm() for got, want in pairs])

    assert (lost(128) < 1.5 * lost(1)).all()


def test_contexts_of_padded_rows_take_no_more_tokens_than_a_pass_may_hold(policy, monkeypatch):
    """A row of one long context and two short ones is laid out as three long rows."""
    tokens = torch.arange(4 * 16).view(4, 16) % 37
    context = torch.tensor([[0] * 8 + [1, 1, 2, 2]] * 4)
    sample = TokenSample(
        tokens=tokens,
        prompt_length=torch.full((4,), 4),
        temperature=torch.ones(4),
        context=context,
    )
    mask = torch.ones(4, 12, dtype=torch.bool)
    scorer, held = copy.copy(policy.scorer), []
    monkeypatch.setattr(scorer, "memory", ChunkLimits(tokens=80))
    monkeypatch.setattr(scorer, "packs", False)
    monkeypatch.setattr(scorer, "shares", False)
    monkeypatch.setattr(scorer, "lay", pad_rows)
    forward = policy.scorer.forward
    monkeypatch.setattr(
        scorer, "forward", lambda layout: held.append(layout.tokens.numel()) or forward(layout)
    )
    found = scorer.in_parts(sample, mask).logp
    assert len(held) > 1 and max(held) <= 80
    monkeypatch.setattr(scorer, "memory", ChunkLimits())
    assert_close(found, scorer.in_parts(sample, mask).logp)
    assert padded_cost(sample, TokenIndex.of(sample, mask)).tolist() == [3 * 12] * 4
    rows = SimpleNamespace(sample=sample, mask=mask)
    monkeypatch.setattr(policy, "packs", False)
    assert policy.row_cost(rows).tolist() == [3 * 12] * 4


def test_the_longest_context_ends_with_its_last_masked_step():
    context = torch.tensor([[0] * 5 + [1] * 7])
    sample = TokenSample(
        tokens=torch.ones(1, 16, dtype=torch.int64),
        prompt_length=torch.tensor([4]),
        temperature=torch.ones(1),
        context=context,
    )
    alone = replace(sample, context=None)
    for steps, of_contexts, of_row in ((12, 9, 16), (5, 9, 9), (3, 7, 7)):
        mask = torch.arange(12)[None] < steps
        assert longest_context(sample, mask) == of_contexts
        assert longest_context(alone, mask) == of_row
