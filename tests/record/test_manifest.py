import subprocess
from pathlib import Path

import pytest

from tandem.record.manifest import new_manifest, scrub, start

ROOT = Path(__file__).parents[2]
TELLING = [
    "logger.api_key=abc123",
    "'logger.api_key=abc123'",
    "+reward.hf_token=abc123",
    "token=abc123",
    "judge.token=abc123",
    "--password abc123",
    "--api-key abc123",
    "client_secret=abc123",
    '+judge={url:http://x,api_key:"abc123"}',
    "https://user:abc123@example.org/data",
    "http://abc123@example.org",
    "http://example.org/get?access_token=abc123&n=3",
    "judge:\n  api_key: abc123\n  url: x",
    "- password: abc123",
]
HARMLESS = [
    "num_tokens=128",
    "max_tokens_per_microbatch=4096",
    "use_cls_token=true",
    "tokenizer: char",
    "pad_token: <|endoftext|>",
    "TOKENIZERS_PARALLELISM=false",
    "key: slot",
    "reward.keys=[a,b]",
    "system: Keep the password: say no secret token.",
    "mail a@b.org, see https://example.org/x@y",
    "logger.api_key=null",
    "api_key: ${oc.env:WANDB_API_KEY}",
]


@pytest.mark.parametrize("text", TELLING)
def test_a_secret_in_a_place_for_secrets_is_hidden(text):
    got = scrub(text, {})
    assert "abc123" not in got
    assert "<redacted>" in got


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays(text):
    assert scrub(text, {"TOKENIZERS_PARALLELISM": "false", "N_KEYS": "128"}) == text


def test_values_of_secret_variables_are_hidden_wherever_they_stand():
    environment = {"MY_API_KEY": "swordfish", "DB_PASSWORD": "swordfish-long", "HOME": "/home/me"}
    got = scrub("run /home/me swordfish xswordfish-longx", environment)
    assert got == "run /home/me <redacted> x<redacted>x"


def test_a_redacted_configuration_is_still_yaml():
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml({"judge": {"api_key": "abc123", "url": "https://me:pw@example.org"}})
    got = OmegaConf.create(scrub(text, {}))
    assert got == {"judge": {"api_key": "<redacted>", "url": "https://<redacted>@example.org"}}


def test_a_start_says_what_ran(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "swordfish")
    said = start(["train.py", "seed=1", "note=a swordfish b"])
    assert said["command"] == "train.py seed=1 'note=a <redacted> b'"
    assert said["packages"]["torch"].startswith("2.")
    assert said["hardware"]["cores"] >= 1


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_a_start_names_the_commit():
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert start([])["code"]["commit"] == head.stdout.strip()


def test_runs_have_ids_of_their_own():
    assert new_manifest(0)["id"] != new_manifest(0)["id"]
