"""The pool on a cluster of three masters: samples by hash, slots that move, a node that dies."""

import pytest
import lossfeed as lf
from redis_server import Cluster, program
from test_pool import COUNT, FAR, HEADER, epochs, folder, numbers, settled  # noqa: F401 (a fixture)
from test_pool_runs import TAKEN, train

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


def test_each_shard_keeps_what_matters(folder, tmp_path):  # noqa: F811
    """A shard of a cluster has a part of the budget of its own, here for one sample."""
    of = {path.read_bytes(): int(path.stem) for path in folder.glob("*/*.png")}
    with Cluster(tmp_path / "cluster") as cluster:
        held = lf.open(folder, pool=cluster.url, **FAR)
        epochs(held)
        settled(cluster, held)
        shard = {}
        for node in cluster.nodes:
            shard |= {of[node.ask("GET", key)[HEADER:]]: key.split(b"}")[0] for key in node.keys()}
            node.ask("FLUSHALL")
        # The first sample is kept when the dataset is opened: it is no run's own.
        rivals = [n for n in shard if list(shard.values()).count(shard[n]) > 1 and shard[n] != shard[0]]
        matters = {n for n in rivals if n == max(m for m in rivals if shard[m] == shard[n])}
        most = max(path.stat().st_size for path in folder.glob("*/*.png")) + HEADER + TAKEN
        data = lf.open(folder, pool=cluster.url, pool_bytes=64 * most, **FAR)
        seen = train(data, lambda n: n in matters, epochs=8)
        kept = {of[node.ask("GET", key)[HEADER:]] for node in cluster.nodes for key in node.keys()}
        assert matters <= kept and len(kept) == len(set(shard.values())) and seen["pool_failed_total"] == 0
