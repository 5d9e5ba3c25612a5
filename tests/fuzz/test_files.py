"""Files of strangers: spoiled in every way, they load or raise CheckpointError, in little memory.

Each file follows from its number. A child process reads them under limits, so that one that kills
it is found: the same 300 every time, or with `--fuzz-minutes N` others for so long. `python
tests/fuzz/test_files.py FIRST COUNT` does so by hand.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from math import prod
from pathlib import Path

import numpy as np
import openbnns
import pytest
from openbnns import AdamOptimizer, CheckpointError, Network
from openbnns.blocks import (
    Activate,
    Attention,
    Branch,
    Convolution,
    Dense,
    Embedding,
    Flatten,
    Normalize,
    Pool,
    Position,
    Rows,
)
from openbnns.io import load_checkpoint, save_checkpoint

CORPUS = Path(__file__).parent / "files"
ROOM = 2 << 20  # bytes that reading may take beside twice the file
RESIDENT = 32 << 20  # the same for all of the process, native memory too
ADDRESSES = 4 << 30  # bytes of address space: threads and libraries reserve most of it


def whole_files(folder: Path) -> list[bytes]:
    """Real ones: one of each type of values, and networks with every kind of block."""
    dtypes = ["f8", "f4", "f2", "c8", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    arrays = {f"a.{dtype}": np.arange(6).astype(dtype).reshape(2, 3) for dtype in dtypes}
    arrays |= {"none": np.empty((0, 3), np.float32), "one": np.array(7, np.int64)}
    save_checkpoint(folder / "plain", arrays, {"seed": "3", "words": 'a "quoted" ünï\n🙂'})
    images = Network(
        [
            Convolution(3, 3, padding=1, normalization="batch", activation="relu"),
            Pool("max", 2),
            Branch(
                [Convolution(2, (1, 3), stride=(1, 1), padding=((0, 0), (1, 1)), groups=1)],
                [Convolution(1, 1), Activate("gelu")],
                join="concatenate",
            ),
            Normalize("instance", "tanh"),
            Pool("average", 2),
            Activate("leaky_relu"),
            Flatten(),
            Dense(4, "relu", normalization="batch"),
            Dense(3, initializer="orthogonal"),
        ],
        input=(2, 8, 8),
        optimizer=AdamOptimizer(0.01),
        seed=5,
    )
    images.freeze("dense_2")
    images.train_step(np.ones((2, 2, 8, 8), "f4"), np.array([0, 1]))
    images.save(folder / "images", optimizer=True)
    letters = Network(
        [
            Embedding(5, 4),
            Position(),
            Branch([Rows(Normalize("layer")), Attention(2, causal=True, dropout=0.1)], []),
            Rows(Dense(8, "gelu_tanh"), Dense(5)),
        ],
        input=(3,),
    )
    letters.save(folder / "letters")
    small = Network([Dense(2)], input=(2,), loss=openbnns.Loss.huber(0.5))
    small.save(folder / "small", optimizer=True)
    return [(folder / name).read_bytes() for name in ("plain", "images", "letters", "small")]


# ---- spoiling ----


def taken_apart(content: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def dumped(value: object) -> str:
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 3000 + "]" * 3000)


def put_together(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else dumped(header).encode()
    return len(text).to_bytes(8, "little") + text + data


NUMBERS = [
    0,
    1,
    2,
    3,
    5,
    8,
    64,
    100,
    255,
    -1,
    -2,
    1 << 16,
    1 << 20,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 37,
    1 << 40,
    (1 << 62) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    10**30,
    10**400,
    0.0,
    -0.0,
    0.5,
    1.0,
    2.5,
    1e-300,
    1e30,
    1e300,
    float("nan"),
    float("inf"),
    float("-inf"),
]
DEEP = "deep"  # more than json.dumps can write
WORDS = [
    DEEP,
    "",
    "F32",
    "F64",
    "BOOL",
    "BF16",
    "F8_E4M3",
    "U8",
    "I64",
    "C64",
    "f4",
    "add",
    "concatenate",
    "batch",
    "instance",
    "layer",
    "group",
    "max",
    "average",
    "l2_norm",
    "relu",
    "prelu",
    "clamp",
    "softmax",
    "linear",
    "gumbel",
    "identity",
    "integer_linear_saturate",
    "same",
    "valid",
    "he",
    "xavier",
    "orthogonal",
    "huber",
    "mse",
    "yolo",
    "softmax_cross_entropy",
    "Dense",
    "Block",
    "Branch",
    "Rows",
    "Flatten",
    "initial",
    "__class__",
    "__metadata__",
    "optimizer/time_step",
    "os.system",
    "\ud800",
    "\x00",
    "🙂" * 50,
    "x" * 5000,
]


def any_value(r: random.Random, depth: int = 0) -> object:
    kind = r.randrange(12 if depth < 3 else 8)
    if kind < 5:
        return r.choice(NUMBERS)
    if kind < 7:
        return r.choice(WORDS)
    if kind == 7:
        return r.choice([None, True, False, [], {}])
    if kind == 8:
        value: object = r.choice([[], {}, 1])
        for _ in range(r.choice([2, 10, 40, 100])):
            value = [value] if r.random() < 0.8 else {"block": value}
        return value
    if kind == 9:
        return {r.choice(WORDS): any_value(r, depth + 1) for _ in range(r.randrange(4))}
    return [any_value(r, depth + 1) for _ in range(r.randrange(5))]


def places(value: object) -> list[tuple[object, object]]:
    """Every place in a tree: who holds it, and where."""
    found: list[tuple[object, object]] = []
    pending = [value]
    while pending:
        held = pending.pop()
        if not isinstance(held, (dict, list)):
            continue
        for key in held if isinstance(held, dict) else range(len(held)):
            found.append((held, key))
            pending.append(held[key])
    return found


def change_tree(r: random.Random, tree: object) -> None:
    for _ in range(r.choice([1, 1, 1, 2, 4])):
        found = places(tree)
        if not found:
            return
        holder, key = r.choice(found)
        deed = r.randrange(8)
        if deed == 0 and isinstance(holder, dict):
            del holder[key]
        elif deed == 1 and isinstance(holder, dict):
            holder[r.choice(WORDS)] = any_value(r)
        elif deed == 2 and isinstance(holder, list):
            holder.insert(key, any_value(r))
        elif deed == 3:  # something from elsewhere
            other, there = r.choice(found)
            holder[key] = json.loads(json.dumps(other[there]))
        elif deed == 4 and isinstance(holder[key], int):
            holder[key] += r.choice([-1, 1])
        elif deed == 5 and isinstance(holder, list) and len(holder) > 1:
            r.shuffle(holder)
        else:
            holder[key] = any_value(r)


def spoil_bytes(r: random.Random, content: bytes) -> bytes:
    spoiled = bytearray(content)
    length = int.from_bytes(content[:8], "little")
    for _ in range(r.choice([1, 1, 2, 8])):
        at = r.randrange(len(spoiled) if r.random() < 0.2 else min(len(spoiled), 8 + length))
        deed = r.randrange(7)
        if deed == 0:
            spoiled[at] ^= 1 << r.randrange(8)
        elif deed == 1:
            spoiled[at] = r.choice(b'\x00\xff\x80"{}[],:\\0123456789eE-. ')
        elif deed == 2:
            del spoiled[at:]
        elif deed == 3:
            del spoiled[at : at + r.randrange(1, 20)]
        elif deed == 4:
            spoiled[at:at] = spoiled[at : at + r.randrange(1, 60)]
        elif deed == 5:
            spoiled[at:at] = r.choice([b"[" * 5000, b'{"a":' * 5000, b"9" * 5000, b"\xed\xa0\x80"])
        else:
            sizes = [0, 1, length - 1, length + 1, 1 << 40, -1]
            spoiled[:8] = (r.choice(sizes) % (1 << 64)).to_bytes(8, "little")
        if not spoiled:
            break
    return bytes(spoiled)


def spoil_header(r: random.Random, content: bytes) -> bytes:
    header, data = taken_apart(content)
    entries = [value for name, value in header.items() if name != "__metadata__"]
    deed = r.randrange(6)
    if deed == 0:
        change_tree(r, header)
    elif deed == 1 and len(entries) > 1:
        one, other = r.sample(entries, 2)
        key = r.choice(["shape", "data_offsets", "dtype"])
        one[key], other[key] = other[key], one[key]
    elif deed == 2 and entries:
        entry = r.choice(entries)
        numbers = [r.choice(NUMBERS) for _ in range(r.randrange(5))]
        entry[r.choice(["shape", "data_offsets"])] = numbers
    elif deed == 3 and entries:
        r.choice(entries)["dtype"] = r.choice(WORDS)
    elif deed == 4:
        names = list(header)
        one, other = r.choice(names), r.choice(names)
        header[one], header[other] = header[other], header[one]
    else:  # one name twice
        text = json.dumps(header)
        name = r.choice(list(header))
        twin = json.dumps({name: header[r.choice(list(header))]})[1:-1]
        return put_together(f"{text[:-1]}, {twin}}}".encode(), data)
    return put_together(header, data)


def spoil_network(r: random.Random, content: bytes) -> bytes:
    header, data = taken_apart(content)
    notes = header["__metadata__"]
    about = json.loads(notes["network"])
    if r.random() < 0.1:  # one name twice
        holder = about if r.random() < 0.5 else about["blocks"][0]
        name = r.choice(list(holder))
        twin = json.dumps({name: any_value(r)})[1:-1]
        text = json.dumps(holder)
        notes["network"] = dumped(about).replace(text, f"{text[:-1]}, {twin}}}")
    elif r.random() < 0.2:
        change_tree(r, notes)
    else:
        found = places(about["blocks"])
        settings = [(h, k) for h, k in found if isinstance(h, dict) and k != "block"]
        if settings and r.random() < 0.5:
            holder, key = r.choice(settings)
            holder[key] = any_value(r)
        else:
            change_tree(r, about)
        notes["network"] = dumped(about)
    return put_together(header, data)


def resize_network(r: random.Random, content: bytes) -> bytes:
    """Another number wherever one stands, in shapes and settings alike: some are networks again."""
    header, _ = taken_apart(content)
    notes = header.pop("__metadata__")
    about = json.loads(notes["network"])
    sizes = sorted({n for entry in header.values() for n in entry["shape"]} | set(about["input"]))
    old, new = r.choice(sizes), r.choice([0, 1, 2, 3, 4, 6, 7, 9, 16, 33, 1 << 20, 1 << 33])
    for holder, key in [*places(header), *places(about)]:
        if type(holder[key]) is int and holder[key] == old and key not in ("seed", "steps"):
            holder[key] = new
    end = 0
    for entry in header.values():
        size = {"F32": 4, "I64": 8}[entry["dtype"]] * prod(entry["shape"])
        entry["data_offsets"] = [end, end + size]
        end += size
    if end > 1 << 16:
        end = r.randrange(1 << 10)
    if r.random() < 0.5:
        change_tree(r, about)
    notes["network"] = dumped(about)
    return put_together({"__metadata__": notes, **header}, bytes(end))


def spoiled(number: int, whole: list[bytes]) -> bytes:
    r = random.Random(number)
    which = r.randrange(len(whole))
    content = whole[which]
    ways = [spoil_bytes, spoil_header, spoil_header]
    if which:
        ways += [spoil_network] * 4 + [resize_network] * 2
    content = r.choice(ways)(r, content)
    if r.random() < 0.05 and content:
        content = spoil_bytes(r, content)
    return content


# ---- reading, in a process of its own ----


def measured(path: Path, load) -> tuple[object, str | None]:
    """What came of it, and what was wrong with that."""
    import resource

    size = path.stat().st_size
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.reset_peak()
    start = tracemalloc.get_traced_memory()[0]
    result = None
    try:
        result = load(path)
    except CheckpointError as error:
        if len(str(error)) > 2000:
            return None, f"a sentence of {len(str(error))} characters"
    except BaseException as error:
        return None, f"{type(error).__name__}: {error}"[:500]
    peak = tracemalloc.get_traced_memory()[1] - start
    if peak > 2 * size + ROOM:
        return result, f"{peak} bytes for a file of {size}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if grown > 2 * size + RESIDENT:
        return result, f"{grown} resident bytes for a file of {size}"
    return result, None


def check(path: Path) -> tuple[bool, list[str]]:
    """Whether it is a network, and all that is wrong."""
    wrong = [measured(path, load_checkpoint)[1]]
    wrong.append(measured(path, lambda path: Network.load(path, optimizer=AdamOptimizer()))[1])
    network, complaint = measured(path, Network.load)
    wrong.append(complaint)
    if isinstance(network, Network):
        most = max(prod(stage.output) for stage in network._each())
        if max(most, prod(network.input_shape or ())) < 1 << 16:
            # what was let in is a network: it computes, or refuses with a sentence
            try:
                network.predict(np.zeros((2, *network.input_shape), np.float32))
            except openbnns.BNNSError:
                pass
            except Exception as error:
                wrong.append(f"predict: {type(error).__name__}: {error}"[:500])
        network.close()
    return isinstance(network, Network), [text for text in wrong if text]


def child(first: int, count: int, folder: Path) -> None:
    """Read files of these numbers; the last one stays there for whoever wants to know."""
    import resource
    import warnings

    warnings.simplefilter("error")
    whole = whole_files(folder)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    tracemalloc.start()
    path, networks, failures = folder / "spoiled", 0, []
    for number in range(first, first + count):
        (folder / "number").write_text(str(number))
        path.write_bytes(spoiled(number, whole))
        loaded, wrong = check(path)
        networks += loaded
        failures += [f"{number}: {text}" for text in wrong]
    print(json.dumps({"files": count, "networks": networks, "failures": failures}))


def run_child(first: int, count: int, folder: Path) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [sys.executable, __file__, str(first), str(count), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    if run.returncode:
        number = folder / "number"
        at = number.read_text() if number.exists() else "the whole ones"
        return {
            "files": count,
            "networks": 0,
            "failures": [f"{at}: exit {run.returncode}: {run.stderr[-2000:]}"],
        }
    return json.loads(run.stdout)


linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")


@linux
def test_spoiled_files_load_or_are_refused(tmp_path, request, capsys):
    minutes = request.config.getoption("--fuzz-minutes")
    first = 1000 * random.SystemRandom().getrandbits(32) if minutes else 0
    count = 1000 if minutes else 300
    until = time.monotonic() + 60 * minutes
    done = networks = 0
    while not done or time.monotonic() < until:
        found = run_child(first + done, count, tmp_path / str(done))
        assert not found["failures"], "\n".join(found["failures"][:20])
        done, networks = done + count, networks + found["networks"]
    with capsys.disabled():
        print(f"\n{done} files from {first}, {networks} of them networks")
    assert 0.02 < networks / done < 0.9  # neither is all refused at the door, nor all harmless


@linux
def test_the_whole_files_are_whole(tmp_path):
    for content in whole_files(tmp_path):
        (tmp_path / "file").write_bytes(content)
        load_checkpoint(tmp_path / "file")
        if b"openbnns.Network" in content:
            Network.load(tmp_path / "file")


@linux
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.safetensors")), ids=lambda path: path.stem)
def test_hostile_files_are_refused(path):
    """Some once did harm. header-…: no checkpoint at all; network-…: arrays, but no network."""
    tracemalloc.start()
    try:
        for load in [load_checkpoint, Network.load]:
            result, wrong = measured(path, load)
            assert wrong is None
            has_arrays = path.stem.startswith("network")
            assert (result is not None) == (load is load_checkpoint and has_arrays)
    finally:
        tracemalloc.stop()


if __name__ == "__main__":
    place = Path(sys.argv[3]) if len(sys.argv) > 3 else Path(tempfile.mkdtemp())
    child(int(sys.argv[1]), int(sys.argv[2]), place)
