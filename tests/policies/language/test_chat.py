from functools import partial

import pytest
from small_episodes import chatting
from small_language import TEMPLATE, byte_tokenizer, chat_model, small, talk
from transformers import AutoTokenizer

from tandem.policies.language.chat import Chat, ChatOptions
from tandem.policies.language.message_frames import end_answers
from tandem.policies.language.records import Sampling
from tandem.policies.language.tiny_lm import character_tokenizer
from tandem.policies.lora import Lora
from tandem.types import Prompt


def chat(template=True, **said):
    tokenizer = byte_tokenizer() if template else byte_tokenizer(template=None)
    return Chat(tokenizer, ChatOptions(**said))


def test_messages_go_through_the_template():
    assert chat().text(talk("2+2?")) == (
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_system_prompt_comes_first_unless_the_messages_bring_one():
    said = chat(system_prompt="Be brief.")
    assert said.text(talk("hi")).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")
    own = ({"role": "system", "content": "Rhyme."}, {"role": "user", "content": "hi"})
    text = said.text(Prompt(id=0, source="chat", messages=own))
    assert "Rhyme." in text
    assert "Be brief." not in text


@pytest.mark.parametrize(("thinking", "closed"), [(None, False), (True, False), (False, True)])
def test_the_template_is_told_of_thinking_only_if_it_is_set(thinking, closed):
    text = chat(enable_thinking=thinking).text(talk("hi"))
    assert text.endswith("<think></think>") == closed


def test_of_named_templates_the_one_for_tools_is_used_where_there_are_some(tmp_path):
    named = {"default": "plain", "tool_use": "{{ tools[0].name }}"}
    byte_tokenizer(named).save_pretrained(tmp_path)
    said = Chat(AutoTokenizer.from_pretrained(tmp_path), ChatOptions())
    assert said.admit([talk("hi")], None) == ([talk("hi")], [])
    assert said.text(talk("hi")) == "plain"
    said.tools_of = lambda prompt: [{"name": "search"}]
    assert said.text(talk("hi")) == "search"


def test_a_template_that_writes_the_date_is_said(caplog):
    own = chat()
    end_answers(own, [])
    assert not caplog.text
    own.tokenizer.chat_template = "{{ strftime_now('%d %b') }}" + TEMPLATE
    end_answers(own, [])
    assert "the chat template writes the date of today" in caplog.text


def test_answers_that_the_template_writes_otherwise_are_said_once(caplog):
    own = chat()
    turn = "<|im_start|>{{ message.role }}\n"
    head = "{% if message.role == 'assistant' %}<think></think>{% endif %}"
    own.tokenizer.chat_template = TEMPLATE.replace(turn, turn + head)
    end_answers(own, [])
    own.encode_answers(["4"], [Prompt(id=0, source="plain", text="2+2?")])
    assert not caplog.text
    for _ in range(2):
        own.encode_answers(["4"], [talk("2+2?")])
    assert caplog.text.count("demonstrations are trained as") == 1
    assert "assistant\\n<think></think>stub of a move'" in caplog.text
    closed = chat(enable_thinking=False)  # the prompt then ends with the same text
    closed.tokenizer.chat_template = own.tokenizer.chat_template
    end_answers(closed, [])
    closed.encode_answers(["4"], [talk("2+2?")])
    assert caplog.text.count("demonstrations are trained as") == 1


def test_plain_text_is_sent_as_it_is():
    prompt = Prompt(id=0, source="plain", text="Once upon a time")
    assert chat(system_prompt="Be brief.").text(prompt) == "Once upon a time"


def test_a_base_model_reads_the_messages_one_after_the_other():
    prompt = talk("2+2?", "4", "3+3?")
    assert chat(template=False, system_prompt="Sums.").text(prompt) == "Sums.\n\n2+2?\n\n4\n\n3+3?"


def test_prompts_of_both_kinds_keep_their_order():
    said = chat()
    plain = Prompt(id=1, source="plain", text="abc")
    mixed = said.encode([talk("x"), plain, talk("y")])
    assert mixed == [said.encode([p])[0] for p in (talk("x"), plain, talk("y"))]
    assert said.tokenizer.decode(mixed[1]) == "abc"
    assert mixed[0].count(1) == 2  # <|im_start|> is one token, and written once per turn


def test_a_template_writes_its_own_first_token():
    """A tokenizer that adds a first token to plain text must not add one to a template's text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_tokenizer()
    begin = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.backend_tokenizer.post_processor = begin
    said = Chat(tokenizer, ChatOptions())
    plain, chatty = said.encode([Prompt(id=0, source="plain", text="a"), talk("a")])
    assert plain[0] == 1
    assert chatty[:2].count(1) == 1


def test_a_demonstration_is_the_answer_or_the_last_turn():
    said = chat()
    assert said.answer(talk("2+2?", answer="4")) == "4"
    shown = talk("2+2?", "4", "3+3?", "6")
    assert said.answer(shown) == "6"
    assert said.text(shown) == said.text(talk("2+2?", "4", "3+3?"))
    with pytest.raises(ValueError, match="prompt 7 of chat is not a demonstration"):
        said.answer(talk("2+2?", id=7))


def test_an_answer_is_followed_by_the_end_token():
    (shown,) = chat().encode_answers(["4"], [talk("2+2?")])
    assert chat().tokenizer.decode(shown) == "4<|im_end|>"


END, EOS = 0, 2  # <|end|> and <|im_end|>, the tokenizer's own
OTHER_END = TEMPLATE.replace("<|im_end|>", "<|end|>")
ONE_TURN = "{% if messages | length > 1 %}{{ raise_exception('one turn') }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "ends", "end"),
    [
        (OTHER_END, (END, EOS), END),
        (OTHER_END, (EOS,), EOS),
        (TEMPLATE, (END, EOS), EOS),
        (OTHER_END.replace("<|end|>", " <|end|>"), (END, EOS), EOS),
        (OTHER_END.replace("<|end|>", "</s>"), (END, EOS), EOS),
        (OTHER_END.replace("<|end|>\n", ""), (END, EOS), EOS),
        (ONE_TURN + OTHER_END, (END, EOS), EOS),
        (OTHER_END.replace("{{ message.content }}", ""), (1, END, EOS), EOS),
        (None, (END, EOS), EOS),
    ],
    ids=[
        "another token",
        "one that does not end the model",
        "the tokenizer's own",
        "a space before it",
        "several tokens",
        "nothing",
        "one question",
        "no content",
        "no template",
    ],
)
def test_a_chat_ends_answers_as_its_template_ends_a_turn(template, ends, end):
    said = Chat(byte_tokenizer(template), ChatOptions())
    end_answers(said, ends)
    assert said.turn_end == end


def test_a_template_that_drops_thoughts_or_wants_a_system_prompt_ends_answers():
    drops = OTHER_END.replace(
        "{{ message.content }}", "{{ message.content.split('</think>')[-1].strip() }}"
    )
    wants = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}"
    said = Chat(byte_tokenizer(wants + drops), ChatOptions(system_prompt="Be brief."))
    end_answers(said, (END, EOS))
    assert said.turn_end == END


def test_demonstrations_and_pairs_of_a_chat_end_with_the_token_of_its_template():
    """A bare text, which the template does not render, keeps the tokenizer's own."""
    policy = small(build=partial(chatting, OTHER_END))
    pair = talk("2+2?", chosen="4", rejected="5")
    bare = Prompt(id=1, source="plain", text="2+2=", answer="4")
    shown = [talk("2+2?", "4"), talk("2+2?", answer="4"), *pair.sides, bare]
    rows = policy.encode(shown, key=0, slots=range(len(shown)))
    starts = zip(rows.sample.tokens, rows.sample.prompt_length, rows.length, strict=True)
    texts = policy.chat.decode_all([row[n : n + more].tolist() for row, n, more in starts])
    assert texts == ["4<|end|>", "4<|end|>", "4<|end|>", "5<|end|>", "4<|im_end|>"]
    assert rows.mask.sum(1).tolist() == [2] * len(shown)


def test_only_the_tokens_of_the_answer_are_trained():
    policy = small(build=chat_model)
    shown = [talk("2+2?", "four"), talk("a longer question", answer="no")]
    rollout = policy.encode(shown, key=0, slots=[3, 4])
    tokenizer = policy.chat.tokenizer
    for row, text in enumerate(["four<|im_end|>", "no<|im_end|>"]):
        start, length = rollout.sample.prompt_length[row], rollout.length[row]
        tokens = rollout.sample.tokens[row]
        assert tokenizer.decode(tokens[start : start + length]) == text
        assert tokenizer.decode(tokens[:start]) == policy.describe_prompt(shown[row])
        assert rollout.mask[row].tolist() == [t < length for t in range(rollout.mask.shape[1])]
    assert rollout.outputs == ("four", "no")
    assert rollout.group.tolist() == [3, 4]
    assert rollout.behaviour_logp is None


def test_what_cannot_be_answered_is_left_out_with_its_reason():
    policy = small(build=chat_model)  # 128 positions, 8 of them for the answer
    tool = Prompt(id=3, source="chat", messages=({"role": "tool", "content": "x"},))
    good = [talk("hi", id=1), Prompt(id=4, source="plain", text="b" * 120)]
    bad = [
        (tool, "is refused by the chat template: tools are not supported"),
        (Prompt(id=2, source="plain", text=""), "is empty"),
        (
            Prompt(id=5, source="plain", text="b" * 121),
            "has 121 tokens, more than 120 (rollout.max_prompt_tokens)",
        ),
    ]
    kept, dropped = policy.admit([good[0], bad[0][0], bad[1][0], good[1], bad[2][0]])
    assert kept == good
    assert sorted(dropped, key=lambda pair: pair[0].id) == sorted(bad, key=lambda p: p[0].id)


def test_a_demonstration_without_a_question_has_the_system_prompt_alone():
    shown = Prompt(id=0, source="chat", messages=({"role": "assistant", "content": "a"},))
    assert [one["role"] for one in chat(system_prompt="be brief").question(shown)] == ["system"]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 'a' + 1 }}", 'TypeError: can only concatenate str (not "int") to str'),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError: Range too big."),
        ("{{ raise_exception('no\ntools') }}", "no tools"),
    ],
)
def test_whatever_a_template_raises_is_the_reason_in_one_line(tmp_path, template, said):
    (file := tmp_path / "template.jinja").write_text(template)
    kept, [(_, reason)] = Chat(byte_tokenizer(), ChatOptions(template=str(file))).admit(
        [talk("hi")], None
    )
    assert not kept
    assert reason.startswith(f"is refused by the chat template: {said}")


