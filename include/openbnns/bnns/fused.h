/* Two layers run as one: convolution, transposed convolution or fully connected followed by a
 * normalization or a quantization, or arithmetic followed by a normalization. A pooling may be the
 * third, see OBN_FILTER_POOLING in openbnns.h. */
#ifndef OPENBNNS_BNNS_FUSED_H
#define OPENBNNS_BNNS_FUSED_H

#include "arithmetic.h"
#include "convolution.h"
#include "fully_connected.h"
#include "normalization.h"
#include "quantization.h"

OBN_C_BEGIN

/* Filter of number_of_fused_filters layers, two or three. filter_type and layer_params have one entry per
 * layer; the output of one is the input of the next. Returns the filter, or NULL on failure. May be
 * NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateFusedLayer(size_t number_of_fused_filters,
                                              const BNNSFilterType *filter_type,
                                              const void **layer_params,
                                              const BNNSFilterParameters *filter_params);

/* Runs a fused filter. training matters for a normalization only. Returns 0, or -1 on failure. */
OBN_API int BNNSFusedFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void *in,
                                      size_t in_stride, void *out, size_t out_stride,
                                      bool training);

/* Runs fused arithmetic and normalization on number_of_inputs arrays. Returns 0, or -1 on
 * failure. */
OBN_API int BNNSFusedFilterApplyMultiInputBatch(BNNSFilter filter, size_t batch_size,
                                                size_t number_of_inputs, const void **in,
                                                const size_t *in_stride, void *out,
                                                size_t out_stride, bool training);

/* Gradients of a fused filter. delta_parameters lists those of the first layer, then those of the
 * second, each in the order of its own backward call, NULL for unwanted ones: weights, bias, beta,
 * gamma for a convolution and a norm. out_delta is only read; BNNS may overwrite it. Returns 0, or
 * -1 on failure.
 * May be NULL: in, in_delta, out, delta_parameters. */
OBN_API int BNNSFusedFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size, const void *in,
                                              size_t in_stride, BNNSNDArrayDescriptor *in_delta,
                                              size_t in_delta_stride, const void *out,
                                              size_t out_stride, BNNSNDArrayDescriptor *out_delta,
                                              size_t out_delta_stride,
                                              BNNSNDArrayDescriptor **delta_parameters);

/* Gradients of fused arithmetic and normalization; delta_parameters is beta, gamma. Returns 0, or
 * -1 on failure. May be NULL: in, in_stride, out, delta_parameters. */
OBN_API int BNNSFusedFilterApplyBackwardMultiInputBatch(
    BNNSFilter filter, size_t batch_size, size_t number_of_inputs, const void **in,
    const size_t *in_stride, BNNSNDArrayDescriptor **in_delta, const size_t *in_delta_stride,
    const void *out, size_t out_stride, BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride,
    BNNSNDArrayDescriptor **delta_parameters);

OBN_C_END

#endif
