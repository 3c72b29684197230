"""Groups of the ranks of a node, and of ranks with the same place on their nodes."""

from __future__ import annotations

from phalanx.comm.collectives.lanes import ranks_by_node
from phalanx.comm.group import Group


def node_group(group: Group) -> Group:
    """Return a group of the members on this rank's node. Collective in `group`."""
    node = group.nodes[group.rank]
    members = [rank for rank, other in enumerate(group.nodes) if other == node]
    return group.subgroup(members, name="node", tag=min(members))


def lane_group(group: Group) -> Group:
    """Return a group of the members with this rank's place on their nodes, which have as many
    members each. Collective in `group`."""
    nodes = ranks_by_node(group.nodes)
    place = next(ranks.index(group.rank) for ranks in nodes if group.rank in ranks)
    return group.subgroup([ranks[place] for ranks in nodes], name="lane", tag=place)
