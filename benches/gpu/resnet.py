"""ResNet-18 in the form usual for 32 x 32 images (3 x 3 stem, no first pooling): the training step the hook is timed
in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        same = stride == 1 and width_in == width
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to (B, width, H / stride, W / stride)."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
        return F.relu(y + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """Eighteen layers; `width` 64 is the usual one, less of it a toy."""

    def __init__(self, classes: int = 10, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        blocks: list[nn.Module] = []
        before = width
        for k, w in enumerate(widths):
            blocks += [Block(before, w, 1 if k == 0 else 2), Block(w, w, 1)]
            before = w
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, channels, H, W) images to (B, classes) logits."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
