/* Element-wise arithmetic on one, two or three arrays. */
#ifndef OPENBNNS_BNNS_ARITHMETIC_H
#define OPENBNNS_BNNS_ARITHMETIC_H

#include "activation.h"

OBN_C_BEGIN

/* Element-wise operation on a (unary), a and b (binary) or a, b and c (ternary). */
OBN_ENUM(BNNSArithmeticFunction) {
    BNNSArithmeticAdd = 0,                  /* a + b */
    BNNSArithmeticSubtract = 1,             /* a - b */
    BNNSArithmeticMultiply = 2,             /* a*b */
    BNNSArithmeticDivide = 3,               /* a/b */
    BNNSArithmeticSquareRoot = 4,           /* sqrt(a) */
    BNNSArithmeticReciprocalSquareRoot = 5, /* 1/sqrt(a) */
    BNNSArithmeticCeil = 6,                 /* unary */
    BNNSArithmeticFloor = 7,                /* unary */
    BNNSArithmeticRound = 8,                /* unary */
    BNNSArithmeticSin = 9,                  /* unary */
    BNNSArithmeticCos = 10,                 /* unary */
    BNNSArithmeticTan = 11,                 /* unary */
    BNNSArithmeticAsin = 12,                /* unary */
    BNNSArithmeticAcos = 13,                /* unary */
    BNNSArithmeticAtan = 14,                /* unary */
    BNNSArithmeticSinh = 15,                /* unary */
    BNNSArithmeticCosh = 16,                /* unary */
    BNNSArithmeticTanh = 17,                /* unary */
    BNNSArithmeticAsinh = 18,               /* unary */
    BNNSArithmeticAcosh = 19,               /* unary */
    BNNSArithmeticAtanh = 20,               /* unary */
    BNNSArithmeticPow = 21,                 /* a to the power b */
    BNNSArithmeticExp = 22,                 /* unary */
    BNNSArithmeticExp2 = 23,                /* 2 to the power a */
    BNNSArithmeticLog = 24,                 /* natural logarithm of a */
    BNNSArithmeticLog2 = 25,                /* unary */
    BNNSArithmeticMultiplyNoNaN = 26,       /* a*b, 0 whenever b is 0 */
    BNNSArithmeticDivideNoNaN = 27,         /* a/b, 0 whenever b is 0 */
    BNNSArithmeticMultiplyAdd = 28,         /* a*b + c */
    BNNSArithmeticMinimum = 29,             /* smaller of a and b */
    BNNSArithmeticMaximum = 30,             /* larger of a and b */
    BNNSArithmeticSelect = 31,              /* a ? b : c */
    BNNSArithmeticAbs = 32,                 /* unary */
    BNNSArithmeticSign = 33,                /* -1, 0 or 1 */
    BNNSArithmeticNegate = 34,              /* -a */
    BNNSArithmeticReciprocal = 35,          /* 1/a */
    BNNSArithmeticSquare = 36,              /* a*a */
    BNNSArithmeticFloorDivide = 37,         /* floor(a/b), no gradient */
    BNNSArithmeticTruncDivide = 38,         /* trunc(a/b), no gradient */
    BNNSArithmeticTruncRemainder = 39,      /* a - b*trunc(a/b), no gradient */
    BNNSArithmeticErf = 40,                 /* unary */
};

/* Role of an arithmetic operand in a batch. */
OBN_ENUM(BNNSDescriptorType) {
    BNNSConstant = 0,  /* shared by the batch, no gradient */
    BNNSSample = 1,    /* one per batch item, gradient of the same shape */
    BNNSParameter = 2, /* shared by the batch, gradient summed over it */
};

/* Operands of a one-input operation. */
typedef struct BNNSArithmeticUnary {
    BNNSNDArrayDescriptor in;    /* a */
    BNNSDescriptorType in_type;  /* role of a */
    BNNSNDArrayDescriptor out;   /* result */
    BNNSDescriptorType out_type; /* role of the result */
} BNNSArithmeticUnary;

/* Operands of a two-input operation; sizes are equal or 1 on every axis. */
typedef struct BNNSArithmeticBinary {
    BNNSNDArrayDescriptor in1;   /* a */
    BNNSDescriptorType in1_type; /* role of a */
    BNNSNDArrayDescriptor in2;   /* b */
    BNNSDescriptorType in2_type; /* role of b */
    BNNSNDArrayDescriptor out;   /* result */
    BNNSDescriptorType out_type; /* role of the result */
} BNNSArithmeticBinary;

/* Operands of a three-input operation; sizes are equal or 1 on every axis. */
typedef struct BNNSArithmeticTernary {
    BNNSNDArrayDescriptor in1;   /* a */
    BNNSDescriptorType in1_type; /* role of a */
    BNNSNDArrayDescriptor in2;   /* b */
    BNNSDescriptorType in2_type; /* role of b */
    BNNSNDArrayDescriptor in3;   /* c */
    BNNSDescriptorType in3_type; /* role of c */
    BNNSNDArrayDescriptor out;   /* result */
    BNNSDescriptorType out_type; /* role of the result */
} BNNSArithmeticTernary;

/* Arithmetic layer: out = activation(function(operands)). */
typedef struct BNNSLayerParametersArithmetic {
    BNNSArithmeticFunction arithmetic_function; /* operation */
    void *arithmetic_function_fields;           /* BNNSArithmeticUnary, Binary or Ternary */
    BNNSActivation activation;                  /* applied to the result */
} BNNSLayerParametersArithmetic;

/* Arithmetic filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerArithmetic(
    const BNNSLayerParametersArithmetic *layer_params, const BNNSFilterParameters *filter_params);

/* Runs an arithmetic filter on number_of_inputs arrays; in and in_stride have one entry per input.
 * Only operands of role Sample advance with the batch. Returns 0, or -1 on failure. */
OBN_API int BNNSArithmeticFilterApplyBatch(BNNSFilter filter, size_t batch_size,
                                           size_t number_of_inputs, const void **in,
                                           const size_t *in_stride, void *out, size_t out_stride);

/* Gradients of all inputs; in_delta and in_delta_stride have one entry per input, and inputs that
 * are the same array share one gradient. in may be missing where the function needs no inputs, out
 * is needed when an activation is fused. Returns 0, or -1 on failure. May be NULL: in, in_stride,
 * out. */
OBN_API int BNNSArithmeticFilterApplyBackwardBatch(
    BNNSFilter filter, size_t batch_size, size_t number_of_inputs, const void **in,
    const size_t *in_stride, BNNSNDArrayDescriptor **in_delta, const size_t *in_delta_stride,
    const void *out, size_t out_stride, BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride);

OBN_C_END

#endif
