"""Train a policy: `python train.py --help`. The installed command `tandem train` is the same."""

import sys

try:
    from tandem.processes import end_in_time
    from tandem.stop import PREVIEWS, end_when_told
except ModuleNotFoundError as error:
    sys.exit(f"{error} for {sys.executable}; run `make train`, then `source .venv/bin/activate`")

if __name__ == "__main__":
    with end_in_time(), end_when_told(resumable=not PREVIEWS & {*sys.argv}):
        from tandem.launch.train import main  # takes a second, in which Ctrl-C may come

        main(sys.argv[1:])
