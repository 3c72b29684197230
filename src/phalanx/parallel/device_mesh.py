"""The mesh as a PyTorch DeviceMesh: one process group along every axis."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from phalanx.parallel.mesh import AXES, Mesh


def device_mesh(mesh: Mesh) -> DeviceMesh:
    """Return the DeviceMesh of all ranks of the default group, with the axes' names. Collective;
    ranks are placed by `Mesh.coordinates`."""
    return init_device_mesh("cpu", mesh.shape, mesh_dim_names=AXES)
