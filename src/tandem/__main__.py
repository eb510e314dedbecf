"""The command `tandem`: one word for each program, then that program's own arguments."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from importlib import metadata

from tandem.processes import end_in_time
from tandem.stop import PREVIEWS, end_when_told

COMMANDS = {  # word -> module with `main(arguments)`, words that come first, what it does
    "train": ("tandem.launch.train", (), "train a policy; with -m, or sweep=, a sweep"),
    "estimate": ("tandem.launch.train", ("estimate=true",), "print the memory that a run takes"),
    "sample": ("tandem.launch.sample", (), "ask the model of a finished run"),
    "compare": ("tandem.compare.__main__", (), "tables, figures and a report of runs"),
    "sweep": ("tandem.sweep.__main__", (), "the status of the runs of a sweep"),
    "select": ("tandem.launch.select", (), "test the best of a sweep on fresh seeds"),
    "engines": ("tandem.launch.engines", (), "start and watch inference servers of a run"),
    "serve": ("tandem.reward_server.serve", (), "serve rewards to runs on other machines"),
}
RESUMABLE = {"train", "select"}  # the same command continues what it left
REFUSED = 2  # exit code of a command line that cannot run


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return
    if words[0] == "--version":
        print(f"Tandem {metadata.version('tandem')}")
        return
    if words[0] not in COMMANDS:
        near = get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        print(f"tandem {words[0]}: no such command; {hint}", file=sys.stderr)
        sys.exit(REFUSED)
    module, first, _ = COMMANDS[words[0]]
    own = [*first, *words[1:]]
    resumable = words[0] in RESUMABLE and not PREVIEWS & {*own}
    is_process = arguments is None  # not a call from Python
    with end_in_time() if is_process else nullcontext(), end_when_told(resumable=resumable):
        importlib.import_module(module).main(own)


def usage() -> str:
    rows = [f"  {word:<9} {says}" for word, (_, _, says) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: tandem COMMAND ...",
            "",
            *rows,
            "",
            "tandem COMMAND --help shows the arguments of a command, tandem train --help GROUP the",
            "options and keys of a group such as algorithm.loss, tandem train --help KEY one key.",
        ]
    )


if __name__ == "__main__":
    # Lightning starts the other ranks of a run by the words of this process. Of `-m tandem` it
    # would repeat the module without the word `train`; without a module it takes train.py.
    __spec__ = None
    main()
