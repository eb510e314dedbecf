"""A replacement of train.py for selection: it leaves a finished run and answers test prompts."""

import json
import sys
from pathlib import Path


def main(words: list[str]) -> None:
    given = {key: value.strip("'") for key, _, value in (word.partition("=") for word in words)}
    if "evaluate" in given:
        folder = Path(given["resume"])
        if (folder.parent / "mute").exists():
            sys.exit("out of memory")
        answer = folder / f"evaluation_{given['evaluation.split']}.json"
        score = folder.parent / "score"
        text = score.read_text() if score.exists() else "0.4"
        answer.write_text(f'{{"eval/accuracy": {text}}}')
        with (folder.parent / "asked").open("a") as file:
            file.write(f"{folder.name}\n")
        return
    folder, seed = Path(given["run_dir"]), int(given["seed"])
    if seed == 3 and not (folder.parent / "mended").exists():
        raise ValueError("it broke")
    (folder / "config.yaml").write_text(json.dumps({"seed": seed, "iterations": 1}))
    (folder / "manifest.json").write_text(json.dumps({"starts": [{"code": {"commit": None}}]}))
    (folder / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "eval/accuracy": 0.5}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
