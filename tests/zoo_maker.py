"""Makes zoos of which it is known what must become of each file. `python tests/zoo_maker.py DIR SMALL LARGE`."""

from __future__ import annotations

import io
import json
import random
import struct
import sys
import zipfile
from pathlib import Path

from helpers import BIG4, BIG8, LAYOUTS, LITTLE8, Parts

CORPUS = Path(__file__).parents[1] / "testfiles"
# Of each sort so many in a hundred files.
SORTS = {
    "tensor": 30, "linear": 20, "corpus": 15, "pt": 8, "renamed": 3, "twin": 4,
    "cut": 5, "bad_tag": 3, "bad_view": 2, "page": 2, "empty": 1,
    "text": 3, "json": 2, "picture": 1, "archive": 1,
}  # fmt: skip
DONE, FAILED, FOREIGN = "done", "failed", "foreign"


def tensor(rng: random.Random, layout=LITTLE8, count: int | None = None) -> bytes:
    """A table `{name = …, weight = FloatTensor}`."""
    count = count or rng.randint(1, 400)
    parts = Parts(layout).ints(3, 1, 2).string("name").string(f"net{rng.randrange(10**6)}").string("weight")
    parts.torch(2, "torch.FloatTensor").ints(1).longs(count).longs(1).longs(1)
    parts.torch(3, "torch.FloatStorage").longs(count)
    return parts.elements("f", *(rng.randrange(-4096, 4096) / 256 for _ in range(count))).data


def linear(rng: random.Random, layout=LITTLE8) -> bytes:
    """An `nn.Sequential` of an `nn.Linear`, as Lua's Torch writes it."""
    wide, tall = rng.randint(1, 12), rng.randint(1, 12)
    parts = Parts(layout).torch(1, "nn.Sequential").ints(3, 2, 1).string("modules").ints(3, 3, 1).number(1)
    parts.torch(4, "nn.Linear").ints(3, 5, 2)
    for index, name, sizes in ((6, "weight", (tall, wide)), (8, "bias", (tall,))):
        steps = (wide, 1) if len(sizes) == 2 else (1,)
        total = sizes[0] * (sizes[1] if len(sizes) == 2 else 1)
        parts.string(name).torch(index, "torch.DoubleTensor").ints(len(sizes)).longs(*sizes).longs(*steps).longs(1)
        parts.torch(index + 1, "torch.DoubleStorage").longs(total)
        parts.elements("d", *(rng.uniform(-1, 1) for _ in range(total)))
    return parts.data


def bad_view(rng: random.Random) -> bytes:
    """A tensor that claims more than its storage holds."""
    parts = Parts(LITTLE8).torch(1, "torch.FloatTensor").ints(1).longs(1000).longs(1).longs(1)
    return parts.torch(2, "torch.FloatStorage").longs(2).elements("f", rng.random(), 2).data


def archive(rng: random.Random) -> bytes:
    """A zip archive that is not PyTorch's."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("readme.txt", str(rng.random()))
    return data.getvalue()


def greedy(path: Path, entries: int = 150_000) -> None:
    """A table of tables, which needs far more memory than it has bytes."""
    inner = b"".join(struct.pack("<idiii", 1, key + 1, 3, key + 2, 0) for key in range(entries))
    path.write_bytes(struct.pack("<iii", 3, 1, entries) + inner)


def make_zoo(folder: Path, small: int, large: int = 0, large_bytes: int = 64 << 20, seed: int = 1) -> dict[str, str]:
    """Make a zoo; return the verdict on each file, by name.

    Args:
        folder: where.
        small: how many files of a few kilobytes.
        large: how many large ones: four in five good, the others cut short or foreign.
        large_bytes: size of a large one.
        seed: the same gives the same zoo.
    """
    rng = random.Random(seed)
    verdicts: dict[str, str] = {}
    sorts = [sort for sort, times in SORTS.items() for _ in range(times)]
    models = sorted(CORPUS.glob("nn/*.t7"))[:200] + sorted(CORPUS.glob("format/t*.t7"))[:60]
    checkpoints = [path for path in sorted(CORPUS.glob("pt/*.pt")) if path.stat().st_size < 20_000]

    def put(name: str, data: bytes, verdict: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        verdicts[name] = verdict

    for number in range(small):
        sort = sorts[number] if number < len(sorts) else rng.choice(sorts)
        stem = f"{rng.choice('abcdefgh')}/{number // 500:03}/{sort}{number:05}"
        if sort == "tensor":
            put(f"{stem}.t7", tensor(rng, rng.choice(list(LAYOUTS.values()))), DONE)
        elif sort == "linear":
            put(f"{stem}.net", linear(rng, rng.choice((LITTLE8, BIG8, BIG4))), DONE)
        elif sort == "corpus":
            put(f"{stem}.t7", rng.choice(models).read_bytes(), DONE)
        elif sort == "pt":
            put(f"{stem}.pth", rng.choice(checkpoints).read_bytes(), DONE)
        elif sort == "renamed":
            put(f"{stem}.{rng.choice(('model', 'v1', 'bin', 'txt'))}", linear(rng), DONE)
        elif sort == "twin":
            put(f"{stem}.t7", linear(rng), DONE)
            put(f"{stem}.T7B", tensor(rng), DONE)
        elif sort == "cut":
            data = tensor(rng)
            put(f"{stem}.t7", data[: rng.randint(20, len(data) - 1)], FAILED)
        elif sort == "bad_tag":
            put(f"{stem}.t7", struct.pack("<i", rng.randint(9, 10**9)) + linear(rng)[4:], FAILED)
        elif sort == "bad_view":
            put(f"{stem}.dat", bad_view(rng), FAILED)
        elif sort == "page":
            put(f"{stem}.t7", b"<!DOCTYPE html><html><body>404</body></html>", FAILED)
        elif sort == "empty":
            put(f"{stem}.pth", b"", FAILED)
        elif sort == "text":
            put(f"{stem}.txt", f"Notes on network {number}\n".encode() * 9, FOREIGN)
        elif sort == "json":
            put(f"{stem}.json", json.dumps({"epoch": number}).encode(), FOREIGN)
        elif sort == "picture":
            put(f"{stem}.png", b"\x89PNG\r\n\x1a\n" + rng.randbytes(200), FOREIGN)
        elif sort == "archive":
            put(f"{stem}.zip", archive(rng), FOREIGN)
    for number in range(large):
        elements = large_bytes // 4
        head = Parts(LITTLE8).torch(1, "torch.FloatTensor").ints(1).longs(elements).longs(1).longs(1)
        head.torch(2, "torch.FloatStorage").longs(elements)
        data = head.data + rng.randbytes(1 << 16) * (large_bytes // (1 << 16))
        name = f"large/{number:02}"
        if number % 10 == 3:
            put(f"{name}.t7", data[:-10], FAILED)
        elif number % 10 == 7:
            put(f"{name}.h5", b"\x89HDF\r\n\x1a\n" + data[8:], FOREIGN)
        else:
            put(f"{name}.t7", data, DONE)
    return verdicts


if __name__ == "__main__":
    place = Path(sys.argv[1])
    made = make_zoo(place, int(sys.argv[2]), int(sys.argv[3]))
    place.with_suffix(".json").write_text(json.dumps(made))
