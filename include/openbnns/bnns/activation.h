/* Element-wise activations, softmax, and conversion between data types. */
#ifndef OPENBNNS_BNNS_ACTIVATION_H
#define OPENBNNS_BNNS_ACTIVATION_H

#include "base.h"

OBN_C_BEGIN

/* Activation of x; alpha and beta come from BNNSActivation. "From x" marks functions whose gradient
 * needs the input, so they cannot be fused behind a layer that is trained. */
OBN_ENUM(BNNSActivationFunction) {
    BNNSActivationFunctionIdentity = 0,               /* x, or a conversion when the types differ */
    BNNSActivationFunctionRectifiedLinear = 1,        /* max(0, x) */
    BNNSActivationFunctionLeakyRectifiedLinear = 2,   /* x < 0 ? alpha*x : x */
    BNNSActivationFunctionSigmoid = 3,                /* 1/(1 + exp(-x)) */
    BNNSActivationFunctionTanh = 4,                   /* tanh(x) */
    BNNSActivationFunctionScaledTanh = 5,             /* alpha*tanh(beta*x) */
    BNNSActivationFunctionAbs = 6,                    /* |x|; from x */
    BNNSActivationFunctionLinear = 7,                 /* alpha*x */
    BNNSActivationFunctionClamp = 8,                  /* min(max(x, alpha), beta) */
    BNNSActivationFunctionIntegerLinearSaturate = 9,  /* saturate((iscale*x + ioffset) >> ishift) */
    /* the same with one triple per channel */
    BNNSActivationFunctionIntegerLinearSaturatePerChannel = 10,
    BNNSActivationFunctionSoftmax = 11,               /* exp(x_i)/sum_j exp(x_j) along axis_flags */
    /* 0.5*x*(1 + tanh(alpha*(x + beta*x^3))); from x */
    BNNSActivationFunctionGELUApproximation = 12,
    /* -log(-log(alpha*U + beta) + beta), U random in (0, 1) */
    BNNSActivationFunctionGumbel = 13,
    BNNSActivationFunctionGumbelMax = 14,             /* max_j (Gumbel noise + x_j) */
    BNNSActivationFunctionHardSigmoid = 15,           /* min(max(alpha*x + beta, 0), 1) */
    BNNSActivationFunctionSoftplus = 16,              /* alpha*log(1 + exp(beta*x)) */
    BNNSActivationFunctionSoftsign = 17,              /* x/(1 + |x|) */
    BNNSActivationFunctionELU = 18,                   /* x < 0 ? alpha*(exp(x) - 1) : x */
    BNNSActivationFunctionClampedLeakyRectifiedLinear = 19, /* min(x < 0 ? alpha*x : x, beta) */
    BNNSActivationFunctionLinearWithBias = 20,        /* alpha*x + beta */
    BNNSActivationFunctionLogSoftmax = 21,            /* log(softmax(x)) along axis_flags */
    BNNSActivationFunctionLogSigmoid = 22,            /* log(sigmoid(x)) */
    /* s*(x < 0 ? a*(exp(x) - 1) : x), s = 1.0507..., a = 1.6732... */
    BNNSActivationFunctionSELU = 23,
    BNNSActivationFunctionCELU = 24,                  /* x < 0 ? alpha*(exp(x/alpha) - 1) : x */
    BNNSActivationFunctionHardShrink = 25,            /* |x| < |alpha| ? 0 : x */
    /* |x| < |alpha| ? 0 : x - copysign(alpha, x) */
    BNNSActivationFunctionSoftShrink = 26,
    BNNSActivationFunctionTanhShrink = 27,            /* x - tanh(x) */
    BNNSActivationFunctionThreshold = 28,             /* x <= alpha ? beta : x */
    /* leaky with one alpha per channel, ImageCHW only */
    BNNSActivationFunctionPReLUPerChannel = 29,
    BNNSActivationFunctionGELUApproximation2 = 30,    /* x*min(max(x + 3, 0), 6)/6; from x */
    BNNSActivationFunctionHardSwish = 30,             /* another name for GELUApproximation2 */
    BNNSActivationFunctionSiLU = 31,                  /* x*sigmoid(x); from x */
    BNNSActivationFunctionReLU6 = 32,                 /* min(max(0, x), 6) */
    BNNSActivationFunctionErf = 33,                   /* erf(x); from x */
    BNNSActivationFunctionGELU = 34,                  /* 0.5*x*(1 + erf(x/sqrt(2))); from x */
    BNNSActivationFunctionGELUApproximationSigmoid = 35, /* x*sigmoid(1.702*x) */
};

/* Activation function with its parameters. */
typedef struct BNNSActivation {
    BNNSActivationFunction function;    /* which function */
    float alpha;                        /* first parameter */
    float beta;                         /* second parameter */
    int32_t iscale;                     /* integer functions: factor */
    int32_t ioffset;                    /* integer functions: offset */
    int32_t ishift;                     /* integer functions: right shift */
    const int32_t *iscale_per_channel;  /* one factor per channel; may be NULL */
    const int32_t *ioffset_per_channel; /* one offset per channel; may be NULL */
    const int32_t *ishift_per_channel;  /* one shift per channel; may be NULL */
} BNNSActivation;

/* Activation layer. Input and output have the same number of elements. */
typedef struct BNNSLayerParametersActivation {
    BNNSNDArrayDescriptor i_desc; /* input */
    BNNSNDArrayDescriptor o_desc; /* output */
    BNNSActivation activation;    /* what to apply */
    /* softmax kinds: bit k = size[k], next bit = batch, 0 = size[0] */
    uint32_t axis_flags;
} BNNSLayerParametersActivation;

/* Activation or conversion filter. Returns the filter, or NULL on failure. May be NULL:
 * filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerActivation(
    const BNNSLayerParametersActivation *layer_params, const BNNSFilterParameters *filter_params);

/* Activation without a filter, on the data of i_desc and o_desc. Returns 0, or -1 on failure. May
 * be NULL: filter_params. */
OBN_API int BNNSDirectApplyActivationBatch(const BNNSLayerParametersActivation *layer_params,
                                           const BNNSFilterParameters *filter_params,
                                           size_t batch_size, size_t in_stride, size_t out_stride);

OBN_C_END

#endif
