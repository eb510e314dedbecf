"""A sweep of toy_train.py: `python toy_sweep.py FOLDER finish,crash [hydra/launcher=joblib]`."""

import sys
from pathlib import Path

from tandem.config.composition import compose_with_hydra
from tandem.sweep.launch import launch
from tandem.sweep.words import Sweep


def main(folder: str, values: str, *hydra: str) -> int:
    sweep = Sweep(
        folder=Path(folder).absolute(),
        shared=["seed=0"],
        swept={"do": values.split(",")},
        space={"do": values},
        hydra=compose_with_hydra(hydra).hydra,
        gpus=1,
        dry_run=False,
    )
    return launch(sweep, [str(Path(__file__).with_name("toy_train.py")), "-m", f"do={values}"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
