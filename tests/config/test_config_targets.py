"""A configuration may name parts of the package and a short list of library classes only."""

import sys
from pathlib import Path

import pytest

from tandem.config import ConfigError, build
from tandem.config.plugins import load_plugins
from tandem.config.targets import LIBRARY, resolve

load_plugins(["config_parts"])

FOREIGN = """
builtins.open builtins.eval builtins.exec builtins.compile builtins.__import__ builtins.getattr
builtins.print builtins.dict builtins.type io.open os.system os.popen os.remove os.rename
os.putenv os.listdir os.environ.get os.execv os.fork posix.system shutil.copyfile shutil.rmtree
shutil.move pathlib.Path pathlib.Path.write_text pathlib.Path.unlink subprocess.run
subprocess.Popen importlib.import_module importlib.reload runpy.run_path runpy.run_module
pickle.load pickle.loads marshal.loads shelve.open code.interact pdb.Pdb ctypes.CDLL socket.socket
webbrowser.open urllib.request.urlopen urllib.request.urlretrieve http.client.HTTPConnection
logging.os.system logging.FileHandler logging.config.fileConfig functools.partial functools.reduce
operator.attrgetter operator.methodcaller operator.itemgetter inspect.getattr_static
types.FunctionType yaml.unsafe_load yaml.load omegaconf.OmegaConf.load hydra.utils.instantiate
hydra.utils.call hydra.utils.get_method hydra.utils.get_class hydra.utils.get_object torch.load
torch.save torch.hub.load torch.compile torch.jit.load torch.serialization.load
torch.utils.cpp_extension.load torch.optim.AdamW.load_state_dict torch.optim.os.system numpy.load
numpy.fromfile joblib.load safetensors.torch.save_file transformers.AutoModel.from_pretrained
transformers.AutoModelForCausalLM.from_pretrained transformers.pipeline transformers.AutoModel
diffusers.DiffusionPipeline.from_pretrained peft.PeftModel.from_pretrained
lightning.pytorch.Trainer.fit lightning.pytorch.cli.LightningCLI wandb.init wandb.restore
datasets.load_dataset huggingface_hub.snapshot_download
"""

# The package's own modules: its shell, and what they have only borrowed.
BORROWED = """
tandem.config.build tandem.config.building.build tandem.config.building.make
tandem.config.building.functools.partial tandem.config.plugins.importlib.import_module
tandem.config.plugins.load_plugins tandem.config.composition.compose
tandem.config.composition.os.system tandem.launch.run.run tandem.record.RunRecord
tandem.record.durable.replace
tandem.record.checkpoint.save tandem.record.manifest.subprocess.run
tandem.losses.reduction.torch.load
tandem.losses.reduction.Tensor tandem.losses.policy.Tensor tandem.algorithm.algorithm.dataclass
tandem.algorithm.algorithm.Callable tandem.algorithm.algorithm.cached_property tandem.data.rows.Path
tandem.data.rows.json.load tandem.record.mirrors.Path tandem.advantages.group.torch.hub.load tandem
tandem.algorithm.algorithm tandem.algorithm.algorithm.Algorithm.experience experiments os
system config_parts.borrowed
config_parts.hidden_open config_parts.instance config_parts.doubled config_parts.partial
config_parts.Path config_parts.Path.write_text config_parts.os.system config_parts.os
config_parts._private config_parts.Any config_parts.__loader__ config_parts.__builtins__
config_parts.dataclass config_parts.Square.__init__
"""

TARGETS = [*FOREIGN.split(), *BORROWED.split()]


def test_the_corpus_is_large():
    assert len(set(TARGETS)) >= 100


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("partial", [False, True])
def test_a_foreign_target_is_refused_and_not_called(target, partial, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=r"^data: ") as refused:
        build({"_target_": target, "_partial_": partial, "file": str(canary)}, "data")
    assert "\n" not in str(refused.value)
    assert canary.read_text() == "alive"
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("module", ["antigravity", "this", "turtle", "idlelib", "lib2to3"])
def test_a_foreign_target_is_refused_before_it_is_imported(module):
    assert module not in sys.modules
    with pytest.raises(ConfigError):
        resolve(f"{module}.anything", "data")
    assert module not in sys.modules


def test_a_foreign_target_is_refused_at_any_depth():
    inner = {"_target_": "os.system", "command": "true"}
    outer = {"_target_": "config_parts.everything", "anything": {"deep": [{"er": inner}]}}
    with pytest.raises(ConfigError, match=r"^data\.anything\.deep\.0\.er: os\.system is not"):
        build(outer, "data")


def test_a_file_written_by_one_node_cannot_be_run_by_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write = {"_target_": "pathlib.Path.write_text", "data": "def f(): open('canary', 'w')"}
    with pytest.raises(ConfigError):
        build({"a": write, "b": {"_target_": "zz_module.f"}})
    Path("zz_module.py").write_text("open('canary', 'w')\ndef f(): pass")
    with pytest.raises(ConfigError, match="not among the targets"):
        build({"_target_": "zz_module.f"})
    assert not Path("canary").exists()


@pytest.mark.parametrize("name", ["torch", "transformers.models", "numpy", "os", "json", "tandem"])
def test_a_library_is_no_plugin(name):
    with pytest.raises(ConfigError, match=rf"^plugins: {name} is a library"):
        load_plugins([name])


def test_every_listed_class_can_be_had():
    for path in sorted(LIBRARY):
        if path.startswith(("torch", "lightning")):
            assert resolve(path, "optimizer").__name__ == path.rpartition(".")[2]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "tandem.losses.reduction.token_men",
            "loss: there is no tandem.losses.reduction.token_men: did you mean "
            "tandem.losses.reduction.token_mean?",
        ),
        (
            "tandem.losses.polcy.ppo",
            "loss: there is no module tandem.losses.polcy, which tandem.losses.polcy.ppo names",
        ),
        (
            "torch.optim.Adamw",
            "loss: torch.optim.Adamw is not among the targets that a configuration may name",
        ),
    ],
)
def test_a_misspelt_target_is_one_line(target, message):
    with pytest.raises(ConfigError) as refused:
        resolve(target, "loss")
    assert str(refused.value) == message


def test_no_other_file_makes_objects_of_a_configuration():
    source = Path(__file__).parents[2] / "src" / "tandem"
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert "instantiate(" not in text, path
        assert "hydra.utils" not in text, path
