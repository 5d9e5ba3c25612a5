"""Checkpoints: complete or not there, whatever happens while they are written or read."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openbnns
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openbnns.blocks import Dense, Embedding, Flatten, Rows
from openbnns.io import CheckpointError, load_checkpoint, save_checkpoint

posix = pytest.mark.skipif(os.name != "posix", reason="links, permissions and signals of POSIX")
linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")

ARRAYS = {
    "w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "step": np.array(7, np.int64),
    "none": np.empty((0, 3), np.float32),
    "half": np.array([1.5, -2.0], np.float16),
}


def assert_same(arrays: dict, expected: dict) -> None:
    assert sorted(arrays) == sorted(expected)
    for name, array in expected.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(arrays[name], array)


def test_comes_back_as_it_went(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS, {"seed": "3"})
    arrays, notes = load_checkpoint(path)
    assert_same(arrays, ARRAYS)
    assert notes == {"seed": "3"}
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_strided_arrays_are_written_packed(tmp_path):
    path = tmp_path / "a.safetensors"
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    save_checkpoint(path, {"turned": base.T, "every_second": base[:, ::2]})
    assert_same(load_checkpoint(path)[0], {"turned": base.T, "every_second": base[:, ::2]})


def test_the_new_one_replaces_the_old_one(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)
    save_checkpoint(path, {"w": np.zeros(2, np.float32)})
    assert_same(load_checkpoint(path)[0], {"w": np.zeros(2, np.float32)})


def test_what_cannot_be_stored_is_refused_and_the_old_one_stays(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)
    with pytest.raises(CheckpointError, match="cannot be stored"):
        save_checkpoint(path, {"w": np.array(["text"], dtype=object)})
    assert_same(load_checkpoint(path)[0], ARRAYS)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        save_checkpoint(tmp_path / "nowhere" / "a.safetensors", ARRAYS)
    with pytest.raises(CheckpointError, match="no such file"):
        load_checkpoint(tmp_path / "a.safetensors")


def test_a_full_disk_leaves_the_old_one(tmp_path):
    """A limit on the size of files stands for the full disk: the write stops half-way."""
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)
    program = (
        "import resource, signal, sys, numpy as np\n"
        "from openbnns.io import CheckpointError, save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "try:\n"
        "    save_checkpoint(sys.argv[1], {'w': np.zeros(1 << 20, 'f4')})\n"
        "except CheckpointError as error:\n"
        "    print('refused:', error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("refused: [save_checkpoint]")
    assert_same(load_checkpoint(path)[0], ARRAYS)
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_complains_late_leaves_the_old_one(tmp_path, monkeypatch, call):
    """Some disks find out that they are full, or broken, only when all was written."""
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)

    def refuse(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(CheckpointError, match="No space left"):
            save_checkpoint(path, {"w": np.zeros(9, np.float32)})
    assert_same(load_checkpoint(path)[0], ARRAYS)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_killed_while_writing_leaves_a_whole_one(tmp_path):
    """A process that writes one checkpoint after the other is killed at any moment."""
    path = tmp_path / "a.safetensors"
    program = (
        "import sys, numpy as np\n"
        "from openbnns.io import save_checkpoint\n"
        "for step in range(100000):\n"
        "    save_checkpoint(sys.argv[1], {'w': np.full(1 << 18, step, 'f4')})\n"
        "    if step == 0: print('going', flush=True)\n"
    )
    for delay in (0.0, 0.001, 0.003, 0.007, 0.011, 0.013, 0.02, 0.031):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"going\n"
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        w = load_checkpoint(path)[0]["w"]
        assert w.shape == (1 << 18,)
        assert (w == w[0]).all()
        assert len(os.listdir(tmp_path)) <= 2  # with one leftover, until somebody saves again
    save_checkpoint(path, ARRAYS)
    assert os.listdir(tmp_path) == [path.name]


def test_cut_short_anywhere(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)
    content = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for size in range(len(content)):
        cut.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="not a whole checkpoint"):
            load_checkpoint(cut)


def header(entries: object, data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        b"\x80\x04K\x01.",  # a pickle
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        header({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"\0" * 4),
        header({"w": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header(
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            },
            b"\0" * 4,
        ),
        header({"w": {"dtype": "F32", "shape": [1 << 33, 1 << 33], "data_offsets": [0, 4]}}),
    ],
    ids=range(12),
)
def test_hostile_files_are_refused(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        load_checkpoint(path)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8))
def test_spoiled_bytes_are_refused_or_read(tmp_path_factory, changes):
    """Whatever the bytes are: arrays of the sizes the file says, or a refusal; never a crash."""
    path = tmp_path_factory.mktemp("spoiled") / "a.safetensors"
    save_checkpoint(path, ARRAYS, {"seed": "3"})
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[place % len(content)] = value
    path.write_bytes(content)
    try:
        arrays, _ = load_checkpoint(path)
    except CheckpointError:
        return
    assert sum(array.nbytes for array in arrays.values()) < len(content)


# ---- places of all kinds ----


def test_what_cannot_be_read_is_not_called_missing(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)

    def refuse(*given, **words):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
            load_checkpoint(path)
    with pytest.raises(CheckpointError, match="expected a file; got a folder"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint("a\0b")
    with pytest.raises(CheckpointError, match="null"):
        save_checkpoint("a\0b", ARRAYS)


@posix
def test_only_files_are_read_and_replaced(tmp_path):
    """A pipe would be waited for, and a device would be gone after a rename."""
    pipe, folder, circle = tmp_path / "pipe", tmp_path / "folder", tmp_path / "circle"
    os.mkfifo(pipe)
    folder.mkdir()
    circle.symlink_to(circle)
    with pytest.raises(CheckpointError, match="got something else"):
        load_checkpoint(pipe)
    for place in (pipe, folder, circle):
        with pytest.raises(CheckpointError, match=r"expected the place of a file|symbolic links"):
            save_checkpoint(place, ARRAYS)
    assert pipe.is_fifo()
    assert circle.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["circle", "folder", "pipe"]


@posix
def test_links_are_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "near").mkdir()
    link, second = tmp_path / "near" / "link", tmp_path / "near" / "second"
    link.symlink_to("../far/a.safetensors")  # which is not there yet
    second.symlink_to("link")
    for value in range(2):
        save_checkpoint(second, {"w": np.full(3, value, np.float32)})
        assert link.is_symlink()
        assert second.is_symlink()
        found = load_checkpoint(tmp_path / "far" / "a.safetensors")[0]["w"]
        np.testing.assert_array_equal(found, np.full(3, value, np.float32))
    assert os.listdir(tmp_path / "far") == ["a.safetensors"]
    assert sorted(os.listdir(tmp_path / "near")) == ["link", "second"]


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666])
def test_permissions_stay(tmp_path, mode):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)
    old = os.umask(0)
    os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o666 & ~old
    path.chmod(mode)
    save_checkpoint(path, ARRAYS)
    assert path.stat().st_mode & 0o7777 == mode


@posix
def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    import fcntl

    path = tmp_path / "a.safetensors"
    dead, living = (tmp_path / f".openbnns-{digit * 16}.tmp" for digit in "01")
    others = [".openbnns-12.tmp", ".openbnns-0123456789abcdef.tmp.txt", ".a.safetensors.12.ab"]
    for name in [dead.name, living.name, *others]:
        (tmp_path / name).write_bytes(b"half")
    with open(living, "rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        save_checkpoint(path, ARRAYS)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, living.name, *others])
    save_checkpoint(path, ARRAYS)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, *others])


def test_writers_of_one_place_do_not_disturb_each_other(tmp_path):
    """Whoever saves removes leftovers, and must not take what another is writing for one."""
    path = tmp_path / "a.safetensors"

    def write(number):
        for _ in range(20):
            save_checkpoint(path, {"w": np.full(1 << 12, number, np.float32)})

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    w = load_checkpoint(path)[0]["w"]
    assert (w == w[0]).all()
    assert os.listdir(tmp_path) == [path.name]


# ---- faults ----


@posix
def test_a_disk_that_fills_at_any_byte_leaves_the_old_one(tmp_path):
    """The limit on the size of files, one byte more each time."""
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS, {"which": "old"})
    program = (
        "import os, resource, signal, sys, numpy as np\n"
        "from openbnns.io import CheckpointError, load_checkpoint, save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path = sys.argv[1]\n"
        "old = open(path, 'rb').read()\n"
        "new = load_checkpoint(path)[0]\n"
        "limit, most = 0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "while True:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))\n"
        "    try:\n"
        "        save_checkpoint(path, new, {'which': 'new'})\n"
        "        break\n"
        "    except CheckpointError as error:\n"
        "        assert 'File too large' in str(error), error\n"
        "    assert open(path, 'rb').read() == old, limit\n"
        "    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)], limit\n"
        "    limit += 1\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
        "print(limit)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) == path.stat().st_size
    arrays, notes = load_checkpoint(path)
    assert_same(arrays, ARRAYS)
    assert notes == {"which": "new"}


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_writes_that_are_cut_and_then_fail(tmp_path, monkeypatch, fault):
    """A write may take less than it was given; the next one says why."""
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, ARRAYS)
    write = os.write
    for room in range(0, path.stat().st_size, 7):
        left = [room]

        def some(handle, data, left=left):
            if not left[0]:
                raise OSError(fault, os.strerror(fault))
            count = write(handle, memoryview(data)[: min(5, left[0])])
            left[0] -= count
            return count

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", some)
            with pytest.raises(CheckpointError, match=os.strerror(fault)):
                save_checkpoint(path, {name: array + 1 for name, array in ARRAYS.items()})
        assert os.listdir(tmp_path) == [path.name]
    assert_same(load_checkpoint(path)[0], ARRAYS)


@posix
def test_killed_at_every_call_leaves_a_whole_one_and_the_next_tidies_up(tmp_path):
    """Each child kills itself a call to the system later than the one before."""
    path = tmp_path / "a.safetensors"
    program = (
        "import os, signal, sys, fcntl, numpy as np\n"
        "from openbnns.io import save_checkpoint\n"
        "path, old, new = sys.argv[1], {'w': np.zeros(99, 'f4')}, {'w': np.ones(99, 'f4')}\n"
        "save_checkpoint(path, new)\n"
        "contents = {open(path, 'rb').read(): 'new'}\n"
        "save_checkpoint(path, old)\n"
        "contents[open(path, 'rb').read()] = 'old'\n"
        "calls = [(os, n) for n in ('open', 'fchmod', 'fchown', 'write', 'fsync', 'replace',\n"
        "                           'unlink', 'close', 'listdir')] + [(fcntl, 'flock')]\n"
        "def doomed(point):\n"
        "    left = [point]\n"
        "    def fatal(call):\n"
        "        def run(*given, **words):\n"
        "            for part in ('before', 'after'):\n"
        "                left[0] -= 1\n"
        "                if left[0] < 0:\n"
        "                    if call is write and part == 'before': call(given[0], given[1][:50])\n"
        "                    os.kill(os.getpid(), signal.SIGKILL)\n"
        "                if part == 'before': result = call(*given, **words)\n"
        "            return result\n"
        "        return run\n"
        "    write = os.write\n"
        "    for module, name in calls: setattr(module, name, fatal(getattr(module, name)))\n"
        "    save_checkpoint(path, new)\n"
        "    os._exit(0)\n"
        "found, left_behind, point = [], 0, 0\n"
        "while True:\n"
        "    save_checkpoint(path, old)\n"
        "    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]\n"
        "    child = os.fork()\n"
        "    if not child: doomed(point)\n"
        "    status = os.waitpid(child, 0)[1]\n"
        "    found.append(contents[open(path, 'rb').read()])\n"
        "    left_behind += len(os.listdir(os.path.dirname(path))) - 1\n"
        "    point += 1\n"
        "    if not status: break\n"
        "    assert os.WTERMSIG(status) == signal.SIGKILL\n"
        "print(found.count('old'), found.count('new'), found == sorted(found)[::-1], left_behind)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    old, new, in_order, left_behind = run.stdout.split()
    assert int(old) > 5
    assert int(new) > 3
    assert in_order == "True"
    assert int(left_behind) > 5  # else nothing was there to tidy up


def test_ctrl_c_behind_any_step_leaves_nothing_beside(tmp_path):
    """The exception comes behind each bytecode of the writer in turn, one in every save."""
    path = tmp_path / "weights.safetensors"
    old, new = {"w": np.zeros(3, "f4")}, {"w": np.ones(3, "f4")}

    def is_interrupted(steps):
        left, others = steps, sys.gettrace()

        def trace(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename != openbnns.io.__file__:
                return None
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if left < 0:
                sys.settrace(others)
                raise KeyboardInterrupt
            return trace

        try:
            sys.settrace(trace)
            save_checkpoint(path, new)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(others)
        return False

    save_checkpoint(path, old)
    steps = 0
    while is_interrupted(steps):
        assert os.listdir(tmp_path) == [path.name], f"behind step {steps}"
        assert load_checkpoint(path)[0]["w"].tolist() in (old["w"].tolist(), new["w"].tolist())
        save_checkpoint(path, old)
        steps += 1
    assert steps > 300


# ---- memory ----


@pytest.mark.parametrize("kind", ["arrays", "notes", "wide text", "closed"])
def test_headers_take_little_memory(tmp_path, kind):
    """The worst that a megabyte of header can do; four of them are allowed."""
    most = 1 << 20
    entry = '":{"dtype":"F32","shape":[],"data_offsets":[0,0]}'.replace("[]", "[0]")
    text = {
        "arrays": "{" + ",".join(f'"{i}{entry}' for i in range(most // 60)) + "}",
        "notes": '{"__metadata__":{' + ",".join(f'"{i}":""' for i in range(most // 14)) + "}}",
        "wide text": '{"__metadata__":{"🙂":"' + "x" * (most - 100) + '"}}',
        "closed": '{"a":' + "[]," * (most // 3 - 10),
    }[kind]
    content = text.encode()
    assert most * 0.7 < len(content) <= most
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(content)) + content)
    del text
    tracemalloc.start()
    try:
        load_checkpoint(path)
    except CheckpointError:
        assert kind == "closed"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2 * len(content) + (16 << 20)


def test_headers_that_are_too_long_are_not_looked_at(tmp_path):
    path = tmp_path / "a.safetensors"
    size = (4 << 20) + 1
    path.write_bytes(struct.pack("<Q", size) + b" " * size)
    with pytest.raises(CheckpointError, match="header of at most"):
        load_checkpoint(path)


def test_values_are_read_where_they_stay(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, {"w": np.zeros(1 << 22, np.float32), "v": np.zeros(1 << 21, bool)})
    tracemalloc.start()
    load_checkpoint(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * path.stat().st_size


@linux
@pytest.mark.parametrize("initializer", ["he", "orthogonal"])
def test_a_network_is_loaded_in_twice_its_file(tmp_path, initializer):
    """Neither first values nor a second copy of the parameters are made."""
    network = openbnns.Network([Dense(2000, initializer="he"), Dense(1)], input=(2000,))
    network.blocks[0].initializer = initializer  # as if
    path = tmp_path / "n"
    network.save(path)
    program = (
        "import sys, openbnns\n"
        "def now(word): return int(open('/proc/self/status').read().split(word)[1].split()[0])\n"
        "before = now('VmRSS:')\n"
        "network = openbnns.Network.load(sys.argv[1])\n"
        "print((now('VmHWM:') - before) * 1024)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 2 * path.stat().st_size


# ---- the format ----


def test_the_package_safetensors_reads_ours_and_we_its(tmp_path):
    theirs = pytest.importorskip("safetensors.numpy")
    dtypes = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
    arrays = {f"ä.{dtype}": np.arange(6).astype(dtype).reshape(2, 3) for dtype in dtypes} | ARRAYS
    save_checkpoint(tmp_path / "ours", arrays, {"a": "ü🙂\n"})
    assert_same(theirs.load_file(tmp_path / "ours"), arrays)
    theirs.save_file(arrays, tmp_path / "theirs", {"a": "ü🙂\n"})
    found, notes = load_checkpoint(tmp_path / "theirs")
    assert_same(found, arrays)
    assert notes == {"a": "ü🙂\n"}


def test_bfloat16_and_other_byte_orders(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    path = tmp_path / "a.safetensors"
    brain = np.array([1.5, -2], ml_dtypes.bfloat16)
    save_checkpoint(path, {"brain": brain, "big": np.array([1, 2], ">i4")})
    assert_same(load_checkpoint(path)[0], {"brain": brain, "big": np.array([1, 2], "<i4")})


@pytest.mark.parametrize(
    ("arrays", "notes"),
    [
        ({"w": np.zeros(1, np.complex128)}, {}),
        ({"\ud800": np.zeros(1)}, {}),
        ({"__metadata__": np.zeros(1)}, {}),
        ({3: np.zeros(1)}, {}),
        ({"w": np.zeros(1)}, {"step": 7}),
        ({"w": np.zeros(1)}, {"much": "x" * (5 << 20)}),
    ],
    ids=range(6),
)
def test_nothing_is_written_that_could_not_be_read(tmp_path, arrays, notes):
    with pytest.raises(CheckpointError, match="cannot be stored"):
        save_checkpoint(tmp_path / "a", arrays, notes)
    assert not os.listdir(tmp_path)


# ---- networks ----


@pytest.mark.parametrize("which", ["many", "branches"])
def test_networks_of_too_many_blocks_are_refused_at_both_ends(tmp_path, which):
    """Each holds native memory that no array in the file pays for."""
    word = json.dumps({"block": "Pool", "kernel_size": 1})
    blocks = f"[{','.join([word] * 4097)}]"
    if which == "branches":
        blocks = f'[{{"block":"Branch","join":"add","paths":[{blocks},[]]}}]'
    about = '{"input":[1,1,1],"loss":"mse","seed":0,"steps":0,"frozen":[],"blocks":' + blocks + "}"
    path = tmp_path / "n"
    save_checkpoint(path, {}, {"format": "openbnns.Network 1", "network": about})
    with pytest.raises(CheckpointError, match=r"expected at most 4096 in a file; got 409[78]"):
        openbnns.Network.load(path)


def test_networks_that_could_not_be_read_are_not_saved(tmp_path):
    deep = Dense(2)
    for _ in range(40):
        deep = Rows(deep)
    too_deep = openbnns.Network([Dense(2)], input=(3,), loss="mse")
    too_deep.blocks = [deep]  # as if
    infinite = openbnns.Network([Embedding(3, 2, scale=0.1)], input=(2,), loss="mse")
    infinite.blocks[0].scale = float("inf")
    many = openbnns.Network([Flatten() for _ in range(4096)] + [Dense(1)], input=(1,), loss="mse")
    for network in (too_deep, infinite, many):
        with pytest.raises(openbnns.LayerCreationError, match="expected"):
            network.save(tmp_path / "n")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("step", [np.array(np.nan), np.array(-1), np.ones(1, int), np.array(2.5)])
def test_a_time_step_is_a_whole_number(step):
    w = np.ones(3, np.float32)
    bound = openbnns.AdamOptimizer().bind([w])
    bound.step([w.copy()])
    before = bound.state_dict()
    changed = {name: array + 1 for name, array in before.items()}
    with pytest.raises(openbnns.ArrayError, match="time_step"):
        bound.load_state_dict({**changed, "time_step": step})
    with pytest.raises(openbnns.DTypeError, match="expected float32; got complex64"):
        bound.load_state_dict({**changed, "first_moment.0": np.ones(3, np.complex64)})
    assert_same(bound.state_dict(), before)
