"""Options that every study of trainings has, besides what it compares.

Annotations here are objects, not strings: the command line reads those of the class that inherits
these options, in whose module the names mean nothing.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.train.options import DatasetName


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Data of a study, its folder, and how long its runs may wait."""

    dataset: DatasetName = "auto"
    """`mnist`, the embedded `digits`, or `auto`: mnist if it is found, digits if not."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    study_dir: Path | None = None
    """Folder of the study. Default: runs/NAME-…, the same for the same options, so that repeating
    the command resumes an interrupted study."""

    timeout_s: float = 300.0
    """Seconds that ranks wait for each other before their run counts as failed."""

    def passed_on(self, *names: str) -> dict[str, Any]:
        """Return what every run has by the name that it has here: the data, the time that ranks
        may wait, and the options `names`."""
        always = ("dataset", "data_root", "timeout_s")
        return {name: getattr(self, name) for name in (*always, *names)}
