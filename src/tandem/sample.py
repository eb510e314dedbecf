"""Ask the model of a finished run: `python -m tandem.sample RUN "dbca>"`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from tandem import draws
from tandem.config import ConfigError, build, resumed
from tandem.config.command_line import refusals
from tandem.data.records import AS_CHAT, Wording
from tandem.policies.language import LanguagePolicy
from tandem.types import Prompt


def main(arguments: Sequence[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    with refusals():
        cfg = configuration(given.run)
        prompt = worded(given.prompt, cfg, chat=given.chat)
        policy = loaded(given.run, cfg)
        answers = ask(
            policy,
            prompt,
            n=given.n,
            temperature=given.temperature,
            max_new_tokens=given.max_new_tokens,
            seed=given.seed,
        )
    print("\n".join(answers))


def configuration(run_dir: Path) -> DictConfig:
    for needed in ("config.yaml", "model/config.json"):
        if not (run_dir / needed).is_file():
            raise ConfigError(
                f"{run_dir} has no {needed}; give the directory of a finished run, "
                f"or finish it first: python train.py resume={run_dir}"
            )
    return resumed(run_dir, [])


def worded(text: str, cfg: DictConfig, *, chat: bool) -> Prompt:
    """The question as the run's data put its own; `chat` makes it a user's message anyway."""
    prompt = Prompt(id=0, source="you", text=text)
    wording = Wording(**cfg.data.wording) if "wording" in cfg.data else None
    if chat and (wording is None or not wording.chat):
        return AS_CHAT.put(prompt)
    return prompt if wording is None else wording.put(prompt)


def loaded(run_dir: Path, cfg: DictConfig) -> LanguagePolicy:
    """The policy with the final weights; adapters are merged into them already."""
    policy = build(OmegaConf.merge(cfg.model, {"path": str(run_dir / "model"), "lora": None}))
    try:
        policy.load(frozenset())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return policy.to("cuda" if torch.cuda.is_available() else "cpu")


def ask(
    policy: LanguagePolicy,
    prompt: Prompt,
    *,
    n: int,
    temperature: float | None,
    max_new_tokens: int | None,
    seed: int,
) -> tuple[str, ...]:
    """`n` answers; None is what the run trained with. The same seed gives the same answers."""
    asked = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    known = {name: value for name, value in asked.items() if value is not None}
    try:
        sampling = replace(policy.sampling, **known)
        for _, reason in policy.admit([prompt])[1]:
            raise ValueError(f"the prompt {reason}")
        key = draws.key(seed, "sample")
        return policy.sample([prompt], n, key=key, slots=[0], sampling=sampling).outputs
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tandem.sample", description=__doc__)
    parser.add_argument("run", type=Path, help="the directory of a finished run")
    parser.add_argument("prompt")
    parser.add_argument("--n", type=_count, default=1, help="how many answers, one below the other")
    parser.add_argument("--temperature", type=float, help="0 is greedy; default: as in training")
    parser.add_argument("--max-new-tokens", type=_count, help="default: as in training")
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    main()
