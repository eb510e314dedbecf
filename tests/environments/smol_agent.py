"""A CodeAgent of smolagents as its users write one: it adds numbers with its own tool."""

import json
import os
import sys

from smolagents import CodeAgent, OpenAIModel, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


model = OpenAIModel(
    model_id=os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
agent = CodeAgent(tools=[add], model=model, max_steps=2, verbosity_level=0)
task = json.load(sys.stdin)
answer = agent.run(task["prompt"])
print(json.dumps({"reward": float(str(answer).strip() == task["answer"])}))
