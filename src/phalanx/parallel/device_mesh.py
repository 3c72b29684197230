"""The mesh as PyTorch knows it: a process group along every axis."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from phalanx.parallel.mesh import AXES, Mesh


def device_mesh(mesh: Mesh) -> DeviceMesh:
    """Of all ranks of the default group, with the axes' names. Collective; ranks stand where
    `Mesh.coordinates` says."""
    return init_device_mesh("cpu", mesh.shape, mesh_dim_names=AXES)
