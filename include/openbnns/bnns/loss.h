/* Loss layers: ten functions, five ways to combine the losses of a batch. */
#ifndef OPENBNNS_BNNS_LOSS_H
#define OPENBNNS_BNNS_LOSS_H

#include "base.h"

OBN_C_BEGIN

/* Loss of input x against labels l with weights w. Decides which struct BNNSFilterCreateLayerLoss
 * expects. Numbering starts at 1. */
OBN_ENUM(BNNSLossFunction) {
    BNNSLossFunctionSoftmaxCrossEntropy = 1,  /* -sum(w*l*log softmax(x)); its own struct */
    /* w*(-l*log s - (1-l)*log(1-s)), s = sigmoid(x); its own struct */
    BNNSLossFunctionSigmoidCrossEntropy = 2,
    BNNSLossFunctionMeanSquareError = 3,      /* w*(x-l)^2; LossBase */
    /* e = x-l: |e| <= d ? w*e*e/2 : w*d*(|e|-d/2); its own struct */
    BNNSLossFunctionHuber = 4,
    BNNSLossFunctionYolo = 5,                 /* detection loss; its own struct */
    BNNSLossFunctionLog = 6,                  /* w*(-l*log(x+eps) - (1-l)*log(1-x+eps)); LossBase */
    BNNSLossFunctionCosineDistance = 7,       /* 1 - sum(w*l*x) of unit vectors; LossBase */
    BNNSLossFunctionHinge = 8,                /* w*max(0, 1 - (2l-1)*x); LossBase */
    BNNSLossFunctionMeanAbsoluteError = 9,    /* w*|x-l|; LossBase */
    /* softmax cross entropy / number of nonzero labels; LossBase */
    BNNSLossFunctionCategoricalCrossEntropy = 10,
};

/* How the losses of a batch become the output. */
OBN_ENUM(BNNSLossReductionFunction) {
    BNNSLossReductionNone = 0,              /* keep every loss */
    BNNSLossReductionSum = 1,               /* sum */
    BNNSLossReductionWeightedMean = 2,      /* sum / sum of weights, 0 when that is 0 */
    BNNSLossReductionMean = 3,              /* sum / number of losses */
    BNNSLossReductionNonZeroWeightMean = 4, /* sum / number of nonzero weights, 0 when none */
};

/* Loss without parameters. All loss structs begin with these four fields. */
typedef struct BNNSLayerParametersLossBase {
    BNNSLossFunction function;           /* which loss */
    BNNSNDArrayDescriptor i_desc;        /* input, one sample */
    BNNSNDArrayDescriptor o_desc;        /* output */
    BNNSLossReductionFunction reduction; /* how losses are combined */
} BNNSLayerParametersLossBase;

/* Softmax cross entropy. */
typedef struct BNNSLayerParametersLossSoftmaxCrossEntropy {
    BNNSLossFunction function;           /* which loss */
    BNNSNDArrayDescriptor i_desc;        /* input, one sample */
    BNNSNDArrayDescriptor o_desc;        /* output */
    BNNSLossReductionFunction reduction; /* how losses are combined */
    float label_smooth;                  /* s in l*(1-s) + s/classes */
} BNNSLayerParametersLossSoftmaxCrossEntropy;

/* Sigmoid cross entropy. */
typedef struct BNNSLayerParametersLossSigmoidCrossEntropy {
    BNNSLossFunction function;           /* which loss */
    BNNSNDArrayDescriptor i_desc;        /* input, one sample */
    BNNSNDArrayDescriptor o_desc;        /* output */
    BNNSLossReductionFunction reduction; /* how losses are combined */
    float label_smooth;                  /* s in l*(1-s) + s/2 */
} BNNSLayerParametersLossSigmoidCrossEntropy;

/* Huber loss. */
typedef struct BNNSLayerParametersLossHuber {
    BNNSLossFunction function;           /* which loss */
    BNNSNDArrayDescriptor i_desc;        /* input, one sample */
    BNNSNDArrayDescriptor o_desc;        /* output */
    BNNSLossReductionFunction reduction; /* how losses are combined */
    float huber_delta;                   /* error at which the parabola becomes a line */
} BNNSLayerParametersLossHuber;

/* Detection loss. Prediction and truth have shape (batch, rows, columns, anchors, 5 + classes), the
 * last axis holding x, y, w, h, confidence, classes. The reduction must be Sum. */
typedef struct BNNSLayerParametersLossYolo {
    BNNSLossFunction function;           /* which loss */
    BNNSNDArrayDescriptor i_desc;        /* input, one sample */
    BNNSNDArrayDescriptor o_desc;        /* output */
    BNNSLossReductionFunction reduction; /* how losses are combined */
    float huber_delta;                   /* for w and h; 0 is read as 1 */
    size_t number_of_grid_columns;       /* columns */
    size_t number_of_grid_rows;          /* rows */
    size_t number_of_anchor_boxes;       /* anchors */
    size_t anchor_box_size;              /* 5 + classes */
    bool rescore;                        /* use the overlap as confidence target */
    float scale_xy;                      /* weight of x and y */
    float scale_wh;                      /* weight of w and h */
    float scale_object;                  /* weight of the confidence where there is an object */
    float scale_no_object;               /* weight of the confidence elsewhere */
    float scale_classification;          /* weight of the classes */
    float object_minimum_iou;            /* overlap from which a box counts as object */
    float no_object_maximum_iou;         /* overlap up to which it counts as background */
    float *anchors_data;                 /* w0, h0, w1, h1, ... */
} BNNSLayerParametersLossYolo;

/* Loss filter. layer_params points at the loss struct that belongs to its first field. Returns the
 * filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerLoss(const void *layer_params,
                                             const BNNSFilterParameters *filter_params);

/* Loss of a batch, and its gradient when in_delta is given. weights_size is 0 (no weights), 1,
 * batch_size, or batch_size*classes. out holds one value, or all losses packed when the reduction
 * is None. Returns 0, or -1 on failure. May be NULL: weights, in_delta. */
OBN_API int BNNSLossFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void *in,
                                     size_t in_stride, const void *labels, size_t labels_stride,
                                     const void *weights, size_t weights_size, void *out,
                                     BNNSNDArrayDescriptor *in_delta, size_t in_delta_stride);

/* Gradient of the loss for a given gradient out_delta of its output. Other arguments as in the
 * forward call, which need not have happened. Returns 0, or -1 on failure. May be NULL: weights. */
OBN_API int BNNSLossFilterApplyBackwardBatch(
    BNNSFilter filter, size_t batch_size, const void *in, size_t in_stride,
    BNNSNDArrayDescriptor *in_delta, size_t in_delta_stride, const void *labels,
    size_t labels_stride, const void *weights, size_t weights_size,
    const BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride);

OBN_C_END

#endif
