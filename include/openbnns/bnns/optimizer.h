/* Optimizer steps (SGD, Adam family, RMSProp), clipping, and the L2 norm. */
#ifndef OPENBNNS_BNNS_OPTIMIZER_H
#define OPENBNNS_BNNS_OPTIMIZER_H

#include "base.h"

OBN_C_BEGIN

/* Update rule. Decides which struct BNNSOptimizerStep expects and how many accumulators belong to
 * each parameter. Numbering starts at 1. */
OBN_ENUM(BNNSOptimizerFunction) {
    /* 1 accumulator, or none without momentum */
    BNNSOptimizerFunctionSGDMomentum = 1,
    BNNSOptimizerFunctionAdam = 2,                      /* 2 accumulators */
    /* 1 + centered + (momentum != 0) accumulators */
    BNNSOptimizerFunctionRMSProp = 3,
    BNNSOptimizerFunctionAdamW = 4,                     /* 2 accumulators, struct of Adam */
    BNNSOptimizerFunctionAdamAMSGrad = 5,               /* 3 accumulators, struct of Adam */
    BNNSOptimizerFunctionAdamWAMSGrad = 6,              /* 3 accumulators, struct of Adam */
    BNNSOptimizerFunctionSGDMomentumWithClipping = 7,   /* as SGDMomentum, struct with clipping */
    BNNSOptimizerFunctionAdamWithClipping = 8,          /* as Adam, struct with clipping */
    BNNSOptimizerFunctionRMSPropWithClipping = 9,       /* as RMSProp, struct with clipping */
    BNNSOptimizerFunctionAdamWWithClipping = 10,        /* as AdamW, struct with clipping */
    BNNSOptimizerFunctionAdamAMSGradWithClipping = 11,  /* as AdamAMSGrad, struct with clipping */
    BNNSOptimizerFunctionAdamWAMSGradWithClipping = 12, /* as AdamWAMSGrad, struct with clipping */
};

/* Penalty added to the gradient. */
OBN_ENUM(BNNSOptimizerRegularizationFunction) {
    BNNSOptimizerRegularizationNone = 0, /* no penalty */
    BNNSOptimizerRegularizationL1 = 1,   /* sign of the parameter */
    BNNSOptimizerRegularizationL2 = 2,   /* the parameter itself */
};

/* Form of the momentum update: W parameter, V accumulator, V' its new value, m momentum, g
 * gradient, lr learning rate. The second formula is the Nesterov form. */
OBN_ENUM(BNNSOptimizerSGDMomentumVariant) {
    BNNSSGDMomentumVariant0 = 0, /* V' = m*V - lr*g, W += V' | W += V' + m*(V' - V) */
    BNNSSGDMomentumVariant1 = 1, /* V' = m*V + g, W -= lr*V' | W -= lr*(m*V' + g) */
    BNNSSGDMomentumVariant2 = 2, /* V' = m*V + lr*g, W -= V' | V' = m*V + g, W -= lr*(g + m*V') */
};

/* Gradient clipping of the optimizers with clipping. */
OBN_ENUM(BNNSOptimizerClippingFunction) {
    BNNSOptimizerClippingNone = 0,         /* off */
    /* each element to [clip_gradients_min, clip_gradients_max] */
    BNNSOptimizerClippingByValue = 1,
    BNNSOptimizerClippingByNorm = 2,       /* each array to L2 norm clip_gradients_max_norm */
    BNNSOptimizerClippingByGlobalNorm = 3, /* all arrays together to that norm */
};

/* Norm computed by BNNSComputeNorm. */
OBN_ENUM(BNNSNormType) {
    BNNSL2Norm = 1, /* sqrt of the sum of squares */
};

/* SGD with optional momentum. The struct is read at every step and may change between steps. */
typedef struct BNNSOptimizerSGDMomentumFields {
    float learning_rate;                                     /* step size */
    float momentum;                                          /* 0 = off */
    float gradient_scale;                                    /* factor of the gradient */
    float regularization_scale;                              /* factor of the penalty */
    bool clip_gradients;                                     /* clip to the two bounds */
    float clip_gradients_min;                                /* lower bound */
    float clip_gradients_max;                                /* upper bound */
    bool nesterov;                                           /* Nesterov form */
    BNNSOptimizerRegularizationFunction regularization_func; /* penalty */
    BNNSOptimizerSGDMomentumVariant sgd_momentum_variant;    /* formula */
} BNNSOptimizerSGDMomentumFields;

/* SGD with momentum and a choice of clipping. */
typedef struct BNNSOptimizerSGDMomentumWithClippingFields {
    float learning_rate;                                     /* step size */
    float momentum;                                          /* 0 = off */
    float gradient_scale;                                    /* factor of the gradient */
    float regularization_scale;                              /* factor of the penalty */
    bool nesterov;                                           /* Nesterov form */
    BNNSOptimizerRegularizationFunction regularization_func; /* penalty */
    BNNSOptimizerSGDMomentumVariant sgd_momentum_variant;    /* formula */
    BNNSOptimizerClippingFunction clipping_func;             /* kind of clipping */
    float clip_gradients_min;                                /* lower bound */
    float clip_gradients_max;                                /* upper bound */
    float clip_gradients_max_norm;                           /* largest norm */
    /* global norm if known, 0 = compute it */
    float clip_gradients_use_norm;
} BNNSOptimizerSGDMomentumWithClippingFields;

