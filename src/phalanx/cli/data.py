"""`phalanx data`: list, fetch, pack and verify data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.progress import DownloadColumn, TransferSpeedColumn

from phalanx.cli.lazy import add_command
from phalanx.cli.progress_bars import ProgressBars
from phalanx.data.datasets.catalog import fetch_folder
from phalanx.data.datasets.inventory import inventory
from phalanx.data.published.fetch_mnist import TIMEOUT_S, fetch_mnist
from phalanx.data.published.file_sets import MNIST_MIRRORS

app = App(name="data", help="List, fetch, pack and verify data sets.")
add_command(app, "pack", "phalanx.cli.data_pack:pack_data")
add_command(app, "verify", "phalanx.cli.data_pack:verify_data")


@app.command
def fetch(
    name: Literal["mnist"],
    *,
    data_root: Path | None = None,
    mirror: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Download a data set and verify it; an interrupted download resumes.

    For example:

        phalanx data fetch mnist

        phalanx data fetch mnist --data-root data --timeout-s 60

    Parameters
    ----------
    name
        The data set.
    data_root
        Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder.
    mirror
        Address of a web folder with the files, asked instead of the public mirrors. Repeatable.
    timeout_s
        Turn to the next mirror when one is silent this long.
    """
    folder = fetch_folder(data_root)
    with ProgressBars(DownloadColumn(), TransferSpeedColumn()) as bars:
        fetch_mnist(folder, bars, mirrors=mirror or MNIST_MIRRORS, timeout_s=timeout_s)
    print(f"{name}: complete and verified in {folder}")


@app.command(name="list")
def list_holdings(*, data_root: Path | None = None) -> None:
    """Show every data set: number of samples, whether its files are as published, and their folder.

    For example:

        phalanx data list

        phalanx data list --data-root data

    Parameters
    ----------
    data_root
        Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder.
    """
    holdings = inventory(data_root)
    width = max(len(holding.state) for holding in holdings)
    print(f"{'data':8}{'training':>8}{'validation':>12}  {'state':{width}}  where")
    for holding in holdings:
        print(
            f"{holding.name:8}{holding.num_train_samples:8}{holding.num_validation_samples:12}  "
            f"{holding.state:{width}}  {holding.where}"
        )
