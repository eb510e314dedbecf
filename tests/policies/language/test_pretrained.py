import ast
import json
import shlex

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_language import NOTHING, chat_model, questions, small
from torch.testing import assert_close

from tandem.hub import refuse_pickles
from tandem.policies.language.checkpoint import without_dropout
from tandem.policies.language.policy import LanguagePolicy, Sampling
from tandem.policies.request import Request

SHORT = Request(sampling=Sampling(max_new_tokens=4))


def load(path, **options):
    policy = LanguagePolicy(path=str(path), **options)
    policy.load(SHORT)
    return policy


@pytest.fixture
def folder(tmp_path):
    small(build=chat_model).save(tmp_path / "model")
    return tmp_path / "model"


def refusal(path):
    """The message that refuses a path: a single line of limited length."""
    with pytest.raises(ValueError, match=r"model\.path") as caught:
        load(path)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line.replace(str(path), "")) < 300
    return line


def test_a_missing_folder_is_one_line():
    assert refusal("/no/such/folder") == "model.path=/no/such/folder: there is no such folder"
    assert refusal("./nothing") == "model.path=./nothing: there is no such folder"


def test_a_name_that_the_hub_does_not_give_is_one_line():
    line = refusal("nobody/never-published-this-model")
    assert line.startswith("model.path=nobody/never-published-this-model")
    assert "folder" in line


def test_a_folder_without_a_model_is_one_line(tmp_path):
    assert "cannot be loaded" in refusal(tmp_path)


def test_a_folder_without_a_tokenizer_is_one_line(folder):
    for file in folder.glob("*token*"):
        file.unlink()
    assert "tokenizer" in refusal(folder)


def test_a_file_that_is_torn_is_one_line(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "cannot be loaded" in refusal(folder)


def test_layers_without_end_are_refused_before_one_is_built(folder):
    file = folder / "config.json"
    said = json.loads(file.read_text()) | {"num_hidden_layers": 10**5, "layer_types": None}
    file.write_text(json.dumps(said))
    assert refusal(folder).endswith("its config.json has 100000 layers; the most are 1000")


def as_quantised(folder, method, **further):
    """Say in a folder's configuration that its weights are packed."""
    file = folder / "config.json"
    said = json.loads(file.read_text())
    said["quantization_config"] = {"quant_method": method, **further}
    file.write_text(json.dumps(said))


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "of_tomorrow"])
def test_weights_that_stay_packed_are_refused_before_they_are_read(folder, method):
    as_quantised(folder, method, load_in_4bit=True, bits=4)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert f"its weights are quantised by {method}, which cannot be trained" in refusal(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_8_bits_are_unpacked_and_saved_as_plain_ones(folder, tmp_path, dtype):
    plain = load_file(folder / "model.safetensors")
    packed = {}
    for name, weight in plain.items():
        packed[name] = weight.bfloat16()
        if "proj" in name:
            blocks = weight.view(weight.shape[0] // 16, 16, weight.shape[1] // 16, 16)
            scale = blocks.abs().amax((1, 3), keepdim=True) / 448
            packed[name] = (blocks / scale).view_as(weight).to(torch.float8_e4m3fn)
            packed[f"{name}_scale_inv"] = scale[:, 0, :, 0].contiguous()
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    as_quantised(folder, "fp8", weight_block_size=[16, 16], activation_scheme="dynamic")
    policy = load(folder, dtype=dtype)
    policy.save(tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == plain.keys()
    for name, weight in saved.items():
        assert weight.dtype == getattr(torch, dtype)
        assert (weight - plain[name]).abs().max() <= 0.07 * plain[name].abs().max()
    assert "quantization_config" not in json.loads((tmp_path / "saved/config.json").read_text())


def test_missing_weights_are_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert refusal(folder).endswith("lacks 1 weights, such as lm_head.weight")


def test_code_of_a_repository_is_not_run(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    config["model_type"] = "evil"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    assert "custom code" in refusal(folder)
    assert not (folder / "ran").exists()


def test_no_path_and_no_function_is_one_line():
    policy = LanguagePolicy()
    with pytest.raises(ValueError, match=r"model\.path is null"):
        policy.load(SHORT)


def test_a_model_without_a_cache_is_refused():
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=264, hidden_size=8, num_hidden_layers=1, state_size=2)
    with pytest.raises(ValueError, match="MambaForCausalLM has no past_key_values"):
        small(build=lambda: (MambaForCausalLM(config), chat_model()[1]))


def test_what_is_loaded_gives_the_bits_of_what_was_saved(tmp_path, policy):
    policy.save(tmp_path)
    again = load(tmp_path)
    assert not any(p.data_ptr() % 64 for p in again.network.parameters())
    rollout = policy.encode(questions(), key=0, slots=range(8))
    want = policy.evidence(rollout, NOTHING).logp
    assert_close(again.evidence(rollout, NOTHING).logp, want, atol=0, rtol=0)
    assert again.chat.encode(questions()) == policy.chat.encode(questions())


def test_a_path_wins_over_a_function(tmp_path, policy):
    policy.save(tmp_path)
    again = small(path=str(tmp_path))
    for name, weight in policy.weights().items():
        assert_close(again.weights()[name], weight, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("chosen", "dtype"),
    [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("auto", torch.float64)],
)
@pytest.mark.filterwarnings("ignore:bfloat16 weights")
def test_the_dtype_is_as_chosen(tmp_path, chosen, dtype):
    small(build=chat_model).double().save(tmp_path)
    policy = load(tmp_path, dtype=chosen)
    assert {p.dtype for p in policy.network.parameters()} == {dtype}


def test_attention_is_as_chosen(folder):
    assert load(folder, attn_implementation="eager").network.config._attn_implementation == "eager"
    built = small(attn_implementation="eager")
    assert built.network.config._attn_implementation == "eager"


def test_dropout_is_off_whatever_the_configuration_says(tmp_path):
    from transformers import GPT2Config

    config = without_dropout(GPT2Config())
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0, 0, 0)
    policy = small(build=lambda: (gpt2(), chat_model()[1]), gradient_checkpointing=True)
    rollout = policy.encode(questions(), key=0, slots=range(8))
    first, second = (policy.evidence(rollout, NOTHING).logp for _ in range(2))
    assert_close(first, second, atol=0, rtol=0)


def test_a_part_that_a_model_does_not_have_drops_nothing():
    from transformers import Gemma4Config

    config = without_dropout(Gemma4Config(audio_config=None))
    assert config.audio_config is None
    assert config.get_text_config().attention_dropout == 0


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=264, n_embd=16, n_layer=1, n_head=2))


