"""An installed package, in which conf/ lies inside, writes nothing into its own folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_cache_of_an_installed_package_is_in_the_working_directory(tmp_path):
    site, here = tmp_path / "site", tmp_path / "here"
    skipped = shutil.ignore_patterns("__pycache__", "installed")
    shutil.copytree(ROOT / "src" / "tandem", site / "tandem", ignore=skipped)
    shutil.copytree(ROOT / "conf", site / "tandem" / "installed" / "conf")
    here.mkdir()
    unset = {name: x for name, x in os.environ.items() if name != "PROJECT_ROOT"}
    told = subprocess.run(
        f"{sys.executable} -P -m tandem train --cfg job --resolve --package cache_dir".split(),
        cwd=here,
        env=unset | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == str(here / ".cache")
