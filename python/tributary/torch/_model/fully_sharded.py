"""Along which dimensions of a mesh torch's ``fully_shard`` has sharded a model."""

from __future__ import annotations

from typing import Any

import torch

from tributary.torch._model.slots import is_split


def dimensions_of(model: Any) -> list[str]:
    """Their names, of all modules of the model that are fully sharded.

    Ranks along them see data of their own, and ``fully_shard`` takes the mean of their gradients.

    Args:
        model: or its parameters, if none is a DTensor.

    Raises:
        TypeError: a module was sharded over a mesh whose dimensions have no names; or the code that split a parameter
            cannot be known without its module.
    """
    if not isinstance(model, torch.nn.Module):
        if any(is_split(item if torch.is_tensor(item) else item[1]) for item in model):
            raise TypeError(
                "parameters that are DTensors came without their modules, which say whether fully_shard() has split "
                "them: give DistributedOptimizer the model itself (several models: as one torch.nn.ModuleDict)"
            )
        return []
    found: list[str] = []
    for name, module in model.named_modules():
        for mesh_info in _mesh_infos(module):
            said = getattr(mesh_info, "dp_mesh_dims", None)  # else the mesh has no other dimensions
            names = mesh_info.mesh.mesh_dim_names if said is None else (*said.replicate_names, *said.shard_names)
            if not names:
                raise TypeError(
                    f"fully_shard() had no mesh whose dimensions have names for {name or 'the model'}: give "
                    "fully_shard(..., mesh=mesh['fsdp']) a part of the mesh that DistributedOptimizer gets"
                )
            found += [one for one in names if one not in found]
    return found


def _mesh_infos(module: torch.nn.Module) -> list[Any]:
    """Meshes of the module's own parameters, as ``fully_shard`` has split them. torch shows them nowhere else."""
    if not hasattr(module, "_get_fsdp_state"):
        return []
    state = module._get_fsdp_state()
    groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
    return [group.mesh_info for group in groups if group is not None]
