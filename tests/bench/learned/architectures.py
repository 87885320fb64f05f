"""Random networks: the training data of the learned estimator of GPU memory.

Six families as in published networks: fully connected, VGG-like, ResNet-like, MobileNet-like, DenseNet-like, and
encoders of transformers. Needs PyTorch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import nn

ACTIVATIONS: dict[str, Callable[[bool], nn.Module]] = {
    "relu": lambda inplace: nn.ReLU(inplace),
    "relu6": lambda inplace: nn.ReLU6(inplace),
    "leaky_relu": lambda inplace: nn.LeakyReLU(inplace=inplace),
    "elu": lambda inplace: nn.ELU(inplace=inplace),
    "gelu": lambda inplace: nn.GELU(),
    "silu": lambda inplace: nn.SiLU(inplace),
    "hardswish": lambda inplace: nn.Hardswish(inplace),
    "tanh": lambda inplace: nn.Tanh(),
    "sigmoid": lambda inplace: nn.Sigmoid(),
}


class Drawn:
    """A network, the shape of one sample, and the settings that its parts share."""

    def __init__(self, draw: random.Random, activation: str) -> None:
        self.draw = draw
        self.activation = activation
        self.inplace = draw.random() < 0.5
        self.dropout = draw.choice((0.0, 0.0, 0.1, 0.5))
        self.has_norm = draw.random() < 0.8

    def act(self) -> nn.Module:
        return ACTIVATIONS[self.activation](self.inplace)

    def drop(self) -> list[nn.Module]:
        """Return a dropout, or nothing."""
        return [nn.Dropout(self.dropout)] if self.dropout else []

    def conv(self, before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        """Return a convolution and its norm."""
        norm = [nn.BatchNorm2d(after)] if self.has_norm else []
        return [nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=not norm), *norm]


def mlp(made: Drawn, size: float) -> tuple[nn.Module, tuple[int, ...]]:
    """Return layers of equal, falling or random width."""
    draw = made.draw
    width = int(2 ** draw.uniform(7, 10 + 3.5 * size))
    depth = draw.randint(2, 12)
    shape = draw.choice(("even", "falling", "random"))
    inputs = draw.choice((64, 784, 3072, 12_288))
    layers: list[nn.Module] = []
    before = inputs
    for index in range(depth):
        after = {
            "even": width,
            "falling": max(32, int(width * (1 - index / depth))),
            "random": max(32, int(width * draw.uniform(0.2, 1.0))),
        }[shape]
        layers += [nn.Linear(before, after)]
        layers += [nn.BatchNorm1d(after)] if made.has_norm else []
        layers += [made.act(), *made.drop()]
        before = after
    return nn.Sequential(*layers, nn.Linear(before, draw.choice((2, 10, 100, 1000)))), (inputs,)


def _image(draw: random.Random) -> int:
    return draw.choice((32, 64, 96, 128, 160, 224, 224, 224, 299))


def vgg(made: Drawn, size: float) -> tuple[nn.Module, tuple[int, ...]]:
    """Return stages of convolutions with pooling between them, and two large linear layers."""
    draw, side = made.draw, _image(made.draw)
    channels = draw.choice((16, 32, 64) if size > 0.5 else (16, 32))
    layers: list[nn.Module] = []
    before, now = 3, side
    for _ in range(draw.randint(3, 5)):
        for _ in range(draw.randint(1, 4)):
            layers += [*made.conv(before, channels), made.act()]
            before = channels
        layers.append(nn.MaxPool2d(2))
        now //= 2
        channels = min(512, channels * 2)
    pooled = min(now, draw.choice((1, 7)))
    hidden = draw.choice((256, 1024, 4096))
    head = [
        nn.AdaptiveAvgPool2d(pooled), nn.Flatten(), nn.Linear(before * pooled * pooled, hidden), made.act(),
        *made.drop(), nn.Linear(hidden, hidden), made.act(), *made.drop(), nn.Linear(hidden, 1000),
    ]  # fmt: skip
    return nn.Sequential(*layers, *head), (3, side, side)


class Residual(nn.Module):
    """A block whose input is added to its output."""

    def __init__(self, body: nn.Module, skip: nn.Module | None, last: nn.Module | None) -> None:
        super().__init__()
        self.body, self.skip, self.last = body, skip, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x) + (x if self.skip is None else self.skip(x))
        return y if self.last is None else self.last(y)


def resnet(made: Drawn, size: float) -> tuple[nn.Module, tuple[int, ...]]:
    """Return basic blocks or bottlenecks in three or four stages."""
    draw, side = made.draw, _image(made.draw)
    channels = draw.choice((16, 32, 64, 96) if size > 0.5 else (16, 32, 64))
    is_bottleneck = draw.random() < 0.5
    layers: list[nn.Module] = [*made.conv(3, channels, 7 if side > 64 else 3, 2 if side > 64 else 1), made.act()]
    layers += [nn.MaxPool2d(3, 2, 1)] if side > 64 else []
    before = channels
    for stage in range(draw.randint(3, 4)):
        width = channels << stage
        after = 4 * width if is_bottleneck else width
        for index in range(draw.randint(1, 6)):
            stride = 2 if index == 0 and stage else 1
            body = (
                [*made.conv(before, width, 1), made.act(), *made.conv(width, width, 3, stride), made.act(),
                 *made.conv(width, after, 1)]
                if is_bottleneck
                else [*made.conv(before, width, 3, stride), made.act(), *made.conv(width, after)]
            )  # fmt: skip
            skip = nn.Sequential(*made.conv(before, after, 1, stride)) if stride > 1 or before != after else None
            layers.append(Residual(nn.Sequential(*body), skip, made.act()))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *made.drop(), nn.Linear(before, 1000)), (
        3, side, side,
    )  # fmt: skip


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, made: Drawn) -> None:
        super().__init__()
        few = max(8, channels // 16)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, few, 1), made.act(), nn.Conv2d(few, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


def mobilenet(made: Drawn, size: float) -> tuple[nn.Module, tuple[int, ...]]:
    """Return inverted bottlenecks with depthwise convolutions, with or without squeeze and excitation."""
    draw, side = made.draw, _image(made.draw)
    wide = draw.uniform(0.5, 1.0 + size)
    has_gate = draw.random() < 0.4
    before = max(8, int(32 * wide))
    layers: list[nn.Module] = [*made.conv(3, before, 3, 2 if side > 64 else 1), made.act()]
    for stage, channels in enumerate((16, 24, 40, 80, 112, 192, 320)[: draw.randint(4, 7)]):
        after = max(8, int(channels * wide))
        for index in range(draw.randint(1, 4)):
            stride = 2 if index == 0 and stage in (1, 2, 3, 5) else 1
            inner = before * draw.choice((1, 4, 6)) if stage else before
            kernel = draw.choice((3, 5))
            body = [*made.conv(before, inner, 1), made.act()] if inner != before else []
            body += [*made.conv(inner, inner, kernel, stride, inner), made.act()]
            body += [Squeeze(inner, made)] if has_gate else []
            body += made.conv(inner, after, 1)
            block = nn.Sequential(*body)
            layers.append(Residual(block, None, None) if stride == 1 and before == after else block)
            before = after
    last = int(1280 * max(1.0, wide))
    head = [*made.conv(before, last, 1), made.act(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *made.drop()]
    return nn.Sequential(*layers, *head, nn.Linear(last, 1000)), (3, side, side)


class Dense(nn.Module):
    """A layer whose output includes its input."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, self.body(x)), 1)


