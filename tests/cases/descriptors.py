"""NumPy arrays as descriptors of the C interface, for tests that go through `openbnns.c`."""

import numpy as np
from openbnns import c

TYPES = {
    "float16": "Float16",
    "float32": "Float32",
    "bfloat16": "BFloat16",
    "bool": "Boolean",
    **{f"int{bits}": f"Int{bits}" for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (1, 2, 3, 4, 6, 8, 16, 32, 64)},
    **{f"indexed{bits}": f"Indexed{bits}" for bits in (1, 2, 4, 8)},
}


def type_code(name):
    return getattr(c, "BNNSDataType" + TYPES[name])


def first_major(shape, dtype="float32", data=None, strides=None, **fields):
    """A C-order descriptor; strides in values, outermost first like the shape."""
    return c.BNNSNDArrayDescriptor(
        layout=getattr(c, f"BNNSDataLayout{len(shape)}DFirstMajor"),
        size=list(shape),
        stride=list(strides or ())[::-1],
        data=data,
        data_type=type_code(dtype),
        **fields,
    )


def image(shape, dtype="float32", data=None, strides=None, **fields):
    """An ImageCHW descriptor; shape and strides as NumPy has them, (channels, height, width)."""
    return c.BNNSNDArrayDescriptor(
        layout=c.BNNSDataLayoutImageCHW,
        size=list(shape)[::-1],
        stride=list(strides or ())[::-1],
        data=data,
        data_type=type_code(dtype),
        **fields,
    )


def vector(size, dtype="float32", data=None, **fields):
    return c.BNNSNDArrayDescriptor(
        layout=c.BNNSDataLayoutVector, size=[size], data=data, data_type=type_code(dtype), **fields
    )


def activation_layer(function, i_desc, o_desc, axis_flags=0, filter_params=None, **parameters):
    """A filter handle, or None; `function` is a number, `parameters` are fields of the C struct."""
    layer = c.BNNSLayerParametersActivation(
        i_desc=i_desc,
        o_desc=o_desc,
        activation=c.BNNSActivation(function=function, **parameters),
        axis_flags=axis_flags,
    )
    return c.BNNSFilterCreateLayerActivation(layer, filter_params)


def pooling_parameters(function, i_desc, o_desc, kernel, stride, padding=(0, 0), **fields):
    """A parameter block; pairs are (vertical, horizontal)."""
    return c.BNNSLayerParametersPooling(
        i_desc=i_desc,
        o_desc=o_desc,
        pooling_function=function,
        k_height=kernel[0],
        k_width=kernel[1],
        y_stride=stride[0],
        x_stride=stride[1],
        y_padding=padding[0],
        x_padding=padding[1],
        **fields,
    )


def matrix(shape, dtype="float32", data=None, layout="RowMajorMatrix", strides=None, **fields):
    """A matrix descriptor of (rows, columns); strides in values, rows first."""
    flip = 1 if layout in ("ColumnMajorMatrix", "2DFirstMajor", "2DLastMajor") else -1
    faster = 1 if layout in ("ColumnMajorMatrix", "2DLastMajor") else -1
    return c.BNNSNDArrayDescriptor(
        layout=getattr(c, f"BNNSDataLayout{layout}"),
        size=list(shape)[::flip],
        stride=list(strides or ())[::faster],
        data=data,
        data_type=type_code(dtype),
        **fields,
    )


def weights(shape, dtype="float32", data=None, layout="OIHW", strides=None, **fields):
    """Convolution weights; shape as the array has it, (outputs, inputs, height, width) for OIHW."""
    return c.BNNSNDArrayDescriptor(
        layout=getattr(c, f"BNNSDataLayoutConvolutionWeights{layout}"),
        size=list(shape)[::-1],
        stride=list(strides or ())[::-1],
        data=data,
        data_type=type_code(dtype),
        **fields,
    )


def convolution_parameters(i_desc, w_desc, o_desc, stride=(1, 1), padding=(0, 0), **fields):
    """A parameter block; pairs are (vertical, horizontal)."""
    return c.BNNSLayerParametersConvolution(
        i_desc=i_desc,
        w_desc=w_desc,
        o_desc=o_desc,
        y_stride=stride[0],
        x_stride=stride[1],
        y_padding=padding[0],
        x_padding=padding[1],
        **fields,
    )


def misaligned(shape, dtype):
    """An array whose address is one byte off."""
    count = int(np.prod(shape))
    raw = np.zeros(count * np.dtype(dtype).itemsize + 1, np.uint8)
    return raw[1:].view(dtype).reshape(shape)
