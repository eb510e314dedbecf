import pytest

from tandem.policies.language.tiny_lm import tiny_lm


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> str:
    """A small Qwen3 for a server and a policy."""
    path = tmp_path_factory.mktemp("served")
    for part in tiny_lm(seed=0, hidden_size=32, num_layers=1, head_dim=8):
        part.save_pretrained(path)
    return str(path)