def densenet(made: Drawn, size: float) -> tuple[nn.Module, tuple[int, ...]]:
    """Return dense blocks with transitions between them."""
    draw, side = made.draw, _image(made.draw)
    growth = draw.choice((12, 24, 32, 48) if size > 0.5 else (12, 24, 32))
    before = 2 * growth
    layers: list[nn.Module] = [*made.conv(3, before, 7 if side > 64 else 3, 2 if side > 64 else 1), made.act()]
    layers += [nn.MaxPool2d(3, 2, 1)] if side > 64 else []
    blocks = draw.randint(2, 4)
    for block in range(blocks):
        for _ in range(draw.randint(3, 12)):
            norm = [nn.BatchNorm2d(before)] if made.has_norm else []
            body = [*norm, made.act(), nn.Conv2d(before, 4 * growth, 1, bias=False)]
            body += [nn.BatchNorm2d(4 * growth)] if made.has_norm else []
            body += [made.act(), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False), *made.drop()]
            # In place, the function would change the input, which is part of the output.
            body[len(norm)] = ACTIVATIONS[made.activation](False)
            layers.append(Dense(nn.Sequential(*body)))
            before += growth
        if block < blocks - 1:
            layers += [*made.conv(before, before // 2, 1), made.act(), nn.AvgPool2d(2)]
            before //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)), (3, side, side)


class Attention(nn.Module):
    """Attention with several heads. Its weights are stored, or not, as in fused kernels."""

    def __init__(self, width: int, heads: int, made: Drawn, *, is_fused: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.weights, self.heads, self.is_fused = nn.Linear(width, width), nn.Softmax(-1), heads, is_fused
        self.drop = nn.Sequential(*made.drop())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            one(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        if self.is_fused:
            mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
            mixed = self.drop(self.weights(scores)) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Encoder(nn.Module):
    """Layers of attention and of two linear layers each, over tokens."""

    def __init__(self, made: Drawn, size: float) -> None:
        super().__init__()
        draw = made.draw
        heads = draw.choice((4, 8, 12, 16))
        width = heads * draw.choice((32, 64) if size > 0.3 else (32,))
        is_fused = draw.random() < 0.5
        words, places = draw.choice((8000, 30_522, 50_257)), 1024
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(places, width)
        self.blocks = nn.ModuleList()
        for _ in range(draw.choice((2, 4, 6, 12, 24) if size > 0.5 else (2, 4, 6, 12))):
            attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, made, is_fused=is_fused), *made.drop())
            think = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), made.act(), nn.Linear(4 * width, width), *made.drop()
            )
            self.blocks += [Residual(attend, None, None), Residual(think, None, None)]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words if draw.random() < 0.5 else 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def encoder(made: Drawn, size: float) -> tuple[nn.Module, tuple[int, ...]]:
    """Return the encoder of a transformer; its sample is a row of tokens."""
    return Encoder(made, size), (made.draw.choice((32, 64, 128, 256, 512)),)


FAMILIES: dict[str, Callable[[Drawn, float], tuple[nn.Module, tuple[int, ...]]]] = {
    "mlp": mlp, "vgg": vgg, "resnet": resnet, "mobilenet": mobilenet, "densenet": densenet, "encoder": encoder,
}  # fmt: skip
OF_FAMILY = {
    "mlp": ("relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid"),
    "encoder": ("relu", "gelu", "silu"),
}


def drawn(family: str, seed: int) -> tuple[nn.Module, tuple[int, ...], int, str]:
    """Return a network of a family, the shape of a sample, the batch size, and the activation function."""
    draw = random.Random(f"learned {family} {seed}")
    made = Drawn(draw, draw.choice(OF_FAMILY.get(family, tuple(ACTIVATIONS))))
    network, shape = FAMILIES[family](made, draw.random())
    most = 11 if family == "mlp" else 6 if family == "encoder" else 8
    return network, shape, max(1, int(2 ** draw.uniform(2 if family != "encoder" else 0, most))), made.activation
