/* Broadcast matrix product, tensor contraction by Einstein summation, Gram matrix. */
#ifndef OPENBNNS_BNNS_MATMUL_H
#define OPENBNNS_BNNS_MATMUL_H

#include "base.h"

OBN_C_BEGIN

/* Matrix product on the last two axes, C = alpha*op(A)*op(B) + beta*C. Leading axes are matched
 * from the back and broadcast. */
typedef struct BNNSLayerParametersBroadcastMatMul {
    float alpha;                   /* factor of the product */
    float beta;                    /* 0 or 1 */
    bool transA;                   /* swap the last two axes of A */
    bool transB;                   /* swap the last two axes of B */
    bool quadratic;                /* A times itself; B is unread */
    bool a_is_weights;             /* A is shared by the batch, gradient summed */
    bool b_is_weights;             /* B is shared by the batch, gradient summed */
    BNNSNDArrayDescriptor iA_desc; /* A */
    BNNSNDArrayDescriptor iB_desc; /* B */
    BNNSNDArrayDescriptor o_desc;  /* C */
} BNNSLayerParametersBroadcastMatMul;

/* Sum of products named by letters, for example "a_ijp, b_ijq -> o_pq". An operand called w is
 * weights; equal operand names mean the array times itself; a star at the first or last place
 * stands for further shared axes. */
typedef struct BNNSLayerParametersTensorContraction {
    const char *operation;         /* the expression, not NULL */
    float alpha;                   /* factor of the sum */
    float beta;                    /* factor of the old output, 0 or 1 */
    BNNSNDArrayDescriptor iA_desc; /* first operand */
    BNNSNDArrayDescriptor iB_desc; /* second operand; unread when there is one */
    BNNSNDArrayDescriptor o_desc;  /* result */
} BNNSLayerParametersTensorContraction;

/* Gram matrix, o(f, c) = alpha * sum over i, j of x(i, j, f)*x(i, j, c). */
typedef struct BNNSLayerParametersGram {
    float alpha;                  /* factor */
    BNNSNDArrayDescriptor i_desc; /* input */
    BNNSNDArrayDescriptor o_desc; /* output */
} BNNSLayerParametersGram;

/* Matrix product filter. Takes two inputs unless one operand is weights or the product is
 * quadratic. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerBroadcastMatMul(
    const BNNSLayerParametersBroadcastMatMul *layer_params,
    const BNNSFilterParameters *filter_params);

/* output = alpha*op(inputA)*op(inputB). With a workspace of BNNSMatMulWorkspaceSize bytes nothing
 * is allocated. Returns 0, or another value on failure. May be NULL: workspace, filter_params. */
OBN_API int BNNSMatMul(bool transA, bool transB, float alpha, const BNNSNDArrayDescriptor *inputA,
                       const BNNSNDArrayDescriptor *inputB, const BNNSNDArrayDescriptor *output,
                       void *workspace, const BNNSFilterParameters *filter_params);

/* Older form of BNNSMatMul that reports nothing. May be NULL: filter_params. */
OBN_API void BNNSDirectApplyBroadcastMatMul(bool transA, bool transB, float alpha,
                                            const BNNSNDArrayDescriptor *inputA,
                                            const BNNSNDArrayDescriptor *inputB,
                                            const BNNSNDArrayDescriptor *output,
                                            const BNNSFilterParameters *filter_params);

/* Bytes of workspace for BNNSMatMul, negative on failure. Data is not touched. May be NULL:
 * filter_params. */
OBN_API ssize_t BNNSMatMulWorkspaceSize(bool transA, bool transB, float alpha,
                                        const BNNSNDArrayDescriptor *inputA,
                                        const BNNSNDArrayDescriptor *inputB,
                                        const BNNSNDArrayDescriptor *output,
                                        const BNNSFilterParameters *filter_params);

/* Contraction filter with one or two inputs, as the expression says. Returns the filter, or NULL on
 * failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerTensorContraction(
    const BNNSLayerParametersTensorContraction *layer_params,
    const BNNSFilterParameters *filter_params);

/* Gram matrix filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerGram(const BNNSLayerParametersGram *layer_params,
                                             const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
