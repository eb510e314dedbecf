"""A task of any verifiers taskset, with its own loop and rewards: `environment=agent`."""

import asyncio
import json
import os
import sys

import verifiers.v1 as vf

policy = vf.ModelContext(
    model=os.environ["OPENAI_MODEL"],
    client=vf.EvalClientConfig(
        base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY"
    ),
    sampling=vf.SamplingConfig(),
)


async def play(taskset: str, index: int) -> float:
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}  # a chat on this machine
    environment = vf.SingleAgentEnv(vf.SingleAgentEnvConfig(taskset={"id": taskset}, agent=agent))
    (task,) = environment.taskset.include(idx=[str(index)])
    async with environment.serving():
        episode = await environment.run_episode(task, policy)
    if not episode.ok:
        errors = [error for trace in episode.traces for error in trace.errors]
        sys.exit(str((episode.errors + errors)[0].message))
    return sum(trace.reward for trace in episode.traces)


fields = json.load(sys.stdin)["fields"]
print(json.dumps({"reward": asyncio.run(play(fields["taskset"], fields["index"]))}))
