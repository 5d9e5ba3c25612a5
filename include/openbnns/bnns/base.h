/* Ground shared by all families: data types, layouts, array descriptors, filter options, and the
 * calls that work on any filter.
 * Throughout the interface: strides and batch strides count elements, never bytes; a pointer must
 * not be NULL unless the comment of the function names it; an optional array inside a parameter
 * struct is switched off by data == NULL. */
#ifndef OPENBNNS_BNNS_BASE_H
#define OPENBNNS_BNNS_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#if defined(_MSC_VER)
typedef ptrdiff_t ssize_t; /* which Microsoft's sys/types.h lacks */
#endif

/* Exported from the shared library. */
#if defined(_WIN32) && defined(OBN_BUILDS_LIBRARY)
#define OBN_API __declspec(dllexport)
#elif defined(_WIN32)
#define OBN_API __declspec(dllimport)
#else
#define OBN_API __attribute__((visibility("default")))
#endif

/* C linkage for everything between the two marks. */
#ifdef __cplusplus
#define OBN_C_BEGIN extern "C" {
#define OBN_C_END }
#else
#define OBN_C_BEGIN
#define OBN_C_END
#endif

/* OBN_ENUM(name) { ... }; declares an enumeration that occupies a uint32_t. C++ and C23 say so
 * directly, clang has it as an extension in older C, and elsewhere the name is a plain uint32_t
 * beside an anonymous list of constants. Size and values are the same in all three forms. */
#if defined(__cplusplus)
#define OBN_ENUM(name) enum name : uint32_t
#elif defined(__clang__) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define OBN_ENUM(name)                                                                             \
    OBN_EXTENSION enum name : uint32_t;                                                            \
    typedef enum name name;                                                                        \
    OBN_EXTENSION enum name : uint32_t
#else
#define OBN_ENUM(name)                                                                             \
    typedef uint32_t name;                                                                         \
    enum
#endif

/* Binds a declaration to another linker name, with the prefix the target puts before C names. */
#define OBN_TEXT_(token) #token
#define OBN_TEXT(token) OBN_TEXT_(token)
#if defined(__GNUC__) || defined(__clang__)
#define OBN_SYMBOL(name) __asm__(OBN_TEXT(__USER_LABEL_PREFIX__) #name)
#define OBN_EXTENSION __extension__ /* what C99 lacks, without a warning */
#else
#define OBN_SYMBOL(name) /* such compilers rename the function itself: OBN_RENAMES */
#define OBN_RENAMES
#define OBN_EXTENSION
#endif

/* Largest number of axes of an array. */
#define BNNS_MAX_TENSOR_DIMENSION 8

OBN_C_BEGIN

/* Element type. Bits 16 to 20 name the class, the low 15 bits the width; bfloat16 differs from
 * float16 by 0x8000. The *Bit values are masks and no types. Widths below eight bits are packed. */
OBN_ENUM(BNNSDataType) {
    BNNSDataTypeFloatBit = 0x10000,          /* mask: floating point */
    BNNSDataTypeFloat16 = 0x10010,           /* IEEE half */
    BNNSDataTypeFloat32 = 0x10020,           /* IEEE single */
    BNNSDataTypeBFloat16 = 0x18010,          /* upper half of an IEEE single */
    BNNSDataTypeIntBit = 0x20000,            /* mask: signed integer */
    BNNSDataTypeInt1 = 0x20001,
    BNNSDataTypeInt2 = 0x20002,
    BNNSDataTypeInt4 = 0x20004,
    BNNSDataTypeInt8 = 0x20008,
    BNNSDataTypeInt16 = 0x20010,
    BNNSDataTypeInt32 = 0x20020,
    BNNSDataTypeInt64 = 0x20040,
    BNNSDataTypeUIntBit = 0x40000,           /* mask: unsigned integer */
    BNNSDataTypeUInt1 = 0x40001,
    BNNSDataTypeUInt2 = 0x40002,
    BNNSDataTypeUInt3 = 0x40003,
    BNNSDataTypeUInt4 = 0x40004,
    BNNSDataTypeUInt6 = 0x40006,
    BNNSDataTypeUInt8 = 0x40008,
    BNNSDataTypeUInt16 = 0x40010,
    BNNSDataTypeUInt32 = 0x40020,
    BNNSDataTypeUInt64 = 0x40040,
    BNNSDataTypeIndexedBit = 0x80000,        /* mask: index into table_data */
    BNNSDataTypeIndexed1 = 0x80001,          /* 2 table entries */
    BNNSDataTypeIndexed2 = 0x80002,          /* 4 table entries */
    BNNSDataTypeIndexed4 = 0x80004,          /* 16 table entries */
    BNNSDataTypeIndexed8 = 0x80008,          /* 256 table entries */
    BNNSDataTypeMiscellaneousBit = 0x100000, /* mask: anything else */
    BNNSDataTypeBoolean = 0x100008,          /* one byte, zero or not zero */
};

