/* What this library adds to the BNNS interface: reasons for failures, threads, the instruction set
 * in use, and questions about what is built. */
#ifndef OPENBNNS_OPENBNNS_H
#define OPENBNNS_OPENBNNS_H

#include "bnns/base.h"

/* A pooling as the third layer of BNNSFilterCreateFusedLayer, behind a normalization: its type there,
 * for which the BNNS interface has no number. Its block is a BNNSLayerParametersPooling. */
#define OBN_FILTER_POOLING ((BNNSFilterType)1024)

OBN_C_BEGIN

/* Receives the sentence of a failed call. user is the pointer given at registration. */
typedef void (*obn_log_callback)(const char *message, void *user);

/* Says whether the call under way is to be given up: 1, or 0. user is the pointer given at registration. */
typedef int (*obn_interrupt_callback)(void *user);

/* Version of the library, "major.minor.patch". */
OBN_API const char *obn_version(void);

/* Sentence of the last failed call on this thread, "" when there is none. Valid until the next
 * call of this library on the same thread. */
OBN_API const char *obn_last_error(void);

/* Forgets the sentence of this thread. */
OBN_API void obn_clear_error(void);

/* Registers a function that is called for every failure, on the thread that failed. A NULL callback
 * switches it off.
 * May be NULL: callback, user. */
OBN_API void obn_set_log_callback(obn_log_callback callback, void *user);

/* Registers a function that long calls ask whether to go on, about every 50 ms, on the thread that made the
 * call. Once it returns anything but 0 the call stops computing and returns -1: its outputs (gradients,
 * updated parameters) are incomplete, running statistics are as before the call or as after it, and a
 * filter has forgotten what its last training call kept. Filters, generators and threads are as usable as
 * ever. Functions that create or destroy never ask, nor do calls that take a millisecond. The callback may
 * call the library, but not on the filter whose call asks. A NULL callback, the default, switches it off.
 * May be NULL: callback, user. */
OBN_API void obn_set_interrupt_callback(obn_interrupt_callback callback, void *user);

/* Upper limit of threads used by one call; 0 means the number of cores. Results do not depend on
 * it. */
OBN_API void obn_set_num_threads(size_t n);

/* The limit in force, never 0. */
OBN_API size_t obn_get_num_threads(void);

/* Instruction set in use: "portable", "avx2", "avx512", "amx", "neon" or "neon_bf16". */
OBN_API const char *obn_isa(void);

/* One sentence saying why that instruction set was chosen. */
OBN_API const char *obn_isa_reason(void);

/* Returns 1 when kernels for the named instruction set are built in and run on this machine,
 * otherwise 0. */
OBN_API int obn_isa_available(const char *name);

/* Returns 1 when the named BNNS function is built, 0 when it is declared but always fails, -1 when
 * the name is not known. */
OBN_API int obn_is_implemented(const char *function);

/* What products of float32 matrices may cost in exactness to be faster: 0 highest (float32 throughout,
 * the default), 1 high (operands may be split in bfloat16 pieces, at least 16 bits are kept), 2 medium
 * (operands may be rounded to bfloat16; sums stay float32). It allows, it does not force: where there
 * is no faster way (for high: nowhere so far) the result is that of highest. Returns 0, or -1 for any other number, which changes
 * nothing. */
OBN_API int obn_set_matmul_precision(int precision);

/* The setting in force: 0, 1 or 2. */
OBN_API int obn_get_matmul_precision(void);

/* The same for one filter: 0, 1, 2, or -1 to follow obn_set_matmul_precision (the default). For fully
 * connected filters, and fused ones that begin with one. Returns 0, or -1 on failure. */
OBN_API int obn_filter_set_matmul_precision(BNNSFilter filter, int precision);

/* Seeds the process-wide generator behind the Gumbel activations. */
OBN_API void obn_set_seed(uint64_t seed);

/* Whether convolutions may use Winograd's algorithm (3x3 kernels of stride 1), which is faster but lets
 * an infinity, a NaN or a huge value reach outputs up to 5 columns and rows away. on is 1 or 0. The default
 * is 1, or what OPENBNNS_WINOGRAD says. Returns 0, or -1 for another number. */
