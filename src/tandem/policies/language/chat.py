"""Chat tokenization: prompts to token ids with template and system prompt, and ids to text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.contracts.parts import expand_home
from tandem.hub import list_ends
from tandem.policies.language.chat_template import TemplateFault, describe_fault, read_template
from tandem.types import Admission, Picture, Prompt, split_refused

log = logging.getLogger(__name__)

UNTOLD = "is a text, with which the template shows no tools: give `messages` instead of `prompt`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of chat prompts. Plain texts are sent unchanged."""

    system_prompt: str | None = None  # for messages without one
    enable_thinking: bool | None = None  # None: not passed to the template
    template: str | None = None  # a Jinja file, instead of the model's own template


class Chat:
    """A tokenizer with its chat template."""

    banned: Sequence[int] = ()  # tokens that are never sampled, nor accepted in a text

    def __init__(self, tokenizer: Any, talk: ChatOptions) -> None:
        self.tokenizer, self.talk = tokenizer, talk
        self.turn_end: int | None = tokenizer.eos_token_id  # ends an answer in a chat
        self.unlike: str | None = None  # how the template writes answers otherwise; said once
        # Schemas that the template renders with a prompt.
        self.tools_of: Callable[[Prompt], Sequence[Mapping]] = lambda prompt: ()
        if talk.template is not None:
            tokenizer.chat_template = read_template(expand_home(talk.template))

    def text(self, prompt: Prompt) -> str:
        """The text that the model reads, before special tokens that the tokenizer adds."""
        if prompt.text is not None:
            return prompt.text
        messages = self.question(prompt)
        if self.template is None:
            return "\n\n".join(message["content"] for message in messages)
        return self.render(messages, self.tools_of(prompt))

    @property
    def template(self) -> str | Mapping[str, str] | None:
        """The chat template, or several by name; None: messages are sent as plain text."""
        return self.tokenizer.chat_template

    def render(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping] = ()
    ) -> str:
        """The template's text of messages and tool schemas, up to the beginning of the answer.

        Raises TemplateFault.
        """
        thinking = self.talk.enable_thinking
        options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        if tools:
            options["tools"] = [dict(tool) for tool in tools]
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **options
            )
        except ImportError:  # of jinja2
            raise
        except Exception as error:  # a template is a program of others and may raise anything
            raise TemplateFault(describe_fault(error)) from error

    def images(self, prompts: Sequence[Prompt]) -> tuple[tuple[Picture, ...], ...] | None:
        """The images of each; None: the model reads text alone."""
        return None

    def with_images(
        self, ids: list[int], images: Sequence[Picture] | None, prompt: Sequence[int] = ()
    ) -> list[int]:
        """Ids of a history, with the images whose tokens it contains; None: text alone. `prompt`:
        the ids that a history with images begins with."""
        return ids

    def save(self, folder: str | Path) -> None:
        """Save the tokenizer and what belongs to it, in Hugging Face format."""
        self.tokenizer.save_pretrained(folder)

    def question(self, prompt: Prompt) -> list[dict[str, str]]:
        """The messages before a final assistant turn, the system prompt first."""
        messages = [dict(message) for message in prompt.messages]
        if messages[-1]["role"] == "assistant":
            messages.pop()
        system = self.talk.system_prompt
        if system is None or (messages and messages[0]["role"] == "system"):
            return messages
        return [{"role": "system", "content": system}, *messages]

    def encode(
        self, prompts: Sequence[Prompt], texts: Sequence[str] | None = None
    ) -> list[list[int]]:
        """Token ids of each prompt, with the tokenizer's special tokens unless a template applies.

        texts: the text of each; None: `self.text` of it.
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
        """The answer of a demonstration. Raises ValueError for a prompt without one."""
        if (shown := prompt.shown_answer) is None:
            raise ValueError(
                f"prompt {prompt.id} of {prompt.source} is not a demonstration: it needs an "
                "answer, or messages that end with an assistant message"
            )
        return shown

    def encode_answers(self, answers: Sequence[str], prompts: Sequence[Prompt]) -> list[list[int]]:
        """Token ids of each prompt's answer and its end token, if there is one."""
        if self.unlike is not None and any(prompt.messages is not None for prompt in prompts):
            log.warning("%s", self.unlike)
            self.unlike = None
        own = self.tokenizer.eos_token_id
        ends = [own if prompt.messages is None else self.turn_end for prompt in prompts]
        coded = zip(self.ids(answers, special=False), ends, strict=True)
        return [ids if end is None else [*ids, end] for ids, end in coded]

    def ids(self, texts: Sequence[str], *, special: bool) -> list[list[int]]:
        """The token ids of texts."""
        if not texts:
            return []
        masks = {"return_attention_mask": False, "return_token_type_ids": False}
        return self.tokenizer(list(texts), add_special_tokens=special, **masks)["input_ids"]

    def decode(self, rows: Iterable[list[int]]) -> tuple[str, ...]:
        """Text without special tokens, as rewards and displays read it."""
        return tuple(self.tokenizer.batch_decode(list(rows), skip_special_tokens=True))

    def decode_all(self, rows: list[list[int]]) -> list[str]:
        """Text with special tokens, which a stop string may contain."""
        return self.tokenizer.batch_decode(rows, skip_special_tokens=False)

    def admit(self, prompts: Sequence[Prompt], limit: int | None) -> Admission:
        """Prompts that can be answered, and the others with a reason. limit: in tokens."""
        spoken, refused = split_refused(prompts, map(self.refusal, prompts))
        unknown = self.unknown  # looked up once: tokenizers are slow
        faults = [
            self.strange(self.text(p), unknown) if unknown in ids else fault(ids, limit)
            for p, ids in zip(spoken, self.encode(spoken), strict=True)
        ]
        kept, dropped = split_refused(spoken, faults)
        return kept, refused + dropped

    def admit_answered(
        self, examples: Sequence[Prompt], limit: int | None, room: int | None
    ) -> Admission:
        """`admit`, where prompt, answer and end token together may have `room` tokens."""
        kept, dropped = self.admit(examples, limit)
        texts = [self.answer(example) for example in kept]
        shown = self.encode_answers(texts, kept)
        totals = [len(q) + len(a) for q, a in zip(self.encode(kept), shown, strict=True)]
        said = "has {} tokens with its answer, more than the model's limit of {}"
        long = [said.format(n, room) if room is not None and n > room else None for n in totals]
        faults = [own or over for own, over in zip(self.faults(texts, shown), long, strict=True)]
        fits, unfit = split_refused(kept, faults)
        return fits, dropped + unfit

    def faults(self, answers: Sequence[str], ids: Sequence[Sequence[int]]) -> list[str | None]:
        """Why each answer cannot be trained: it would teach the unknown token, or has one of
        probability 0. None: it can."""
        unknown, said = self.unknown, "has an answer with"
        return [
            self.strange(text, unknown, said) if unknown in own else self.impossible(own, said)
            for text, own in zip(answers, ids, strict=True)
        ]

    def impossible(self, ids: Sequence[int], said: str) -> str | None:
        """A sentence that names the banned tokens among these; None: there are none."""
        found = self.tokenizer.convert_ids_to_tokens(sorted({*ids}.intersection(self.banned)))
        named = " and ".join(map(repr, found))
        return f"{said} {named}, of probability 0 for this model" if found else None

    def strange(self, text: str, unknown: int | None, said: str = "has") -> str:
        """A sentence that names the characters of a text without a token."""
        letters = sorted(set(text))
        alone = zip(letters, self.ids(letters, special=False), strict=True)
        named = ", ".join(repr(letter) for letter, ids in alone if unknown in ids)
        return f"{said} {named}{', ' if named else ''}characters that the tokenizer does not know"

    def refusal(self, prompt: Prompt) -> str | None:
        """Why there is no question, or the chat template does not show it; None: accepted."""
        if prompt.text is not None:
            is_told = self.template is None or not self.tools_of(prompt)
            return None if is_told else UNTOLD
        if not prompt.messages:  # those of a demonstration in an environment, before its first move
            return "begins with the assistant's turn"
        try:
            self.text(prompt)
        except TemplateFault as error:  # wrong roles, no system prompt
            return f"is refused by the chat template: {error}"
        return None

    @property
    def unknown(self) -> int | None:
        """The id of the unknown token, unless it doubles as another special token."""
        coder = self.tokenizer
        others = (coder.bos_token_id, coder.eos_token_id, coder.pad_token_id)
        return None if coder.unk_token_id in others else coder.unk_token_id

    def ends(self, configured: int | Sequence[int] | None) -> tuple[int, ...]:
        return list_ends(self.tokenizer, configured)


def fault(ids: Sequence[int], limit: int | None) -> str | None:
    """Why these tokens cannot be a prompt; None if they can."""
    if not ids:
        return "is empty"
    if limit is not None and len(ids) > limit:
        return f"has {len(ids)} tokens, more than {limit} (rollout.max_prompt_tokens)"
    return None