/* Number of axes (bits 16 to 19) and how coordinates become an element index. stride[] runs from
 * the fastest axis to the slowest; the comments give size[] and then the index, s0 standing for
 * stride[0] and so on. FirstMajor is C order, LastMajor is Fortran order. */
OBN_ENUM(BNNSDataLayout) {
    BNNSDataLayoutVector = 0x10000,             /* n: i*s0 */
    BNNSDataLayout1DLastMajor = 0x18000,        /* as Vector */
    BNNSDataLayout1DFirstMajor = 0x18001,       /* as Vector */
    BNNSDataLayoutRowMajorMatrix = 0x20000,     /* columns, rows: col*s0 + row*s1 */
    BNNSDataLayoutColumnMajorMatrix = 0x20001,  /* rows, columns: row*s0 + col*s1 */
    BNNSDataLayoutFullyConnectedSparse = 0x21001, /* columns, rows: opaque */
    BNNSDataLayout2DLastMajor = 0x28000,        /* i, j: i*s0 + j*s1 */
    BNNSDataLayout2DFirstMajor = 0x28001,       /* i, j: j*s0 + i*s1 */
    BNNSDataLayoutImageCHW = 0x30000,           /* width, height, channels: x*s0 + y*s1 + c*s2 */
    BNNSDataLayoutSNE = 0x30001,                /* embedding, batch, sequence: e*s0 + n*s1 + s*s2 */
    BNNSDataLayoutNSE = 0x30002,                /* embedding, sequence, batch: e*s0 + s*s1 + n*s2 */
    BNNSDataLayoutMHA_DHK = 0x30003,            /* model, key, heads: d*s0 + h*s1 + k*s2 */
    BNNSDataLayout3DLastMajor = 0x38000,        /* i, j, k: i*s0 + j*s1 + k*s2 */
    BNNSDataLayout3DFirstMajor = 0x38001,       /* i, j, k: k*s0 + j*s1 + i*s2 */
    /* kernel width kw and height kh, in, out: kx*s0 + ky*s1 + i*s2 + o*s3 */
    BNNSDataLayoutConvolutionWeightsOIHW = 0x40000,
    /* kw, kh, in, out, kernel turned by 180 degrees: (kw-1-kx)*s0 + (kh-1-ky)*s1 + i*s2 + o*s3 */
    BNNSDataLayoutConvolutionWeightsOIHrWr = 0x40001,
    /* kw, kh, out, in, kernel turned by 180 degrees: (kw-1-kx)*s0 + (kh-1-ky)*s1 + o*s2 + i*s3 */
    BNNSDataLayoutConvolutionWeightsIOHrWr = 0x40002,
    /* kw, kh, in, out, contiguous, outputs in groups of 32 with the last group padded, base aligned
     * to 128 bytes: o%32 + 32*(kx + kw*(ky + kh*(i + in*(o/32)))) */
    BNNSDataLayoutConvolutionWeightsOIHW_Pack32 = 0x40010,
    BNNSDataLayout4DLastMajor = 0x48000,        /* first coordinate fastest */
    BNNSDataLayout4DFirstMajor = 0x48001,       /* last coordinate fastest */
    BNNSDataLayout5DLastMajor = 0x58000,        /* first coordinate fastest */
    BNNSDataLayout5DFirstMajor = 0x58001,       /* last coordinate fastest */
    BNNSDataLayout6DLastMajor = 0x68000,        /* first coordinate fastest */
    BNNSDataLayout6DFirstMajor = 0x68001,       /* last coordinate fastest */
    BNNSDataLayout7DLastMajor = 0x78000,        /* first coordinate fastest */
    BNNSDataLayout7DFirstMajor = 0x78001,       /* last coordinate fastest */
    BNNSDataLayout8DLastMajor = 0x88000,        /* first coordinate fastest */
    BNNSDataLayout8DFirstMajor = 0x88001,       /* last coordinate fastest */
};

