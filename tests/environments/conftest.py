import pytest
from small_language import small, train_briefly


@pytest.fixture(scope="session")
def learned():
    """The weights of a small policy after a few steps."""
    return {name: value.clone() for name, value in train_briefly(small()).weights().items()}
