"""Questions about descriptors: sizes in bytes, ranks, default strides."""

import numpy as np
import pytest
from cases.descriptors import TYPES, first_major, image, type_code, vector
from openbnns import c

DATA = np.zeros(4096, np.uint8)


@pytest.mark.parametrize(
    ("descriptor", "size"),
    [
        (vector(10, data=DATA), 40),
        (vector(10, "float16", data=DATA), 20),
        (vector(10, "bool", data=DATA), 10),
        (vector(10, "int64", data=DATA), 80),
        (image((2, 3, 4), data=DATA), 96),
        (image((2, 3, 4), data=DATA, strides=(20, 5, 1)), 4 * (1 + 20 + 2 * 5 + 3)),
        (first_major((2, 3, 4), data=DATA), 96),
        (first_major((2, 3, 4), data=DATA, strides=(0, 5, 1)), 4 * (1 + 15 + 2 * 5 + 3)),
        (vector(10, "uint4", data=DATA), 5),
        (vector(11, "uint3", data=DATA), 5),
        (vector(9, "int1", data=DATA), 2),
        (vector(10), 0),
        (vector(10, data=DATA, stride=[2**63]), 0),
        (first_major((2**40, 2**40), data=DATA), 0),
    ],
)
def test_data_size(descriptor, size):
    assert c.BNNSNDArrayGetDataSize(descriptor) == size


def test_data_size_of_unknown_layouts_and_types_is_zero():
    for field in ("layout", "data_type"):
        descriptor = vector(10, data=DATA)
        setattr(descriptor, field, 3)
        assert c.BNNSNDArrayGetDataSize(descriptor) == 0
    assert c.BNNSNDArrayGetDataSize(None) == 0


@pytest.mark.parametrize("name", TYPES)
def test_width_is_in_the_low_bits(name):
    bits = {"bool": 8, "bfloat16": 16}.get(name) or int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
    descriptor = vector(8, name, data=DATA, table_data=DATA, table_data_type=type_code("float32"))
    assert c.BNNSNDArrayGetDataSize(descriptor) == bits


def test_rank_of_layouts():
    ranks = {"Vector": 1, "RowMajorMatrix": 2, "ColumnMajorMatrix": 2, "ImageCHW": 3, "SNE": 3}
    ranks |= {"FullyConnectedSparse": 2, "NSE": 3, "MHA_DHK": 3, "ConvolutionWeightsOIHW": 4}
    ranks |= {f"ConvolutionWeights{kind}": 4 for kind in ("OIHrWr", "IOHrWr", "OIHW_Pack32")}
    ranks |= {f"{n}D{order}Major": n for n in range(1, 9) for order in ("First", "Last")}
    for name, rank in ranks.items():
        assert c.BNNSDataLayoutGetRank(getattr(c, "BNNSDataLayout" + name)) == rank
    for unknown in (0, 1, 0x10001, 0x98000, 0x20002, 2**32 - 1):
        assert c.BNNSDataLayoutGetRank(unknown) == c.SIZE_MAX


def tensor(shape, strides, dtype="float32"):
    return c.BNNSTensor(
        data_type=type_code(dtype), rank=len(shape), shape=list(shape), stride=list(strides)
    )


@pytest.mark.parametrize(
    ("described", "size"),
    [
        (tensor((2, 3), (3, 1)), 24),
        (tensor((2, 3), (0, 0)), 4),  # a stride of 0 is a real 0 here
        (tensor((2, 3), (1, 2)), 24),
        (tensor((2, 3), (10, 2), "float16"), 2 * (1 + 10 + 4)),
        (tensor((-1, 3), (3, 1)), 2**64 - 1),
        (tensor((2, 3), (-1, 1)), 2**64 - 1),
        (tensor((2**62, 2**62), (2**62, 1)), 2**64 - 1),
    ],
)
def test_tensor_allocation_size(described, size):
    assert c.BNNSTensorGetAllocationSize(described) == size
