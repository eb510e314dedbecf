"""A secret never reaches a record, whatever its name, shape or place; everything else does."""

import json

import pytest
import yaml
from omegaconf import OmegaConf

from tandem.config import compose
from tandem.record.run_record import RunRecord
from tandem.record.secrets import scrub, scrub_config, scrub_tree, scrub_words

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
    "db_passwd=abc123",
    "MY_PWD=abc123",
    "github_pat=abc123",
    "proxy_auth=abc123",
    "session_cookie=abc123",
    "aws_credentials=abc123",
    "Authorization: Bearer abc123",
    "authorization=abc123",
    "-H 'Authorization: Basic abc123'",
    '{"Authorization": "token abc123"}',
    "{'Authorization': 'Bearer abc123'}",
    "sent Bearer abc123abc123",
    "Cookie: session=abc123; id=abc123",
    "https://example.org/f?sv=1&sig=abc123",
    "https://example.org/f?key=abc123",
    "https://example.org/f?code=abc123&x=1",
    "https://s3.example.org/f?X-Amz-Signature=abc123&X-Amz-Date=2",
    "https://s3.example.org/f?X-Amz-Credential=abc123",
    "https://user:p@ss-abc123@example.org/data",
    "sk-proj-abc123abc123",
    "a sk-abc123abc123abc b",
    "hf_abc123abcdefghijklmnop",
    "ghp_abc123abcdefghijklmnop",
    "sk_" + "live_abc123abc123abc123",
    "rk_" + "test_abc123abc123abc123",
    "AIza" + "abc123-_abc123" * 2 + "abc1230",
    "npm_" + "abc123" * 6,
    "x eyJhbGciabc123.eyJzdWIiabc123.abc123-_",
    "https://hooks.slack.com/services/T0/B0/abc123",
    "x-amz-security-token=abc123",
    "wandb_key=abc123",
    "ssh_key=abc123",
    "encryption_key=abc123",
    "model.signing_key=abc123",
    "-----BEGIN RSA PRIVATE KEY-----\nabc123\n-----END RSA PRIVATE KEY-----",
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
    "reward.mine.use_auth=true",
    "reward.mine: {credentials: False}",
    "api_key: ${oc.env:WANDB_API_KEY}",
    "api_key_env: OPENAI_API_KEY",
    "author=me",
    "path=/a/b",
    "data/hf_datasets/sk-learn",
    "task-sk-based-examples",
    "pattern: x",
    "https://example.org/?page=2&sort=up",
    "key=3",
    "group_key=17",
    "signing_keyword=x",
    "max_new_tokens=64",
    "task_test_abcdefghijkl",
    "npm_config_cache=/tmp/x",
    "https://slack.com/services/help",
]


@pytest.mark.parametrize("text", TELLING)
def test_a_secret_in_a_place_for_secrets_is_hidden(text):
    got = scrub(text, {})
    assert "abc123" not in got
    assert "<redacted>" in got


@pytest.mark.parametrize(
    "word",
    [
        "+hydra.job.env_set.MY_SECRET_TOKEN=abc123",
        "++hydra.job.env_set.APIKEY=abc123",
        "'hydra.job.env_set={MY_SECRET_TOKEN: abc123}'",
    ],
)
def test_a_variable_that_a_sweep_sets_is_judged_by_its_name(word):
    assert "abc123" not in scrub_words([word], {})[0]
    assert scrub_words(["+hydra.job.env_set.A=3"], {}) == ["+hydra.job.env_set.A=3"]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays(text):
    assert scrub(text, {"TOKENIZERS_PARALLELISM": "false", "N_KEYS": "128"}) == text
    assert scrub_words([text], {}) == [text]  # nor does a resumed job repeat it


def test_values_of_secret_variables_are_hidden_wherever_they_stand():
    environment = {"MY_API_KEY": "swordfish", "DB_PASSWORD": "swordfish-long", "HOME": "/home/me"}
    got = scrub("run /home/me swordfish xswordfish-longx", environment)
    assert got == "run /home/me <redacted> x<redacted>x"


