"""Scores on text: a small GPT over bytes, packed, from a throttled store; held-out loss beside bytes.

    python benches/scenarios/text.py --seeds 3 [--rows echo replay] [--steps 1000]
    python benches/scenarios/text.py --tiny                                # half a minute, to try it

The text is what this Python has: sources and documentation (``.py``, ``.md``, ``.rst``, ``.txt``) of the standard
library and the installed packages, each file once, at most 200 KB a package. A twelfth of the packages, drawn by name,
is held out whole. Files are packed end to end, a zero byte after each, in rows of 256 bytes without attention or
predictions from one file to the next. A row is a sample: it is fetched by one range request, cached, drawn and scored
alone. The store is ``remote/store.py`` on loopback.

The network is small: 2 layers, 64 wide, 149 thousand parameters. AdamW with a warm-up and a cosine, batches of 16
rows, one thread. All take the same steps, fewer than an epoch of ``uniform`` has, but for ``uniform, equal bytes``: a
run with its own schedule that ends when it has read what ``echo`` reads. ``uniform, a part`` passes several times over
as many bytes and keeps all of them, in four times the cache. ``echo`` is reuse without scores; ``scores=batch`` gives
the samples of a batch one score (BLS), ``noise`` gives them random ones.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import math
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import zlib
from collections import Counter
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from record import Record
from torch import nn

import lossfeed as lf

ENDS = "py", "md", "rst", "txt"
STORE = Path(__file__).parent / "remote" / "store.py"
ROW, BATCH, WIDTH, LAYERS, HEADS, PEAK, CACHE = 256, 16, 64, 2, 2, 3e-3, 0.05
LAG, LATENCY_S, BYTES_PER_S = 8, 0.001, 4_000_000
TRAIN, HELD, A_PACKAGE = 5_400_000, 130_000, 200_000
EQUAL, PART = "uniform, equal bytes", "uniform, a part"
REPLAY = {"name": "replay", "lag": LAG}
ROWS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": "uniform"},
    "echo": {"sampler": {"name": "echo", "lag": LAG}},
    EQUAL: {"sampler": "uniform"},
    "replay": {"sampler": REPLAY, "score": "gradient_norm"},
    "replay, scores=batch": {"sampler": REPLAY, "scores": "batch"},
    "replay, noise": {"sampler": {**REPLAY, "random_scores": True}},
    "replay, loss": {"sampler": REPLAY, "score": "loss"},
    PART: {"sampler": "uniform", "cache": "100%"},
}


def packed(files: list[bytes]) -> np.ndarray:
    """Files end to end, a zero byte after each, in rows; what fills no row is left out."""
    joined = np.frombuffer(b"".join(text.replace(b"\0", b"") + b"\0" for text in files), np.uint8)
    return joined[: len(joined) // ROW * ROW].reshape(-1, ROW)


def corpus(train_bytes: int, held_bytes: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Rows to train on, rows of held-out packages, and what they are made of."""
    roots = {Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")}
    files = [(p.relative_to(root).as_posix(), p) for root in roots for end in ENDS for p in root.rglob(f"*.{end}")]
    files = [(name, path) for name, path in files if not name.startswith(("site-packages", "dist-packages"))]
    files.sort(key=lambda file: hashlib.sha256(file[0].encode()).digest())
    texts: dict[bool, list[bytes]] = {False: [], True: []}
    left, seen, taken = {False: train_bytes, True: held_bytes}, set(), Counter[str]()
    for name, path in files:
        package = re.split(r"[/.-]", name.lower())[0]
        held = zlib.crc32(package.encode()) % 12 == 0
        text = path.read_bytes()
        digest = hashlib.sha256(text).digest()
        if digest in seen or len(text) > left[held] or taken[package] + len(text) > A_PACKAGE:
            continue
        seen.add(digest)
        texts[held].append(text)
        taken[package] += len(text)
        left[held] -= len(text)
    train, test = packed(texts[False]), packed(texts[True])
    train = train[np.random.default_rng(0).permutation(len(train))]
    of = {held: sorted(p for p in taken if taken[p] and (zlib.crc32(p.encode()) % 12 == 0) == held) for held in texts}
    about = {"train_bytes": train.size, "train_files": len(texts[False]), "train_packages": len(of[False])}
    about |= {"held_out_bytes": test.size, "held_out_files": len(texts[True]), "held_out_packages": of[True]}
    return train, test, {**about, "sha256": hashlib.sha256(train.tobytes() + test.tobytes()).hexdigest()[:16]}


class Rows:
    """Samples in a store, each by a range request on one connection."""

    def __init__(self, count: int, port: int) -> None:
        self.count, self.link = count, http.client.HTTPConnection("127.0.0.1", port)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> np.ndarray:
        self.link.request("GET", "/text/train.bin", headers={"Range": f"bytes={i * ROW}-{(i + 1) * ROW - 1}"})
        return np.frombuffer(self.link.getresponse().read(), np.uint8)


def asked(port: int, path: str) -> Any:
    link = http.client.HTTPConnection("127.0.0.1", port)
    link.request("GET", f"/-/{path}")
    body = link.getresponse().read()
    link.close()
    return json.loads(body or "null")


def next_bytes(tokens: torch.Tensor) -> torch.Tensor:
    """Targets: -100 at a row's end and at a file's."""
    target = torch.full_like(tokens, -100)
    target[:, :-1] = torch.where(tokens[:, :-1] == 0, -100, tokens[:, 1:])
    return target


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        met = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(met.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class Gpt(nn.Module):
    """From bytes to hidden states; ``head.weight`` makes logits of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(ROW, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for table in (self.tokens, self.places, self.head):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        of = (tokens == 0).cumsum(1) - (tokens == 0).long()
        mask = (of[:, :, None] == of[:, None, :]).tril()[:, None]
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x, mask)
        hidden: torch.Tensor = self.norm(x)
        return hidden


def held_out_loss(model: Gpt, test: torch.Tensor) -> float:
    """Nats a byte over all predicted bytes."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for tokens in test.split(64):
            target = next_bytes(tokens)
            logits = F.linear(model(tokens), model.head.weight)
            total += float(F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum"))
            count += int((target >= 0).sum())
    return total / count


def run(data: Rows, port: int, row: str, seed: int, steps: int, test: torch.Tensor, cache: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), PEAK, betas=(0.9, 0.98), weight_decay=0.1)
    usual: dict[str, Any] = {"seed": seed, "shuffle": True, "num_workers": 0, "stats": False, "drop_last": True}
    if ROWS[row]["sampler"] != "uniform":
        usual["cache"] = cache
    loader = lf.Loader(data, BATCH, **{**usual, **ROWS[row]})
    step, came, curve, started = 0, set[int](), list[Any](), time.process_time()
    before = asked(port, "counts")["bytes"]

    def read() -> float:
        return round((asked(port, "counts")["bytes"] - before) / 1e6, 4)

    for batch in chain.from_iterable(repeat(loader)):
        rate = PEAK * min((step + 1) / (0.1 * steps), 0.5 + 0.5 * math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens = batch.data.long()
        hidden = model(tokens)
        loss = loader.linear_cross_entropy(hidden, model.head.weight, batch, target=next_bytes(tokens))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        came.update(batch.ids.tolist())
        step += 1
        if step == steps // 2 or step == steps:
            curve.append([step, read(), round(held_out_loss(model, test), 4)])
        if step == steps:
            break
    fetched = int(loader.stats()["fetched_samples_total"])
    loader.close()
    return {
        "loss": curve[-1][2],
        "steps": steps,
        "fetched": fetched,
        "read_mb": curve[-1][1],
        "trained_mb": round(steps * BATCH * ROW / 1e6, 4),
        "distinct": len(came),
        "processor_s": round(time.process_time() - started, 1),
        "curve": curve,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--tiny", action="store_true", help="40 steps on a tenth of the text, recorded nowhere")
    parser.add_argument("--date", help="name of the record, if not today's date")
    parser.add_argument("--record", type=Path, help="folder of the records")
    args = parser.parse_args()
    torch.set_num_threads(1)
    small, steps = (10, 40) if args.tiny else (1, args.steps)
    train, test, about = corpus(TRAIN // small, HELD // small)
    cache = int(CACHE * train.size)
    settings = {**about, "steps": steps, "batch": BATCH, "row": ROW, "width": WIDTH, "layers": LAYERS, "peak": PEAK}
    settings |= {"cache_bytes": cache, "lag": LAG, "latency_s": LATENCY_S, "bytes_per_s": BYTES_PER_S}
    held = torch.tensor(test).long()
    print(settings, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        where = folder if args.tiny else args.record
        record = Record("text", settings, args.date, **({} if where is None else {"root": Path(where)}))
        bucket = Path(folder) / "text"
        bucket.mkdir()
        (bucket / "train.bin").write_bytes(train.tobytes())
        command = [sys.executable, str(STORE), folder, "--latency", str(LATENCY_S)]
        store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert store.stdout is not None
            port = int(store.stdout.readline())
            asked(port, f"bandwidth/{BYTES_PER_S}")
            for seed in range(args.seeds):
                for row in args.rows:
                    done = {(r["row"], r["seed"]): r for r in record.runs()}
                    if (row, seed) in done:
                        continue
                    if row in (EQUAL, PART) and ("echo", seed) not in done:
                        raise SystemExit(f"{row!r} reads what echo reads: run echo before")
                    count = steps if row not in (EQUAL, PART) else done["echo", seed]["fetched"] // BATCH
                    data = Rows(count * BATCH if row == PART else len(train), port)
                    found = run(data, port, row, seed, count if row == EQUAL else steps, held, cache)
                    record.add({"row": row, "seed": seed, **found})
                    print(f"{seed} {row:22} " + "  ".join(f"{k} {v}" for k, v in found.items()), flush=True)
        finally:
            store.terminate()
            store.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
