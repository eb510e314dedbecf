"""Small policies that are quick to build, and prompts for them."""

from functools import partial

import torch

from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.request import Request
from tandem.policies.weights import Precision
from tandem.types import Prompt

WORDS = ("dbca", "fa", "jihgfedcba", "ccab", "gb", "ehdac", "iab", "bjfd")
NOTHING = frozenset()


def questions(words=WORDS):
    """Letters to sort, of 2 to 10 characters, which requires left padding."""
    return [
        Prompt(id=i, source="sort", text=f"{word}>", answer="".join(sorted(word)))
        for i, word in enumerate(words)
    ]


def small(needs=NOTHING, *, sampling=None, mixed=False, seed=0, **options):
    """A policy of one narrow layer."""
    options.setdefault("build", partial(tiny_lm, seed=0, hidden_size=32, num_layers=2, head_dim=8))
    sampling = sampling or Sampling(max_new_tokens=8)
    policy = LanguagePolicy(**options)
    precision = Precision(mixed=mixed)
    policy.load(Request(sampling=sampling, needs=needs, precision=precision, seed=seed))
    return policy


def train_briefly(policy, steps=6):
    """A few steps on demonstrations: with random weights attention hardly matters."""
    optimizer = torch.optim.Adam(policy.trainable().values(), lr=1e-2)
    rollout = policy.encode(questions(), key=0, slots=range(len(WORDS)))
    for _ in range(steps):
        optimizer.zero_grad()
        evidence = policy.evidence(rollout, NOTHING)
        (-evidence.logp.sum() / rollout.mask.sum()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return policy


TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('tools are not supported') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)


def byte_tokenizer(template=TEMPLATE, pad="<|end|>"):
    """It encodes any text and has a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [pad, "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
    )


def chat_model():
    """A tiny Qwen3 over bytes; its configuration has another end token than its tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=264,  # five more than the tokenizer knows
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        eos_token_id=0,
    )
    return Qwen3ForCausalLM(config), byte_tokenizer()


def small_experts():
    """A mixture of experts with the tokenizer of `tiny_lm`; its routers and experts have adapters
    of their own kind."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = tiny_lm(seed=0, hidden_size=32, num_layers=1, head_dim=8)[1]
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Qwen3MoeForCausalLM(config), tokenizer


def talk(*turns, id=0, **fields):
    """A prompt of messages: user, assistant, user, ..."""
    roles = ("user", "assistant") * len(turns)
    messages = [{"role": r, "content": c} for r, c in zip(roles, turns, strict=False)]
    return Prompt(id=id, source="chat", messages=tuple(messages), **fields)