/* What a backward call does with the old contents of a gradient array. Ignored elsewhere. */
OBN_ENUM(BNNSNDArrayFlags) {
    BNNSNDArrayFlagBackpropSet = 0,        /* replace them */
    BNNSNDArrayFlagBackpropAccumulate = 1, /* add to them */
};

/* Bits of BNNSFilterParameters.flags. */
OBN_ENUM(BNNSFlags) {
    /* Read weights and bias from the caller's memory on every call instead of copying them when the
     * filter is created. The caller keeps that memory until the filter is destroyed. */
    BNNSFlagsUseClientPtr = 1,
};

/* Kind of a layer, for BNNSFilterCreateLayerNormalization (the four norms) and
 * BNNSFilterCreateFusedLayer. */
OBN_ENUM(BNNSFilterType) {
    BNNSConvolution = 0,
    BNNSFullyConnected = 1,
    BNNSBatchNorm = 2,
    BNNSInstanceNorm = 3,
    BNNSLayerNorm = 4,
    BNNSGroupNorm = 5,
    BNNSTransposedConvolution = 6,
    BNNSQuantization = 7,
    BNNSArithmetic = 8,
};

/* Which parameter of an activation filter BNNSGetPointer shows. */
OBN_ENUM(BNNSPointerSpecifier) {
    BNNSPointerSpecifierAlpha = 0, /* one value, or one per channel for PReLUPerChannel */
    BNNSPointerSpecifierBeta = 1,
};

/* A layer ready to run. Made by the BNNSFilterCreate calls, freed by BNNSFilterDestroy. */
typedef void *BNNSFilter;

/* Allocator with the contract of posix_memalign: stores the block in *memptr and returns 0. */
typedef int (*BNNSAlloc)(void **memptr, size_t alignment, size_t size);

/* Counterpart of BNNSAlloc, with the contract of free. */
typedef void (*BNNSFree)(void *ptr);

/* Shape, strides, element type and optional storage of an array. In layer calls it describes one
 * sample; the batch comes as a size and a batch stride of the call. */
typedef struct BNNSNDArrayDescriptor {
    BNNSNDArrayFlags flags;                   /* gradient arrays: replace or add */
    BNNSDataLayout layout;                    /* number and order of axes */
    size_t size[BNNS_MAX_TENSOR_DIMENSION];   /* extents; entries past the rank are unread */
    size_t stride[BNNS_MAX_TENSOR_DIMENSION]; /* steps in elements, fastest first; 0 = packed */
    void *data;                               /* first element; may be NULL */
    BNNSDataType data_type;                   /* element type */
    void *table_data;                         /* lookup table of indexed types; may be NULL */
    BNNSDataType table_data_type;             /* element type of the table */
    /* integers: value = data_scale*stored + data_bias; 0 is read as 1 */
    float data_scale;
    float data_bias;                          /* integers only */
} BNNSNDArrayDescriptor;

/* Array of the graph calls. Unlike BNNSNDArrayDescriptor it states its rank, shape[k] always
 * belongs to stride[k], a stride of 0 is a real 0, and negative entries are not known yet. */
typedef struct BNNSTensor {
    BNNSDataType data_type;                    /* element type */
    uint8_t rank;                              /* number of axes, 0 to 8 */
    ssize_t shape[BNNS_MAX_TENSOR_DIMENSION];  /* extents */
    ssize_t stride[BNNS_MAX_TENSOR_DIMENSION]; /* steps in elements, normally slowest first */
    void *data;                                /* first element; may be NULL */
    size_t data_size_in_bytes;                 /* room behind data */
    const char *name;                          /* argument name; may be NULL */
} BNNSTensor;

