"""Ranges of published tables whose bound is chosen on the other tables.

`python -m tests.plan.bounds` writes the file that the page of validation takes its table from.
"""

import statistics
from pathlib import Path

import msgspec

from phalanx.plan.published import grouped, predicted_rows
from phalanx.plan.validation import ErrorTable, Judged, Measured, coverage, judge_row

FILE = Path(__file__).parents[2] / "benchmarks" / "plan_validation" / "bounds.json"
BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6)
"""Smallest shares of a stated bandwidth that are tried as what programs reach."""
NOTE = (
    "bound: smallest share of a stated bandwidth that programs are taken to reach, the largest one "
    "whose ranges hold 90 % of the rows of all other tables."
)


def by_other_tables() -> tuple[ErrorTable, list[Judged]]:
    """Return the coverage of each table with the bound of the bandwidth that the others choose, and
    all rows judged so."""
    by_bound = {
        bound: [judge_row(case, case.told) for case in predicted_rows(bound)] for bound in BOUNDS
    }
    rows, found = [], []
    for table in grouped(by_bound[BOUNDS[0]], lambda each: each.group):
        held = {
            bound: statistics.fmean(each.is_inside for each in judged if each.group != table)
            for bound, judged in by_bound.items()
        }
        chosen = max(
            (b for b in BOUNDS if held[b] >= 0.9), default=max(held, key=lambda b: held[b])
        )
        left = [each for each in by_bound[chosen] if each.group == table]
        found += left
        rows.append([table, f"{len(left)}", f"{chosen:g}", *coverage(left)])
    rows.append(["all", f"{len(found)}", "", *coverage(found)])
    header = ["table left out", "rows", "bound", "inside", "width"]
    title = "Ranges whose bound was chosen on the other tables"
    return ErrorTable(title, header, rows, NOTE), found


if __name__ == "__main__":
    content = msgspec.json.encode(Measured(tables=[by_other_tables()[0]]))
    FILE.write_bytes(msgspec.json.format(content, indent=1) + b"\n")