def test_a_template_that_is_no_text_is_refused_by_its_key(tmp_path):
    (file := tmp_path / "template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"^model.chat_template=.*jinja is not a text in UTF-8"):
        Chat(byte_tokenizer(), ChatOptions(template=str(file)))


def test_a_template_of_an_unknown_user_is_a_file_that_is_not_there():
    file = "~nobody-here/chat.jinja"
    with pytest.raises(ValueError, match=f"^model.chat_template={file} does not exist"):
        Chat(byte_tokenizer(), ChatOptions(template=file))


def test_a_function_of_a_model_gives_its_tokenizer_too():
    with pytest.raises(
        ValueError, match="returned a Qwen3ForCausalLM; it must return the model and"
    ):
        small(build=lambda: chat_model()[0])


def with_few_tokens(model):
    model.resize_token_embeddings(5)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            with_few_tokens,
            r"the function of this model returned embeddings of 5 tokens and a tokenizer of \d+",
        ),
        (lambda model: model.requires_grad_(False), r"\w+ has no trainable parameter; leave out"),
    ],
    ids=["few tokens", "frozen"],
)
def test_a_function_of_a_model_gives_what_can_read_and_learn(spoil, said):
    model, tokenizer = chat_model()
    spoil(model)
    with pytest.raises(ValueError, match=f"^{said}"):
        small(build=lambda: (model, tokenizer))


