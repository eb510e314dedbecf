"""Train a policy: `python train.py --help`. The installed command `tandem train` is the same."""

import sys

from tandem.stop import PREVIEWS, end_when_told

if __name__ == "__main__":
    with end_when_told(resumable=not PREVIEWS & {*sys.argv}):
        from tandem.launch.train import main  # takes a second, in which Ctrl-C may come

        main(sys.argv[1:])
