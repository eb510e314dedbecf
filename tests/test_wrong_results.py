"""Strategies, engines, models and flow families from outside the package that return something
else than their protocol says are named in one line, with what was expected."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import records
import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from tandem.algorithm.truncation import CheckedStrategy
from tandem.contracts.wrong_output import WrongOutput
from tandem.experience import unmask
from tandem.policies.engines.answer_checks import check_answers, check_values
from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.engine import check_pictures
from tandem.policies.flow.records import PromptInput
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.policies.language.chunked_head import with_logits
from tandem.policies.language.pretrained import Pretrained
from tandem.policies.language.records import Answers, Sampling
from tandem.policies.weights import FULL
from tandem.types import concat, take

CPU = torch.device("cpu")
ROWS = records.rollout(torch.ones(4, 3).bool(), torch.tensor([0, 0, 1, 1]))
SCORES = records.scores(torch.ones(4))
NONE = torch.arange(0)
FIVE = torch.tensor([0, 1, 2, 3, 0])
STRATEGIES = {
    "returned NoneType; return (rollout, scores)": None,
    "returned Scores, Rollout; return (rollout, scores)": (SCORES, ROWS),
    "returned 3 scores of 4 rows": (ROWS, take(SCORES, torch.arange(3))),
    "returned no rows": (take(ROWS, NONE), take(SCORES, NONE)),
    "a Rollout.group of torch.float32": (replace(ROWS, group=ROWS.group.float()), SCORES),
    "a Rollout.mask of torch.float32": (replace(ROWS, mask=ROWS.mask.float()), SCORES),
    "a Scores.total of torch.float16": (ROWS, replace(SCORES, total=SCORES.total.half())),
    "a Scores.scored of torch.int64": (ROWS, replace(SCORES, scored=SCORES.scored.long())),
}


@pytest.mark.parametrize("fault", STRATEGIES)
def test_a_sampling_strategy_returns_rows_and_their_scores(fault):
    def own(source, prompts):
        return STRATEGIES[fault]

    with pytest.raises(WrongOutput, match=r"^sampling strategy own at \S*results\.py:") as seen:
        CheckedStrategy(own)(SimpleNamespace(taken=[1], metrics={}, samples=4), {})
    assert fault in str(seen.value)


def test_rows_of_a_sampling_strategy_are_taken_from_its_source():
    own = CheckedStrategy(lambda source, prompts: (ROWS, SCORES))
    assert own(SimpleNamespace(taken=[1], metrics={}, samples=4), {}) == (ROWS, SCORES)
    with pytest.raises(WrongOutput, match=r"are not of its source; take them by source\.sample"):
        own(SimpleNamespace(taken=[], metrics={}, samples=0), {})


def test_a_row_beside_is_no_repeated_row():
    rows = replace(ROWS, key=torch.arange(4))
    beside = concat([rows, unmask(take(rows, FIVE[-1:]))]), take(SCORES, FIVE)
    own = CheckedStrategy(lambda source, prompts: beside)
    source = SimpleNamespace(taken=[1], metrics={}, samples=4)
    assert own(source, {}) == beside
    repeated = take(rows, FIVE), take(SCORES, FIVE)
    with pytest.raises(WrongOutput, match="returned 5 rows to train on and took 4: row 4 is row 0"):
        CheckedStrategy(lambda source, prompts: repeated)(source, {})


def test_rows_of_an_earlier_iteration_are_no_repeated_rows():
    rows = replace(ROWS, key=torch.arange(4), baseline=torch.arange(4) == 3)
    greedy = replace(rows, key=torch.tensor([0, 1, 2, 0]))  # the baseline has the key of a sample
    branch = replace(rows, group=rows.group + 9)
    all_of_them = concat([replace(rows, key=rows.key + 4), greedy, branch])
    made = all_of_them, take(SCORES, torch.arange(12) % 4)
    source = SimpleNamespace(taken=[1], metrics={}, samples=8)
    assert CheckedStrategy(lambda source, prompts: made)(source, {}) == made


LENGTH = torch.tensor([2, 3, 1, 3])
INSIDE = torch.arange(3) < LENGTH[:, None]
RIGHT = Answers(
    tokens=5 * INSIDE.long(),
    logp=-1.0 * INSIDE,
    entropy=None,
    length=LENGTH,
    truncated=torch.zeros(4).bool(),
)
KEYS = torch.zeros(2, 2).long()
SAMPLING = Sampling(max_new_tokens=3)


class Engine:
    def answer(self):
        pass


def change(**fields):
    return replace(RIGHT, **fields)


ANSWERS = {
    "returned a NoneType; return Answers(": None,
    "torch.int64 [3, 3]; return Answers.tokens as torch.int64 [4, 3]": take(RIGHT, torch.arange(3)),
    "a list; return Answers.tokens": change(tokens=RIGHT.tokens.tolist()),
    "torch.int32 [4, 3]; return Answers.tokens": change(tokens=RIGHT.tokens.int()),
    "torch.float32 [4]; return Answers.logp": change(logp=RIGHT.logp.sum(1)),
    "torch.bfloat16 [4, 3]; return Answers.logp": change(logp=RIGHT.logp.bfloat16()),
    "a NoneType; return Answers.logp": change(logp=None),
    "return Answers.entropy as torch.float32 [4, 3]": change(entropy=RIGHT.logp[:, 0]),
    "return Answers.length as torch.int64 [4]": change(length=LENGTH.float()),
    "return Answers.truncated as torch.bool [4]": change(truncated=LENGTH),
    "1 wrong values: Answers.length must be 1 to 3": change(length=LENGTH + 2 * (LENGTH == 2)),
    "9 wrong values: Answers.tokens must be ids from 0 to 8": change(tokens=RIGHT.tokens * 2),
    "9 wrong values: Answers.logp must be finite and at most 0": change(logp=-RIGHT.logp),
    "3 wrong values: Answers.tokens and Answers.logp must be 0": change(
        tokens=RIGHT.tokens + 1 * ~INSIDE
    ),
}


def check(answers):
    check_answers(Engine().answer, answers, KEYS)
    check_values(Engine().answer, answers, SAMPLING, 9)


@pytest.mark.parametrize("fault", ANSWERS)
def test_an_engine_returns_answers_of_the_asked_rows_in_the_vocabulary(fault):
    check(RIGHT)
    with pytest.raises(WrongOutput, match=r"^Engine\.answer at \S*results\.py:") as seen:
        check(ANSWERS[fault])
    assert fault in str(seen.value) and "\n" not in str(seen.value)


class Reader(nn.Module):
    device = CPU

    def __init__(self, change):
        super().__init__()
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=7))
        self.table, self.change = nn.Embedding(7, 7), change

    def forward(self, input_ids):
        return self.change(CausalLMOutput(logits=self.table(input_ids)))


LOGITS = {
    "returned a NoneType": lambda out: None,
    "returned torch.float32 [1, 2, 7]; return a CausalLMOutput": lambda out: out.logits,
    "returned a CausalLMOutput; return": lambda out: CausalLMOutput(),
    "returned torch.float32 [1, 7]; return": lambda out: CausalLMOutput(logits=out.logits[:, -1]),
    "returned torch.float32 [1, 2, 5]; return": lambda out: CausalLMOutput(
        logits=out.logits[..., :5]
    ),
    "return logits with their gradient": lambda out: CausalLMOutput(logits=out.logits.detach()),
}


@pytest.mark.parametrize("fault", LOGITS)
def test_a_model_of_a_function_returns_logits_with_a_gradient(fault):
    with_logits(Pretrained(Reader(lambda out: out), None))
    with pytest.raises(WrongOutput, match=r"^Reader\.forward at \S*results\.py:") as seen:
        with_logits(Pretrained(Reader(LOGITS[fault]), None))
    assert fault in str(seen.value)


def test_the_gradient_of_logits_is_asked_for_inside_no_grad_too():
    with torch.no_grad():
        loaded = with_logits(Pretrained(Reader(lambda out: out), None))
        assert not torch.is_grad_enabled()
    assert all(weight.grad is None for weight in loaded.model.parameters())


class Family:
    def __init__(self, change=lambda x: x):
        self.change = change

    def velocity(self, network, x, sigma, condition):
        return self.change(network(x))

    def guide(self, prompted, unprompted, *, scale, sigma):
        return prompted

    def encode(self, inputs, device):
        return self.change([{"pooled": torch.ones(2)} for _ in inputs])

    def decode(self, x0):
        pass


VELOCITIES = {
    "returned a NoneType; return a float tensor [2, 3]": lambda v: None,
    "returned torch.float32 [1, 3]; return a float tensor [2, 3]": lambda v: v[:1],
    "returned torch.int64 [2, 3]; return a float tensor [2, 3]": lambda v: v.long(),
    "return it with its gradient, without .detach()": lambda v: v.detach(),
}


@pytest.mark.parametrize("fault", VELOCITIES)
def test_a_family_returns_velocities_shaped_as_the_latents(fault):
    given = torch.ones(2, 3), torch.ones(2), {}
    VelocityModel(nn.Linear(3, 3), Family(), precision=FULL).predict(*given)
    with pytest.raises(WrongOutput, match=r"^Family\.velocity at \S*results\.py:") as seen:
        VelocityModel(nn.Linear(3, 3), Family(VELOCITIES[fault]), precision=FULL).predict(*given)
    assert fault in str(seen.value)


CONDITIONS = {
    "returned a NoneType; return 2 dicts of tensors": lambda made: None,
    "returned a dict; return 2 dicts of tensors": lambda made: [*made, *made],
    "returned a str; return 2 dicts of tensors": lambda made: {"pooled": torch.ones(2, 2)},
    "returned torch.float32 [2]; return 2 dicts": lambda made: [torch.ones(2)] * 2,
    "return the same shape of 'pooled' for every input, such as [2]": lambda made: [
        made[0],
        {"pooled": torch.ones(3)},
    ],
}


@pytest.mark.parametrize("fault", CONDITIONS)
def test_a_family_encodes_each_prompt_in_one_shape(fault):
    inputs = [PromptInput(text="red"), PromptInput(text="blue")]
    cache = PromptEmbeddingCache(Family(CONDITIONS[fault]), cache=None, negative=None)
    with pytest.raises(WrongOutput, match=r"^Family\.encode at \S*results\.py:") as seen:
        cache.stack(inputs, CPU)
    assert fault in str(seen.value)


PICTURES = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)


@pytest.mark.parametrize(
    "made", [None, PICTURES.float(), PICTURES[:1], PICTURES[0], PICTURES.permute(0, 3, 1, 2)]
)
def test_an_engine_of_pictures_returns_one_for_each_row_with_channels_last(made):
    check_pictures(Family().decode, PICTURES, 2, (8, 8, 3))
    with pytest.raises(WrongOutput, match=r"return torch\.uint8 \[2, 8, 8, 3\], channels last"):
        check_pictures(Family().decode, made, 2, (8, 8, 3))
