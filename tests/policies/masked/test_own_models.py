"""Masked language models of other alphabets and architectures than the embedded one."""

from functools import partial

import pytest
import torch

from tandem.policies.language.positions import positions
from tandem.policies.language.pretrained import Pretrained
from tandem.policies.masked.policy import MaskedPolicy
from tandem.policies.masked.pretrained import check_both_ways, mask_tokens
from tandem.policies.masked.records import MaskedSampling
from tandem.policies.request import Request

SPECIAL = ["<pad>", "<eos>", "<mask>", "<unk>"]
NUMBERS = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip


def tokenizer_of(symbols, unknown="<unk>"):
    """One token for each character; without an unknown token it raises for any other."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    own = {} if unknown is None else {"unk_token": unknown}
    words = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}, **own))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "mask_token": "<mask>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names, **own)


def build(kind, tokenizer, **numbers):
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **numbers)
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForMaskedLM")(config).eval(), tokenizer


def euro_bert(tokenizer):
    own = {"num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True}
    return build("EuroBert", tokenizer, **NUMBERS, **own)


@pytest.mark.parametrize("count", [10, 11, 12])
def test_a_model_of_a_few_letters_is_bidirectional_and_says_nothing_of_a_shift(count):
    """It reads an English text as unknown tokens, and predicts them as it is shown them."""
    model, tokenizer = euro_bert(tokenizer_of([*SPECIAL, *"ACGTNRYKMSWB"[:count]]))
    check_both_ways(model)
    assert mask_tokens(Pretrained(model, tokenizer), mask=None, shift=None).shift == 0


def test_a_tokenizer_that_raises_for_other_letters_says_nothing_of_a_shift():
    found = Pretrained(*euro_bert(tokenizer_of([*SPECIAL, *"ACGT"], unknown=None)))
    assert mask_tokens(found, mask=None, shift=None).mask == 2


def test_a_mask_token_that_the_model_does_not_have_is_refused():
    found = Pretrained(*euro_bert(tokenizer_of([*SPECIAL, *"ACGT"])))
    for mask in (8, -1):
        with pytest.raises(ValueError, match=f"mask_token_id={mask}: the model has tokens 0 to 7"):
            mask_tokens(found, mask=mask, shift=None)


@pytest.mark.parametrize(("kind", "most"), [("Bert", 24), ("Roberta", 23), ("MPNet", 22)])
def test_a_row_is_as_long_as_the_positions_that_a_model_can_use(kind, most):
    """Roberta and its relatives count positions from the id behind that of the padding token."""
    letters = tokenizer_of([*SPECIAL, *map(chr, range(32, 127))])
    make = partial(build, kind, letters, **NUMBERS, max_position_embeddings=24)
    policy = MaskedPolicy(build=make)
    policy.load(Request(sampling=MaskedSampling(max_new_tokens=4), needs=frozenset()))
    assert policy.positions == positions(policy.network) == most
    row = torch.full((1, most + 1), 7)
    policy.network(input_ids=row[:, 1:])
    with pytest.raises((RuntimeError, IndexError)):
        policy.network(input_ids=row)
