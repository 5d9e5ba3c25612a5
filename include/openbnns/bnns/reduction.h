/* Reductions along axes. */
#ifndef OPENBNNS_BNNS_REDUCTION_H
#define OPENBNNS_BNNS_REDUCTION_H

#include "base.h"

OBN_C_BEGIN

/* Reduction of the values x along an axis, and the combine rule of scatter (None and Sum only). */
OBN_ENUM(BNNSReduceFunction) {
    BNNSReduceFunctionMax = 0,         /* maximum */
    BNNSReduceFunctionMin = 1,         /* minimum */
    BNNSReduceFunctionArgMax = 2,      /* index of the maximum */
    BNNSReduceFunctionArgMin = 3,      /* index of the minimum */
    BNNSReduceFunctionMean = 4,        /* sum / count */
    BNNSReduceFunctionMeanNonZero = 5, /* mean over entries with nonzero weight */
    BNNSReduceFunctionSum = 6,         /* sum */
    BNNSReduceFunctionSumSquare = 7,   /* sum of squares */
    BNNSReduceFunctionSumLog = 8,      /* sum of log(x + epsilon) */
    BNNSReduceFunctionL1Norm = 9,      /* sum of |x| */
    BNNSReduceFunctionLogicalOr = 10,  /* any */
    BNNSReduceFunctionAny = 10,        /* another name for LogicalOr */
    BNNSReduceFunctionLogicalAnd = 11, /* all */
    BNNSReduceFunctionAll = 11,        /* another name for LogicalAnd */
    BNNSReduceFunctionL2Norm = 12,     /* sqrt of the sum of squares */
    BNNSReduceFunctionLogSumExp = 13,  /* log of the sum of exp(x) */
    BNNSReduceFunctionProduct = 14,    /* product */
    BNNSReduceFunctionNone = 15,       /* no reduction; not for reduction layers */
    BNNSReduceFunctionLogSum = 16,     /* log of the sum */
};

/* Reduction of every axis whose output size is 1; the other sizes are equal. */
typedef struct BNNSLayerParametersReduction {
    BNNSNDArrayDescriptor i_desc;   /* input */
    BNNSNDArrayDescriptor o_desc;   /* output */
    BNNSNDArrayDescriptor w_desc;   /* weights of the input shape; optional */
    BNNSReduceFunction reduce_func; /* operation */
    float epsilon;                  /* for SumLog */
} BNNSLayerParametersReduction;

/* Reduction filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerReduction(const BNNSLayerParametersReduction *layer_params,
                                                  const BNNSFilterParameters *filter_params);

/* Reduction without a filter, on the data of the descriptors. Returns 0, or -1 on failure. May be
 * NULL: filter_params. */
OBN_API int BNNSDirectApplyReduction(const BNNSLayerParametersReduction *layer_params,
                                     const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
