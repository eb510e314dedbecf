"""Ways in which the files of a run of somebody else cannot be read."""

import json
import os
from pathlib import Path

BOMB = "a: &a [x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(20)
)


def spoil_fifo(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)


def spoil_json(run: Path, **changes: object) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | changes))


def spoil_config(run: Path, text: str) -> None:
    path = run / "config.yaml"
    path.write_text(path.read_text() + text)


SPOILS = {  # of config.yaml and the logs, which resume= reads too
    "an alias bomb": lambda run: spoil_config(run, BOMB),
    "a deep configuration": lambda run: spoil_config(run, f"deep: {'[' * 30000}{']' * 30000}\n"),
    "a list": lambda run: (run / "config.yaml").write_text("[1, 2]"),
    "words that are none": lambda run: spoil_config(run, "overrides: [[1]]\n"),
    "choices that are none": lambda run: spoil_config(run, "choices: 3\n"),
    "a tag": lambda run: spoil_config(run, "x: !!python/object/apply:os.getcwd []\n"),
    "bytes": lambda run: (run / "config.yaml").write_bytes(bytes(range(256))),
    "a FIFO for a log": lambda run: spoil_fifo(run, "metrics.jsonl"),
    "a FIFO for times": lambda run: spoil_fifo(run, "timing.jsonl"),
    "a FIFO for the manifest": lambda run: spoil_fifo(run, "manifest.json"),
    "a large file": lambda run: os.truncate(run / "config.yaml", 1 << 33),
}
OF_COMPARE = {
    "an infinite seed": lambda run: spoil_config(run, "seed: .inf\n"),
    "no iterations": lambda run: spoil_config(run, "iterations: many\n"),
    "a FIFO for the configuration": lambda run: spoil_fifo(run, "config.yaml"),
    "a deep manifest": lambda run: (run / "manifest.json").write_text("[" * 100000),
    "a deep line": lambda run: (run / "metrics.jsonl").write_text(
        '{"iteration": 0, "x": ' + "[" * 100000 + "}\n"
    ),
    "a line that is no JSON": lambda run: (run / "metrics.jsonl").write_text(
        '{"iteration": 0, x}\n'
    ),
    **{
        f"{value} for a number": lambda run, value=value: (run / "metrics.jsonl").write_text(
            f'{{"iteration": 0, "eval/accuracy": {value}}}\n'
        )
        for value in ('"0.5"', "true", "[]", "{}", "1" + "0" * 400)
    },
    **{
        f"{value} for an iteration": lambda run, value=value: (run / "metrics.jsonl").write_text(
            f'{{"iteration": {value}, "eval/accuracy": 0.5}}\n'
        )
        for value in ("NaN", "0.5", "-1", "1e300", "9" * 30)
    },
    "times that are none": lambda run: (run / "timing.jsonl").write_text(
        '{"iteration": 0, "time/total": "x"}\n'
    ),
    "answers that are none": lambda run: (run / "evaluations.jsonl").write_text(
        '{"iteration": 1, "prompts": [1], "sources": ["a"], "eval/accuracy": ["x"]}\n'
    ),
    "a folder for samples": lambda run: (run / "samples/iteration_000001.jsonl").mkdir(
        parents=True
    ),
    "very many keys": lambda run: spoil_config(run, "\n".join(f"k{i}: 1" for i in range(25_001))),
    "starts that are none": lambda run: spoil_json(run, starts=3),
    "a log without an end": lambda run: (
        (run / "metrics.jsonl").unlink(), (run / "metrics.jsonl").symlink_to("/dev/zero")
    ),
}  # fmt: skip


def remove(run: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "timing.jsonl", "manifest.json"):
        (run / name).unlink(missing_ok=True)
