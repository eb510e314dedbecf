"""Options read from the source of their functions, without importing it."""

import importlib
import subprocess
import sys

from tandem.config.registered import REGISTRARS
from tandem.contracts import REGISTERED
from tandem.registry.declared import options
from tandem.registry.nodes import NODES, groups_offering, node_of

# Group -> the key of its function, if an option also sets numbers beside it.
INSIDE = {"algorithm/kl": "loss", "dynamics/logp": "logp"}


def as_yaml(node):
    if isinstance(node, dict):
        return {name: as_yaml(item) for name, item in node.items()}
    if callable(node):
        return {"_target_": f"{node.__module__}.{node.__qualname__}", "_partial_": True}
    return node


def test_an_option_is_what_its_function_says_once_imported():
    """The oracle is inspect, on the imported function."""
    made_in = {place: group for group in NODES for place in groups_offering(group)}
    for (place, name), option in options().items():
        group = made_in[place]
        node = option.node.get(INSIDE.get(group), option.node)
        importlib.import_module(node["_target_"].rpartition(".")[0])
        assert option.node == as_yaml(node_of(group, name, REGISTERED[group, name])), (group, name)


def test_what_any_decorator_registers_is_an_option():
    assert NODES.keys() == REGISTRARS.keys()


def test_every_option_says_what_it_is():
    for key, option in options().items():
        assert option.help, key


def test_reading_the_options_imports_no_heavy_library():
    code = (
        "import sys\n"
        "from tandem.registry.declared import options\n"
        "assert len(options()) > 100\n"
        "print(sorted({'torch', 'numpy', 'hydra'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
