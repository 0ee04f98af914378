"""The pool on a cluster of three masters: samples by hash, slots that move, a node that dies."""

import pytest
import lossfeed as lf
from redis_server import Cluster, program
from test_pool import COUNT, FAR, epochs, folder, numbers, settled  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(
    program() is None, reason="no redis-server: .ci/redis unpacks one, REDIS_SERVER names one"
)


def test_samples_are_spread_over_nodes_and_move_with_slots_and_a_dead_node_costs_none(folder, tmp_path):  # noqa: F811
    with Cluster(tmp_path / "cluster") as cluster:
        data = lf.open(folder, pool=cluster.url, **FAR)
        epochs(data)
        settled(cluster, data)
        assert all(node.keys() for node in cluster.nodes)
        before = numbers(data)
        seen = epochs(data)
        assert seen["pool_hits_total"] - before["pool_hits_total"] == COUNT and seen["pool_opened_total"] == 0
        # The client follows MOVED, and keys stay whole.
        assert cluster.move(1, 2) > 0 and cluster.nodes[1].keys() == []
        moved = epochs(data, 2)
        assert moved["pool_hits_total"] - seen["pool_hits_total"] == 2 * COUNT and moved["pool_damaged_total"] == 0
        # Any node names the others.
        again = lf.open(folder, pool=cluster.nodes[2].url, **FAR)
        assert epochs(again)["pool_hits_total"] == COUNT + 1
        cluster.nodes[0].stop()
        epochs(data, 2)
        epochs(again, 2)
