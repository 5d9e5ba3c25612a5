/* Moving elements around: permute, padding, resize, crop and resize, copy, transpose, tile,
 * shuffle, band part. */
#ifndef OPENBNNS_BNNS_RESHAPE_H
#define OPENBNNS_BNNS_RESHAPE_H

#include "base.h"

OBN_C_BEGIN

/* What the padded border contains. */
OBN_ENUM(BNNSPaddingMode) {
    BNNSPaddingModeConstant = 0,  /* padding_value */
    BNNSPaddingModeReflect = 1,   /* mirror, edge not repeated: 2 1 | 0 1 2 */
    BNNSPaddingModeSymmetric = 2, /* mirror, edge repeated: 1 0 | 0 1 2 */
};

/* Interpolation between samples. */
OBN_ENUM(BNNSInterpolationMethod) {
    BNNSInterpolationMethodNearest = 0, /* any number of axes */
    BNNSInterpolationMethodLinear = 1,  /* one or two axes */
};

/* Position of output sample i when n input samples become m, clamped to 0 ... n-1. */
OBN_ENUM(BNNSLinearSamplingMode) {
    BNNSLinearSamplingDefault = 0,            /* i*(n - n/m)/(m - 1) */
    BNNSLinearSamplingAlignCorners = 1,       /* i*(n - 1)/(m - 1); (n - 1)/2 when m is 1 */
    BNNSLinearSamplingUnalignCorners = 2,     /* (i + 0.5)*n/m - 0.5 */
    BNNSLinearSamplingStrictAlignCorners = 3, /* i*(n - 1)/(m - 1) */
    BNNSLinearSamplingOffsetCorners = 4,      /* (i + 0.5)*max(1, n - 1)/m */
};

/* Meaning of the four numbers of a box. */
OBN_ENUM(BNNSBoxCoordinateMode) {
    BNNSCornersHeightFirst = 0,    /* y0, x0, y1, x1 */
    BNNSCornersWidthFirst = 1,     /* x0, y0, x1, y1 */
    BNNSCenterSizeHeightFirst = 2, /* center y, center x, height, width */
    BNNSCenterSizeWidthFirst = 3,  /* center x, center y, width, height */
};

/* Exchange between channels and space for arrays of shape (N, C, H, W); the factor r follows from
 * the shapes. */
OBN_ENUM(BNNSShuffleType) {
    /* (N, C*r*r, H, W) to (N, C, H*r, W*r), channels read as C, r, r */
    BNNSShuffleTypePixelShuffleNCHW = 0,
    BNNSShuffleTypePixelUnshuffleNCHW = 1, /* the way back */
    BNNSShuffleTypeDepthToSpaceNCHW = 2,   /* the same shapes, channels read as r, r, C */
    BNNSShuffleTypeSpaceToDepthNCHW = 3,   /* the way back */
};

/* Copy with permuted axes. */
typedef struct BNNSLayerParametersPermute {
    BNNSNDArrayDescriptor i_desc;                  /* input */
    BNNSNDArrayDescriptor o_desc;                  /* output, same rank and type */
    size_t permutation[BNNS_MAX_TENSOR_DIMENSION]; /* input axis that feeds each output axis */
} BNNSLayerParametersPermute;

/* Border around an array; every output size is before + input size + after. */
typedef struct BNNSLayerParametersPadding {
    BNNSNDArrayDescriptor i_desc;                      /* input */
    BNNSNDArrayDescriptor o_desc;                      /* output */
    size_t padding_size[BNNS_MAX_TENSOR_DIMENSION][2]; /* before and after, per axis */
    BNNSPaddingMode padding_mode;                      /* what to fill in */
    uint32_t padding_value;                            /* bits of the constant */
} BNNSLayerParametersPadding;

/* Resampling of the axes whose sizes differ, by integral factors, all up or all down. */
typedef struct BNNSLayerParametersResize {
    BNNSInterpolationMethod method; /* interpolation */
    BNNSNDArrayDescriptor i_desc;   /* input */
    BNNSNDArrayDescriptor o_desc;   /* output */
    bool align_corners;             /* corners fall on corners */
} BNNSLayerParametersResize;

