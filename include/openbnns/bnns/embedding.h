/* Table lookup by integer index. */
#ifndef OPENBNNS_BNNS_EMBEDDING_H
#define OPENBNNS_BNNS_EMBEDDING_H

#include "base.h"

OBN_C_BEGIN

/* Bits of BNNSLayerParametersEmbedding.flags. */
OBN_ENUM(BNNSEmbeddingFlags) {
    BNNSEmbeddingFlagScaleGradientByFrequency = 1, /* divide each row gradient by its count */
};

/* Table lookup. The output shape is the shape of one entry followed by the input shape. */
typedef struct BNNSLayerParametersEmbedding {
    BNNSEmbeddingFlags flags;         /* BNNSEmbeddingFlags */
    BNNSNDArrayDescriptor i_desc;     /* integer indices */
    BNNSNDArrayDescriptor o_desc;     /* output */
    BNNSNDArrayDescriptor dictionary; /* shape of one entry, then number of entries */
    size_t padding_idx;               /* entry that reads as zeros, if in range */
    float max_norm;                   /* longer entries are scaled down to it; 0 = off */
    float norm_type;                  /* p of that norm; 0 is read as 2 */
} BNNSLayerParametersEmbedding;

/* Embedding filter. Returns the filter, or NULL on failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerEmbedding(const BNNSLayerParametersEmbedding *layer_params,
                                                  const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
