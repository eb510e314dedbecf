"""Train a policy: `python train.py --help`."""

import os
import sys
from pathlib import Path

os.environ.setdefault("PROJECT_ROOT", str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads cost 20 times more when busy

import hydra

from tandem.launch.command_line import Run, preflight, refusals
from tandem.sweep.words import Sweep


def train(asked: Run, run_dir: Path) -> None:
    from tandem.launch.run import run, stops  # heavy imports, once nothing can be refused any more

    with stops():
        run(asked.cfg, run_dir, asked.overrides, settings=asked.settings)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(_: object) -> None:
    """What is asked of Hydra itself: --hydra-help, --info, --shell-completion."""


if __name__ == "__main__":
    with refusals():
        asked = preflight(sys.argv)
    if isinstance(asked, Sweep):
        from tandem.sweep.launch import launch

        with refusals():
            sys.exit(launch(asked, sys.argv))
    if isinstance(asked, Run):
        asked.start(train)
    else:
        main()
