"""`model.liger=true` is refused before anything is loaded if its kernels cannot run."""

import pytest
import torch
from small_language import small


def never():
    raise AssertionError("nothing is loaded")


def test_without_a_gpu_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^model\.liger=true: .* GPU, .* model\.liger=false$"):
        small(liger=True, build=never)


def test_without_its_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("tandem.policies.language.kernels.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install -e "\.\[liger\]"$'):
        small(liger=True, build=never)
