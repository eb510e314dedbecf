"""A reward model of text, compared with plain calls of transformers on one conversation."""

import json

import pytest
import torch
from tiny_judge import write_judge
from torch.testing import assert_close

from tandem.config import ConfigError, build, check, compose
from tandem.rewards import Reward, Rewards
from tandem.rewards.reward_model import KEY, RewardModel
from tandem.types import Prompt

ANSWERS = ["yes", "", "a much longer answer than all the others", "no!", "Tür"]
CHATS = [
    ({"role": "user", "content": "Is it?"},),
    ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "And now?"}),
    ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}) * 2,
]
PROMPTS = [
    *(Prompt(id=i, source="s", messages=chat) for i, chat in enumerate(CHATS)),
    *(Prompt(id=i, source="s", text=text) for i, text in enumerate(("plain?", "p"), start=3)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_judge(tmp_path_factory.mktemp("judge")))


def plainly(folder, answer, prompt):
    """One conversation without padding, as in the cards of such models."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    turns = list(prompt.messages or ({"role": "user", "content": prompt.text},))
    if turns[-1]["role"] == "assistant":  # a demonstration, which the answer replaces
        turns.pop()
    turns.append({"role": "assistant", "content": answer})
    given = tokenizer.apply_chat_template(turns, tokenize=True, return_dict=True)
    with torch.no_grad():
        return model(input_ids=torch.tensor([given["input_ids"]])).logits.item()


# A token that ends no conversation, the one that ends them all, or none at all.
@pytest.mark.parametrize("pad", ["<|pad|>", "<|im_end|>", None])
def test_it_says_of_a_batch_what_transformers_says_of_each_conversation(tmp_path, pad):
    folder = str(write_judge(tmp_path, pad=pad))
    want = torch.tensor([plainly(folder, *pair) for pair in zip(ANSWERS, PROMPTS, strict=True)])
    for size in (1, 2, 5):
        got = torch.tensor(RewardModel(folder, batch_size=size)(ANSWERS, PROMPTS))
        assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert want.std() > 0.1  # the model distinguishes them


def test_padding_and_company_change_nothing(folder):
    judge = RewardModel(folder)
    alone = [judge([a], [p])[0] for a, p in zip(ANSWERS, PROMPTS, strict=True)]
    together = judge([*reversed(ANSWERS), "x" * 80], [*reversed(PROMPTS), PROMPTS[0]])
    assert together[:5][::-1] == pytest.approx(alone, abs=1e-5)


def test_an_encoder_with_a_head_is_a_reward_model_too(tmp_path, folder):
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = BertConfig(
        **small, vocab_size=len(tokenizer), num_attention_heads=2, num_labels=1,
        max_position_embeddings=128, pad_token_id=0, initializer_range=0.5,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    want = [plainly(str(tmp_path), *pair) for pair in zip(ANSWERS, PROMPTS, strict=True)]
    assert RewardModel(str(tmp_path))(ANSWERS, PROMPTS) == pytest.approx(want, abs=1e-5)


def test_without_a_template_a_text_stands_before_its_answer_and_a_chat_is_refused(tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = str(write_judge(tmp_path, template=None))
    judge = RewardModel(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        want = model(**tokenizer("cab>abc", return_tensors="pt")).logits.item()
    assert judge(["abc"], [Prompt(id=0, source="s", text="cab>")]) == pytest.approx([want])
    _, faults = Reward(judge)(["abc"], PROMPTS[:1])
    assert "is of a chat, but" in next(iter(faults))


def test_what_cannot_be_judged_is_missing_with_its_reason_and_costs_nobody_else(folder):
    odd = ({"role": "user", "content": "?"}, {"role": "tool", "content": "1"})
    prompts = [*PROMPTS[:2], Prompt(id=9, source="s", messages=odd)]
    judge = RewardModel(folder, max_tokens=100)
    values, faults = Reward(judge)(["yes", "long " * 30, "no"], prompts)
    assert values[0] == pytest.approx(RewardModel(folder)(["yes"], prompts[:1])[0], abs=1e-5)
    assert values[1:] == [None, None]
    assert dict(faults) == {
        "is longer than 100 tokens with its prompt": 1,
        "is refused by the chat template: tools are not supported": 1,
    }
    _, faults = Reward(RewardModel(folder))(["x" * 200], PROMPTS[:1])
    assert dict(faults) == {"is longer than 128 tokens with its prompt": 1}


def refusal(path):
    with pytest.raises(ValueError, match=r"^reward\.reward_model\.function\.path=") as refused:
        RewardModel(str(path))
    line = str(refused.value)
    assert "\n" not in line
    assert len(line.replace(str(path), "PATH")) < 400
    return line


def test_what_is_no_reward_model_is_one_line_that_names_the_key(tmp_path):
    assert refusal("/no/such/folder") == f"{KEY}=/no/such/folder: there is no such folder"
    two = write_judge(tmp_path / "two", labels=2)
    assert "gives 2 numbers, but a reward is one" in refusal(two)
    mute = write_judge(tmp_path / "mute")
    for file in mute.glob("*token*"):
        file.unlink()
    assert "tokenizer" in refusal(mute)


def test_a_head_is_never_made_up_and_nothing_is_unpickled_or_run(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_judge(tmp_path)
    weights = load_file(folder / "model.safetensors")
    head = weights.pop("score.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert refusal(folder).endswith("lacks 1 weights, such as score.weight")
    (folder / "model.safetensors").unlink()
    torch.save(weights | {"score.weight": head}, folder / "pytorch_model.bin")
    assert "in pytorch_model.bin, a pickle" in refusal(folder)
    save_file(weights | {"score.weight": head}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config"}
    config["model_type"] = "evil"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    assert "custom code" in refusal(folder)
    assert not (folder / "ran").exists()


def test_it_is_composed_beside_a_length_at_the_command_line(folder):
    told = ["reward=[reward_model,length]", f"reward.reward_model.function.path={folder}"]
    cfg = compose([*told, "reward.length.function.limit=2"])
    check(cfg)
    rewards = Rewards(build(cfg.reward, "reward"))
    scores = rewards(ANSWERS, PROMPTS)
    want = scores.parts["reward_model"] + 0.1 * scores.parts["length"]
    assert_close(scores.total, want)
    with pytest.raises(ConfigError, match=r"reward\.reward_model\.function\.path"):
        check(compose(["reward=reward_model"]))


def test_a_text_that_no_utf_8_holds_is_missing_and_costs_nobody_else(folder):
    half = Prompt(id=9, source="s", text="\ud83d")  # of a surrogate pair; JSON may hold it
    values, faults = Reward(RewardModel(folder))(["yes", "no"], [PROMPTS[0], half])
    assert values[0] is not None and values[1] is None
    assert next(iter(faults)).startswith("is refused by the tokenizer: ")
