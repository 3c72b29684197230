"""A rank of a notebook's function: `python -m phalanx.run.notebook_rank FOLDER`."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

FUNCTION = "function"
"""File of the function, and of the paths of its modules, in the folder."""


def main(folder: Path) -> None:
    """Call the function, and write its result."""
    from phalanx.errors import UserError
    from phalanx.jobs.detect import detect

    paths, function = pickle.loads((folder / FUNCTION).read_bytes())
    sys.path += [path for path in paths if path not in sys.path]
    result = pickle.loads(function)()
    try:
        import cloudpickle

        content = cloudpickle.dumps(result)
    except (TypeError, pickle.PicklingError) as error:
        raise UserError(f"a result of {type(result).__name__} cannot be sent: {error}") from error
    launched = detect(os.environ)
    path = folder / f"result-{launched.rank if launched else 0}"
    part = path.with_name(f".{path.name}")
    part.write_bytes(content)
    part.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
