"""The files that the pages' snippets and commands name, small, in a folder of their own."""

import io
import json
import subprocess
import sys
import tarfile

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "owl")


def picture(i):
    """A photograph of one of three sizes, whose class can be learned."""
    height, width = [(60, 80), (80, 60), (48, 66)][i // 3 % 3]
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([255 * rows // height, 255 * columns // width, np.full_like(rows, 80 * (i % 3))], 2)
    return Image.fromarray(
        (pixels + np.random.default_rng(i).integers(-9, 9, pixels.shape)).clip(0, 255).astype(np.uint8)
    )


def encoded(image, kind):
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def class_folders(root, count):
    for i in range(count):
        place = root / CLASSES[i % 3]
        place.mkdir(parents=True, exist_ok=True)
        picture(i).save(place / f"{i}.jpg")


def shards(root):
    for number in range(3):
        with tarfile.open(root / f"shard-{number:03}.tar", "w") as tar:
            for i in range(number * 8, number * 8 + 8):
                members = {
                    "jpg": encoded(picture(i), "JPEG"),
                    "cls": str(i % 3).encode(),
                    "txt": f"picture {i}".encode(),
                }
                for kind, body in members.items():
                    member = tarfile.TarInfo(f"{i:04}.{kind}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))


def parquet(root):
    pyarrow = __import__("pyarrow.parquet").parquet
    import pyarrow as pa

    (root / "data").mkdir()
    rows = [{"image": {"bytes": encoded(picture(i), "PNG"), "path": None}, "label": i % 3} for i in range(12)]
    pyarrow.write_table(pa.Table.from_pylist(rows), root / "data" / "train-00000.parquet")


def scenes(root):
    """Images with a mask and a box of the object in each."""
    (root / "scenes").mkdir()
    boxes = {}
    for i in range(12):
        image = picture(i)
        x, y = 10 + i, 8 + i
        mask = np.zeros((image.height, image.width), np.uint8)
        mask[y : y + 20, x : x + 16] = 1
        image.save(root / "scenes" / f"{i}.jpg")
        Image.fromarray(mask).save(root / "scenes" / f"{i}.mask.png")
        boxes[f"{i}.jpg"] = [[x, y, x + 16, y + 20]]
    (root / "scenes" / "boxes.json").write_text(json.dumps(boxes))


#: An ordinary script, alone or under torchrun.
SCRIPT = """
import torch

if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(256, 4), torch.randint(0, 2, (256,)))
    model = torch.nn.Linear(4, 2)
    for x, y in torch.utils.data.DataLoader(data, 8, shuffle=True):
        torch.nn.functional.cross_entropy(model(x), y).backward()
"""


def make(root):
    """Writes all of it below `root`."""
    (root / "train.py").write_text(SCRIPT)
    class_folders(root / "train", 36)
    class_folders(root / "val", 12)
    shards(root)
    parquet(root)
    scenes(root)
    text = np.random.default_rng(0).integers(0, 64, 4096)
    text.astype("<u2").tofile(root / "train.bin")
    (root / "texts.txt").write_text(
        "".join(f"{' '.join(['good', 'bad'][i % 2] for _ in range(1 + i % 5))}\n" for i in range(32))
    )
    rows = np.arange(48, dtype=np.float32).reshape(24, 2)
    np.save(root / "x.npy", rows), np.save(root / "y.npy", np.arange(24) % 2)
    (root / "jobs.json").write_text(
        json.dumps(
            {
                "cache_bytes": 1e9,
                "bandwidth_bytes_per_s": 1e8,
                "datasets": [{"name": "pictures", "bytes": 2e9}],
                "jobs": [{"name": name, "dataset": "pictures", "ideal_bytes_per_s": 9e7} for name in ("one", "two")],
            }
        )
    )
    forms = [
        {"name": "encoded", "bytes": 1.1e5, "cpu_s_saved": 0, "fetch_bytes_saved": 1.1e5, "reuse": 1},
        {"name": "decoded", "bytes": 6e5, "cpu_s_saved": 0.006, "fetch_bytes_saved": 1.1e5, "reuse": 1},
    ]
    sample = {"name": "pictures", "count": 1000, "reads": 1, "cpu_s": 0.008, "fetch_bytes": 1.1e5, "forms": forms}
    (root / "samples.json").write_text(
        json.dumps({"cache_bytes": 6.4e7, "bandwidth_bytes_per_s": 1.25e7, "cores": 4, "samples": [sample]})
    )
    journal = (
        "import lossfeed as lf\n"
        "pixels = lf.ImageTransform(crop=16, resize=16)\n"
        "kept = {'cache': '50%', 'journal': 'run.csv.gz', 'transform': pixels}\n"
        "loader = lf.Loader('shard-{000..002}.tar', 8, shuffle=True, **kept)\n"
        "for epoch in range(2):\n"
        "    for batch in loader: loader.score_losses(batch.data.mean((1, 2, 3)), batch)\n"
        "loader.close()\n"
    )
    subprocess.run([sys.executable, "-c", journal], cwd=root, check=True)
