/* Fully connected layer, with dense weights or weights packed sparse. */
#ifndef OPENBNNS_BNNS_FULLY_CONNECTED_H
#define OPENBNNS_BNNS_FULLY_CONNECTED_H

#include "activation.h"

OBN_C_BEGIN

/* Expected pattern of the nonzero weights. */
OBN_ENUM(BNNSSparsityType) {
    BNNSSparsityTypeUnstructured = 0, /* none */
};

/* Machine that packed weights are meant for. */
OBN_ENUM(BNNSTargetSystem) {
    BNNSTargetSystemGeneric = 0, /* any machine */
};

/* Fully connected layer: o = activation(W*i + bias). */
typedef struct BNNSLayerParametersFullyConnected {
    BNNSNDArrayDescriptor i_desc; /* input */
    BNNSNDArrayDescriptor w_desc; /* W(o, i) at i + o*inputs, or packed sparse */
    BNNSNDArrayDescriptor o_desc; /* output */
    BNNSNDArrayDescriptor bias;   /* one value per output; optional */
    BNNSActivation activation;    /* applied last */
} BNNSLayerParametersFullyConnected;

/* Hints for packing sparse weights. */
typedef struct BNNSSparsityParameters {
    uint64_t flags;                 /* 0 */
    uint32_t sparsity_ratio[2];     /* numerator and denominator of the share of zeros */
    BNNSSparsityType sparsity_type; /* pattern */
    BNNSTargetSystem target_system; /* machine */
} BNNSSparsityParameters;

/* Fully connected filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerFullyConnected(
    const BNNSLayerParametersFullyConnected *layer_params,
    const BNNSFilterParameters *filter_params);

/* Packs coordinate-list weights for a fully connected layer. in_indices is (nonzeros, 2), column
 * and row of each value. When out->data is NULL it is allocated here and freed by the caller with
 * free. batch_size is the expected batch; 0 is read as 1. Returns 0, or another value on failure.
 * May be NULL: sparse_params, workspace, filter_params. */
OBN_API int BNNSNDArrayFullyConnectedSparsifySparseCOO(
    const BNNSNDArrayDescriptor *in_dense_shape, const BNNSNDArrayDescriptor *in_indices,
    const BNNSNDArrayDescriptor *in_values, BNNSNDArrayDescriptor *out,
    const BNNSSparsityParameters *sparse_params, size_t batch_size, void *workspace,
    size_t workspace_size, const BNNSFilterParameters *filter_params);

/* The same for compressed rows: in_row_starts has rows + 1 entries and begins with 0. Returns 0, or
 * another value on failure. May be NULL: sparse_params, workspace, filter_params. */
OBN_API int BNNSNDArrayFullyConnectedSparsifySparseCSR(
    const BNNSNDArrayDescriptor *in_dense_shape, const BNNSNDArrayDescriptor *in_column_indices,
    const BNNSNDArrayDescriptor *in_row_starts, const BNNSNDArrayDescriptor *in_values,
    BNNSNDArrayDescriptor *out, const BNNSSparsityParameters *sparse_params, size_t batch_size,
    void *workspace, size_t workspace_size, const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
