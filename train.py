"""Train a policy: `python train.py --help`. The installed command `tandem train` is the same."""

import sys

from tandem.launch.train import main

if __name__ == "__main__":
    main(sys.argv[1:])
