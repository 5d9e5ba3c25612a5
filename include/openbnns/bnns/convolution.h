/* Two-dimensional convolution and transposed convolution. */
#ifndef OPENBNNS_BNNS_CONVOLUTION_H
#define OPENBNNS_BNNS_CONVOLUTION_H

#include "activation.h"

OBN_C_BEGIN

/* Convolution layer: o = activation(bias + sum of w*i), not flipped, ImageCHW. Per axis: in + both
 * pads >= stride*(out - 1) + dilation*(kernel - 1) + 1. For transposed convolution input and output
 * change places. */
typedef struct BNNSLayerParametersConvolution {
    BNNSNDArrayDescriptor i_desc; /* input */
    BNNSNDArrayDescriptor w_desc; /* weights in one of the ConvolutionWeights layouts */
    BNNSNDArrayDescriptor o_desc; /* output */
    BNNSNDArrayDescriptor bias;   /* one value per output channel; optional */
    BNNSActivation activation;    /* applied last */
    size_t x_stride;              /* 0 is read as 1 */
    size_t y_stride;              /* 0 is read as 1 */
    size_t x_dilation_stride;     /* step between kernel columns; 0 is read as 1 */
    size_t y_dilation_stride;     /* step between kernel rows; 0 is read as 1 */
    size_t x_padding;             /* zeros left and right */
    size_t y_padding;             /* zeros top and bottom */
    size_t groups;                /* 0 is read as 1; w_desc.size[2] is in channels / groups */
    size_t pad[4];                /* left, right, up, down; if both paddings are 0 */
} BNNSLayerParametersConvolution;

/* Convolution filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerConvolution(
    const BNNSLayerParametersConvolution *layer_params, const BNNSFilterParameters *filter_params);

/* Transposed convolution filter, float types. Weights may also be 4DFirstMajor, (in, out / groups, kernel
 * height, kernel width). Returns the filter, or NULL on failure. May be NULL:
 * filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerTransposedConvolution(
    const BNNSLayerParametersConvolution *layer_params, const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
