"""`rollout=paged`: the tokens of the local engine by transformers' continuous batching."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from small_language import NOTHING, questions, small, train_briefly
from transformers.generation.continuous_batching import cache
from two_ranks import on_two_ranks

import tandem
from tandem.config import ConfigError
from tandem.policies.engines.paged import Paged, PagedSampler
from tandem.policies.language.decoding import Local
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora

SAMPLING = Sampling(max_new_tokens=10)
PAGES_OF_4 = Paged(page_size=4, batch_tokens=32)
QUICK = (
    "warm_start=null", "~recipe", "iterations=2", "prompts_per_step=4", "group_size=4",
    "evaluation.every=null", "guards.no_signal=9", "rollout.max_new_tokens=6", "rollout=paged",
    "reward=target_length", "reward.target_length.function.target=5",
)  # fmt: skip


@pytest.fixture(scope="module", params=["whole", "adapter"])
def policy(request):
    lora = Lora(r=4, alpha=8, target_modules="all-linear")
    return train_briefly(
        small(sampling=SAMPLING, lora=lora if request.param == "adapter" else None)
    )


@pytest.fixture(scope="module")
def whole():
    return train_briefly(small(sampling=SAMPLING))


def sample(policy, engine, **sampling):
    policy.engine = engine
    words = questions()
    sampling = replace(SAMPLING, **sampling)
    return policy.sample(words, 3, key=5, slots=range(len(words)), sampling=sampling)


def of_both(policy, option=PAGES_OF_4, **sampling):
    local, paged = Local(policy.model, policy.precision), option.host(policy)
    return sample(policy, local, **sampling), sample(policy, paged, **sampling)


def tokens_read(policy, option):
    """The number of tokens in all passes, and the samples."""
    count = []
    hook = policy.model.register_forward_pre_hook(
        lambda *call: count.append(call[2]["input_ids"].numel()), with_kwargs=True
    )
    rows = sample(policy, option.host(policy))
    hook.remove()
    return sum(count), rows


CASES = {
    "plain": {},
    "cold": {"temperature": 0.7},
    "greedy": {"temperature": 0.0},
    "truncated": {"top_p": 0.8, "top_k": 5},
    "stop strings": {"stop": ("ab", "c")},
    "few in flight": {"max_rows": 5},
}


@pytest.mark.parametrize("case", CASES)
def test_its_answers_are_those_of_the_local_engine_token_for_token(policy, case):
    want, got = of_both(policy, **CASES[case])
    assert len(set(want.length.tolist())) > 1, "rows of one length show nothing"
    assert torch.equal(got.length, want.length)
    assert torch.equal(got.sample.tokens, want.sample.tokens)
    assert torch.equal(got.truncated, want.truncated)
    torch.testing.assert_close(got.behaviour_logp, want.behaviour_logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.entropy, want.entropy, atol=1e-5, rtol=0)


@pytest.mark.parametrize("stop", [(), ("ab", "c")])
def test_a_prompt_may_be_longer_than_a_pass_which_then_draws_no_token(whole, stop):
    want, got = of_both(whole, Paged(page_size=4, batch_tokens=4), max_rows=2, stop=stop)
    assert want.sample.prompt_length.max() > 2 * 4
    assert torch.equal(got.sample.tokens, want.sample.tokens)
    assert torch.equal(got.truncated, want.truncated)


def test_its_log_probabilities_are_those_of_the_training_forward(policy):
    rows = sample(policy, PAGES_OF_4.host(policy))
    with torch.no_grad():
        trainers = policy.evidence(rows, NOTHING).logp
    assert (trainers - rows.behaviour_logp)[rows.mask].abs().max() < 1e-5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_training_numbers_before_and_after_it_are_the_same_to_the_bit(whole, attention):
    whole.model.set_attn_implementation(attention)
    rows = sample(whole, Local(whole.model))
    before = whole.evidence(rows, NOTHING).logp
    sample(whole, PAGES_OF_4.host(whole))
    assert whole.model.config._attn_implementation == attention
    assert not any(module.training for module in whole.model.modules())
    assert torch.equal(whole.evidence(rows, NOTHING).logp, before)
    whole.model.set_attn_implementation("sdpa")


def test_the_prompt_of_a_group_is_read_once_but_for_its_last_page(whole):
    alone, apart = tokens_read(whole, replace(PAGES_OF_4, share_prompts=False))
    shared, together = tokens_read(whole, PAGES_OF_4)
    assert torch.equal(apart.sample.tokens, together.sample.tokens)
    prompts = apart.sample.prompt_length[::3]
    # A prompt that fills its last page: 5.23 reads that page again, 5.17 only its last token.
    full, to_last = (prompts - 1) // 4 * 4, torch.minimum(prompts // 4 * 4, prompts - 1)
    assert (prompts % 4 == 0).any()
    assert alone - shared in {int(2 * full.sum()), int(2 * to_last.sum())}


def test_a_stream_of_its_own_waits_for_the_noise_of_each_pass(whole, monkeypatch):
    class Stream(torch.cpu.Stream):
        device, waited = torch.device("cpu"), 0

        def wait_stream(self, other):
            assert other is torch.cpu.current_stream()
            self.waited += 1

        def synchronize(self):
            assert self.waited, "it may have read the noise of the pass before"

    made, streams = PagedSampler._processor, []

    def with_stream(self, *given):
        processor = made(self, *given)
        streams.append(Stream())
        processor.inputs_and_outputs.compute_stream = streams[-1]
        return processor

    want = sample(whole, PAGES_OF_4.host(whole))
    monkeypatch.setattr(PagedSampler, "_processor", with_stream)
    got = sample(whole, PAGES_OF_4.host(whole))
    assert streams[0].waited >= int(want.length.max())
    assert torch.equal(got.sample.tokens, want.sample.tokens)


def test_rows_that_lost_their_pages_go_on_where_they_were(whole, monkeypatch):
    option = replace(PAGES_OF_4, share_prompts=False)
    least, want = tokens_read(whole, option)
    # Twelve pages: an answer and its prompt may need five.
    probe = cache.PagedAttentionMemoryHandler
    first, solve = [True], probe._check_footprint

    def few_pages(self, tokens, blocks):
        if first.pop() if first else False:
            raise MemoryError
        return solve(self, tokens, 12)

    monkeypatch.setattr(probe, "_check_footprint", few_pages)
    read, got = tokens_read(whole, option)
    assert read > least, "no row lost its pages"
    assert torch.equal(got.sample.tokens, want.sample.tokens)
    torch.testing.assert_close(got.behaviour_logp, want.behaviour_logp, atol=1e-5, rtol=0)


def test_an_old_transformers_is_refused(monkeypatch):
    monkeypatch.setattr(transformers, "__version__", "5.16.2")
    with pytest.raises(ValueError, match=r"needs transformers 5\.17 or later, and 5\.16\.2 is"):
        Paged().check(SAMPLING, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trainer.precision=bf16-mixed",), r"set model\.dtype=bfloat16 with trainer\.precision="),
        (("rollout.engine.memory=0",), r"rollout\.engine\.memory=0\.0: must be above 0"),
        (("rollout.engine.page_size=2",), r"rollout\.engine\.page_size=2: must be at least 4"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(words, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        tandem.train(*QUICK, *words, f"run_dir={tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()


def lines(folder):
    """The lines of the iterations; the last one is the final one."""
    return [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()][:-1]


def run(folder, *words):
    tandem.train(*QUICK, *words, f"run_dir={folder}", "trainer.accelerator=cpu")


@pytest.mark.slow
def test_ranks_with_copies_or_parts_of_the_weights_write_the_record_of_one(tmp_path):
    run(tmp_path / "cpu", "rollout=local")
    on_two_ranks(
        {
            name: partial(run, tmp_path / name, f"trainer={name}", "trainer.devices=2")
            for name in ("ddp", "fsdp2")
        }
    )
    want = lines(tmp_path / "cpu")
    for name in ("ddp", "fsdp2"):
        for got, line in zip(lines(tmp_path / name), want, strict=True):
            assert got == pytest.approx(line, rel=1e-4, abs=1e-5), name