/* Options of a filter or direct call. A NULL pointer to it means all zero. */
typedef struct BNNSFilterParameters {
    uint32_t flags;         /* BNNSFlags */
    size_t n_threads;       /* 0 = the library decides */
    BNNSAlloc alloc_memory; /* NULL = posix_memalign */
    BNNSFree free_memory;   /* NULL = free; pairs with alloc_memory */
} BNNSFilterParameters;

/* Runs a one-input filter on one sample. Returns 0, or -1 on failure. */
OBN_API int BNNSFilterApply(BNNSFilter filter, const void *in, void *out);

/* Runs a one-input filter on batch_size samples. Sample b starts at in + b*in_stride and out +
 * b*out_stride; a stride of 0 means packed samples. Returns 0, or -1 on failure. */
OBN_API int BNNSFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void *in,
                                 size_t in_stride, void *out, size_t out_stride);

/* Runs a two-input filter on one pair of samples. Returns 0, or -1 on failure. */
OBN_API int BNNSFilterApplyTwoInput(BNNSFilter filter, const void *inA, const void *inB, void *out);

/* Runs a two-input filter on batch_size pairs of samples. Returns 0, or -1 on failure. */
OBN_API int BNNSFilterApplyTwoInputBatch(BNNSFilter filter, size_t batch_size, const void *inA,
                                         size_t inA_stride, const void *inB, size_t inB_stride,
                                         void *out, size_t out_stride);

/* Gradients of a one-input filter. in and out are the arrays of the forward call, out_delta the
 * gradient of out. Each delta describes one sample, its data being sample 0; weights_delta and
 * bias_delta are summed over the batch (0 without samples). A NULL delta is not computed. in is
 * needed for weight gradients and for functions of x, out when an activation is fused. Returns 0,
 * or -1 on failure. May be NULL: in, in_delta, out, weights_delta, bias_delta. */
OBN_API int BNNSFilterApplyBackwardBatch(
    BNNSFilter filter, size_t batch_size, const void *in, size_t in_stride,
    BNNSNDArrayDescriptor *in_delta, size_t in_delta_stride, const void *out, size_t out_stride,
    const BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride,
    BNNSNDArrayDescriptor *weights_delta, BNNSNDArrayDescriptor *bias_delta);

/* Gradients of a two-input filter, by the rules of BNNSFilterApplyBackwardBatch. Returns 0, or -1
 * on failure. May be NULL: inA, inA_delta, inB, inB_delta, out, weights_delta, bias_delta. */
OBN_API int BNNSFilterApplyBackwardTwoInputBatch(
    BNNSFilter filter, size_t batch_size, const void *inA, size_t inA_stride,
    BNNSNDArrayDescriptor *inA_delta, size_t inA_delta_stride, const void *inB, size_t inB_stride,
    BNNSNDArrayDescriptor *inB_delta, size_t inB_delta_stride, const void *out, size_t out_stride,
    const BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride,
    BNNSNDArrayDescriptor *weights_delta, BNNSNDArrayDescriptor *bias_delta);

/* Live view of alpha or beta of an activation filter: float32, one value or one per channel.
 * Writing through it changes the following calls. Returns the descriptor by value; its data is NULL
 * on failure. */
OBN_API BNNSNDArrayDescriptor BNNSGetPointer(BNNSFilter filter, BNNSPointerSpecifier target);

/* Frees a filter; NULL is ignored. */
OBN_API void BNNSFilterDestroy(BNNSFilter filter);

/* Bytes spanned by an array; 0 when that is not known or data is NULL. */
OBN_API size_t BNNSNDArrayGetDataSize(const BNNSNDArrayDescriptor *array);

/* Bytes needed behind tensor->data; SIZE_MAX when a size is not known. */
OBN_API size_t BNNSTensorGetAllocationSize(const BNNSTensor *tensor);

/* Number of axes of a layout; SIZE_MAX for an unknown value. */
OBN_API size_t BNNSDataLayoutGetRank(BNNSDataLayout layout);

OBN_C_END

#endif
