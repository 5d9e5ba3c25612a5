/* Random number generators and fills. */
#ifndef OPENBNNS_BNNS_RANDOM_H
#define OPENBNNS_BNNS_RANDOM_H

#include "base.h"

OBN_C_BEGIN

/* Generator algorithm. Not meant for cryptography. */
OBN_ENUM(BNNSRandomGeneratorMethod) {
    BNNSRandomGeneratorMethodAES_CTR = 0, /* AES in counter mode */
};

/* A random number generator. Calls on it may come from several threads. */
typedef void *BNNSRandomGenerator;

/* Generator with a fresh seed. Returns NULL on failure. May be NULL: filter_params. */
OBN_API BNNSRandomGenerator BNNSCreateRandomGenerator(BNNSRandomGeneratorMethod method,
                                                      const BNNSFilterParameters *filter_params);

/* Generator with a given seed. Returns NULL on failure. May be NULL: filter_params. */
OBN_API BNNSRandomGenerator BNNSCreateRandomGeneratorWithSeed(
    BNNSRandomGeneratorMethod method, uint64_t seed, const BNNSFilterParameters *filter_params);

/* Frees a generator; NULL is ignored. */
OBN_API void BNNSDestroyRandomGenerator(BNNSRandomGenerator generator);

/* Bytes of the state of a generator; 0 on failure. */
OBN_API size_t BNNSRandomGeneratorStateSize(BNNSRandomGenerator generator);

/* Stores the state in at least BNNSRandomGeneratorStateSize bytes. Returns 0, or another value on
 * failure. */
OBN_API int BNNSRandomGeneratorGetState(BNNSRandomGenerator generator, size_t state_size,
                                        void *state);

/* Goes back to a stored state. Returns 0, or another value on failure. */
OBN_API int BNNSRandomGeneratorSetState(BNNSRandomGenerator generator, size_t state_size,
                                        void *state);

/* Fills with floats spread evenly over a ... b. Returns 0, or another value on failure. */
OBN_API int BNNSRandomFillUniformFloat(BNNSRandomGenerator generator, BNNSNDArrayDescriptor *desc,
                                       float a, float b);

/* Fills with integers spread evenly over a ... b, limited to the type. Returns 0, or another value
 * on failure. */
OBN_API int BNNSRandomFillUniformInt(BNNSRandomGenerator generator, BNNSNDArrayDescriptor *desc,
                                     int64_t a, int64_t b);

/* Fills with normally distributed floats. Returns 0, or another value on failure. */
OBN_API int BNNSRandomFillNormalFloat(BNNSRandomGenerator generator, BNNSNDArrayDescriptor *desc,
                                      float mean, float stddev);

/* Fills with category numbers as floats. The last axis of probabilities lists the categories and
 * need not sum to 1, the last axis of desc the draws; the other axes agree. Returns 0, or another
 * value on failure. */
OBN_API int BNNSRandomFillCategoricalFloat(BNNSRandomGenerator generator,
                                           const BNNSNDArrayDescriptor *desc,
                                           const BNNSNDArrayDescriptor *probabilities,
                                           bool log_probabilities);

OBN_C_END

#endif
