"""Writes the hostile files of tests/fuzz/files: `python tests/fuzz/make_files.py`."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parent / "files"
ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def file_of(header: object, data: bytes = bytes(4)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: object) -> bytes:
    return file_of({"w": {**ONE, **changes}})


def network(changes: dict | str, block: dict | None = None) -> bytes:
    """Dense(1) on one number, with other words about it."""
    about = {
        "input": [1],
        "loss": "mse",
        "parameter": 0,
        "seed": 0,
        "steps": 0,
        "frozen": [],
        "blocks": [{"block": "Dense", "units": 1, "bias": False} if block is None else block],
    }
    text = changes if isinstance(changes, str) else json.dumps({**about, **changes})
    notes = {"format": "openbnns.Network 1", "network": text}
    return file_of({"__metadata__": notes, "dense_1.weights": {**ONE, "shape": [1, 1]}})


def inside(depth: int) -> list:
    blocks: list = [{"block": "Dense", "units": 1, "bias": False}]
    for _ in range(depth):
        blocks = [{"block": "Rows", "blocks": blocks}]
    return blocks


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}
FILES = {
    "header-nothing": b"",
    "header-seven-bytes": bytes(7),
    "header-size-2-to-the-40": (1 << 40).to_bytes(8, "little") + b"{}",
    "header-size-all-ones": b"\xff" * 8 + b"{}",
    "header-a-list": file_of([]),
    "header-nested": file_of(b"[" * 1500),
    "header-nested-objects": file_of(b'{"a":' * 400),
    "header-nested-shape": file_of(b'{"w":{"shape":' + b"[" * 2000),
    "header-not-utf-8": file_of(b'{"\xff":' + json.dumps(ONE).encode() + b"}"),
    "header-half-a-character": file_of(b'{"\\ud800":' + json.dumps(ONE).encode() + b"}"),
    "header-array-twice": file_of(f'{{"w":{json.dumps(ONE)},"w":{json.dumps(ONE)}}}'.encode()),
    "header-key-twice": file_of(f'{{"w":{json.dumps(ONE)[:-1]},"shape":[1]}}}}'.encode()),
    "header-note-twice": file_of(b'{"__metadata__":{"a":"1","a":"2"}}', b""),
    "header-notes-twice": file_of(b'{"__metadata__":{},"__metadata__":{}}', b""),
    "header-note-a-number": file_of({"__metadata__": {"a": 1}}, b""),
    "header-number-of-4000-digits": file_of(
        b'{"w":{"dtype":"F32","shape":[' + b"9" * 4000 + b'],"data_offsets":[0,4]}}'
    ),
    "header-nan": file_of({"w": {**ONE, "shape": [float("nan")]}}),
    "header-infinity": file_of({"w": {**ONE, "data_offsets": [0, float("inf")]}}),
    "header-1e999": file_of(b'{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}'),
    "header-float-shape": entry(shape=[1.0]),
    "header-true-for-one": entry(shape=[True]),
    "header-negative-shape": entry(shape=[-1]),
    "header-two-negative": entry(shape=[-1, -1]),
    "header-product-wraps": entry(shape=[1 << 32, 1 << 32], data_offsets=[0, 0]),
    "header-576-gib": entry(shape=[1 << 30, 144], data_offsets=[0, 576 << 30]),
    "header-empty-but-huge": file_of({"w": ONE, "e": {**EMPTY, "shape": [0, 1 << 62, 1 << 62]}}),
    "header-65-axes": entry(shape=[1] * 65),
    "header-backwards": entry(data_offsets=[4, 0]),
    "header-overlap": file_of({"a": ONE, "b": ONE}),
    "header-hole": file_of({"a": ONE, "b": {**ONE, "data_offsets": [8, 12]}}, bytes(12)),
    "header-bytes-of-nobody": file_of({"a": ONE}, bytes(5)),
    "header-unknown-type": entry(dtype="F33"),
    "header-type-a-list": entry(dtype=["F32"]),
    "header-no-type": file_of({"w": {"shape": [1], "data_offsets": [0, 4]}}),
    "header-more-keys": entry(code="import os"),
    "header-bool-of-two": file_of({"w": {**ONE, "dtype": "BOOL", "shape": [4]}}, b"\0\1\2\1"),
    "header-a-pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "network-576-gib": network({}, {"block": "Dense", "units": 144 << 30, "bias": False}),
    "network-576-gib-orthogonal": network(
        {}, {"block": "Dense", "units": 144 << 30, "bias": False, "initializer": "orthogonal"}
    ),
    "network-units-zero": network({}, {"block": "Dense", "units": 0, "bias": False}),
    "network-units-text": network({}, {"block": "Dense", "units": "1", "bias": False}),
    "network-units-true": network({}, {"block": "Dense", "units": True, "bias": False}),
    "network-units-10-to-the-30": network({}, {"block": "Dense", "units": 10**30, "bias": False}),
    "network-embedding-huge": network(
        {}, {"block": "Embedding", "entries": 1 << 24, "width": 1 << 13}
    ),
    "network-position-huge": network({"input": [1 << 20, 1 << 18]}, {"block": "Position"}),
    "network-attention-huge": network({"input": [1, 1 << 19]}, {"block": "Attention", "heads": 1}),
    "network-normalize-huge": network(
        {"input": [1 << 38]}, {"block": "Normalize", "kind": "layer"}
    ),
    "network-convolution-huge": network(
        {"input": [1 << 18, 8, 8]}, {"block": "Convolution", "channels": 1 << 18, "kernel_size": 1}
    ),
    "network-groups-zero": network(
        {"input": [1, 8, 8]}, {"block": "Convolution", "channels": 1, "groups": 0}
    ),
    "network-stride-zero": network(
        {"input": [1, 8, 8]}, {"block": "Pool", "kind": "max", "kernel_size": 2, "stride": 0}
    ),
    "network-heads-zero": network({"input": [2, 1]}, {"block": "Attention", "heads": 0}),
    "network-input-zero": network({"input": [0]}),
    "network-input-text": network({"input": ["1"]}),
    "network-input-none": network({"input": None}),
    "network-steps-infinite": network(json.dumps({"steps": 0}).replace("0", "1e999")),
    "network-steps-infinity": network({"steps": float("inf")}),
    "network-steps-nan": network({"steps": float("nan")}),
    "network-steps-text": network({"steps": "7"}),
    "network-seed-negative": network({"seed": -1}),
    "network-epsilon-nan": network(
        {}, {"block": "Dense", "units": 1, "bias": False, "epsilon": float("nan")}
    ),
    "network-own-setting": network({}, {"block": "Convolution", "channels": 1, "_pool": "x"}),
    "network-key-twice": network(
        '{"input":[1],"loss":"mse","parameter":0,"seed":0,"steps":0,"frozen":[],"blocks":[],'
        '"blocks":[{"block":"Dense","units":1,"bias":false}]}'
    ),
    "network-nested-blocks": network({"blocks": inside(40)}),
    "network-nested-lists": network("[" * 1500),
    "network-frozen-unknown": network({"frozen": ["dense_2.weights"]}),
    "network-frozen-numbers": network({"frozen": 7}),
    "network-half-a-character": network(json.dumps({"loss": "\ud800"})),
    "network-not-json": network("import os"),
    "network-block-itself": network({}, {"block": "Block"}),
    "network-block-a-list": network({}, {"block": ["Dense"]}),
    "network-blocks-a-number": network({"blocks": 3}),
    "network-no-blocks": network({"blocks": []}),
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.safetensors"):
        old.unlink()
    for name, content in FILES.items():
        (FOLDER / f"{name}.safetensors").write_bytes(content)
    print(len(FILES), "files,", sum(map(len, FILES.values())), "bytes")
