/* Picking and placing by index: gather, scatter and their N-dimensional forms, top-k,
 * comparison. */
#ifndef OPENBNNS_BNNS_GATHER_H
#define OPENBNNS_BNNS_GATHER_H

#include "reduction.h"

OBN_C_BEGIN

/* Comparison or logical operation of in0 with in1, giving booleans. LogicalNOT looks at in0
 * only. */
OBN_ENUM(BNNSRelationalOperator) {
    BNNSRelationalOperatorEqual = 0,        /* in0 == in1 */
    BNNSRelationalOperatorLess = 1,         /* in0 < in1 */
    BNNSRelationalOperatorLessEqual = 2,    /* in0 <= in1 */
    BNNSRelationalOperatorGreater = 3,      /* in0 > in1 */
    BNNSRelationalOperatorGreaterEqual = 4, /* in0 >= in1 */
    BNNSRelationalOperatorNotEqual = 5,     /* in0 != in1 */
    BNNSRelationalOperatorLogicalAND = 6,   /* in0 && in1 */
    BNNSRelationalOperatorLogicalOR = 7,    /* in0 || in1 */
    BNNSRelationalOperatorLogicalNOT = 8,   /* !in0 */
    BNNSRelationalOperatorLogicalNAND = 9,  /* !(in0 && in1) */
    BNNSRelationalOperatorLogicalNOR = 10,  /* !(in0 || in1) */
    BNNSRelationalOperatorLogicalXOR = 11,  /* !in0 != !in1 */
};

/* Picks entries of input along axis. indices is one-dimensional, the same for every slice, or has
 * the shape of output. An index out of range is an error. Returns 0, or -1 on failure. May be NULL:
 * filter_params. */
OBN_API int BNNSGather(size_t axis, const BNNSNDArrayDescriptor *input,
                       const BNNSNDArrayDescriptor *indices, BNNSNDArrayDescriptor *output,
                       const BNNSFilterParameters *filter_params);

/* Writes (None) or adds (Sum) input into output along axis. indices is one-dimensional or has the
 * shape of input. Entries that meet arrive in no particular order. Returns 0, or -1 on failure. May
 * be NULL: filter_params. */
OBN_API int BNNSScatter(size_t axis, BNNSReduceFunction op, const BNNSNDArrayDescriptor *input,
                        const BNNSNDArrayDescriptor *indices, BNNSNDArrayDescriptor *output,
                        const BNNSFilterParameters *filter_params);

/* Picks elements or slices by the coordinate vectors on the last axis of indices. The shape of
 * output is that of the other axes of indices, then that of a slice. Returns 0, or -1 on failure.
 * May be NULL: filter_params. */
OBN_API int BNNSGatherND(const BNNSNDArrayDescriptor *input, const BNNSNDArrayDescriptor *indices,
                         BNNSNDArrayDescriptor *output, const BNNSFilterParameters *filter_params);

/* Writes (None) or adds (Sum) elements or slices at coordinate vectors; the counterpart of
 * BNNSGatherND. Returns 0, or -1 on failure. May be NULL: filter_params. */
OBN_API int BNNSScatterND(BNNSReduceFunction op, const BNNSNDArrayDescriptor *input,
                          const BNNSNDArrayDescriptor *indices, BNNSNDArrayDescriptor *output,
                          const BNNSFilterParameters *filter_params);

/* The K largest values along axis in descending order, and their positions; of equal values the
 * first comes first. Returns 0, or another value on failure. May be NULL: best_indices,
 * filter_params. */
OBN_API int BNNSDirectApplyTopK(size_t K, size_t axis, size_t batch_size,
                                const BNNSNDArrayDescriptor *input, size_t input_batch_stride,
                                BNNSNDArrayDescriptor *best_values, size_t best_values_batch_stride,
                                BNNSNDArrayDescriptor *best_indices,
                                size_t best_indices_batch_stride,
                                const BNNSFilterParameters *filter_params);

/* Whether the entry named by test_indices is among the K largest along axis; equal values all
 * count. test_indices and output lack that axis, output is Boolean. Returns 0, or another value on
 * failure. May be NULL: filter_params. */
OBN_API int BNNSDirectApplyInTopK(size_t K, size_t axis, size_t batch_size,
                                  const BNNSNDArrayDescriptor *input, size_t input_batch_stride,
                                  const BNNSNDArrayDescriptor *test_indices,
                                  size_t test_indices_batch_stride, BNNSNDArrayDescriptor *output,
                                  size_t output_batch_stride,
                                  const BNNSFilterParameters *filter_params);

/* Compares two arrays of equal shape element by element into a Boolean array. Returns 0, or another
 * value on failure. */
OBN_API int BNNSCompareTensor(const BNNSNDArrayDescriptor *in0, const BNNSNDArrayDescriptor *in1,
                              BNNSRelationalOperator op, BNNSNDArrayDescriptor *out);

OBN_C_END

#endif
