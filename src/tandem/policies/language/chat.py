"""Prompts to token ids, and token ids to text: the chat template, the system prompt, the ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.types import Picture, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What is said to a chat model beside the prompt. Plain texts are sent as they are."""

    system_prompt: str | None = None  # for messages that do not bring their own
    enable_thinking: bool | None = None  # None: the template is not told
    template: str | None = None  # a file of jinja in place of the model's own


class Chat:
    """A tokenizer and the way prompts go through it."""

    banned: Sequence[int] = ()  # tokens that are never sampled, nor read of a text

    def __init__(self, tokenizer: Any, talk: ChatOptions) -> None:
        self.tokenizer, self.talk = tokenizer, talk
        # Schemas that the template shows with a prompt.
        self.tools_of: Callable[[Prompt], Sequence[Mapping]] = lambda prompt: ()
        if talk.template is not None:
            tokenizer.chat_template = read_template(Path(talk.template))

    def text(self, prompt: Prompt) -> str:
        """What the model reads, before any special token that the tokenizer itself adds."""
        if prompt.text is not None:
            return prompt.text
        messages = self.question(prompt)
        if self.template is None:
            return "\n\n".join(message["content"] for message in messages)
        return self.render(messages, self.tools_of(prompt))

    @property
    def template(self) -> str | None:
        """The chat template; None: messages are sent as plain text."""
        return self.tokenizer.chat_template

    def render(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping] = ()
    ) -> str:
        """What the template makes of messages and of schemas of tools, up to where the answer
        begins."""
        thinking = self.talk.enable_thinking
        options = {} if thinking is None else {"enable_thinking": thinking}
        if tools:
            options["tools"] = [dict(tool) for tool in tools]
        return self.tokenizer.apply_chat_template(
            list(messages),
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
            **options,
        )

    def images(self, prompts: Sequence[Prompt]) -> tuple[tuple[Picture, ...], ...] | None:
        """The pictures of each; None: texts alone are read."""
        return None

    def with_images(self, ids: list[int], images: Sequence[Picture] | None) -> list[int]:
        """Ids of a history, with the pictures whose tokens stand in it; None: texts are read."""
        return ids

    def save(self, folder: str | Path) -> None:
        """All that turns prompts into tokens, in Hugging Face format."""
        self.tokenizer.save_pretrained(folder)

    def question(self, prompt: Prompt) -> list[dict[str, str]]:
        """The messages before a final turn of the assistant, the system prompt first."""
        messages = [dict(message) for message in prompt.messages]
        if messages[-1]["role"] == "assistant":
            messages.pop()
        system = self.talk.system_prompt
        if system is None or messages[0]["role"] == "system":
            return messages
        return [{"role": "system", "content": system}, *messages]

    def encode(
        self, prompts: Sequence[Prompt], texts: Sequence[str] | None = None
    ) -> list[list[int]]:
        """Token ids of each prompt; the tokenizer adds its own where no template wrote them.

        texts: what is sent for each; None: its `text`.
        """
        texts = [self.text(prompt) for prompt in prompts] if texts is None else texts
        plain = [p.messages is None or self.template is None for p in prompts]
        ids: list[list[int]] = [[] for _ in prompts]
        for special in (False, True):
            places = [i for i, own in enumerate(plain) if own == special]
            coded = self.ids([texts[i] for i in places], special=special)
            for place, tokens in zip(places, coded, strict=True):
                ids[place] = tokens
        return ids

    def answer(self, prompt: Prompt) -> str:
        """What a demonstration shows. Raises ValueError for a prompt that shows nothing."""
        if (shown := prompt.shown_answer) is None:
            raise ValueError(
                f"prompt {prompt.id} of {prompt.source} shows nothing to learn from: a "
                "demonstration needs an answer, or messages that end with the assistant's"
            )
        return shown

    def encode_answers(self, answers: Sequence[str]) -> list[list[int]]:
        """Token ids of each answer and the end token, if there is one."""
        end = self.tokenizer.eos_token_id
        return [ids if end is None else [*ids, end] for ids in self.ids(answers, special=False)]

    def ids(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """The token ids of texts."""
        if not texts:
            return []
        masks = {"return_attention_mask": False, "return_token_type_ids": False}
        return self.tokenizer(list(texts), add_special_tokens=special, **masks)["input_ids"]

    def decode(self, rows: Iterable[list[int]]) -> tuple[str, ...]:
        """What rewards and people see."""
        return tuple(self.tokenizer.batch_decode(list(rows), skip_special_tokens=True))

    def decode_all(self, rows: list[list[int]]) -> list[str]:
        """With special tokens, which a stop string may name."""
        return self.tokenizer.batch_decode(rows, skip_special_tokens=False)

    def admit(
        self, prompts: Sequence[Prompt], limit: int | None
    ) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
        """The prompts that can be answered, and the others with the reason. limit: in tokens."""
        refused = [(prompt, self.refusal(prompt)) for prompt in prompts]
        spoken = [prompt for prompt, reason in refused if reason is None]
        unknown = self.unknown  # asked once: tokenizers answer slowly
        faults = [
            self.strange(prompt, unknown) if unknown in ids else fault(ids, limit)
            for prompt, ids in zip(spoken, self.encode(spoken), strict=True)
        ]
        judged = [pair for pair in refused if pair[1] is not None]
        judged += zip(spoken, faults, strict=True)
        kept = [prompt for prompt, reason in judged if reason is None]
        return kept, [(prompt, reason) for prompt, reason in judged if reason is not None]

    def admit_answered(
        self, examples: Sequence[Prompt], limit: int | None, room: int | None
    ) -> tuple[list[Prompt], list[tuple[Prompt, str]]]:
        """As `admit`; question, answer and end together may have `room` tokens."""
        kept, dropped = self.admit(examples, limit)
        shown = self.encode_answers([self.answer(example) for example in kept])
        totals = [len(q) + len(a) for q, a in zip(self.encode(kept), shown, strict=True)]
        long = [room is not None and total > room for total in totals]
        said = "has {} tokens with its answer, more than the {} of the model"
        return (
            [example for example, over in zip(kept, long, strict=True) if not over],
            dropped
            + [(e, said.format(n, room)) for e, n, o in zip(kept, totals, long, strict=True) if o],
        )

    def strange(self, prompt: Prompt, unknown: int | None) -> str:
        """Which characters of a prompt have no token."""
        letters = sorted(set(self.text(prompt)))
        alone = zip(letters, self.ids(letters, special=False), strict=True)
        named = ", ".join(repr(letter) for letter, ids in alone if unknown in ids)
        return f"holds {named}{', ' if named else ''}characters that the tokenizer does not know"

    def refusal(self, prompt: Prompt) -> str | None:
        """What the chat template says against the messages; None if it takes them."""
        if prompt.text is not None:
            return None
        from jinja2 import TemplateError

        try:
            self.text(prompt)
        except TemplateError as error:  # templates raise it: wrong roles, no system prompt
            return f"is refused by the chat template: {error}"
        return None

    @property
    def unknown(self) -> int | None:
        """The id of what is not in the vocabulary, where it stands for nothing else."""
        coder = self.tokenizer
        others = (coder.bos_token_id, coder.eos_token_id, coder.pad_token_id)
        return None if coder.unk_token_id in others else coder.unk_token_id

    def ends(self, configured: int | Sequence[int] | None) -> tuple[int, ...]:
        return list_ends(self.tokenizer, configured)


def list_ends(tokenizer: Any, configured: int | Sequence[int] | None) -> tuple[int, ...]:
    """All end tokens: those of the generation configuration, and the tokenizer's own."""
    several = [configured] if isinstance(configured, int) else list(configured or ())
    own = tokenizer.eos_token_id
    return tuple(dict.fromkeys(several if own is None else [*several, own]))


def read_template(path: Path) -> str:
    """The text of a chat template. Raises ValueError where there is no such file."""
    if not path.is_file():
        raise ValueError(f"model.chat_template={path} is no file; give one of jinja, or null")
    return path.read_text(encoding="utf-8")


def fault(ids: Sequence[int], limit: int | None) -> str | None:
    """Why these tokens cannot be a prompt; None if they can."""
    if not ids:
        return "is empty"
    if limit is not None and len(ids) > limit:
        return f"has {len(ids)} tokens, more than {limit} (rollout.max_prompt_tokens)"
    return None
