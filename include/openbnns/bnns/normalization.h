/* Batch, instance, layer and group normalization. */
#ifndef OPENBNNS_BNNS_NORMALIZATION_H
#define OPENBNNS_BNNS_NORMALIZATION_H

#include "activation.h"

OBN_C_BEGIN

/* Normalization layer on ImageCHW, or on Vector read as channels: o = activation(gamma*(i -
 * mean)/sqrt(variance + epsilon) + beta). */
typedef struct BNNSLayerParametersNormalization {
    BNNSNDArrayDescriptor i_desc;               /* input */
    BNNSNDArrayDescriptor o_desc;               /* output */
    BNNSNDArrayDescriptor beta_desc;            /* offset; optional */
    BNNSNDArrayDescriptor gamma_desc;           /* factor; optional */
    /* running mean, batch and instance norm; optional */
    BNNSNDArrayDescriptor moving_mean_desc;
    BNNSNDArrayDescriptor moving_variance_desc; /* running variance, likewise */
    float momentum;                             /* of the running statistics, 0 to 1 */
    float epsilon;                              /* added to the variance */
    BNNSActivation activation;                  /* applied last; no softmax kinds */
    size_t num_groups;                          /* group norm: divides the channels */
    size_t normalization_axis;                  /* layer norm: 0 = C, H, W; 1 = H, W; 2 = W */
} BNNSLayerParametersNormalization;

/* Normalization filter. normType is one of the four norms of BNNSFilterType. Returns the filter, or
 * NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerNormalization(
    BNNSFilterType normType, const BNNSLayerParametersNormalization *layer_params,
    const BNNSFilterParameters *filter_params);

/* Normalizes a batch; in and out may be the same. Training uses the statistics of the batch,
 * updates the running ones and keeps what the backward call needs; otherwise running statistics are
 * used if there are any. Returns 0, or -1 on failure. */
OBN_API int BNNSNormalizationFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void *in,
                                              size_t in_stride, void *out, size_t out_stride,
                                              bool training);

/* Gradients after a training call. out is needed when an activation is fused. beta_delta and
 * gamma_delta are summed over the batch. out_delta is only read; BNNS may overwrite it. Returns 0, or
 * -1 on failure.
 * May be NULL: in_delta, out, beta_delta, gamma_delta. */
OBN_API int BNNSNormalizationFilterApplyBackwardBatch(
    BNNSFilter filter, size_t batch_size, BNNSNDArrayDescriptor *in_delta, size_t in_delta_stride,
    const void *out, size_t out_stride, BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride,
    BNNSNDArrayDescriptor *beta_delta, BNNSNDArrayDescriptor *gamma_delta);

OBN_C_END

#endif
