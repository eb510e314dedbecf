import pytest
from small_language import small, train_briefly


@pytest.fixture(scope="session")
def learned():
    """Weights of `small` after a few steps."""
    policy = train_briefly(small())
    return {name: value.clone() for name, value in policy.weights().items()}


@pytest.fixture
def policy(learned):
    policy = small()
    policy.load_weights(learned)
    return policy
