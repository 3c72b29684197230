"""The page of a plan, against its record."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from selenium.webdriver import Chrome

from phalanx.errors import UserError
from phalanx.parallel.options import StrategyOptions
from phalanx.plan.imagined_run import write_imagined_run
from phalanx.plan.machine import Network
from phalanx.plan.measured_rows import MeasuredRow
from phalanx.plan.predict import Target
from phalanx.plan.record import make_plan
from phalanx.records.files import write_record
from phalanx.records.plan import Plan
from phalanx.report.build import Content, content_of
from phalanx.report.content import Table
from phalanx.report.folder import newest_folder
from phalanx.report.page import write_report
from tests.plan.made_profile import layered_profile, machine, profile
from tests.report import browser
from tests.report.made_view import check_claims, rows_of

TARGET = Target(
    machine=machine(price_per_node_hour=2.0, nodes=4, memory_gib_per_rank=16.0),
    ranks_per_node=2,
    speed=1.5,
    is_same_processor=False,
    epochs=4,
)
COUNTS = [1, 2, 4, 8, 16]
ROWS = [MeasuredRow(1, 8e-3), MeasuredRow(4, 3e-3)]


def made(target: Target = TARGET, *, with_layouts: bool = False, **changes: Any) -> Plan:
    source = layered_profile() if with_layouts else profile()
    plan = make_plan(source, target, COUNTS, ROWS, command="c", with_layouts=with_layouts)
    return msgspec.structs.replace(plan, **changes)


def content(folder: Path, plan: Plan) -> Content:
    write_record(folder, plan)
    return content_of(folder)


def table(found: Content, title: str) -> list[dict[str, str]]:
    (one,) = [each for each in found.tables if each.title == title]
    assert isinstance(one, Table)
    return rows_of(one)


def test_predictions_stand_beside_what_was_measured(tmp_path: Path) -> None:
    plan = made()
    found = content(tmp_path / "plan", plan)
    rows = found.views[0].frame("beside measured")
    sources = [(row["ranks"], row["source"]) for row in rows]
    assert sources[:4] == [
        *((1, "measured here"), (1, "measured"), (1, "predicted"), (2, "predicted"))
    ]
    assert [row["ranks"] for row in rows if row["source"] == "measured"] == [1, 4]
    (four,) = [row for row in rows if row["source"] == "measured" and row["ranks"] == 4]
    one_s = plan.rows[0].step_s.median
    assert four["speed_up"] == pytest.approx(one_s / 3e-3)
    assert four["speed_up"] == pytest.approx(4 * four["efficiency"])
    shown = [row["row"] for row in table(found, "Scaling")]
    assert shown == [row["source"] for row in rows]


def test_every_predicted_figure_has_its_range(tmp_path: Path) -> None:
    found = content(tmp_path / "plan", made())
    for row in table(found, "Scaling"):
        has_range = ["–" in row[name] and "(" in row[name] for name in ("step", "whole training")]
        assert has_range == [row["row"] == "predicted"] * 2
    check_claims(found)
    assert found.headline.startswith("By the median ")
    assert all(figure.beside.startswith("90 %: ") for figure in found.key_figures)
    said = dict(found.claims)
    assert said["Most help at 16 ranks"].endswith(" ×, by the median.")
    assert "±" in said["Not sure at 16 ranks"]
    assert "a minute on 2 nodes of hpc" in said["Mends most"]


def test_what_is_doubtful_comes_first(tmp_path: Path) -> None:
    found = content(tmp_path / "plan", made(disturbed=0.2))
    assert found.notice.startswith("calibration disturbed: equal steps differ by ± 20 %")
    assert "EXTRAPOLATED: another processor" in found.notice
    assert found.lead.startswith("Predicted, not run: mlp on digits, adam, --strategy mpi")
    labels = [label for label, _ in found.conditions]
    assert labels[:2] == ["Calibrated on", "Planned for"]
    told = " ".join(text for _, text in found.conditions)
    assert "phalanx study large-batch" in told
    assert "phalanx plan --validate" in told
    beyond = [row["remark"] for row in table(found, "Scaling") if row["ranks"] == "16"]
    assert beyond == ["as if it had more than 4 nodes"]


def test_the_parts_of_a_training_are_all_of_it(tmp_path: Path) -> None:
    plan = made()
    rows = content(tmp_path / "plan", plan).views[0].frame("parts")
    assert len(rows) == 4 * len(COUNTS)
    assert {round(row["end"], 6) for row in rows if row["part"] == "outside the steps"} == {100.0}
    outside = [row["share"] for row in rows if row["part"] == "outside the steps"]
    assert outside == pytest.approx([r.outside_s / r.whole_s.median for r in plan.rows])


@pytest.mark.parametrize("memory_gib", [16.0, 1e-6])
def test_layouts_come_with_what_tries_them(tmp_path: Path, memory_gib: float) -> None:
    target = replace(
        TARGET,
        machine=machine(memory_gib_per_rank=memory_gib),
        options=StrategyOptions(strategy="mpi"),
    )
    plan = made(target, with_layouts=True)
    found = content(tmp_path / "plan", plan)
    rows, said = table(found, "Layouts"), dict(found.claims)
    assert [row["options"] for row in rows] == [each.options for each in plan.layouts[:12]]
    tried = [row["to try it"] for row in rows if row.get("to try it", "–") != "–"]
    if memory_gib > 1:
        assert len(tried) == 3 and tried[0].startswith("phalanx train --")
        assert said["Best layout of 16 ranks"].startswith(plan.layouts[0].options)
    else:
        assert not tried and "comes nearest and lacks" in said["Nothing fits"]
        assert all("too much for a rank" in row["remark"] for row in rows)


def test_a_plan_that_does_not_pay(tmp_path: Path) -> None:
    slow = machine(network=Network(bandwidth_bytes_per_s=1e5, latency_s=1e-2))
    plan = made(replace(TARGET, machine=slow))
    plan = msgspec.structs.replace(plan, rows=[plan.rows[0], *plan.rows[3:]])
    found = content(tmp_path / "plan", plan)
    assert found.headline.startswith("By the median not worth it: 8 ranks, ")


def test_the_newest_plan_is_found_and_a_damaged_one_named(tmp_path: Path) -> None:
    folder = tmp_path / "plan" / "one"
    write_record(folder, made())
    assert newest_folder(tmp_path) == folder
    (folder / "plan.json").write_text("{")
    with pytest.raises(UserError, match=r"plan\.json is damaged"):
        content_of(folder)


@browser.NEEDED[0]
@browser.NEEDED[1]
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_in_a_browser(chrome: Chrome, tmp_path: Path, width: int, scheme: str) -> None:
    write_record(tmp_path / "plan", made(with_layouts=True))
    page = write_report(tmp_path / "plan")
    assert browser.show_whole(chrome, page, width=width, scheme=scheme) == 5
    assert browser.num_marks(chrome, "speed-up-1", "point") == len(COUNTS) + len(ROWS) + 1


@browser.NEEDED[0]
@browser.NEEDED[1]
def test_an_imagined_run_in_a_browser(chrome: Chrome, tmp_path: Path) -> None:
    """One run on two nodes: shares of links without an interval once had no scale."""
    write_imagined_run(tmp_path / "run", profile(), TARGET, 4, command="c")
    page = write_report(tmp_path / "run")
    assert browser.show_whole(chrome, page, width=390, scheme="light") == 3
