"""External agents for tests, which import nothing of Tandem: `python agents.py NAME` runs one."""

import json
import os
import re
import sys
import time
import urllib.request

TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}


def ask(messages, timeout=60, **options):
    """The reply message and its token usage."""
    asked = {"model": os.environ["OPENAI_MODEL"], "messages": messages, **options}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    request = urllib.request.Request(url, json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout) as reply:
        answer = json.load(reply)
    return answer["choices"][0]["message"], answer["usage"]


def say(messages, content):
    """The conversation after a turn of the policy and the next user message."""
    message, _ = ask(messages)
    return [*messages, message, {"role": "user", "content": content}]


def hilo(messages, fields):
    """Number guessing with the rules of `environment=hilo`."""
    for _ in range(fields["guesses"]):
        message, _ = ask(messages)
        if not re.fullmatch(r"\d\d", message["content"]):
            return 0.0
        if int(message["content"]) == fields["secret"]:
            return 1.0
        hint = "+" if int(message["content"]) < fields["secret"] else "-"
        messages = [*messages, message, {"role": "user", "content": hint}]
    return 0.0


def counting(messages, fields):
    """Three turns, with reward 1."""
    for _ in range(2):
        messages = say(messages, "+")
    ask(messages)
    return 1.0


def endless(messages, fields):
    while True:
        messages = say(messages, "+")


def crashes(messages, fields):
    say(messages, "+")
    sys.exit("no such file")


def crashes_at_once(messages, fields):
    sys.exit("no such file")


def says_nothing(messages, fields):
    return 1.0


def hangs(messages, fields):
    say(messages, "+")
    time.sleep(60)


def does_not_wait(messages, fields):
    try:
        ask(messages, timeout=1.0)
    except TimeoutError:
        return 1.0


def rewrites(messages, fields):
    messages = say(messages, "+")
    messages[1]["content"] += " indeed"
    counting(messages, fields)
    return 1.0


def asks_a_second_agent(messages, fields):
    """A second conversation comes between two turns of the first, which ends with a summary."""
    messages = say(messages, "+")
    say([{"role": "system", "content": "be brief"}, {"role": "user", "content": "2?"}], "-")
    messages = say(messages, "+")
    ask([messages[0], {"role": "user", "content": "so far: +"}])
    return 1.0


def makes_calls_up(messages, fields):
    ask(messages, tools=[TOOL])
    call = {"type": "function", "id": "x", "function": {"name": "add", "arguments": "{}"}}
    made = {"role": "assistant", "content": None, "tool_calls": [call]}
    ask([*messages, made, {"role": "tool", "content": "83"}], tools=[TOOL])


def forgets_a_thought_of_a_tool(messages, fields):
    """It replaces the prompt by a summary and shows the call without the text around it."""
    message, _ = ask(messages, tools=[TOOL])
    summary = {"role": "user", "content": "summed up"}
    (call,) = message["tool_calls"]
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "83"}
    ask([summary, message, answer], tools=[TOOL])
    return 1.0


def forgets_its_reward(messages, fields):
    ask(messages)


def is_refused(messages, fields):
    ask(messages, logprobs=True)


def uses_a_tool(messages, fields):
    message, usage = ask(messages, tools=[TOOL])
    (call,) = message["tool_calls"]
    messages = [*messages, message, {"role": "tool", "tool_call_id": call["id"], "content": "83"}]
    ask(messages, tools=[TOOL])
    print(call["function"]["arguments"], usage["completion_tokens"], file=sys.stderr)
    return float(json.loads(call["function"]["arguments"])["a"])


if __name__ == "__main__":
    task = json.load(sys.stdin)
    asked = task["messages"] or [{"role": "user", "content": task["prompt"]}]
    print(json.dumps({"reward": globals()[sys.argv[1]](asked, task["fields"])}))
