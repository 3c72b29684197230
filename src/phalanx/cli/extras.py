"""Packages that not everybody needs, and the command that installs them."""

from __future__ import annotations

from phalanx.errors import UserError

EXTRA_OF = {
    **dict.fromkeys(("altair", "jinja2", "vl_convert", "sklearn"), "study"),
    **dict.fromkeys(("h5py", "PIL", "pyarrow"), "data"),
}


def missing_extra(error: BaseException | None) -> UserError | None:
    """Return an error for the user if an import failed because an extra is not installed."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            if package in EXTRA_OF:
                return UserError(
                    f"this needs {package}, which is not installed: "
                    f"pip install 'phalanx[{EXTRA_OF[package]}]'"
                )
        error = error.__cause__
    return None
