"""Share of a step by link: divided as it was measured, and told only where it was."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from phalanx.report.measures import LinkShares, RunMeasure, measure_run
from phalanx.report.pages.scaling import MoreNodes
from phalanx.report.rank_measures import RankMeasure, measure_rank
from phalanx.report.values import View
from tests.report.made_events import epoch, set_otherwise, step
from tests.report.made_study import Job, run_of
from tests.report.made_view import known, measured, on_nodes, rows_of, table_of, texts, view_of

COMPUTING_S = 0.6
Times = tuple[float, float | None, float | None]
"""Communication of a step, and its exchanges on the node and between nodes."""


def rank_of(steps: Sequence[Times], *, network_bytes: int | None, formula: int = 0) -> RankMeasure:
    """One epoch of a rank that sends 1,000 bytes."""
    events = [
        step(
            number,
            forward_s=COMPUTING_S,
            communication_s=communication_s,
            node_s=node_s,
            network_s=network_s,
        )
        for number, (communication_s, node_s, network_s) in enumerate(steps)
    ]
    sent_bytes = None if network_bytes is None else 1000
    end = epoch(sent_bytes=sent_bytes, network_sent_bytes=network_bytes, formula_bytes=formula)
    return measure_rank([*events, end])


def run_with(*ranks: RankMeasure, strategy: str = "mpi", nodes: int = 2) -> LinkShares | None:
    run = set_otherwise(run_of(Job("mlp", strategy, ranks=len(ranks)), "s"), nodes=nodes)
    return measure_run(run, dict(enumerate(ranks))).links


def test_who_comes_last_waits_for_nobody() -> None:
    """In either step another rank is last; its exchange goes by what it has measured."""
    found = run_with(
        rank_of([(0.4, 0.3, 0.1), (0.2, 0.05, 0.15)], network_bytes=600),
        rank_of([(0.2, 0.15, 0.05), (0.4, 0.2, 0.2)], network_bytes=200),
    )
    assert found is not None
    step_s = COMPUTING_S + 0.3
    assert found.step_s == pytest.approx(step_s)
    assert found.waiting == pytest.approx(0.1 / step_s)
    assert found.node == pytest.approx((0.15 + 0.05) / 2 / step_s)
    assert found.network == pytest.approx((0.05 + 0.15) / 2 / step_s)
    assert found.untold is None
    assert (found.network_bytes, found.is_formula) == (800 / 2 / 2, False)


def test_hidden_exchange_divides_what_is_seen_of_it() -> None:
    ranks = [rank_of([(0.2, 0.5, 1.5)], network_bytes=0) for _ in range(2)]
    found = run_with(*ranks)
    assert found is not None
    assert found.network == pytest.approx(3 * (found.node or 0.0)) == pytest.approx(0.15 / 0.8)


def test_of_one_node_all_exchange_is_in_the_node() -> None:
    ranks = [rank_of([(0.2, None, None)], network_bytes=None) for _ in range(2)]
    found = run_with(*ranks, nodes=1)
    assert found is not None
    assert found.node == pytest.approx(0.2 / 0.8)
    assert (found.network, found.waiting, found.network_bytes) == (0.0, 0.0, None)


def test_what_was_not_measured_is_not_told() -> None:
    """Gloo, the MPI library's own algorithms, records of an older Phalanx."""
    ranks = [rank_of([(0.2 + late, None, None)], network_bytes=None) for late in (0.0, 0.2)]
    found = run_with(*ranks, strategy="gloo")
    assert found is not None
    assert (found.node, found.network, found.network_bytes) == (None, None, None)
    assert found.untold == pytest.approx(0.2 / 0.9)
    assert found.waiting == pytest.approx(0.1 / 0.9)


def test_strategies_that_do_not_exchange_in_step_have_no_shares() -> None:
    ranks = [rank_of([(0.2, 0.1, 0.1)], network_bytes=0) for _ in range(2)]
    assert run_with(*ranks, strategy="pipeline") is None
    assert run_with(*ranks, strategy="tensor") is None
    assert run_with(ranks[0]) is None
    uneven = rank_of([(0.2, 0.1, 0.1)] * 2, network_bytes=0)
    assert run_with(ranks[0], uneven) is None


