#!/usr/bin/env python3
"""Makes small.csv.gz and skewed.csv.gz, short traces of the kind that a uniform run and a run that draws by scores leave,
and beside each the hits that an independent, deliberately naive program counts on it. Run it only to change them:
`python3 tests/golden/make_trace.py`.

In shuffled epochs many policies hit alike, whatever they do. Where some samples come often, others seldom, and who comes
often changes, hardly two do.

Rules: a batch's accesses come first, in row order, then its scores are applied. Capacity = floor(fraction * samples).
Everything below is lists, sets and `min`: nothing is shared with the engine but the rules.
"""

import gzip
import json
import math
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent
SAMPLES, BATCH, EPOCHS = 600, 32, 7
FRACTIONS = ["0.1", "0.2", "0.5", "0.75"]


def make_rows():
    rng = random.Random(7)
    difficulty = [math.exp(rng.gauss(0, 1)) for _ in range(SAMPLES)]
    rows = []
    for epoch in range(EPOCHS):
        order = list(range(SAMPLES))
        rng.shuffle(order)
        for k, i in enumerate(order):
            loss = difficulty[i] * math.exp(0.5 * rng.gauss(0, 1) - epoch / 5)
            # Two digits: real float32 losses tie too, and ties are where policies part.
            rows.append((epoch, k // BATCH, i, f"{loss:.2f}"))
    return rows


def make_skewed_rows():
    rng = random.Random(11)
    difficulty = [math.exp(rng.gauss(0, 1.2)) for _ in range(SAMPLES)]
    rows = []
    for epoch in range(EPOCHS):
        # A tenth of the samples change their worth from epoch to epoch.
        for i in rng.sample(range(SAMPLES), SAMPLES // 10):
            difficulty[i] = math.exp(rng.gauss(0, 1.2))
        for k, i in enumerate(rng.choices(range(SAMPLES), weights=difficulty, k=SAMPLES)):
            loss = difficulty[i] * math.exp(0.3 * rng.gauss(0, 1))
            rows.append((epoch, k // BATCH, i, f"{loss:.2f}"))
    return rows


def keyed(rows):
    out = []
    for epoch, step, i, loss in rows:
        if not out or out[-1][0] != (epoch, step):
            out.append(((epoch, step), []))
        out[-1][1].append((i, float(loss)))
    return out


def batches(rows):
    return [batch for _, batch in keyed(rows)]


def recency(ids, capacity, refresh):
    queue, hits = [], 0
    for i in ids:
        if i in queue:
            hits += 1
            if refresh:
                queue.remove(i)
                queue.append(i)
        elif capacity:
            if len(queue) == capacity:
                queue.pop(0)
            queue.append(i)
    return hits


def minio(ids, capacity):
    kept, hits = set(), 0
    for i in ids:
        if i in kept:
            hits += 1
        elif len(kept) < capacity:
            kept.add(i)
    return hits


def belady(ids, capacity):
    def next_use(i, after):
        return next((p for p in range(after + 1, len(ids)) if ids[p] == i), math.inf)

    kept, hits = {}, 0
    for p, i in enumerate(ids):
        following = next_use(i, p)
        if i in kept:
            hits += 1
            kept[i] = following
        elif following < math.inf and capacity:
            if len(kept) < capacity:
                kept[i] = following
            else:
                farthest = max(kept, key=lambda r: kept[r])
                if following < kept[farthest]:
                    del kept[farthest]
                    kept[i] = following
    return hits


def lfu(ids, capacity):
    uses, last, hits = {}, {}, 0
    for p, i in enumerate(ids):
        if i in uses:
            hits += 1
        elif capacity:
            if len(uses) == capacity:
                del uses[min(uses, key=lambda r: (uses[r], last[r]))]
            uses[i] = 0
        if i in uses:
            uses[i] += 1
            last[i] = p
    return hits


def sieve(ids, capacity):
    queue, used, hand, hits = [], {}, 0, 0
    for i in ids:
        if i in used:
            hits += 1
            used[i] = True
        elif capacity:
            if len(queue) == capacity:
                while used[queue[hand % capacity]]:
                    used[queue[hand % capacity]] = False
                    hand = hand % capacity + 1
                hand %= capacity
                del used[queue.pop(hand)]
                # Behind the newest comes the oldest, and not who is about to enter.
                hand = 0 if hand == len(queue) else hand
            queue.append(i)
            used[i] = False
    return hits


def s3fifo(ids, capacity):
    small, main, ghosts, uses = [], [], [], {}
    share, full, hits = capacity // 10, False, 0
    for i in ids:
        if i in uses:
            hits += 1
            uses[i] = min(uses[i] + 1, 3)
            continue
        if not capacity:
            continue
        known = i in ghosts
        if known:
            ghosts.remove(i)
        while len(small) + len(main) == capacity:
            full, here = True, len(small) + len(main)
            # One queue is walked until somebody leaves, or it is empty.
            if small and len(main) <= capacity - share:
                while small and len(small) + len(main) == here:
                    out = small.pop(0)
                    if uses[out] >= 2:
                        uses[out] = 0
                        main.append(out)
                        continue
                    ghosts = (ghosts + [out])[-(capacity * 9 // 10) :] if capacity * 9 // 10 else []
                    del uses[out]
            else:
                while len(small) + len(main) == here:
                    out = main.pop(0)
                    if uses[out] > 0:
                        uses[out] -= 1
                        main.append(out)
                        continue
                    del uses[out]
        uses[i] = 0
        (main if known or (not full and len(small) >= share) else small).append(i)
    return hits


def arc(ids, capacity):
    once, again, once_ghosts, again_ghosts, target, hits = [], [], [], [], 0.0, 0
    for i in ids:
        if i in once or i in again:
            hits += 1
            (once if i in once else again).remove(i)
            again.append(i)
            continue
        if not capacity:
            continue

        def replace(among_again, once=once, again=again, once_ghosts=once_ghosts, again_ghosts=again_ghosts):
            if once and (len(once) > target or (among_again and len(once) == target)):
                once_ghosts.append(once.pop(0))
            else:
                again_ghosts.append(again.pop(0))

        full = len(once) + len(again) == capacity
        if i in once_ghosts:
            target = min(capacity, target + max(1, len(again_ghosts) / len(once_ghosts)))
            once_ghosts.remove(i)
            if full:
                replace(False)
            again.append(i)
        elif i in again_ghosts:
            target = max(0, target - max(1, len(once_ghosts) / len(again_ghosts)))
            again_ghosts.remove(i)
            if full:
                replace(True)
            again.append(i)
        else:
            if len(once) + len(once_ghosts) == capacity:
                if len(once) < capacity:
                    once_ghosts.pop(0)
                    if full:
                        replace(False)
                else:
                    once.pop(0)
            elif full:
                if len(once) + len(again) + len(once_ghosts) + len(again_ghosts) == 2 * capacity:
                    again_ghosts.pop(0)
                replace(False)
            once.append(i)
    return hits


def clrfu(rows, capacity):
    uses, hits = {}, 0
    for epoch, _, i, _ in rows:
        if i in uses:
            hits += 1
        elif capacity:
            if len(uses) == capacity:
                del uses[min(uses, key=lambda r: (sum(0.5 ** (epoch - e) for e in uses[r]), r))]
            uses[i] = []
        if i in uses:
            uses[i].append(epoch)
    return hits


def nopfs(ids, capacity):
    kept, uses, hits = set(), {i: ids.count(i) for i in set(ids)}, 0
    for i in ids:
        if i in kept:
            hits += 1
        elif len(kept) < capacity:
            kept.add(i)
        elif kept:
            least = min(kept, key=lambda r: (uses[r], r))
            if uses[i] > uses[least]:
                kept.remove(least)
                kept.add(i)
    return hits


def lobster(rows, capacity):
    ids = [i for _, _, i, _ in rows]
    lengths = {}
    for epoch, *_ in rows:
        lengths[epoch] = lengths.get(epoch, 0) + 1
    kept, hits, begin = set(), 0, {}
    for p, (epoch, *_) in enumerate(rows):
        begin.setdefault(epoch, p)
    places = {i: [p for p in range(len(ids)) if ids[p] == i] for i in set(ids)}

    def worth(i, now):
        to_come = [p for p in places[i] if p > now]
        horizon = begin[rows[now][0]] + 2 * lengths[rows[now][0]]
        return sum(p < horizon for p in to_come), -min(to_come, default=math.inf)

    for p, i in enumerate(ids):
        if i in kept:
            hits += 1
        elif len(kept) < capacity:
            kept.add(i)
        elif kept:
            least = min(kept, key=lambda r: (worth(r, p), r))
            if worth(i, p) > worth(least, p):
                kept.remove(least)
                kept.add(i)
    return hits


class Substituting:
    """An epoch in another order: everybody as often as planned (here once), whoever gives way comes later."""

    def __init__(self, rows):
        self.epochs = {}
        for epoch, step, i, loss in rows:
            self.epochs.setdefault(epoch, {}).setdefault(step, []).append((i, float(loss)))

    def run(self):
        hits, self.belief = 0, {}
        for epoch in self.epochs.values():
            plan = [i for batch in epoch.values() for i, _ in batch]
            own = {i: loss for batch in epoch.values() for i, loss in batch}
            self.wanted, owed = set(plan), []
            self.begin(plan)
            for batch in epoch.values():
                delivered = []
                for asked, _ in batch:
                    due = asked if asked in self.wanted else owed.pop(0)
                    early = self.instead(due)
                    if early is not None:
                        owed.append(due)
                        due = early
                    self.wanted.remove(due)
                    hits += self.access(due)
                    delivered.append((due, own[due]))
                for i, loss in delivered:
                    self.belief[i] = rank_score(loss, delivered)
        return hits


class Quiver(Substituting):
    def __init__(self, rows, capacity):
        super().__init__(rows)
        self.capacity, self.kept = capacity, set()

    def begin(self, plan):
        self.plan, self.asked, self.reached, self.ready = plan, 0, 0, []

    def instead(self, due):
        self.asked += 1
        end = min(self.asked + len(self.plan) // 10, len(self.plan))
        self.ready += [i for i in self.plan[self.reached : end] if i in self.kept]
        self.reached = end
        while due not in self.kept and self.ready:
            early = self.ready.pop(0)
            if early in self.wanted:
                return early
        return None

    def access(self, i):
        if i in self.kept:
            return 1
        if len(self.kept) < self.capacity:
            self.kept.add(i)
        return 0


class Icache(Substituting):
    def __init__(self, rows, capacity):
        super().__init__(rows)
        self.capacity, self.high, self.low = capacity, set(), set()
        self.share, self.uses, self.threshold = 0.9, [0, 0], 0

    def level(self, i):
        """The upper half of a float32."""
        return struct.unpack(">I", struct.pack(">f", self.belief[i]))[0] >> 16 if i in self.belief else math.inf

    def important(self, i):
        return self.level(i) >= self.threshold

    def begin(self, plan):
        if sum(self.uses):
            self.share = min(max(self.uses[0] / sum(self.uses), 1 - 0.9), 0.9)
        self.uses = [0, 0]
        levels = sorted((self.level(i) for i in plan), reverse=True)
        self.threshold = levels[math.ceil(0.7 * len(levels)) - 1]
        if self.threshold == math.inf:
            self.threshold = 0

    def following(self, ids, start):
        return min(ids, key=lambda i: (i < start, i), default=None)

    def instead(self, due):
        if due in self.high | self.low or self.important(due):
            return None
        return self.following(self.low & self.wanted, due)

    def access(self, i):
        important = self.important(i)
        self.uses[0 if important else 1] += 1
        home = self.high if important else self.low
        if i in self.high | self.low:
            self.high.discard(i)
            self.low.discard(i)
            home.add(i)
            return 1
        if len(self.high) + len(self.low) < self.capacity:
            home.add(i)
            return 0
        of_high = int(self.capacity * self.share)
        spent = self.low - self.wanted
        worth = lambda r: (self.belief.get(r, math.inf), r)
        victim = None
        if important and i in self.belief:
            if len(self.low) > self.capacity - of_high:
                victim = self.following(spent or self.low, i)
            else:
                least = min(self.high, key=worth, default=None)
                victim = least if least is not None and self.belief[i] > worth(least)[0] else None
        elif not important:
            victim = min(self.high, key=worth) if len(self.high) > of_high else self.following(spent, i)
        if victim is not None:
            self.high.discard(victim)
            self.low.discard(victim)
            home.add(i)
        return 0


def importance(rows, capacity):
    kept, belief, hits = set(), {}, 0
    left = {}
    for epoch, _, i, _ in rows:
        left.setdefault(epoch, []).append(i)
    for batch, epoch in zip(batches(rows), [e for (e, _), _ in keyed(rows)]):
        for i, _ in batch:
            left[epoch].remove(i)
            if i in kept:
                hits += 1
            elif len(kept) < capacity:
                kept.add(i)
            elif i in belief and kept:
                free = [r for r in kept if r not in left[epoch]]
                least = min(free, key=lambda r: (belief.get(r, math.inf), r), default=None)
                if least is not None and belief[i] > belief.get(least, math.inf):
                    kept.remove(least)
                    kept.add(i)
        for i, loss in batch:
            belief[i] = rank_score(loss, batch)
    return hits


def rank_score(loss, batch):
    return math.log(sum(other < loss for _, other in batch) + 10)


def app(rows, capacity):
    kept, ghost, hits = {}, {}, 0
    for batch in batches(rows):
        for i, _ in batch:
            if i in kept:
                hits += 1
            elif len(kept) < capacity:
                kept[i] = ghost.get(i, 0.0)
            elif i in ghost and kept:
                score, least = min((s, r) for r, s in kept.items())
                if ghost[i] >= score:
                    del kept[least]
                    kept[i] = ghost[i]
        for i, loss in batch:
            ghost[i] = rank_score(loss, batch)
            if i in kept:
                kept[i] = ghost[i]
    return hits


def write(name, rows, substitute):
    ids = [i for _, _, i, _ in rows]
    text = "epoch,step,id,loss\n" + "".join(f"{e},{s},{i},{loss}\n" for e, s, i, loss in rows)
    with open(HERE / f"{name}.csv.gz", "wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(text.encode())
    samples = len(set(ids))
    expected = {"requests": len(rows), "samples": samples}
    for fraction in FRACTIONS:
        capacity = math.floor(float(fraction) * samples)
        expected[fraction] = {
            "lru": recency(ids, capacity, True),
            "fifo": recency(ids, capacity, False),
            "minio": minio(ids, capacity),
            "belady": belady(ids, capacity),
            "app": app(rows, capacity),
            "importance": importance(rows, capacity),
            "sieve": sieve(ids, capacity),
            "s3fifo": s3fifo(ids, capacity),
            "lfu": lfu(ids, capacity),
            "arc": arc(ids, capacity),
            "clrfu": clrfu(rows, capacity),
            "nopfs": nopfs(ids, capacity),
            "lobster": lobster(rows, capacity),
        }
        if substitute:
            # Hits of the order that each of them makes.
            expected[fraction] |= {"icache": Icache(rows, capacity).run(), "quiver": Quiver(rows, capacity).run()}
    (HERE / f"{name}.expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    write("small", make_rows(), substitute=True)
    # The substituting policies' naive programs know epochs in which everybody comes once.
    write("skewed", make_skewed_rows(), substitute=False)


if __name__ == "__main__":
    main()
