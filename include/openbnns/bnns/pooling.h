/* Two-dimensional pooling: max, two averages, L2 norm, and the inverse of max. */
#ifndef OPENBNNS_BNNS_POOLING_H
#define OPENBNNS_BNNS_POOLING_H

#include "activation.h"

OBN_C_BEGIN

/* What happens inside a pooling window. */
OBN_ENUM(BNNSPoolingFunction) {
    BNNSPoolingFunctionMax = 0,                        /* largest value */
    BNNSPoolingFunctionAverageCountIncludePadding = 1, /* sum / (k_width*k_height) */
    BNNSPoolingFunctionAverage = 1,                    /* another name for the line above */
    BNNSPoolingFunctionAverageCountExcludePadding = 2, /* sum / positions inside the image */
    BNNSPoolingFunctionUnMax = 3,                      /* value back to its index, 0 elsewhere */
    BNNSPoolingFunctionL2Norm = 4,                     /* sqrt of the sum of squares */
};

/* Pooling layer: o = activation(bias + function(window)), ImageCHW. The first element of every
 * window has to lie inside the padded image: in + both pads >= stride*(out - 1) + 1. */
typedef struct BNNSLayerParametersPooling {
    BNNSNDArrayDescriptor i_desc;         /* input */
    BNNSNDArrayDescriptor o_desc;         /* output */
    BNNSNDArrayDescriptor bias;           /* one value per channel; optional */
    BNNSActivation activation;            /* applied last */
    BNNSPoolingFunction pooling_function; /* window operation */
    size_t k_width;                       /* window width */
    size_t k_height;                      /* window height */
    size_t x_stride;                      /* 0 is read as 1 */
    size_t y_stride;                      /* 0 is read as 1 */
    size_t x_dilation_stride;             /* step between window columns; 0 is read as 1 */
    size_t y_dilation_stride;             /* step between window rows; 0 is read as 1 */
    size_t x_padding;                     /* columns outside the image, left and right */
    size_t y_padding;                     /* rows outside the image, top and bottom */
    size_t pad[4];                        /* left, right, up, down; if both of the above are 0 */
} BNNSLayerParametersPooling;

/* Pooling filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerPooling(const BNNSLayerParametersPooling *layer_params,
                                                const BNNSFilterParameters *filter_params);

/* Pooling with indices. Max writes them if they are wanted, one per output element; UnMax reads one
 * per input element and needs them; the others ignore them. An index is the position y*width + x
 * inside one channel. Returns 0, or -1 on failure. May be NULL: indices. */
OBN_API int BNNSPoolingFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void *in,
                                        size_t in_stride, void *out, size_t out_stride,
                                        size_t *indices, size_t idx_stride);

/* The same with indices of type UInt32 or UInt64. Returns 0, or -1 on failure. May be NULL:
 * indices. */
OBN_API int BNNSPoolingFilterApplyBatchEx(BNNSFilter filter, size_t batch_size, const void *in,
                                          size_t in_stride, void *out, size_t out_stride,
                                          BNNSDataType indices_data_type, void *indices,
                                          size_t idx_stride);

/* Gradients of pooling. Max takes the indices of the forward call, or finds them again from in;
 * UnMax needs them. out is needed when an activation is fused. bias_delta is summed over the batch.
 * A NULL delta is not computed. Returns 0, or -1 on failure. May be NULL: in, in_delta, out,
 * bias_delta, indices. */
OBN_API int BNNSPoolingFilterApplyBackwardBatch(
    BNNSFilter filter, size_t batch_size, const void *in, size_t in_stride,
    BNNSNDArrayDescriptor *in_delta, size_t in_delta_stride, const void *out, size_t out_stride,
    BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride, BNNSNDArrayDescriptor *bias_delta,
    const size_t *indices, size_t idx_stride);

/* The same with indices of type UInt32 or UInt64. Returns 0, or -1 on failure. May be NULL: in,
 * in_delta, out, bias_delta, indices. */
OBN_API int BNNSPoolingFilterApplyBackwardBatchEx(
    BNNSFilter filter, size_t batch_size, const void *in, size_t in_stride,
    BNNSNDArrayDescriptor *in_delta, size_t in_delta_stride, const void *out, size_t out_stride,
    BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride, BNNSNDArrayDescriptor *bias_delta,
    BNNSDataType indices_data_type, const void *indices, size_t idx_stride);

OBN_C_END

#endif