@pytest.mark.parametrize(
    "name",
    ["TOKENIZER_MODEL", "TOKENIZER_NAME", "TOKENIZED_DATA", "KEYBOARD_LAYOUT", "monkeypatch"],
)
def test_a_variable_whose_name_only_begins_like_one_of_a_secret_hides_nothing(name):
    assert scrub("model.path=Qwen/Qwen3-8B", {name: "Qwen/Qwen3-8B"}) == "model.path=Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    "name",
    [
        *("KEY", "APIKEY", "apiKey", "API_KEYS", "API_KEY_2", "API_KEY2", "KEY_ID", "accessKeyId"),
        *("SSH_KEYPASS", "SSH_PASSPHRASE", "TOKENS", "TOKEN_1"),
    ],
)
def test_a_variable_of_a_secret_hides_its_value(name):
    assert scrub("a swordfish b", {name: "swordfish"}) == "a <redacted> b"


def test_a_redacted_configuration_is_still_yaml():
    text = OmegaConf.to_yaml({"judge": {"api_key": "abc123", "url": "https://me:pw@example.org"}})
    got = OmegaConf.create(scrub(text, {}))
    assert got == {"judge": {"api_key": "<redacted>", "url": "https://<redacted>@example.org"}}


LONG = " ".join(["swordfish"] * 40)  # YAML folds it


def test_a_value_that_yaml_folds_or_breaks_into_lines_is_hidden_whole(tmp_path):
    config = {
        "seed": 0,
        "judge": {"api_key": LONG, "password": "two\nlines of swordfish", "note": f"a {LONG} b"},
        "headers": {"Authorization": f"Bearer {LONG}", "X-Cookie": LONG},
        "credentials": {"user": "swordfish", "of": ["swordfish", 12345678]},
        "overrides": [f"judge.api_key={LONG}", "reward.url=https://me:swordfish@x.org"],
        "token": None,
        "api_key_env": "OPENAI_API_KEY",
        "cookie_weight": 0.5,
        "threshold": "1e-3",
    }
    record = RunRecord(tmp_path)
    command = ["train.py", f"judge.api_key={LONG}", f"+judge={{password: '{LONG}'}}"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SOME_SECRET", LONG)
        record.begin(OmegaConf.to_yaml(config), seed=0, command=command)
    kept = OmegaConf.load(tmp_path / "config.yaml")
    manifest = (tmp_path / "manifest.json").read_text()
    assert "swordfish" not in (tmp_path / "config.yaml").read_text() + manifest
    same = ("seed", "token", "api_key_env", "cookie_weight", "threshold")
    assert {key: kept[key] for key in same} == {key: config[key] for key in same}
    assert kept.judge.note == "a <redacted> b"
    assert json.loads(manifest)["starts"][0]["command"].startswith("train.py 'judge.api_key=<red")


def test_a_configuration_without_secrets_keeps_its_bytes():
    for words in ([], ["model=tiny_flow", "algorithm=nft"], ["reward=judge"]):
        text = OmegaConf.to_yaml(compose(words))
        assert scrub_config(text, {}) == text


def test_no_key_of_tandem_looks_like_a_secret(conf_keys):
    assert len(conf_keys) > 300
    assert scrub_tree(dict.fromkeys(conf_keys, "a value"), {}) == dict.fromkeys(
        conf_keys, "a value"
    )


@pytest.fixture
def conf_keys():
    from tandem.config.composition import conf_folder

    def names(node):
        if isinstance(node, dict):
            for key, item in node.items():
                yield str(key)
                yield from names(item)

    files = conf_folder().rglob("*.yaml")
    return {name for file in files for name in names(yaml.safe_load(file.read_text()))}


def test_a_secret_in_another_spelling_is_hidden():
    assert scrub("x=sword%2Ffish%20%26", {"MY_TOKEN": "sword/fish &"}) == "x=<redacted>"


VARIABLES = "GH_PASSWD DB_PWD GITHUB_PAT HTTP_AUTH AUTHORIZATION COOKIE MY_CREDENTIALS"


@pytest.mark.parametrize("name", VARIABLES.split())
def test_names_of_variables_that_hold_secrets(name):
    assert scrub("a swordfish b", {name: "swordfish"}) == "a <redacted> b"
    assert scrub("a swordfish b", {"GIT_AUTHOR_NAME": "swordfish"}) == "a swordfish b"


def test_what_stands_after_an_option_is_hidden_and_no_other_option():
    words = ["--token", "a b", "--api-key", "--other", "x"]
    assert scrub_words(words, {}) == ["--token", "<redacted>", "--api-key", "--other", "x"]
