/* The first form of the interface: image stacks and vectors instead of array descriptors, inference
 * only. Filters made here are run by BNNSFilterApply and BNNSFilterApplyBatch. */
#ifndef OPENBNNS_BNNS_LEGACY_H
#define OPENBNNS_BNNS_LEGACY_H

#include "activation.h"
#include "pooling.h"

OBN_C_BEGIN

/* Stack of images: pixel (x, y) of channel c is element x + row_stride*y + image_stride*c. */
typedef struct BNNSImageStackDescriptor {
    size_t width;           /* columns */
    size_t height;          /* rows */
    size_t channels;        /* images */
    size_t row_stride;      /* at least width */
    size_t image_stride;    /* at least row_stride*height */
    BNNSDataType data_type; /* element type, not indexed */
    float data_scale;       /* integers: value = data_scale*stored + data_bias */
    float data_bias;        /* integers only */
} BNNSImageStackDescriptor;

/* Vector of elements. */
typedef struct BNNSVectorDescriptor {
    size_t size;            /* number of elements */
    BNNSDataType data_type; /* element type, not indexed */
    float data_scale;       /* integers: value = data_scale*stored + data_bias */
    float data_bias;        /* integers only */
} BNNSVectorDescriptor;

/* Weights or bias without a shape. */
typedef struct BNNSLayerData {
    const void *data;        /* values; may be NULL */
    BNNSDataType data_type;  /* element type */
    float data_scale;        /* integers: value = data_scale*stored + data_bias */
    float data_bias;         /* integers only */
    const float *data_table; /* 256 floats for indexed types; may be NULL */
} BNNSLayerData;

/* Convolution with in + 2*padding == stride*(out - 1) + kernel on both axes. */
typedef struct BNNSConvolutionLayerParameters {
    size_t x_stride;           /* step to the right */
    size_t y_stride;           /* step down */
    size_t x_padding;          /* columns left and right */
    size_t y_padding;          /* rows top and bottom */
    size_t k_width;            /* kernel columns */
    size_t k_height;           /* kernel rows */
    size_t in_channels;        /* channels of the input */
    size_t out_channels;       /* channels of the output */
    /* (kx, ky, i, o) at kx + k_width*(ky + k_height*(i + in_channels*o)) */
    BNNSLayerData weights;
    BNNSLayerData bias;        /* one value per output channel */
    BNNSActivation activation; /* applied last */
} BNNSConvolutionLayerParameters;

/* Fully connected layer. */
typedef struct BNNSFullyConnectedLayerParameters {
    size_t in_size;            /* inputs */
    size_t out_size;           /* outputs */
    BNNSLayerData weights;     /* (i, o) at i + o*in_size */
    BNNSLayerData bias;        /* one value per output */
    BNNSActivation activation; /* applied last */
} BNNSFullyConnectedLayerParameters;

/* Pooling layer. */
typedef struct BNNSPoolingLayerParameters {
    size_t x_stride;                      /* step to the right */
    size_t y_stride;                      /* step down */
    size_t x_padding;                     /* columns left and right */
    size_t y_padding;                     /* rows top and bottom */
    size_t k_width;                       /* kernel columns */
    size_t k_height;                      /* kernel rows */
    size_t in_channels;                   /* channels of the input */
    size_t out_channels;                  /* channels of the output */
    BNNSPoolingFunction pooling_function; /* Max or Average */
    BNNSLayerData bias;                   /* one value per output channel */
    BNNSActivation activation;            /* applied last */
} BNNSPoolingLayerParameters;

/* Convolution filter on image stacks. Returns the filter, or NULL on failure. May be NULL:
 * filter_params. */
OBN_API BNNSFilter BNNSFilterCreateConvolutionLayer(
    const BNNSImageStackDescriptor *in_desc, const BNNSImageStackDescriptor *out_desc,
    const BNNSConvolutionLayerParameters *layer_params, const BNNSFilterParameters *filter_params);

/* Fully connected filter on vectors. Returns the filter, or NULL on failure. May be NULL:
 * filter_params. */
OBN_API BNNSFilter BNNSFilterCreateFullyConnectedLayer(
    const BNNSVectorDescriptor *in_desc, const BNNSVectorDescriptor *out_desc,
    const BNNSFullyConnectedLayerParameters *layer_params,
    const BNNSFilterParameters *filter_params);

/* Pooling filter on image stacks. Returns the filter, or NULL on failure. May be NULL:
 * filter_params. */
OBN_API BNNSFilter BNNSFilterCreatePoolingLayer(const BNNSImageStackDescriptor *in_desc,
                                                const BNNSImageStackDescriptor *out_desc,
                                                const BNNSPoolingLayerParameters *layer_params,
                                                const BNNSFilterParameters *filter_params);

/* Activation or conversion filter on vectors. Returns the filter, or NULL on failure. May be NULL:
 * filter_params. */
OBN_API BNNSFilter BNNSFilterCreateVectorActivationLayer(const BNNSVectorDescriptor *in_desc,
                                                         const BNNSVectorDescriptor *out_desc,
                                                         const BNNSActivation *activation,
                                                         const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