def test_a_frozen_model_is_trained_by_adapters():
    model, tokenizer = chat_model()
    model.requires_grad_(False)
    assert small(build=lambda: (model, tokenizer), lora=Lora(r=2, alpha=4)).trainable()


def test_answers_that_leave_a_prompt_no_room_are_refused_by_their_own_key():
    policy = small(build=chat_model, sampling=Sampling(max_new_tokens=128))
    with pytest.raises(
        ValueError, match=r"^rollout.max_new_tokens=128 leaves no room for a prompt"
    ):
        policy.admit([talk("hi", id=1)])


def test_a_character_out_of_the_vocabulary_is_a_reason():
    said = Chat(character_tokenizer(), ChatOptions())
    kept, dropped = said.admit([Prompt(id=i, source="sort", text=t) for i, t in enumerate("aZ")], 9)
    assert [prompt.text for prompt in kept] == ["a"]
    assert dropped[0][1] == "has 'Z', characters that the tokenizer does not know"


def test_an_answer_out_of_the_vocabulary_is_not_trained_as_the_unknown_token():
    said = Chat(character_tokenizer(), ChatOptions())
    shown = [Prompt(id=i, source="sort", text="ba>", answer=a) for i, a in enumerate(["ab", "aZ"])]
    kept, dropped = said.admit_answered(shown, 9, 20)
    assert [prompt.answer for prompt in kept] == ["ab"]
    reason = "has an answer with 'Z', characters that the tokenizer does not know"
    assert [one for _, one in dropped] == [reason]


def test_all_end_tokens_are_collected_once():
    said = chat()
    assert said.ends(None) == (2,)
    assert said.ends(0) == (0, 2)
    assert said.ends([0, 2, 5]) == (0, 2, 5)


def test_ids_beyond_the_tokenizer_have_no_text():
    assert chat().decode([[*chat().ids(["ab"], special=False)[0], 261, 2]]) == ("ab",)
