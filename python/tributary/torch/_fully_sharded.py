"""Along which dimensions of a mesh torch's ``fully_shard`` has sharded a model."""

from __future__ import annotations

from typing import Any

import torch


def dimensions_of(model: Any) -> list[str]:
    """Their names, of all modules of the model that are fully sharded; of what is no module: none.

    Ranks along them see data of their own, and ``fully_shard`` takes the mean of their gradients.

    Raises:
        TypeError: a module was sharded over a mesh whose dimensions have no names.
    """
    found: list[str] = []
    for name, module in model.named_modules() if isinstance(model, torch.nn.Module) else ():
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
    """Of what ``fully_shard`` does with the module's own parameters. torch tells it to nobody but itself."""
    if not hasattr(module, "_get_fsdp_state"):
        return []
    state = module._get_fsdp_state()
    groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
    return [group.mesh_info for group in groups if group is not None]
