"""`phalanx bench io`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.job import new_folder, run_io
from phalanx.bench.io.scaling import profile_text
from phalanx.cli.as_json import print_measurement
from phalanx.cli.console import Json, interruption_noted, new_console
from phalanx.cli.hosts import HostFile, Hosts, take_hosts
from phalanx.cli.preflight import Preflight, preflight_nodes
from phalanx.errors import UserError
from phalanx.jobs.record import this_command


def io(
    *,
    config: Annotated[  # frozen, so it may be a default
        IoConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = IoConfig(),  # noqa: B008
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
    print_profile: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure whether storage can keep an accelerator busy, and in which format.

    Writes data shaped like that of a real training, loads it ahead of an emulated accelerator, and
    measures samples/s, waits and utilisation, compared with a plain read and PyTorch's DataLoader.
    Ends with a table, findings and a page, and removes the data.

    For example:

        phalanx bench io

        phalanx bench io --profile unet3d --accelerator h100 --formats npy tar --readers 1 2 4

        phalanx bench io --profile mine.yaml --cache cold --data-dir /mnt/scratch --keep

    Parameters
    ----------
    print_profile
        Print the profile as a YAML file to begin one's own with, and measure nothing.
    """
    if print_profile:
        print(profile_text(config.profile), end="")
        return
    console = new_console(json_)
    if max(config.ranks) == 1 and (hosts is not None or hostfile is not None):
        raise UserError("nodes are named, but there is only one rank: add --ranks 1 2 4")
    if max(config.ranks) > 1:
        take_hosts(hosts, hostfile, console, max(config.ranks))
    folder = config.output or new_folder(config)
    console.print(f"{config.title}\nrecords in {folder}", markup=False)
    if preflight and max(config.ranks) > 1:
        preflight_nodes(max(config.ranks), console, folders=[folder, config.data_dir])
    with interruption_noted(console, f"records in {folder}"):
        run_io(config, folder, command=this_command(), console=console)
    print_measurement(folder, console, json_)