/* Settings of BNNSCropResize. */
typedef struct BNNSLayerParametersCropResize {
    bool normalized_coordinates;               /* boxes run from 0 to 1 */
    float spatial_scale;                       /* factor of the coordinates */
    float extrapolation_value;                 /* value outside the image */
    BNNSLinearSamplingMode sampling_mode;      /* sample positions */
    BNNSBoxCoordinateMode box_coordinate_mode; /* meaning of a box */
    BNNSInterpolationMethod method;            /* interpolation, Linear only */
} BNNSLayerParametersCropResize;

/* Permute filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerPermute(const BNNSLayerParametersPermute *layer_params,
                                                const BNNSFilterParameters *filter_params);

/* Gradient of a permute filter: the inverse permutation of out_delta. Returns 0, or -1 on
 * failure. */
OBN_API int BNNSPermuteFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size,
                                                BNNSNDArrayDescriptor *in_delta,
                                                size_t in_delta_stride,
                                                const BNNSNDArrayDescriptor *out_delta,
                                                size_t out_delta_stride);

/* Padding filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerPadding(const BNNSLayerParametersPadding *layer_params,
                                                const BNNSFilterParameters *filter_params);

/* Resize filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerResize(const BNNSLayerParametersResize *layer_params,
                                               const BNNSFilterParameters *filter_params);

/* Cuts the boxes of roi out of the images of input and resizes them. The two axes with the smallest
 * strides are the spatial ones; arrays are packed. Returns 0, or another value on failure. May be
 * NULL: filter_params. */
OBN_API int BNNSCropResize(const BNNSLayerParametersCropResize *layer_params,
                           const BNNSNDArrayDescriptor *input, const BNNSNDArrayDescriptor *roi,
                           BNNSNDArrayDescriptor *output,
                           const BNNSFilterParameters *filter_params);

/* Gradient of BNNSCropResize. Returns 0, or another value on failure. May be NULL:
 * filter_params. */
OBN_API int BNNSCropResizeBackward(const BNNSLayerParametersCropResize *layer_params,
                                   BNNSNDArrayDescriptor *in_delta,
                                   const BNNSNDArrayDescriptor *roi,
                                   const BNNSNDArrayDescriptor *out_delta,
                                   const BNNSFilterParameters *filter_params);

/* Copies and converts between arrays of equal shape that do not overlap. Returns 0, or -1 on
 * failure. May be NULL: filter_params. */
OBN_API int BNNSCopy(BNNSNDArrayDescriptor *dest, const BNNSNDArrayDescriptor *src,
                     const BNNSFilterParameters *filter_params);

/* Copies with axis0 and axis1 exchanged, not in place. It is its own gradient. Returns 0, or -1 on
 * failure. May be NULL: filter_params. */
OBN_API int BNNSTranspose(BNNSNDArrayDescriptor *dest, const BNNSNDArrayDescriptor *src,
                          size_t axis0, size_t axis1, const BNNSFilterParameters *filter_params);

/* Repeats input until it fills output, whose sizes are integral multiples. Returns 0, or another
 * value on failure. May be NULL: filter_params. */
OBN_API int BNNSTile(const BNNSNDArrayDescriptor *input, BNNSNDArrayDescriptor *output,
                     const BNNSFilterParameters *filter_params);

/* Gradient of BNNSTile: sums the copies. Returns 0, or another value on failure. May be NULL:
 * filter_params. */
OBN_API int BNNSTileBackward(BNNSNDArrayDescriptor *in_delta,
                             const BNNSNDArrayDescriptor *out_delta,
                             const BNNSFilterParameters *filter_params);

/* Exchange between channels and space. Returns 0, or another value on failure. May be NULL:
 * filter_params. */
OBN_API int BNNSShuffle(BNNSShuffleType type, const BNNSNDArrayDescriptor *input,
                        BNNSNDArrayDescriptor *output, const BNNSFilterParameters *filter_params);

/* Keeps num_lower diagonals below and num_upper above the main one, zero elsewhere; a negative
 * number keeps all. The matrix lies on the two axes with the smallest strides, the faster one being
 * the column; arrays are packed. Returns 0, or another value on failure. May be NULL:
 * filter_params. */
OBN_API int BNNSBandPart(int num_lower, int num_upper, const BNNSNDArrayDescriptor *input,
                         BNNSNDArrayDescriptor *output, const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
