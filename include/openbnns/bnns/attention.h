/* Multi-head attention. */
#ifndef OPENBNNS_BNNS_ATTENTION_H
#define OPENBNNS_BNNS_ATTENTION_H

#include "base.h"

OBN_C_BEGIN

/* One linear projection of attention. The backward call uses the same struct for gradients, where a
 * member with data == NULL is skipped. */
typedef struct BNNSMHAProjectionParameters {
    BNNSNDArrayDescriptor target_desc; /* matrix to project, or the output */
    BNNSNDArrayDescriptor weights;     /* projection weights */
    BNNSNDArrayDescriptor bias;        /* projection bias; optional */
} BNNSMHAProjectionParameters;

/* Multi-head attention with target length L, source length S and h heads:
 * softmax(Q*K^T/sqrt(d_key))*V per head, then the output projection. */
typedef struct BNNSLayerParametersMultiheadAttention {
    /* target (L, d_model), weights (d_model, d_key, h), bias (d_key, h) */
    BNNSMHAProjectionParameters query;
    /* target (S, k_dim), weights (k_dim, d_key, h), bias (d_key, h) */
    BNNSMHAProjectionParameters key;
    /* target (S, v_dim), weights (v_dim, d_value, h), bias (d_value, h) */
    BNNSMHAProjectionParameters value;
    bool add_zero_attn;                    /* append a row of zeros to projected K and V */
    /* row (d_key, h) appended to K; optional, with the next */
    BNNSNDArrayDescriptor key_attn_bias;
    BNNSNDArrayDescriptor value_attn_bias; /* row (d_value, h) appended to V; optional */
    /* target (L, d_model), weights (h*d_value, d_model), bias (d_model) */
    BNNSMHAProjectionParameters output;
    float dropout;                         /* rate; off outside (0, 1) */
    uint32_t seed;                         /* of the dropout */
} BNNSLayerParametersMultiheadAttention;

/* Attention filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerMultiheadAttention(
    const BNNSLayerParametersMultiheadAttention *layer_params,
    const BNNSFilterParameters *filter_params);

/* Attention of a batch. key_mask holds source_length booleans, true hides a key. add_to_attention
 * is (target, source), (heads, target, source) or (batch, heads, target, source), added to the
 * scores; true booleans mean minus infinity. A size pointer with a NULL buffer asks for the size:
 * it is stored and nothing is computed. Returns 0, or -1 on failure. May be NULL: key_mask,
 * add_to_attention, backprop_cache_size, backprop_cache, workspace_size, workspace. */
OBN_API int BNNSApplyMultiheadAttention(
    BNNSFilter F, size_t batch_size, const void *query, size_t query_stride, const void *key,
    size_t key_stride, const BNNSNDArrayDescriptor *key_mask, size_t key_mask_stride,
    const void *value, size_t value_stride, void *output, size_t output_stride,
    const BNNSNDArrayDescriptor *add_to_attention, size_t *backprop_cache_size,
    void *backprop_cache, size_t *workspace_size, void *workspace);

/* Gradients of attention. In each *_param_delta members without data are skipped, and
 * target_desc.stride[2] is the batch stride; targets with the same data receive the sum.
 * backprop_cache is what the forward call filled; without it the forward pass is repeated.
 * workspace_size works as in the forward call. Returns 0, or -1 on failure. May be NULL: query,
 * query_param_delta, key, key_mask, key_param_delta, value, value_param_delta, add_to_attention,
 * key_attn_bias_delta, value_attn_bias_delta, output, backprop_cache, workspace_size, workspace. */
OBN_API int BNNSApplyMultiheadAttentionBackward(
    BNNSFilter F, size_t batch_size, const void *query, size_t query_stride,
    BNNSMHAProjectionParameters *query_param_delta, const void *key, size_t key_stride,
    const BNNSNDArrayDescriptor *key_mask, size_t key_mask_stride,
    BNNSMHAProjectionParameters *key_param_delta, const void *value, size_t value_stride,
    BNNSMHAProjectionParameters *value_param_delta, const BNNSNDArrayDescriptor *add_to_attention,
    BNNSNDArrayDescriptor *key_attn_bias_delta, BNNSNDArrayDescriptor *value_attn_bias_delta,
    const void *output, size_t output_stride, BNNSMHAProjectionParameters *output_param_delta,
    size_t backprop_cache_size, void *backprop_cache, size_t *workspace_size, void *workspace);

OBN_C_END

#endif
