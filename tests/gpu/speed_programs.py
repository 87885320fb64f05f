"""Twelve small programs for a GPU, each of which can be asked again and again how fast it is.

    python speed_programs.py NAME [--device cpu]

It prints {"ready": ...}, and then answers each line `FROM UNTIL` on its input, both in seconds of the monotonic clock,
with the units of work that it did in between: {"rate": units a second, "units": ...}. `end` ends it. With
`--device cpu` all sizes are tiny; that only shows that a program runs. Imports nothing of ours: other users run it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Step = Callable[[], None]


def gemm(torch: Any, device: str, size: int) -> Step:
    """Multiply two square matrices."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    return lambda: torch.mm(a, b)


def cnn(torch: Any, device: str, batch: int) -> Step:
    """Train a small convolutional network, a batch for each unit."""
    nn, side = torch.nn, 64 if device != "cpu" else 8
    layers: list[Any] = []
    before = 3
    for after in (32, 64, 128, 128):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    network = nn.Sequential(*layers[: 16 if device != "cpu" else 12], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(network, nn.Linear(128, 10)).to(device)
    optimiser = torch.optim.SGD(network.parameters(), 0.01)
    images = torch.randn(batch, 3, side, side, device=device)
    target = torch.zeros(batch, dtype=torch.long, device=device)

    def step() -> None:
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images), target).backward()
        optimiser.step()

    return step


def lstm(torch: Any, device: str, width: int) -> Step:
    """Train a recurrent network, a batch for each unit."""
    network = torch.nn.LSTM(width, width, 2).to(device)
    given = torch.randn(64 if device != "cpu" else 4, 32, width, device=device)
    return lambda: network(given)[0].square().mean().backward()


def gather(torch: Any, device: str, rows: int) -> Step:
    """Look rows up in a large table, as recommendation models do."""
    table = torch.randn(rows, 64, device=device)
    places = torch.randint(0, rows, (2048, 100), device=device)
    return lambda: table[places].sum(1)


def stencil(torch: Any, device: str, side: int) -> Step:
    """Average the neighbours of each cell of a grid: memory bandwidth."""
    state = {"x": torch.randn(side, side, device=device)}

    def step() -> None:
        x = state["x"]
        state["x"] = 0.25 * (x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1))

    return step


def loader(torch: Any, device: str, batch: int) -> Step:
    """Wait for the next batch for 30 ms, as behind slow storage, and train on it."""
    train = cnn(torch, device, batch)

    def step() -> None:
        time.sleep(0.03)
        train()

    return step


def launches(torch: Any, device: str, count: int) -> Step:
    """Start many tiny kernels."""
    x = torch.zeros(256, device=device)

    def step() -> None:
        for _ in range(count):
            x.add_(1.0)

    return step


def attention(torch: Any, device: str, length: int) -> Step:
    """Train attention of eight heads."""
    query = torch.randn(4, 8, length, 64, device=device, requires_grad=True)
    return lambda: torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()


def fourier(torch: Any, device: str, size: int) -> Step:
    """Transform a grid and back, for machines without JAX."""
    x = torch.randn(size, size, device=device)
    return lambda: torch.fft.irfft2(torch.fft.rfft2(x))


def jax_products(size: int) -> tuple[Step, Step]:
    """Multiply matrices by JAX; what waits for its device."""
    import jax

    multiply = jax.jit(lambda a: a @ a * (1.0 / size))
    state = {"x": jax.numpy.ones((size, size))}

    def step() -> None:
        state["x"] = multiply(state["x"])

    return step, lambda: state["x"].block_until_ready()


PROGRAMS: dict[str, tuple[Callable[[Any, str, int], Step], int, int]] = {
    "gemm-4096": (gemm, 4096, 64),
    "gemm-512": (gemm, 512, 32),
    "cnn-8": (cnn, 8, 1),
    "cnn-32": (cnn, 32, 2),
    "cnn-128": (cnn, 128, 3),
    "lstm": (lstm, 512, 16),
    "gather": (gather, 2_000_000, 1000),
    "stencil": (stencil, 8192, 64),
    "loader": (loader, 32, 2),
    "launches": (launches, 200, 10),
    "attention": (attention, 1024, 16),
    "jax-or-fft": (fourier, 4096, 32),
}
"""Name -> the function that makes its step, its size on a GPU, its size on a CPU."""


def made(name: str, device: str) -> tuple[Step, Step, str]:
    """Return a program's step, what waits for the device, and which framework it uses."""
    make, size, small = PROGRAMS[name]
    if name == "jax-or-fft" and device != "cpu":
        try:
            return *jax_products(size), "jax"
        except ImportError:
            pass
    import torch

    torch.manual_seed(1)
    if device == "cpu":
        torch.set_num_threads(1)
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    return make(torch, device, size if device != "cpu" else small), wait, "torch"


def rate(ends: list[tuple[float, int]], start: float, until: float) -> tuple[float, int]:
    """Return units a second and units between two times. `ends`: (time at which some units were done, how many)."""
    inside = [(at, units) for at, units in ends if start <= at <= until]
    if len(inside) < 2:
        return sum(units for _, units in inside) / (until - start), sum(units for _, units in inside)
    units = sum(units for _, units in inside[1:])
    return units / (inside[-1][0] - inside[0][0]), units


def work(step: Step, wait: Step, start: float, until: float, units: int) -> list[tuple[float, int]]:
    """Work from before `start` to after `until`; return the number of units done."""
    ends = []
    while time.monotonic() < until + 0.2:
        for _ in range(units):
            step()
        wait()
        ends.append((time.monotonic(), units))
    return ends


def units_at_once(step: Step, wait: Step) -> int:
    """Return how many units take about 20 ms, after some that do not count."""
    for _ in range(3):
        step()
    wait()
    began = time.monotonic()
    step()
    wait()
    return max(1, min(1000, int(0.02 / max(time.monotonic() - began, 1e-5))))


def main() -> int:
    name = sys.argv[1]
    try:
        step, wait, framework = made(name, "cpu" if "cpu" in sys.argv[2:] else "cuda")
        units = units_at_once(step, wait)
        print(json.dumps({"ready": os.getpid(), "framework": framework, "units_at_once": units}), flush=True)
        for line in sys.stdin:
            if line.strip() == "end":
                return 0
            start, until = map(float, line.split())
            found, count = rate(work(step, wait, start, until, units), start, until)
            print(json.dumps({"rate": found, "units": count}), flush=True)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is the answer)
        print(json.dumps({"error": f"{type(error).__name__}: {str(error)[:1500]}"}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
