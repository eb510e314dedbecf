import torch
from torch.testing import assert_close

from tandem.policies.language.tiny_lm import character_tokenizer, tiny_lm


def test_it_is_the_model_of_the_published_numbers():
    model, tokenizer = tiny_lm(seed=0)
    assert sum(p.numel() for p in model.parameters()) == 308_784
    assert model.config.vocab_size == len(tokenizer) == 40
    assert model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 1


def test_characters_are_tokens_in_the_published_order():
    tokenizer = character_tokenizer()
    text = "0123456789+=>abcdefghijklmnop*-() "
    assert tokenizer(text)["input_ids"] == list(range(2, 36))
    assert tokenizer.decode(list(range(2, 36))) == text
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)


def test_weights_are_a_function_of_the_seed_alone():
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, _ = tiny_lm(seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    again, _ = tiny_lm(seed=5)
    other, _ = tiny_lm(seed=6)
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert_close(a, b, atol=0, rtol=0)
    assert any((a != b).any() for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_the_tokenizer_can_be_saved_and_loaded(tmp_path):
    from transformers import AutoTokenizer

    character_tokenizer().save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert again("cab>")["input_ids"] == character_tokenizer()("cab>")["input_ids"]
    assert (again.pad_token_id, again.eos_token_id, len(again)) == (0, 1, 40)
