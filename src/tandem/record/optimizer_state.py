"""Optimiser state as named tensors and JSON, and back.

Tensors are keyed `field/parameter name` (`exp_avg/layers.0.weight`) or `group/index/field`;
numbers, lists and names are JSON. It works for optimisers whose state is tensors and JSON values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from tandem import distributed

GROUP = "group"

Named = Mapping[str, Parameter]


def optimizer_state(optimizer: Optimizer, names: Named) -> tuple[dict[str, Tensor], dict]:
    """Tensors and JSON from which `load_optimizer_state` continues with bit-identical updates.

    Of any shape [...].
    """
    name_of = _name_of(optimizer, names)
    tensors: dict[str, Tensor] = {}
    state: dict[str, dict] = {}
    groups: list[dict] = []
    for parameter, fields in optimizer.state.items():
        name = name_of[parameter]
        own, state[name] = _split(fields)
        tensors |= {f"{field}/{name}": x for field, x in own.items()}
    for index, group in enumerate(optimizer.param_groups):
        numbers = {field: x for field, x in group.items() if field != "params"}
        own, plain = _split(numbers)
        tensors |= {f"{GROUP}/{index}/{field}": x for field, x in own.items()}
        groups.append({"params": [name_of[p] for p in group["params"]], "fields": plain})
    return _unshare(tensors), {"state": state, "groups": groups}


def refuse_unsaved(optimizer: Optimizer) -> None:
    """Raise ValueError for state that `optimizer_state` cannot write, such as a list of tensors."""
    held = [("self.state[parameter]", fields) for fields in optimizer.state.values()]
    for group in optimizer.param_groups:
        held.append(("self.param_groups", {x: group[x] for x in group if x != "params"}))
    for where, fields in held:
        for name, value in _split(fields)[1].items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise ValueError(
                    f"{type(optimizer).__name__} has {where}[{name!r}] of type "
                    f"{type(value).__name__}, which no checkpoint can hold ({error}); keep tensors "
                    f"directly in {where}, or set another optimizer"
                ) from error


def _split(fields: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The fields that are tensors, and the others."""
    tensors = {name: x for name, x in fields.items() if isinstance(x, Tensor)}
    return tensors, {name: x for name, x in fields.items() if name not in tensors}


def _unshare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with shared ones copied, such as a table of levels: a file holds none twice."""
    seen: set[int] = set()
    for name, x in tensors.items():
        if distributed.is_sharded(x):  # gathering it makes a new tensor
            continue
        pointer = x.untyped_storage().data_ptr()
        tensors[name] = x.clone() if pointer in seen else x
        seen.add(pointer)
    return tensors


def load_optimizer_state(
    optimizer: Optimizer, names: Named, tensors: Mapping[str, Tensor], state: Mapping
) -> None:
    """Put a saved state into an optimiser of the same groups, on the devices of its parameters.

    Of any shape [...].
    """
    name_of = _name_of(optimizer, names)
    _same_groups(optimizer, name_of, state["groups"])
    for group, saved in zip(optimizer.param_groups, state["groups"], strict=True):
        group |= {field: _restore_type(group.get(field), x) for field, x in saved["fields"].items()}
    optimizer.state.clear()
    for name, fields in state["state"].items():
        optimizer.state[names[name]] = dict(fields)
    for key, value in tensors.items():
        field, _, name = key.partition("/")
        if field == GROUP:
            index, _, number = name.partition("/")
            optimizer.param_groups[int(index)][number].copy_(value)
        else:
            optimizer.state[names[name]][field] = _copy_aligned(
                names[name], field, value, optimizer
            )


def _name_of(optimizer: Optimizer, names: Named) -> dict[Parameter, str]:
    name_of = {parameter: name for name, parameter in names.items()}
    nameless = [p for group in optimizer.param_groups for p in group["params"] if p not in name_of]
    if nameless:
        shapes = ", ".join(str(tuple(p.shape)) for p in nameless[:3])
        raise ValueError(
            f"{len(nameless)} parameters of the optimizer have no name, of shapes {shapes}"
        )
    return name_of


def _same_groups(optimizer: Optimizer, name_of: Mapping, saved: list[dict]) -> None:
    have = [[name_of[p] for p in group["params"]] for group in optimizer.param_groups]
    want = [group["params"] for group in saved]
    if have != want:
        raise ValueError(
            f"the checkpoint's optimizer has groups of {[len(g) for g in want]} parameters, "
            f"this one of {[len(g) for g in have]}, or their names differ; "
            "resume with the configuration of the run"
        )


def _restore_type(present: object, value: object) -> object:
    """The value, as a tuple where the optimiser has one: JSON has no tuples."""
    return tuple(value) if isinstance(present, tuple) else value


def _copy_aligned(parameter: Parameter, field: str, value: Tensor, optimizer: Optimizer) -> Tensor:
    """A copy aligned as the optimiser would have made it: kernels round by alignment."""
    if distributed.is_sharded(parameter) and value.shape == parameter.shape and field != "step":
        return distributed.shard_like(parameter, value)
    if value.shape == parameter.shape and field != "step":
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
    stays = field == "step" and not _steps_on_device(parameter, optimizer)
    device = torch.device("cpu") if stays else parameter.device
    return torch.empty(value.shape, dtype=value.dtype, device=device).copy_(value)


def _steps_on_device(parameter: Parameter, optimizer: Optimizer) -> bool:
    """torch counts steps on the CPU unless the update is one kernel (fused) or one graph."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return bool(group.get("fused") or group.get("capturable"))
