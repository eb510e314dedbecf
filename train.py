"""Train a policy: `python train.py --help`."""

import os
import sys
from pathlib import Path

os.environ.setdefault("PROJECT_ROOT", str(Path(__file__).resolve().parent))
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads cost 20 times more when busy

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from tandem.config import configuration
from tandem.config.command_line import preflight, refusals
from tandem.config.sweeps import Sweep


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(_: DictConfig) -> None:
    from tandem.run import run, stops  # heavy imports, once nothing can be refused any more

    job = HydraConfig.get()
    overrides, run_dir = list(job.overrides.task), Path(job.runtime.output_dir)
    with stops():
        run(configuration(overrides), run_dir, overrides)


if __name__ == "__main__":
    with refusals():
        asked = preflight(sys.argv)
    if isinstance(asked, Sweep):
        from tandem.sweep.launch import launch

        with refusals():
            sys.exit(launch(asked, sys.argv))
    sys.argv = asked
    main()
