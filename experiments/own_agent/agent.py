"""A guessing game with the openai client that imports nothing of Tandem: `environment=agent`."""

import json
import sys

from openai import OpenAI

client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY


def play(prompt: str, secret: int, guesses: int) -> float:
    messages = [{"role": "user", "content": prompt}]
    for _ in range(guesses):
        reply = client.chat.completions.create(model="policy", messages=messages)
        guess = reply.choices[0].message.content
        if not (len(guess) == 2 and guess.isdecimal()):
            return 0.0
        if int(guess) == secret:
            return 1.0
        hint = "+" if int(guess) < secret else "-"
        messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": hint}]
    return 0.0


task = json.load(sys.stdin)
fields = task["fields"]
print(json.dumps({"reward": play(task["prompt"], fields["secret"], fields["guesses"])}))