def as_pickle(folder, name="pytorch_model.bin"):
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / name)
    weights.unlink()


def test_weights_in_a_pickle_are_refused_with_the_command_that_converts_them(folder):
    want = load_file(folder / "model.safetensors")
    as_pickle(folder)
    with pytest.raises(ValueError, match=r"^model\.path=\S+ has its weights in pyt\S+, a pi") as no:
        load(folder)
    assert "\n" not in str(no.value)
    *_, program, flag, script = shlex.split(str(no.value))
    assert (program, flag) == ("python", "-c")
    exec(script)
    load(folder)
    got = load_file(folder / "model.safetensors")
    assert all(torch.equal(got[name], want[name]) for name in got)


def test_the_command_that_converts_a_pickle_survives_quotes_in_a_path(tmp_path):
    folder = tmp_path / """Tom's "own" $HOME"""
    folder.mkdir()
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ValueError, match="a pickle, which runs code") as no:
        refuse_pickles(folder, key="model.path", kind="transformers.AutoModel")
    command = str(no.value).partition("convert it once: ")[2]
    calls = [
        one for one in ast.walk(ast.parse(shlex.split(command)[2])) if isinstance(one, ast.Call)
    ]
    assert [one.args[0].value for one in calls] == [str(folder)] * 2


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": []}'])
def test_an_index_that_lists_no_weights_is_named(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json lists no weights"):
        refuse_pickles(tmp_path, key="model.path", kind="transformers.AutoModel")


def test_an_index_of_safetensors_that_names_a_pickle_is_refused(folder):
    as_pickle(folder, "shard.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "shard.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"has its weights in shard\.bin, a pickle, which runs"):
        load(folder)
