"""A worker process that judges answers, for `tandem.rewards.workers`.

Run as `python -P worker.py JUDGE SECONDS`. It reads one JSON request per line and writes one JSON
verdict per line. It is a script that imports nothing of Tandem: it starts fast, holds none of the
trainer's memory, and whatever the text of a model does to it ends with the process.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType

MEMORY = 4 << 30  # bytes of address space beyond what the libraries took

# What text may name where a library evaluates it, besides single letters. `sympy` is among them
# because its parser begins by executing "from sympy import *".
NAMES = (
    "Symbol Integer Float Rational Function Add Mul Pow Eq Ne Lt Le Gt Ge Abs Integral Derivative",
    "sqrt cbrt factorial pi oo exp log ln sin cos tan cot sec csc asin acos atan sinh cosh tanh",
    "asinh acosh atanh sympy",
)
MATHEMATICS = frozenset(" ".join(NAMES).split())


def main(name: str, seconds: float) -> None:
    """Judge rows from stdin until it closes, each within so many seconds."""
    # Verdicts go to the real output; what libraries print must not stand between them.
    verdicts = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    judge = JUDGES[name]()
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.addaudithook(GATE.audit)
    print("ready", file=verdicts, flush=True)
    for line in sys.stdin:
        # Should the trainer be killed while text loops here, nobody else would end this process.
        faulthandler.dump_traceback_later(2 * seconds + 5, exit=True, file=sys.stderr)
        print(json.dumps(verdict(judge, json.loads(line))), file=verdicts, flush=True)
        faulthandler.cancel_dump_traceback_later()


def verdict(judge: Callable[[dict], float | None], request: dict) -> dict:
    """The judge's score of one row, or its failure."""
    try:
        score = judge(request)
        return {"score": None if score is None else float(score)}
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {text_of(error)[:80]}"}


def text_of(error: Exception) -> str:
    """The text of an error; it comes from foreign code, which may fail too."""
    try:
        return str(error)
    except Exception as another:
        return f"(its text raises {type(another).__name__})"


class Gate:
    """While it is closed, a library that evaluates text gets mathematics evaluated, and no more.

    `audit` is Python's audit hook: text cannot take it away, for to name anything is refused.
    """

    def __init__(self) -> None:
        self.closed = False

    def __enter__(self) -> None:
        self.closed = True

    def __exit__(self, *raised: object) -> None:
        self.closed = False

    def audit(self, event: str, arguments: tuple) -> None:
        """Raise for an audit event that no judge needs."""
        if event != "exec" or not self.closed or is_library_code():
            return
        code = arguments[0]
        foreign = {name for name in code.co_names if len(name) > 1 and name not in MATHEMATICS}
        if foreign or any(isinstance(constant, CodeType) for constant in code.co_consts):
            raise PermissionError(
                f"text that is not mathematics was not evaluated: {code.co_names}"
            )


def is_library_code() -> bool:
    """Whether what is executed is a module that is being imported, or a template of sympy's own."""
    frame = sys._getframe(2)  # below this function and the hook: who called exec or eval
    if "/sympy/polys/" in frame.f_code.co_filename:
        return True
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


GATE = Gate()


def math_verify() -> Callable[[dict], float | None]:
    """Load math-verify; the function that judges a row by it."""
    from math_verify import LatexExtractionConfig, parse, verify

    def judge(request: dict) -> float | None:
        """1 or 0; None where the right answer itself is no mathematics."""
        # The package's own time limit is a signal with a one-second grain; ours is the process.
        answer = request["answer"]
        with GATE:
            wanted = parse(f"\\boxed{{{answer}}}", [LatexExtractionConfig()], parsing_timeout=None)
            wanted = wanted or parse(answer, parsing_timeout=None)
            if not wanted:
                return None
            given = parse(request["output"], parsing_timeout=None)
            return float(verify(wanted, given, timeout_seconds=None))

    return judge


def reasoning_gym() -> Callable[[dict], float | None]:
    """Load Reasoning Gym; the function that judges a row by it."""
    from reasoning_gym import create_dataset

    @functools.lru_cache(maxsize=8)
    def dataset(recipe: str) -> object:
        task, size, seed, difficulty = json.loads(recipe)
        return create_dataset(task, size=size, seed=seed, **difficulty)

    @functools.lru_cache(maxsize=256)
    def entry(recipe: str, index: int) -> dict:
        return dataset(recipe)[index]

    def judge(request: dict) -> float:
        """Between 0 and 1, as the task scores it; 0 for an answer that it cannot read."""
        parts = [request[name] for name in ("task", "size", "seed", "difficulty")]
        recipe = json.dumps(parts)
        asked, score = entry(recipe, request["index"]), dataset(recipe).score_answer
        with GATE:
            try:
                return score(request["output"], asked)
            except Exception:
                score(asked["answer"], asked)  # raises too where the task is at fault
                return 0.0

    return judge


JUDGES = {"math_verify": math_verify, "reasoning_gym": reasoning_gym}

if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