OBN_API int obn_set_winograd(int on);

/* The setting in force, 1 or 0. */
OBN_API int obn_get_winograd(void);

/* The same for one convolution filter: 1, 0, or -1 to follow obn_set_winograd (the default). Returns 0,
 * or -1 on failure. */
OBN_API int obn_filter_set_winograd(BNNSFilter filter, int on);

/* Bytes that the filter's calls with this batch size hold while they run, at most: packed or expanded
 * weights, half types as float32, partial sums. The block belongs to the calling thread and is shared by
 * all filters it calls. Arguments are taken to lie like the descriptors given at creation. Returns
 * SIZE_MAX on failure, also where so many samples cannot be addressed. */
OBN_API size_t obn_filter_work_bytes(BNNSFilter filter, size_t batch_size);

/* Bytes that a training call of a normalization or fused filter with this batch size keeps until the
 * gradients are computed; 0 for filters that keep nothing. They belong to the filter, come from its
 * allocation callback and are used again by the next training call. Returns SIZE_MAX on failure, as
 * above. */
OBN_API size_t obn_filter_kept_bytes(BNNSFilter filter, size_t batch_size);

/* What a filter's calls with this batch size run: one line of key=value pairs, apart by blanks, for people
 * and logs. Always there are family, forward (the algorithm), backward or, where weights have an algorithm
 * of their own, input_gradient and weight_gradient, target (obn_isa), threads (the most a call takes),
 * batch, saved_bytes (obn_filter_kept_bytes) and workspace_bytes (obn_filter_work_bytes); mostly there are
 * kind, input and output too. Which names there are may change with any version.
 * Writes at most capacity bytes, the NUL included, and returns the length of the whole line without it, as
 * snprintf does; or -1 on failure, where text is left alone.
 * May be NULL: text, if capacity is 0. */
OBN_API int obn_filter_describe(BNNSFilter filter, size_t batch_size, char *text, size_t capacity);

/* Whether a normalization filter borrows the input of a training call, 1, instead of copying it, 0 (the
 * default). What is borrowed stays the caller's and has to stay as it is until the gradients have been
 * computed; output and gradients are written elsewhere. Float32 samples without gaps are borrowed, others
 * copied as ever. The results are the same, to the bit. To be said before the first training call.
 * Returns 0, or -1 on failure. */
OBN_API int obn_filter_set_borrow_input(BNNSFilter filter, int on);

/* BNNSLossFilterApplyBatch for labels that are class numbers, 0 to classes - 1, instead of rows with a 1
 * at the class: softmax and categorical cross entropy. class_type is an integer type of 8 to 64 bits;
 * classes_stride counts values, 0 means 1. No such rows are made. Returns 0, or -1 on failure.
 * May be NULL: weights, in_delta. */
OBN_API int obn_loss_apply_classes(BNNSFilter filter, size_t batch_size, const void *in,
                                   size_t in_stride, const void *classes, BNNSDataType class_type,
                                   size_t classes_stride, const void *weights, size_t weights_size,
                                   void *out, BNNSNDArrayDescriptor *in_delta,
                                   size_t in_delta_stride);

/* BNNSLossFilterApplyBackwardBatch for such labels. Returns 0, or -1 on failure. May be NULL: weights. */
OBN_API int obn_loss_apply_backward_classes(
    BNNSFilter filter, size_t batch_size, const void *in, size_t in_stride,
    BNNSNDArrayDescriptor *in_delta, size_t in_delta_stride, const void *classes,
    BNNSDataType class_type, size_t classes_stride, const void *weights, size_t weights_size,
    const BNNSNDArrayDescriptor *out_delta, size_t out_delta_stride);

/* Whether an attention filter lets a query see only the keys up to its own row: 1, or 0 (the default).
 * No mask is needed for it, and what cannot be seen is not computed. It goes together with key_mask and
 * add_to_attention; the bias and zero rows stay visible. Returns 0, or -1 on failure. */
OBN_API int obn_attention_set_causal(BNNSFilter filter, int on);

OBN_C_END

#endif