@pytest.mark.parametrize(("formula", "is_formula"), [(5, False), (1000, True)])
def test_sums_of_some_values_do_not_make_it_a_formula(formula: int, is_formula: bool) -> None:
    ranks = [rank_of([(0.2, 0.1, 0.1)], network_bytes=500, formula=formula) for _ in range(2)]
    found = run_with(*ranks)
    assert found is not None
    assert found.is_formula == is_formula


def over_nodes(*layouts: tuple[int, int, LinkShares | None]) -> list[RunMeasure]:
    """layouts: ranks, nodes, shares; each with three seeds, one percent apart."""
    runs: list[RunMeasure] = []
    for ranks, nodes, shares in layouts:
        for seed, factor in enumerate((0.99, 1.0, 1.01)):
            run = measured(Job("mlp", "mpi", ranks=ranks, seed=seed), nodes * factor)
            if shares is not None and shares.network is not None:
                shares = replace(shares, network=shares.network * factor)
            runs.append(known(on_nodes(run, nodes), links=shares))
    return runs


def links_of(view: View) -> list[dict[str, str]]:
    table = table_of(view, "Links")
    return rows_of(table) if table else []


ONE_NODE = LinkShares(step_s=0.1, node=0.1, network=0.0, untold=None, waiting=0.05)
TWO_NODES = LinkShares(
    step_s=0.2, node=0.05, network=0.4, untold=None, waiting=0.1, network_bytes=2**20
)


def test_shares_have_intervals_in_sentence_table_and_chart() -> None:
    view = view_of(over_nodes((2, 1, ONE_NODE), (2, 2, TWO_NODES)))
    (text,) = texts(view, MoreNodes)
    assert text.startswith("MPI on 2 ranks over 2 nodes: 2.00× slower than MPI on 2 ranks (95 % CI")
    _, row = links_of(view)
    share = row["between nodes"]
    assert share.startswith("39.7 % (39.4 to ")
    assert f"exchange between nodes takes {share} of a step" in text
    assert (row["nodes"], row["step (ms)"]) == ("2", "200")
    assert row["sent between nodes"] == "1.00 MB"
    assert "link not measured" not in row
    rows = view.frame("links")
    assert [row["link"] for row in rows] == 2 * [
        "in the node", "between nodes", "waiting for others",
    ]  # fmt: skip
    assert 0.38 < rows[4]["share_low"] < rows[4]["share"] < rows[4]["share_high"] < 0.42


@pytest.mark.parametrize("local_ranks", [1, 2])
def test_the_worth_of_a_second_node_with_its_own_ranks(local_ranks: int) -> None:
    """With one rank a node the study never said it: no run has the same ranks on fewer nodes."""
    layouts = (local_ranks, 1, ONE_NODE), (2 * local_ranks, 2, TWO_NODES)
    (text,) = texts(view_of(over_nodes(*layouts)), MoreNodes)
    ranks = f"{local_ranks} rank{'s' * (local_ranks > 1)}"
    assert text.startswith(f"MPI on {2 * local_ranks} ranks over 2 nodes: 2.00× slower than MPI on")
    assert f"MPI on {ranks} (95 % CI" in text
    assert "; exchange between nodes takes" in text


def test_ranks_that_fit_on_no_single_node_are_not_compared() -> None:
    view = view_of(over_nodes((3, 1, ONE_NODE), (4, 2, TWO_NODES)))
    (text,) = texts(view, MoreNodes)
    assert text.startswith("MPI on 4 ranks over 2 nodes was not run on fewer nodes: exchange")


def test_of_one_node_nothing_is_shown() -> None:
    view = view_of(over_nodes((2, 1, ONE_NODE)))
    assert view.frame("links") == []
    assert links_of(view) == []
    assert texts(view, MoreNodes) == []


def test_a_run_without_a_measure_hides_the_share_of_its_cell() -> None:
    first, *others = over_nodes((2, 2, TWO_NODES))
    unknown = known(first, links=replace(TWO_NODES, network=None))
    (cell,) = view_of([unknown, *others]).frame("linked")
    assert cell["link_network"] is None
    (row,) = links_of(view_of([first]))
    assert row["between nodes"].endswith("(one run)")
