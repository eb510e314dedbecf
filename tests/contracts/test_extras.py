"""What a part says whose package is missing."""

import re
import tomllib
from pathlib import Path

from tandem.config.composition import LAUNCHERS
from tandem.config.targets import EXTRAS
from tandem.contracts import need_extra
from tandem.policies.quantizations import BitsAndBytes4, BitsAndBytes8, TorchAO8

ROOT = Path(__file__).parents[2]
WORDING = re.compile(r"pip install (?:-e )?[\"'](?:tandem|\.)\[")


def test_the_command_installs_from_the_clone_as_the_pages_do():
    assert need_extra("reward=x", "math").endswith('needs a package: pip install -e ".[math]"')
    wording = {p.stem for p in (ROOT / "src").rglob("*.py") if WORDING.search(p.read_text())}
    assert wording == {"parts"}


def test_every_extra_that_a_part_names_exists():
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = {*re.findall(r'need_extra\([^()]*, ["\']([\w-]+)["\']\)', sources)}
    own = {how.extra for how in (BitsAndBytes4, BitsAndBytes8, TorchAO8)}
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"].keys()
    assert {"math", "openenv", "reasoning-gym", "wandb-report"} <= named
    assert not [name for name in extras if "_" in name]  # pip 23.2 does not know them
    assert named | own | {*EXTRAS.values(), *LAUNCHERS.values()} <= extras
