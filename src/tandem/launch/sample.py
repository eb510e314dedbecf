"""Ask the model of a finished run: `python -m tandem sample RUN "dbca>"`, or `... "red circle"`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import NoReturn, TypeVar

from tandem.config.names import ConfigError
from tandem.config.refusals import refusals
from tandem.stop import end_when_told

Number = TypeVar("Number", int, float)
OUT = Path("sample.png")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    parser.error = _refuse
    with refusals():
        given = parser.parse_intermixed_args(arguments)
    from tandem.launch.answers import answer, show  # imports torch: not for --help

    with refusals():
        outputs, prompts = answer(given.run, given.overrides, given.prompt, vars(given))
    print("\n".join(show(outputs, prompts, given.out or _find_free(OUT))))


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; for example: python -m tandem sample runs/latest 'dbca>'")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tandem sample", description=__doc__)
    parser.add_argument("run", type=Path, help="the directory of a finished run")
    parser.add_argument(
        "prompt", help="the text to answer, or to draw; after -- if it begins with -"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],  # or argparse would list it among what is required
        help="plugins=[...]: the modules of a run that somebody else started",
    )
    parser.add_argument("--n", type=_count, default=1, help="answers or pictures; default: 1")
    parser.add_argument(
        "--temperature",
        type=float,
        help="default: 0 (greedy) for one answer, else as in training; for the text that a picture "
        "is drawn from: as in evaluation",
    )
    parser.add_argument(
        "--max-new-tokens", type=_count, help="length of an answer; default: as in training"
    )
    parser.add_argument("--steps", type=_count, help="denoising steps; default: as in evaluation")
    parser.add_argument("--guidance-scale", type=_scale, help="default: as in evaluation")
    parser.add_argument(
        "--resolution", type=_count, help="pixels per side; default: as in evaluation"
    )
    parser.add_argument(
        "--out",
        type=_png,
        help="PNG file for all pictures in one grid, small ones enlarged; an existing one is "
        f"replaced; default: {OUT}, or {OUT.stem}-2{OUT.suffix} and so on, which replaces none",
    )
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message")
    parser.add_argument(
        "--image", type=Path, action="append", default=[],
        help="an image of the prompt; repeat it for several, in order",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the draws; default: %(default)s")
    return parser


def _count(text: str) -> int:
    return _at_least_1(int(text))


def _scale(text: str) -> float:
    return _at_least_1(float(text))


def _at_least_1(number: Number) -> Number:
    if not number >= 1:  # nan is not
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _find_free(file: Path) -> Path:
    """The file itself, or the first numbered one beside it that does not exist."""
    numbered = (file.with_stem(f"{file.stem}-{number}") for number in count(2))
    return next(one for one in chain([file], numbered) if not one.exists())


def _png(text: str) -> Path:
    if not text.lower().endswith(".png"):
        raise argparse.ArgumentTypeError(f"{text} is no PNG file; end its name in .png")
    return Path(text)


if __name__ == "__main__":
    with end_when_told():
        main()