/* Adam, AdamW and their AMSGrad forms. */
typedef struct BNNSOptimizerAdamFields {
    float learning_rate;                       /* step size */
    float beta1;                               /* decay of the first moment, 0 to 1 */
    float beta2;                               /* decay of the second moment, 0 to 1 */
    float time_step;                           /* number of this step, from 1, kept by the caller */
    float epsilon;                             /* added to the root */
    float gradient_scale;                      /* factor of the gradient */
    float regularization_scale;                /* factor of the penalty, or of the decay of AdamW */
    bool clip_gradients;                       /* clip to the two bounds */
    float clip_gradients_min;                  /* lower bound */
    float clip_gradients_max;                  /* upper bound */
    BNNSOptimizerRegularizationFunction regularization_func; /* penalty; unread by AdamW */
} BNNSOptimizerAdamFields;

/* Adam family with a choice of clipping. */
typedef struct BNNSOptimizerAdamWithClippingFields {
    float learning_rate;                       /* step size */
    float beta1;                               /* decay of the first moment, 0 to 1 */
    float beta2;                               /* decay of the second moment, 0 to 1 */
    float time_step;                           /* number of this step, from 1, kept by the caller */
    float epsilon;                             /* added to the root */
    float gradient_scale;                      /* factor of the gradient */
    float regularization_scale;                /* factor of the penalty, or of the decay of AdamW */
    BNNSOptimizerRegularizationFunction regularization_func; /* penalty; unread by AdamW */
    BNNSOptimizerClippingFunction clipping_func; /* kind of clipping */
    float clip_gradients_min;                  /* lower bound */
    float clip_gradients_max;                  /* upper bound */
    float clip_gradients_max_norm;             /* largest norm */
    float clip_gradients_use_norm;             /* global norm if known, 0 = compute it */
} BNNSOptimizerAdamWithClippingFields;

/* RMSProp with accumulators n and d:
 * n = alpha*n + (1 - alpha)*g^2, d = momentum*d - learning_rate*g/(sqrt(n) + epsilon), W += d
 * The centered form takes the square of the mean gradient off n. */
typedef struct BNNSOptimizerRMSPropFields {
    float learning_rate;                                     /* step size */
    float alpha;                                             /* decay of the mean square */
    float epsilon;                                           /* added to the root */
    /* subtract the squared mean gradient */
    bool centered;
    float momentum;                                          /* 0 = off */
    float gradient_scale;                                    /* factor of the gradient */
    float regularization_scale;                              /* factor of the penalty */
    bool clip_gradients;                                     /* clip to the two bounds */
    float clip_gradients_min;                                /* lower bound */
    float clip_gradients_max;                                /* upper bound */
    BNNSOptimizerRegularizationFunction regularization_func; /* penalty */
} BNNSOptimizerRMSPropFields;

/* RMSProp with a choice of clipping. */
typedef struct BNNSOptimizerRMSPropWithClippingFields {
    float learning_rate;                                  /* step size */
    float alpha;                                          /* decay of the mean square */
    float epsilon;                                        /* added to the root */
    bool centered;                                        /* subtract the squared mean gradient */
    float momentum;                                       /* 0 = off */
    float gradient_scale;                                 /* factor of the gradient */
    float regularization_scale;                           /* factor of the penalty */
    BNNSOptimizerRegularizationFunction regularization_func; /* penalty */
    BNNSOptimizerClippingFunction clipping_func;          /* kind of clipping */
    float clip_gradients_min;                             /* lower bound */
    float clip_gradients_max;                             /* upper bound */
    float clip_gradients_max_norm;                        /* largest norm */
    float clip_gradients_use_norm;                        /* global norm if known, 0 = compute it */
} BNNSOptimizerRMSPropWithClippingFields;

/* Updates number_of_parameters arrays in place, packed float32. OptimizerAlgFields is the struct
 * that belongs to function. accumulators has k*number_of_parameters entries, zeroed before the
 * first step, where k is the count given with BNNSOptimizerFunction. Returns 0, or another value on
 * failure. May be NULL: accumulators, filter_params. */
OBN_API int BNNSOptimizerStep(BNNSOptimizerFunction function, const void *OptimizerAlgFields,
                              size_t number_of_parameters, BNNSNDArrayDescriptor **parameters,
                              const BNNSNDArrayDescriptor **gradients,
                              BNNSNDArrayDescriptor **accumulators,
                              const BNNSFilterParameters *filter_params);

/* dest = src limited to min_val ... max_val. Returns 0, or another value on failure. */
OBN_API int BNNSClipByValue(BNNSNDArrayDescriptor *dest, const BNNSNDArrayDescriptor *src,
                            float min_val, float max_val);

/* dest = src scaled down to an L2 norm of max_norm, separately for each position along the axes not
 * in axis_flags; 0 means all axes. Returns 0, or another value on failure. */
OBN_API int BNNSClipByNorm(BNNSNDArrayDescriptor *dest, const BNNSNDArrayDescriptor *src,
                           float max_norm, uint32_t axis_flags);

/* Scales count arrays by one factor so that their joint L2 norm is at most max_norm. use_norm is
 * that norm if known, 0 computes it. Returns 0, or another value on failure. */
OBN_API int BNNSClipByGlobalNorm(BNNSNDArrayDescriptor **dest, const BNNSNDArrayDescriptor **src,
                                 size_t count, float max_norm, float use_norm);

/* Norm over the axes in axis_flags, 0 for all. The reduced axes are missing in dest. Returns 0, or
 * another value on failure. */
OBN_API int BNNSComputeNorm(BNNSNDArrayDescriptor *dest, const BNNSNDArrayDescriptor *src,
                            BNNSNormType norm_type, uint32_t axis_flags);

/* Gradient of BNNSComputeNorm; in and out are the data of the forward call. Returns 0, or another
 * value on failure. */
OBN_API int BNNSComputeNormBackward(const void *in, BNNSNDArrayDescriptor *in_delta,
                                    const void *out, const BNNSNDArrayDescriptor *out_delta,
                                    BNNSNormType norm_type, uint32_t axis_flags);

OBN_C_END

#endif
