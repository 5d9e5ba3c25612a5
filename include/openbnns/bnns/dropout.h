/* Random zeroing of elements for training. */
#ifndef OPENBNNS_BNNS_DROPOUT_H
#define OPENBNNS_BNNS_DROPOUT_H

#include "base.h"

OBN_C_BEGIN

/* Dropout layer. */
typedef struct BNNSLayerParametersDropout {
    BNNSNDArrayDescriptor i_desc; /* input */
    BNNSNDArrayDescriptor o_desc; /* output */
    float rate;                   /* probability of a zero, 0 <= rate < 1 */
    uint32_t seed;                /* 0 = any */
    uint8_t control;              /* bit k: one decision shared along size[k] */
} BNNSLayerParametersDropout;

/* Dropout filter. Its backward call needs neither in nor out. Returns the filter, or NULL on
 * failure. May be NULL: filter_params. */
OBN_API BNNSFilter BNNSFilterCreateLayerDropout(const BNNSLayerParametersDropout *layer_params,
                                                const BNNSFilterParameters *filter_params);

OBN_C_END

#endif
