/* Exact k nearest neighbours under the Euclidean distance. */
#ifndef OPENBNNS_BNNS_NEIGHBORS_H
#define OPENBNNS_BNNS_NEIGHBORS_H

#include "base.h"

OBN_C_BEGIN

/* A store of samples. */
typedef void *BNNSNearestNeighbors;

/* Store for up to max_n_samples samples of n_features values, float32 or float16. Returns NULL on
 * failure. May be NULL: filter_params. */
OBN_API BNNSNearestNeighbors BNNSCreateNearestNeighbors(unsigned int max_n_samples,
                                                        unsigned int n_features,
                                                        unsigned int n_neighbors,
                                                        BNNSDataType data_type,
                                                        const BNNSFilterParameters *filter_params);

/* Appends n_new_samples samples, data_ptr being (n_new_samples, n_features). Returns 0, or another
 * value on failure. */
OBN_API int BNNSNearestNeighborsLoad(BNNSNearestNeighbors knn, unsigned int n_new_samples,
                                     const void *data_ptr);

/* The n_neighbors nearest of a loaded sample, itself included, nearest first; of all samples,
 * (samples, n_neighbors), when sample_number is negative. Missing ones have index -1 and infinite
 * distance. Returns 0, or another value on failure. May be NULL: indices, distances. */
OBN_API int BNNSNearestNeighborsGetInfo(BNNSNearestNeighbors knn, int sample_number, int *indices,
                                        void *distances);

/* Frees a store; NULL is ignored. */
OBN_API void BNNSDestroyNearestNeighbors(BNNSNearestNeighbors knn);

OBN_C_END

#endif
