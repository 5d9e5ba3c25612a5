/* Scaling to and from integer types. */
#ifndef OPENBNNS_BNNS_QUANTIZATION_H
#define OPENBNNS_BNNS_QUANTIZATION_H

#include "base.h"

OBN_C_BEGIN

/* Direction of BNNSDirectApplyQuantizer. */
OBN_ENUM(BNNSQuantizerFunction) {
    BNNSQuantizerFunctionQuantize = 0,   /* y = scale*x + bias, rounded and saturated */
    BNNSQuantizerFunctionDequantize = 1, /* y = (x - bias)/scale */
};

/* Quantization layer. data_scale and data_bias of the descriptors are not used. */
typedef struct BNNSLayerParametersQuantization {
    size_t axis_mask;               /* 0 = one scale; else bit k = size[k], next bit = batch */
    BNNSQuantizerFunction function; /* direction */
    BNNSNDArrayDescriptor i_desc;   /* input */
    BNNSNDArrayDescriptor o_desc;   /* output */
    BNNSNDArrayDescriptor scale;    /* vector along the axis, or one value; optional */
    BNNSNDArrayDescriptor bias;     /* vector along the axis, or one value; optional */
} BNNSLayerParametersQuantization;

/* Quantizes or dequantizes a batch, on the data of i_desc and o_desc. Returns 0, or another value
 * on failure. May be NULL: filter_params. */
OBN_API int BNNSDirectApplyQuantizer(const BNNSLayerParametersQuantization *layer_params,
                                     const BNNSFilterParameters *filter_params, size_t batch_size,
                                     size_t input_stride, size_t output_stride);

OBN_C_END

#endif
