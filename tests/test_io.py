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

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("safetensors")

from openbnns.io import CheckpointError, load_checkpoint, save_checkpoint

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
    for delay in (0.0, 0.003, 0.011, 0.02):
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
