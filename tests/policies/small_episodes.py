"""Small policies that act in environments."""

from dataclasses import replace
from functools import partial

import torch
from small_language import TEMPLATE, chat_model, questions

from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.language.records import Answers
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.request import Request

IN_JSON = "<tool_call>\n{{ call.function | tojson }}\n</tool_call>"


def with_tools(call=IN_JSON):
    """A template that shows tools, their replies, and calls of them as `call` writes one."""
    calls = f"{{% for call in message.tool_calls or [] %}}{call}{{% endfor %}}"
    own = TEMPLATE.replace("raise_exception('tools are not supported')", "''")
    told = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    return told + own.replace("{{ message.content }}", "{{ message.content or '' }}" + calls)


WITH_TOOLS = with_tools()


def playing(environment, *, weights=None, sampling=None, build=None, **options):
    build = build or partial(tiny_lm, seed=0, hidden_size=32, num_layers=2, head_dim=8)
    policy = LanguagePolicy(build=build, **options)
    sampling = sampling or Sampling(max_new_tokens=4)
    policy.load(Request(sampling=sampling, environment=environment))
    if weights is not None:
        policy.load_weights(weights)
    return policy


def sample_rows(policy, prompts=None, group_size=3, **changes):
    prompts = questions() if prompts is None else prompts
    sampling = replace(policy.sampling, **changes)
    return policy.sample(prompts, group_size, key=7, slots=range(len(prompts)), sampling=sampling)


def script(policy, *texts):
    """Make the engine return these moves, turn by turn, for any number of rows."""
    left = iter(texts)

    def answer(prompts, keys, *, sampling, endings):
        said = policy.chat.ids([next(left)], special=False)[0]
        move = [*said, policy.chat.turn_end][: sampling.max_new_tokens]
        rows = keys.numel()
        tokens = torch.tensor([move] * rows)
        truncated = torch.tensor([move[-1] not in endings.tokens] * rows)
        length = torch.full((rows,), len(move))
        zeros = torch.zeros(tokens.shape)
        return Answers(tokens=tokens, logp=zeros, entropy=zeros, length=length, truncated=truncated)

    policy.engine.answer = answer


def chatting(template=TEMPLATE):
    """A chat model with a context long enough for a conversation."""
    model, tokenizer = chat_model()
    model.config.max_position_embeddings = 2048
    tokenizer.chat_template = template
    return model, tokenizer
