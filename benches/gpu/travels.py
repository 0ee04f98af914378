"""What travels to a lent GPU machine: the tree, as git sees it, and .gpu-bundle. Status 1 from 62 MiB on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES = 62 << 20


def sizes(root: Path) -> dict[str, int]:
    """Bytes of the tree (tracked files, and untracked ones that are not ignored) and of each part of the bundle."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, capture_output=True, check=True).stdout
    files = {root / name for name in listed.decode().split("\0") if name}
    found = {"tree": sum(f.lstat().st_size for f in files if f.is_symlink() or f.exists())}
    for part in sorted((root / ".gpu-bundle").glob("*")):
        found[f".gpu-bundle/{part.name}"] = sum(f.lstat().st_size for f in (part.rglob("*") if part.is_dir() else [part]) if f.is_file())
    return found


def main(root: Path = ROOT) -> int:
    """0 if it fits."""
    found = sizes(root)
    total = sum(found.values())
    parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in found.items())
    print(f"travels: {total / 2**20:.1f} MiB of less than {LIMIT_BYTES >> 20} ({parts})")
    if total >= LIMIT_BYTES:
        print("too much to travel: leave LOSSFEED_CIFAR out, or let .gitignore name what is not needed there", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
