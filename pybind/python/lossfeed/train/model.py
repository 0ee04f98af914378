"""The small network of the demonstration job, fitted to the shape of the data."""

from __future__ import annotations

import torch
from torch import nn

# What is left of the image before the linear layer: 4 × 4 for a 32 × 32 input. Larger images get more halvings.
_LAST_SIDE = 4


def build(
    shape: tuple[int, int, int], classes: int, width: int, mean: torch.Tensor, std: torch.Tensor, depth: int = 1
) -> nn.Module:
    """A plain convolutional net for images of ``shape`` (height, width, channels).

    Stages of 3×3 convolution, batch norm, 2×2 max pooling and ReLU halve the image until its shorter side is at most
    4, doubling the channels from ``width`` twice, then one linear layer. With ``width`` 24 and CIFAR-10's 32×32×3 that
    is 24-48-96 channels and 68 k parameters. With a ``depth`` above 1 each stage has so many convolutions: those after
    the first add to what they take (He et al. 2016), behind the pooling, where they are cheap. Takes u8 batches of (B, H, W, C) and normalises them itself with
    ``mean`` and ``std`` (per channel, in 0 … 255).
    """
    height, width_px, channels = shape
    layers: list[nn.Module] = [Normalise(mean, std)]
    before, stage = channels, 0
    while stage == 0 or min(height, width_px) > _LAST_SIDE:
        after = width << min(stage, 2)
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        if min(height, width_px) >= 2:
            # Pooling first gives the same values as ReLU first, and a quarter of them to rectify: 1.5× a step on a CPU.
            layers.append(nn.MaxPool2d(2))
            height, width_px = height // 2, width_px // 2
        layers.append(nn.ReLU())
        layers += [Residual(after) for _ in range(depth - 1)]
        before, stage = after, stage + 1
    layers += [nn.Flatten(), nn.Linear(before * height * width_px, classes)]
    # Channels-last is the layout the batches come in (no transposition) and the faster one for convolutions on a CPU.
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


class Residual(nn.Module):
    """ReLU(x + BN(conv 3×3(x)))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution: nn.Conv2d = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm: nn.BatchNorm2d = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.convolution(x)))


class Normalise(nn.Module):
    """u8 (B, H, W, C) → float32 (B, C, H, W), channels-last, zero mean and unit deviation per channel."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean.view(1, -1, 1, 1).float())
        self.register_buffer("scale", (1.0 / std.clamp_min(1.0)).view(1, -1, 1, 1).float())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # The permutation of a (B, H, W, C) tensor is channels-last already: nothing moves.
        return (images.permute(0, 3, 1, 2).float() - self.mean) * self.scale
