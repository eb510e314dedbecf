import pytest
from small_language import small, trained


@pytest.fixture(scope="session")
def learned():
    """The weights of a small policy after a few steps."""
    return {name: value.clone() for name, value in trained(small()).weights().items()}
