/* Counts every allocation of the process around warm calls: this program's malloc family comes
 * before the C library's for all shared libraries, the core included. With any argument on one thread,
 * and then system calls and locks are counted as well (quiet.h); 77 where that cannot be. */
#define _GNU_SOURCE
#include <Accelerate/Accelerate.h>
#include <openbnns/openbnns.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int counting, allocations;

static void count(void) {
    if (atomic_load(&counting)) atomic_fetch_add(&allocations, 1);
}

#ifdef FAULTS
#include "faults.h"
#else
static int may_allocate(void) {
    count();
    return 1;
}
#define STEPS(count) (count)
#define RUN(run) failures += run
#endif

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) { return may_allocate() ? __libc_malloc(size) : NULL; }

void *calloc(size_t n, size_t size) { return may_allocate() ? __libc_calloc(n, size) : NULL; }

void *realloc(void *block, size_t size) {
    count();
    return __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return may_allocate() ? __libc_memalign(alignment, size) : NULL;
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = may_allocate() ? __libc_memalign(alignment, size) : NULL;
    return *block ? 0 : 12;
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    count();
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

#include "quiet.h"

static BNNSNDArrayDescriptor image(size_t side, size_t channels, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutImageCHW;
    d.size[0] = d.size[1] = side;
    d.size[2] = channels;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

enum { BATCH = 4, CHANNELS = 16, SIDE = 64, POOLED = 32 };
enum { IN = CHANNELS * SIDE * SIDE, OUT = CHANNELS * POOLED * POOLED };

static float x[BATCH * IN], y[BATCH * OUT], dx[BATCH * IN], dy[BATCH * OUT], db[CHANNELS];
static float z[BATCH * IN];
static size_t indices[BATCH * OUT];
static int8_t stored[BATCH * IN];
static float moving_mean[CHANNELS], moving_variance[CHANNELS];

static int pool_step(BNNSFilter pool, int with_indices) {
    BNNSNDArrayDescriptor in_delta = image(SIDE, CHANNELS, dx);
    BNNSNDArrayDescriptor out_delta = image(POOLED, CHANNELS, dy);
    BNNSNDArrayDescriptor bias_delta = {0};
    bias_delta.layout = BNNSDataLayoutVector;
    bias_delta.size[0] = CHANNELS;
    bias_delta.data = db;
    bias_delta.data_type = BNNSDataTypeFloat32;
    size_t *found = with_indices ? indices : NULL;
    if (BNNSPoolingFilterApplyBatch(pool, BATCH, x, IN, y, OUT, found, OUT)) return 1;
    return BNNSPoolingFilterApplyBackwardBatch(pool, BATCH, x, IN, &in_delta, IN, y, OUT, &out_delta,
                                               OUT, &bias_delta, found, OUT);
}

static int activation_step(BNNSFilter activation) {
    BNNSNDArrayDescriptor in_delta = image(SIDE, CHANNELS, dx);
    BNNSNDArrayDescriptor out_delta = image(SIDE, CHANNELS, z);
    if (BNNSFilterApplyBatch(activation, BATCH, x, IN, z, IN)) return 1;
    return BNNSFilterApplyBackwardBatch(activation, BATCH, x, IN, &in_delta, IN, z, IN, &out_delta,
                                        IN, NULL, NULL);
}

/* Every function, as a filter and called directly, with float32 and with the types of its kind: the gradients that it
 * has, from the output where that is enough. */
static int count_activation(uint32_t function) {
    static int32_t numbers[3][CHANNELS];
    static int16_t stored[2][BATCH * IN];
    int is_integer = function == BNNSActivationFunctionIntegerLinearSaturate ||
                     function == BNNSActivationFunctionIntegerLinearSaturatePerChannel;
    int is_random = function == BNNSActivationFunctionGumbel || function == BNNSActivationFunctionGumbelMax;
    BNNSLayerParametersActivation p = {0};
    p.i_desc = image(SIDE, CHANNELS, x);
    p.o_desc = image(SIDE, CHANNELS, z);
    p.activation.function = function;
    p.activation.alpha = p.activation.beta = is_random ? 0.4f : 1.0f;
    p.activation.iscale_per_channel = numbers[0];
    p.activation.ioffset_per_channel = numbers[1];
    p.activation.ishift_per_channel = numbers[2];
    p.axis_flags = function == BNNSActivationFunctionLogSoftmax ? 4 : 0; /* one softmax over channels */
    if (is_integer) {
        p.i_desc.data = stored[0];
        p.o_desc.data = stored[1];
        p.i_desc.data_type = p.o_desc.data_type = BNNSDataTypeInt16;
    }
    BNNSLayerParametersActivation halves = p; /* the same, other types */
    halves.i_desc.data_type = is_integer ? BNNSDataTypeInt8 : BNNSDataTypeFloat16;
    halves.o_desc.data_type = is_integer ? BNNSDataTypeInt8 : BNNSDataTypeBFloat16;
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&p, NULL);
    if (!filter) return 1;
    const int may_lock_else = atomic_load(&may_lock);
    atomic_store(&may_lock, may_lock_else || is_random);
    int failures = 0;
    for (int i = 0; i < 2 + STEPS(5); i++) {
        atomic_store(&counting, i >= 2);
        if (is_integer || is_random) {
            failures += BNNSFilterApplyBatch(filter, BATCH, p.i_desc.data, IN, p.o_desc.data, IN) != 0;
        } else {
            failures += activation_step(filter);
        }
        failures += BNNSDirectApplyActivationBatch(&p, NULL, BATCH, IN, IN) != 0;
        failures += BNNSDirectApplyActivationBatch(&halves, NULL, BATCH, IN, IN) != 0;
    }
    atomic_store(&counting, 0);
    atomic_store(&may_lock, may_lock_else);
    BNNSFilterDestroy(filter);
    printf("activation %u: %d\n", (unsigned)function, atomic_exchange(&allocations, 0));
    return failures;
}

/* Identity between any two types that are not indexed. */
static int count_conversions(void) {
    static const BNNSDataType types[] = {
        BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16, BNNSDataTypeInt8,   BNNSDataTypeInt16,
        BNNSDataTypeInt32,   BNNSDataTypeInt64,   BNNSDataTypeUInt8,    BNNSDataTypeUInt16, BNNSDataTypeUInt32,
        BNNSDataTypeUInt64,  BNNSDataTypeInt4,    BNNSDataTypeBoolean,
    };
    enum { TYPES = sizeof types / sizeof *types, VALUES = 4096 };
    static uint64_t from[VALUES], to[VALUES];
    int failures = 0;
    for (int round = 0; round < 2; round++) {
        atomic_store(&counting, round);
        for (int k = 0; k < TYPES * TYPES; k++) {
            BNNSLayerParametersActivation p = {0};
            p.i_desc = image(16, 16, from);
            p.o_desc = image(16, 16, to);
            p.i_desc.data_type = types[k / TYPES];
            p.o_desc.data_type = types[k % TYPES];
            failures += BNNSDirectApplyActivationBatch(&p, NULL, 1, 0, 0) != 0;
        }
    }
    atomic_store(&counting, 0);
    printf("conversions: %d\n", atomic_exchange(&allocations, 0));
    return failures;
}

/* kernel, stride, padding, groups, input channels; transposed ones go from POOLED to SIDE */
typedef struct {
    const char *name;
    size_t kernel, stride, padding, groups, channels;
    int transposed, winograd;
    uint32_t activation;
} Convolution;

enum { WEIGHTS = 1024 * 1024 };
static float w[WEIGHTS], dw[WEIGHTS];

#ifdef FAULTS
static uint64_t hash_outputs(void) {
    const struct {
        const void *data;
        size_t bytes;
    } all[] = {{x, sizeof x},   {y, sizeof y},   {z, sizeof z},   {dx, sizeof dx},           {dy, sizeof dy},
               {db, sizeof db}, {dw, sizeof dw}, {stored, sizeof stored}, {indices, sizeof indices},
               {moving_mean, sizeof moving_mean}, {moving_variance, sizeof moving_variance}};
    uint64_t hash = 0;
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const uint64_t *words = all[k].data;
        for (size_t i = 0; i < all[k].bytes / 8; i++) hash = (hash << 7 | hash >> 57) ^ words[i];
    }
    return hash;
}
#endif

static BNNSNDArrayDescriptor array(BNNSDataLayout layout, const size_t *size, int rank, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = layout;
    for (int k = 0; k < rank; k++) d.size[k] = size[k];
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static int convolution_step(BNNSFilter filter, const Convolution *c, size_t in_side, size_t out_side) {
    size_t in_size = c->channels * in_side * in_side, out_size = CHANNELS * out_side * out_side;
    size_t kernel[] = {c->kernel, c->kernel, c->channels / c->groups, CHANNELS}, bias = CHANNELS;
    BNNSNDArrayDescriptor in_delta = image(in_side, c->channels, dx);
    BNNSNDArrayDescriptor out_delta = image(out_side, CHANNELS, dy);
    BNNSNDArrayDescriptor w_delta = array(BNNSDataLayoutConvolutionWeightsOIHW, kernel, 4, dw);
    BNNSNDArrayDescriptor b_delta = array(BNNSDataLayoutVector, &bias, 1, db);
    out_delta.data = out_side == POOLED ? dy : x;
    if (BNNSFilterApplyBatch(filter, BATCH, x, in_size, z, out_size)) return 1;
    return BNNSFilterApplyBackwardBatch(filter, BATCH, x, in_size, &in_delta, in_size, z, out_size,
                                        &out_delta, out_size, &w_delta, &b_delta);
}

static int count_convolution(const Convolution *c) {
    size_t in_side = c->transposed ? POOLED : SIDE, out_side = c->stride == 2 && !c->transposed ? POOLED : SIDE;
    size_t kernel[] = {c->kernel, c->kernel, c->channels / c->groups, CHANNELS};
    BNNSLayerParametersConvolution parameters = {0};
    BNNSFilterParameters options = {0};
    options.flags = BNNSFlagsUseClientPtr;
    parameters.i_desc = image(in_side, c->channels, NULL);
    parameters.o_desc = image(out_side, CHANNELS, NULL);
    parameters.w_desc = array(BNNSDataLayoutConvolutionWeightsOIHW, kernel, 4, w);
    parameters.x_stride = parameters.y_stride = c->stride;
    parameters.x_padding = parameters.y_padding = c->padding;
    parameters.groups = c->groups;
    parameters.activation.function = c->activation;
    BNNSFilter filter = c->transposed ? BNNSFilterCreateLayerTransposedConvolution(&parameters, &options)
                                      : BNNSFilterCreateLayerConvolution(&parameters, &options);
    if (!filter || obn_filter_set_winograd(filter, c->winograd)) return 1;
    int failures = convolution_step(filter, c, in_side, out_side);
    failures += convolution_step(filter, c, in_side, out_side);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(5); i++) failures += convolution_step(filter, c, in_side, out_side);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("convolution %s: %d\n", c->name, atomic_exchange(&allocations, 0));
    return failures;
}

static int fully_connected_step(BNNSFilter filter, size_t batch, size_t in, size_t out) {
    size_t matrix[] = {in, out};
    BNNSNDArrayDescriptor in_delta = array(BNNSDataLayoutVector, &in, 1, dx);
    BNNSNDArrayDescriptor out_delta = array(BNNSDataLayoutVector, &out, 1, dy);
    BNNSNDArrayDescriptor w_delta = array(BNNSDataLayoutRowMajorMatrix, matrix, 2, dw);
    if (BNNSFilterApplyBatch(filter, batch, x, in, z, out)) return 1;
    return BNNSFilterApplyBackwardBatch(filter, batch, x, in, &in_delta, in, z, out, &out_delta, out,
                                        &w_delta, NULL);
}

static int count_fully_connected(size_t batch, size_t in, size_t out) {
    size_t matrix[] = {in, out};
    BNNSLayerParametersFullyConnected parameters = {0};
    parameters.i_desc = array(BNNSDataLayoutVector, &in, 1, NULL);
    parameters.o_desc = array(BNNSDataLayoutVector, &out, 1, NULL);
    parameters.w_desc = array(BNNSDataLayoutRowMajorMatrix, matrix, 2, w);
    parameters.activation.function = BNNSActivationFunctionTanh;
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&parameters, NULL);
    if (!filter) return 1;
    int failures = fully_connected_step(filter, batch, in, out);
    failures += fully_connected_step(filter, batch, in, out);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(5); i++) failures += fully_connected_step(filter, batch, in, out);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("fully connected %zux%zu to %zu: %d\n", batch, in, out, atomic_exchange(&allocations, 0));
    return failures;
}

static BNNSNDArrayDescriptor vector(size_t count, float *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutVector;
    d.size[0] = count;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

/* Adam on two tensors, clipped by their joint norm; then the clip functions and the norm. */
static int optimizer_step(void) {
    BNNSNDArrayDescriptor d[] = {vector(IN, x),          vector(7, y),      vector(IN, z),
                                 vector(7, dy),          vector(IN, dx),    vector(7, y + 8),
                                 vector(IN, dx + IN),    vector(7, y + 16), vector(IN, dx + 2 * IN)};
    BNNSNDArrayDescriptor *parameters[] = {&d[0], &d[1]}, *moments[] = {&d[4], &d[5], &d[6], &d[7]};
    const BNNSNDArrayDescriptor *gradients[] = {&d[2], &d[3]};
    BNNSOptimizerAdamWithClippingFields adam = {0};
    adam.learning_rate = adam.beta1 = adam.beta2 = 0.5f;
    adam.time_step = adam.gradient_scale = adam.clip_gradients_max_norm = 1.0f;
    adam.epsilon = 1e-6f;
    adam.clipping_func = BNNSOptimizerClippingByGlobalNorm;
    float norm;
    BNNSNDArrayDescriptor single = vector(1, &norm);
    return BNNSOptimizerStep(BNNSOptimizerFunctionAdamWithClipping, &adam, 2, parameters, gradients,
                             moments, NULL) ||
           BNNSClipByValue(&d[8], &d[2], -1, 1) || BNNSClipByNorm(&d[8], &d[2], 1, 0) ||
           BNNSClipByGlobalNorm(&moments[0], gradients, 2, 1, 0) ||
           BNNSComputeNorm(&single, &d[2], BNNSL2Norm, 0);
}

static int random_step(BNNSRandomGenerator generator) {
    BNNSNDArrayDescriptor many = vector(IN, z), weights = vector(7, dy), draws = vector(1000, dx);
    return BNNSRandomFillUniformFloat(generator, &many, 0, 1) ||
           BNNSRandomFillNormalFloat(generator, &many, 0, 1) ||
           BNNSRandomFillCategoricalFloat(generator, &draws, &weights, false);
}

/* Every rule, without and with clipping. */
static int rules_step(void) {
    BNNSNDArrayDescriptor w_desc = vector(IN, x), g_desc = vector(IN, z);
    BNNSNDArrayDescriptor a[] = {vector(IN, dx), vector(IN, dx + IN), vector(IN, dx + 2 * IN)};
    BNNSNDArrayDescriptor *parameters[] = {&w_desc}, *accumulators[] = {&a[0], &a[1], &a[2]};
    const BNNSNDArrayDescriptor *gradients[] = {&g_desc};
    BNNSOptimizerSGDMomentumFields sgd = {0};
    sgd.learning_rate = sgd.momentum = sgd.gradient_scale = 0.5f;
    BNNSOptimizerSGDMomentumWithClippingFields sgd_clipped = {0};
    sgd_clipped.learning_rate = sgd_clipped.momentum = sgd_clipped.gradient_scale = 0.5f;
    BNNSOptimizerAdamFields adam = {0};
    adam.learning_rate = adam.beta1 = adam.beta2 = adam.gradient_scale = 0.5f;
    adam.time_step = adam.epsilon = 1.0f;
    BNNSOptimizerAdamWithClippingFields adam_clipped = {0};
    adam_clipped.learning_rate = adam_clipped.beta1 = adam_clipped.beta2 = adam_clipped.gradient_scale = 0.5f;
    adam_clipped.time_step = adam_clipped.epsilon = 1.0f;
    BNNSOptimizerRMSPropFields rms = {0};
    rms.learning_rate = rms.alpha = rms.epsilon = rms.momentum = rms.gradient_scale = 0.5f;
    rms.centered = true;
    BNNSOptimizerRMSPropWithClippingFields rms_clipped = {0};
    rms_clipped.learning_rate = rms_clipped.alpha = rms_clipped.epsilon = rms_clipped.gradient_scale = 0.5f;
    sgd_clipped.clipping_func = adam_clipped.clipping_func = rms_clipped.clipping_func = BNNSOptimizerClippingByNorm;
    sgd_clipped.clip_gradients_max_norm = adam_clipped.clip_gradients_max_norm = 1.0f;
    rms_clipped.clip_gradients_max_norm = 1e-42f; /* so small that the gradient is scaled before the step */
    const void *fields[] = {&sgd,         &adam,         &rms,         &adam,         &adam,         &adam,
                            &sgd_clipped, &adam_clipped, &rms_clipped, &adam_clipped, &adam_clipped, &adam_clipped};
    int failures = 0;
    for (uint32_t rule = 1; rule <= 12; rule++)
        failures += BNNSOptimizerStep((BNNSOptimizerFunction)rule, fields[rule - 1], 1, parameters, gradients,
                                      accumulators, NULL) != 0;
    return failures;
}

static int count_optimizer(void) {
    if (optimizer_step() || rules_step()) return 1;
    int failures = 0;
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(20); i++) failures += optimizer_step();
    for (int i = 0; i < STEPS(5); i++) failures += rules_step();
    atomic_store(&counting, 0);
    printf("optimizer: %d\n", atomic_exchange(&allocations, 0));
    return failures;
}

static int count_random(void) {
    BNNSRandomGenerator generator =
        BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, 1, NULL);
    if (!generator) return 1;
    int failures = random_step(generator);
    const int may_lock_else = atomic_exchange(&may_lock, 1);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(20); i++) failures += random_step(generator);
    atomic_store(&counting, 0);
    atomic_store(&may_lock, may_lock_else);
    BNNSDestroyRandomGenerator(generator);
    printf("random: %d\n", atomic_exchange(&allocations, 0));
    return failures;
}

static int loss_step(BNNSFilter filter, size_t batch, size_t n) {
    float loss, one = 1;
    size_t single = 1;
    BNNSNDArrayDescriptor in_delta = array(BNNSDataLayoutVector, &n, 1, dx);
    BNNSNDArrayDescriptor out_delta = array(BNNSDataLayoutVector, &single, 1, &one);
    if (BNNSLossFilterApplyBatch(filter, batch, x, n, z, n, w, batch, &loss, &in_delta, n)) return 1;
    return BNNSLossFilterApplyBackwardBatch(filter, batch, x, n, &in_delta, n, z, n, w, batch,
                                            &out_delta, 0);
}

static int count_loss(uint32_t function, size_t batch, size_t n) {
    size_t single = 1;
    BNNSLayerParametersLossHuber parameters = {0};
    parameters.function = function;
    parameters.reduction = BNNSLossReductionWeightedMean;
    parameters.i_desc = array(BNNSDataLayoutVector, &n, 1, NULL);
    parameters.o_desc = array(BNNSDataLayoutVector, &single, 1, NULL);
    parameters.huber_delta = 0.5f;
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&parameters, NULL);
    if (!filter) return 1;
    int failures = loss_step(filter, batch, n) + loss_step(filter, batch, n);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(5); i++) failures += loss_step(filter, batch, n);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("loss %u %zux%zu: %d\n", (unsigned)function, batch, n, atomic_exchange(&allocations, 0));
    return failures;
}

/* kind, side of the images (0: vectors), and the two numbers that some kinds have */
typedef struct {
    const char *name;
    BNNSFilterType type;
    size_t side, groups, axis;
    uint32_t activation;
} Normalization;

static int normalization_step(BNNSFilter filter, BNNSNDArrayDescriptor side, size_t size, BNNSNDArrayDescriptor sums) {
    BNNSNDArrayDescriptor in_delta = side, out_delta = side, beta = sums, gamma = sums;
    in_delta.data = dx;
    out_delta.data = x;
    beta.data = dw;
    gamma.data = dw + WEIGHTS / 2;
    if (BNNSNormalizationFilterApplyBatch(filter, BATCH, x, size, z, size, true)) return 1;
    if (BNNSNormalizationFilterApplyBackwardBatch(filter, BATCH, &in_delta, size, z, size, &out_delta, size, &beta,
                                                  &gamma))
        return 1;
    return BNNSNormalizationFilterApplyBatch(filter, BATCH, x, size, z, size, false);
}

static int count_normalization(const Normalization *n) {
    size_t channels = CHANNELS, size = n->side ? CHANNELS * n->side * n->side : CHANNELS;
    size_t part[] = {n->side, n->side, CHANNELS};
    int has_moving = n->type == BNNSBatchNorm || n->type == BNNSInstanceNorm;
    BNNSLayerParametersNormalization parameters = {0};
    BNNSFilterParameters options = {0};
    options.flags = BNNSFlagsUseClientPtr;
    parameters.i_desc = n->side ? image(n->side, CHANNELS, NULL) : array(BNNSDataLayoutVector, &channels, 1, NULL);
    parameters.o_desc = parameters.i_desc;
    parameters.beta_desc = n->type != BNNSLayerNorm ? array(BNNSDataLayoutVector, &channels, 1, w)
                           : n->axis == 2           ? array(BNNSDataLayoutVector, part, 1, w)
                                                    : array(BNNSDataLayoutImageCHW, part, 3, w);
    parameters.gamma_desc = parameters.beta_desc;
    if (has_moving) parameters.moving_mean_desc = array(BNNSDataLayoutVector, &channels, 1, moving_mean);
    if (has_moving) parameters.moving_variance_desc = array(BNNSDataLayoutVector, &channels, 1, moving_variance);
    parameters.epsilon = 1e-5f;
    parameters.num_groups = n->groups;
    parameters.normalization_axis = n->axis;
    parameters.activation.function = n->activation;
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(n->type, &parameters, &options);
    if (!filter) return 1;
    int failures = normalization_step(filter, parameters.i_desc, size, parameters.beta_desc);
    failures += normalization_step(filter, parameters.i_desc, size, parameters.beta_desc);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(5); i++) failures += normalization_step(filter, parameters.i_desc, size, parameters.beta_desc);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("normalization %s: %d\n", n->name, atomic_exchange(&allocations, 0));
    return failures;
}

/* a · b with b as large as a, or one value per channel and a parameter of the batch */
static int arithmetic_step(BNNSFilter filter, size_t b_side) {
    const void *in[] = {x, w};
    const size_t b_step = b_side == 1 ? 0 : IN, strides[] = {IN, b_step};
    BNNSNDArrayDescriptor a_delta = image(SIDE, CHANNELS, dx), b_delta = image(b_side, CHANNELS, dw);
    BNNSNDArrayDescriptor out_delta = image(SIDE, CHANNELS, x), *deltas[] = {&a_delta, &b_delta};
    if (BNNSArithmeticFilterApplyBatch(filter, BATCH, 2, in, strides, z, IN)) return 1;
    return BNNSArithmeticFilterApplyBackwardBatch(filter, BATCH, 2, in, strides, deltas, strides, z, IN, &out_delta,
                                                  IN);
}

static int count_arithmetic(const char *name, size_t b_side, uint32_t activation) {
    BNNSArithmeticBinary fields = {0};
    fields.in1 = fields.out = image(SIDE, CHANNELS, NULL);
    fields.in2 = image(b_side, CHANNELS, NULL);
    fields.in1_type = fields.out_type = BNNSSample;
    fields.in2_type = b_side == 1 ? BNNSParameter : BNNSSample;
    BNNSLayerParametersArithmetic parameters = {0};
    parameters.arithmetic_function = BNNSArithmeticMultiply;
    parameters.arithmetic_function_fields = &fields;
    parameters.activation.function = activation;
    BNNSFilter filter = BNNSFilterCreateLayerArithmetic(&parameters, NULL);
    if (!filter) return 1;
    int failures = arithmetic_step(filter, b_side) + arithmetic_step(filter, b_side);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(5); i++) failures += arithmetic_step(filter, b_side);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("arithmetic %s: %d\n", name, atomic_exchange(&allocations, 0));
    return failures;
}

/* A batch of products of images, of two inputs or with weights */
static int matmul_step(BNNSFilter filter, int has_weights) {
    BNNSNDArrayDescriptor a = image(SIDE, CHANNELS, dx), b = a, out = image(SIDE, CHANNELS, x);
    size_t square[] = {CHANNELS, CHANNELS};
    BNNSNDArrayDescriptor w_delta = array(BNNSDataLayoutRowMajorMatrix, square, 2, dw);
    if (has_weights) {
        if (BNNSFilterApplyBatch(filter, BATCH, x, IN, z, IN)) return 1;
        return BNNSFilterApplyBackwardBatch(filter, BATCH, x, IN, &a, IN, NULL, 0, &out, IN, &w_delta, NULL);
    }
    b.data = z;
    if (BNNSFilterApplyTwoInputBatch(filter, BATCH, x, IN, x, IN, z, IN)) return 1;
    return BNNSFilterApplyBackwardTwoInputBatch(filter, BATCH, x, IN, &a, IN, x, IN, &b, IN, NULL, 0, &out, IN, NULL,
                                                NULL);
}

static int count_matmul(const char *name, const char *operation, int has_weights) {
    size_t square[] = {CHANNELS, CHANNELS};
    BNNSLayerParametersTensorContraction parameters = {0};
    parameters.operation = operation;
    parameters.alpha = 1;
    parameters.iA_desc = parameters.iB_desc = parameters.o_desc = image(SIDE, CHANNELS, NULL);
    if (has_weights) parameters.iB_desc = array(BNNSDataLayoutRowMajorMatrix, square, 2, w);
    BNNSFilter filter = BNNSFilterCreateLayerTensorContraction(&parameters, NULL);
    if (!filter) return 1;
    int failures = matmul_step(filter, has_weights) + matmul_step(filter, has_weights);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(5); i++) failures += matmul_step(filter, has_weights);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("contraction %s: %d\n", name, atomic_exchange(&allocations, 0));
    return failures;
}

/* Called without a filter. */
static int count_direct_products(void) {
    static const BNNSDataType types[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
    size_t square[] = {100, 100};
    int failures = 0;
    for (int i = 0; i < 2 + STEPS(5); i++) {
        atomic_store(&counting, i >= 2);
        for (int k = 0; k < 3; k++) {
            BNNSNDArrayDescriptor a = array(BNNSDataLayoutRowMajorMatrix, square, 2, x);
            BNNSNDArrayDescriptor b = array(BNNSDataLayoutRowMajorMatrix, square, 2, w);
            BNNSNDArrayDescriptor out = array(BNNSDataLayoutRowMajorMatrix, square, 2, z);
            a.data_type = out.data_type = types[k];
            failures += BNNSMatMul(false, k == 1, 1, &a, &b, &out, NULL, NULL) != 0;
            BNNSDirectApplyBroadcastMatMul(k == 2, false, 1, &a, &b, &out, NULL);
        }
    }
    atomic_store(&counting, 0);
    printf("direct products: %d\n", atomic_exchange(&allocations, 0));
    return failures;
}

/* A product with the caller's workspace, one without, and a filter of products */
static int count_products(void) {
    size_t square[] = {300, 300};
    BNNSNDArrayDescriptor a = array(BNNSDataLayout2DFirstMajor, square, 2, x), b = a, c = a;
    c.data = z;
    const ssize_t bytes = BNNSMatMulWorkspaceSize(false, true, 1, &a, &b, &c, NULL);
    void *work = malloc(bytes > 0 ? (size_t)bytes : 1);
    BNNSLayerParametersBroadcastMatMul parameters = {0};
    parameters.alpha = 1;
    parameters.transB = true;
    parameters.iA_desc = parameters.iB_desc = parameters.o_desc = a;
    parameters.iA_desc.data = parameters.iB_desc.data = parameters.o_desc.data = NULL;
    BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&parameters, NULL);
    if (!filter || bytes < 0) {
        free(work);
        return 1;
    }
    int failures = 0;
    for (int i = 0; i < 2 + STEPS(5); i++) {
        atomic_store(&counting, i >= 2);
        BNNSNDArrayDescriptor da = a, db_ = a, dc = a;
        da.data = dx;
        db_.data = dw;
        failures += BNNSMatMul(false, true, 1, &a, &b, &c, work, NULL) != 0;
        failures += BNNSMatMul(true, false, 2, &a, &b, &c, NULL, NULL) != 0;
        failures += BNNSFilterApplyTwoInputBatch(filter, 1, x, 0, x, 0, z, 0) != 0;
        failures += BNNSFilterApplyBackwardTwoInputBatch(filter, 1, x, 0, &da, 0, x, 0, &db_, 0, NULL, 0, &dc, 0,
                                                         NULL, NULL) != 0;
    }
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    free(work);
    printf("products: %d\n", atomic_exchange(&allocations, 0));
    return failures;
}

static int count_quantization(void) {
    size_t channels = CHANNELS;
    BNNSLayerParametersQuantization there = {0}, back = {0};
    there.axis_mask = back.axis_mask = 4; /* one scale per channel */
    there.function = BNNSQuantizerFunctionQuantize;
    back.function = BNNSQuantizerFunctionDequantize;
    there.i_desc = image(SIDE, CHANNELS, x);
    back.o_desc = image(SIDE, CHANNELS, z);
    there.o_desc = back.i_desc = image(SIDE, CHANNELS, stored);
    there.o_desc.data_type = back.i_desc.data_type = BNNSDataTypeInt8;
    there.scale = back.scale = array(BNNSDataLayoutVector, &channels, 1, w);
    int failures = 0;
    for (int i = 0; i < 2 + STEPS(5); i++) {
        atomic_store(&counting, i >= 2);
        failures += BNNSDirectApplyQuantizer(&there, NULL, BATCH, IN, IN) != 0;
        failures += BNNSDirectApplyQuantizer(&back, NULL, BATCH, IN, IN) != 0;
    }
    atomic_store(&counting, 0);
    printf("quantization: %d\n", atomic_exchange(&allocations, 0));
    return failures;
}

/* A first layer with batch normalization and ReLU, and one with a quantization behind it. */
static BNNSLayerParametersNormalization batch_norm(BNNSNDArrayDescriptor side, size_t channels) {
    BNNSLayerParametersNormalization p = {0};
    p.i_desc = p.o_desc = side;
    p.beta_desc = array(BNNSDataLayoutVector, &channels, 1, w);
    p.gamma_desc = array(BNNSDataLayoutVector, &channels, 1, w + CHANNELS);
    p.moving_mean_desc = array(BNNSDataLayoutVector, &channels, 1, moving_mean);
    p.moving_variance_desc = array(BNNSDataLayoutVector, &channels, 1, moving_variance);
    p.epsilon = 1e-5f;
    p.activation.function = BNNSActivationFunctionRectifiedLinear;
    return p;
}

/* in, out: one sample; w_desc: NULL for the sum of two arrays */
static int fused_step(BNNSFilter filter, BNNSNDArrayDescriptor in, size_t in_size, BNNSNDArrayDescriptor out,
                      size_t out_size, const BNNSNDArrayDescriptor *w_desc, size_t channels) {
    BNNSNDArrayDescriptor in_delta = in, out_delta = out, other_delta = in, w_delta = w_desc ? *w_desc : in;
    BNNSNDArrayDescriptor beta = array(BNNSDataLayoutVector, &channels, 1, db), gamma = beta, bias = beta;
    in_delta.data = dx;
    out_delta.data = out_size == OUT ? dy : x;
    other_delta.data = w_delta.data = dw;
    beta.data = dw + WEIGHTS / 2;
    gamma.data = dw + WEIGHTS / 2 + CHANNELS;
    if (w_desc) {
        BNNSNDArrayDescriptor *deltas[] = {&w_delta, &bias, &beta, &gamma};
        if (BNNSFusedFilterApplyBatch(filter, BATCH, x, in_size, z, out_size, true)) return 1;
        if (BNNSFusedFilterApplyBackwardBatch(filter, BATCH, x, in_size, &in_delta, in_size, z, out_size, &out_delta,
                                              out_size, deltas))
            return 1;
        return BNNSFusedFilterApplyBatch(filter, BATCH, x, in_size, z, out_size, false);
    }
    const void *inputs[] = {x, w};
    const size_t strides[] = {in_size, in_size};
    BNNSNDArrayDescriptor *in_deltas[] = {&in_delta, &other_delta}, *deltas[] = {&beta, &gamma};
    if (BNNSFusedFilterApplyMultiInputBatch(filter, BATCH, 2, inputs, strides, z, out_size, true)) return 1;
    return BNNSFusedFilterApplyBackwardMultiInputBatch(filter, BATCH, 2, inputs, strides, in_deltas, strides, z,
                                                       out_size, &out_delta, out_size, deltas);
}

static int count_fused(const char *name, BNNSFilterType type, const void *first, BNNSNDArrayDescriptor in,
                       size_t in_size, BNNSNDArrayDescriptor out, size_t out_size,
                       const BNNSNDArrayDescriptor *w_desc, size_t channels) {
    BNNSLayerParametersNormalization second = batch_norm(out, channels);
    const BNNSFilterType types[] = {type, BNNSBatchNorm};
    const void *blocks[] = {first, &second};
    BNNSFilterParameters options = {0};
    options.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, &options);
    if (!filter) return 1;
    int failures = 0;
    for (int i = 0; i < 2 + STEPS(5); i++) {
        atomic_store(&counting, i >= 2);
        failures += fused_step(filter, in, in_size, out, out_size, w_desc, channels);
    }
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("fused %s: %d\n", name, atomic_exchange(&allocations, 0));
    return failures;
}

static int count_fused_convolution(const Convolution *c) {
    size_t in_side = c->transposed ? POOLED : SIDE, out_side = c->stride == 2 && !c->transposed ? POOLED : SIDE;
    size_t kernel[] = {c->kernel, c->kernel, c->channels / c->groups, CHANNELS};
    BNNSLayerParametersConvolution first = {0};
    first.i_desc = image(in_side, c->channels, NULL);
    first.o_desc = image(out_side, CHANNELS, NULL);
    first.w_desc = array(BNNSDataLayoutConvolutionWeightsOIHW, kernel, 4, w);
    first.x_stride = first.y_stride = c->stride;
    first.x_padding = first.y_padding = c->padding;
    first.groups = c->groups;
    return count_fused(c->name, c->transposed ? BNNSTransposedConvolution : BNNSConvolution, &first, first.i_desc,
                       c->channels * in_side * in_side, first.o_desc, CHANNELS * out_side * out_side, &first.w_desc,
                       CHANNELS);
}

static int count_fused_others(void) {
    size_t in = 1568, out = 10, matrix[] = {1568, 10};
    BNNSLayerParametersFullyConnected connected = {0};
    connected.i_desc = array(BNNSDataLayoutVector, &in, 1, NULL);
    connected.o_desc = array(BNNSDataLayoutVector, &out, 1, NULL);
    connected.w_desc = array(BNNSDataLayoutRowMajorMatrix, matrix, 2, w);
    int failures = count_fused("fully connected", BNNSFullyConnected, &connected, connected.i_desc, in,
                               connected.o_desc, out, &connected.w_desc, out);
    BNNSArithmeticBinary fields = {0};
    fields.in1 = fields.in2 = fields.out = image(SIDE, CHANNELS, NULL);
    fields.in1_type = fields.in2_type = fields.out_type = BNNSSample;
    BNNSLayerParametersArithmetic sum = {0};
    sum.arithmetic_function = BNNSArithmeticAdd;
    sum.arithmetic_function_fields = &fields;
    failures += count_fused("sum", BNNSArithmetic, &sum, fields.in1, IN, fields.out, IN, NULL, CHANNELS);

    size_t kernel[] = {1, 1, CHANNELS, CHANNELS};
    BNNSLayerParametersConvolution first = {0};
    first.i_desc = first.o_desc = image(SIDE, CHANNELS, NULL);
    first.w_desc = array(BNNSDataLayoutConvolutionWeightsOIHW, kernel, 4, w);
    BNNSLayerParametersQuantization second = {0};
    second.i_desc = second.o_desc = first.o_desc;
    second.o_desc.data_type = BNNSDataTypeInt8;
    const BNNSFilterType types[] = {BNNSConvolution, BNNSQuantization};
    const void *blocks[] = {&first, &second};
    BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, NULL);
    if (!filter) return failures + 1;
    for (int i = 0; i < 2 + STEPS(5); i++) {
        atomic_store(&counting, i >= 2);
        failures += BNNSFusedFilterApplyBatch(filter, BATCH, x, IN, stored, IN, false) != 0;
    }
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    printf("fused quantization: %d\n", atomic_exchange(&allocations, 0));
    return failures;
}

static int attention_step(BNNSFilter filter, size_t batch, size_t rows, size_t width, size_t heads,
                          size_t *cache_size, void *cache) {
    size_t input[] = {rows, width}, weights[] = {width, width / heads, heads}, last[] = {width, width};
    BNNSMHAProjectionParameters d[4] = {0};
    for (int k = 0; k < 3; k++) {
        d[k].target_desc = array(BNNSDataLayout2DFirstMajor, input, 2, dx);
        d[k].weights = array(BNNSDataLayoutMHA_DHK, weights, 3, dw + (size_t)k * width * width);
    }
    d[3].target_desc = array(BNNSDataLayout2DFirstMajor, input, 2, z);
    d[3].weights = array(BNNSDataLayout2DFirstMajor, last, 2, dw + 3 * width * width);
    if (BNNSApplyMultiheadAttention(filter, batch, x, 0, x, 0, NULL, 0, x, 0, z, 0, NULL,
                                    cache ? cache_size : NULL, cache, NULL, NULL))
        return 1;
    return BNNSApplyMultiheadAttentionBackward(filter, batch, x, 0, &d[0], x, 0, NULL, 0, &d[1], x, 0,
                                               &d[2], NULL, NULL, NULL, z, 0, &d[3],
                                               cache ? *cache_size : 0, cache, NULL, NULL);
}

static int count_attention(const char *name, size_t batch, size_t rows, size_t width, size_t heads,
                           int is_cached) {
    size_t input[] = {rows, width}, weights[] = {width, width / heads, heads}, last[] = {width, width};
    BNNSLayerParametersMultiheadAttention parameters = {0};
    BNNSMHAProjectionParameters *p[] = {&parameters.query, &parameters.key, &parameters.value,
                                        &parameters.output};
    for (int k = 0; k < 4; k++) {
        p[k]->target_desc = array(BNNSDataLayout2DFirstMajor, input, 2, NULL);
        p[k]->weights = k < 3 ? array(BNNSDataLayoutMHA_DHK, weights, 3, w)
                              : array(BNNSDataLayout2DFirstMajor, last, 2, w);
    }
    BNNSFilterParameters options = {0};
    options.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerMultiheadAttention(&parameters, &options);
    if (!filter) return 1;
    size_t size = 0;
    void *cache = NULL;
    if (is_cached) {
        if (BNNSApplyMultiheadAttention(filter, batch, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL,
                                        &size, NULL, NULL, NULL))
            return 1;
        cache = malloc(size);
    }
    int failures = 0;
    for (int i = 0; i < 2; i++) failures += attention_step(filter, batch, rows, width, heads, &size, cache);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(20); i++) failures += attention_step(filter, batch, rows, width, heads, &size, cache);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(filter);
    free(cache);
    printf("attention %s: %d\n", name, atomic_exchange(&allocations, 0));
    return failures;
}

static int count_pooling(uint32_t function) {
    BNNSLayerParametersPooling parameters = {0};
    parameters.i_desc = image(SIDE, CHANNELS, NULL);
    parameters.o_desc = image(POOLED, CHANNELS, NULL);
    parameters.pooling_function = function;
    parameters.k_width = parameters.k_height = 3;
    parameters.x_stride = parameters.y_stride = 2;
    parameters.x_padding = parameters.y_padding = 1;
    BNNSFilter pool = BNNSFilterCreateLayerPooling(&parameters, NULL);
    if (!pool) return 1;
    int failures = pool_step(pool, 0) + pool_step(pool, 1);
    atomic_store(&counting, 1);
    for (int i = 0; i < STEPS(20); i++) failures += pool_step(pool, i % 2);
    atomic_store(&counting, 0);
    BNNSFilterDestroy(pool);
    printf("pooling %u: %d\n", (unsigned)function, atomic_exchange(&allocations, 0));
    return failures;
}

int main(int arguments, char **values) {
    (void)values;
    for (int i = 0; i < BATCH * IN; i++) x[i] = (float)(i % 101) - 50.0f;
    for (int i = 0; i < BATCH * OUT; i++) dy[i] = (float)(i % 7);
    const int is_quiet = arguments > 1;
    obn_set_num_threads(is_quiet ? 1 : 2);
    if (is_quiet && count_system_calls()) return 77;
    atomic_store(&may_lock, !is_quiet);
#ifdef FAULTS
    Report *const report = start_reports();
#endif
    int failures = 0;

    for (uint32_t function = 0; function < 5; function++)
        if (function != BNNSPoolingFunctionUnMax) RUN(count_pooling(function));
    for (uint32_t function = 0; function < 36; function++) RUN(count_activation(function));
    RUN(count_conversions());

    for (int i = 0; i < WEIGHTS; i++) w[i] = (float)(i % 13 - 6) / 64.0f;
    static const Convolution convolutions[] = {
        {"Winograd", 3, 1, 1, 1, CHANNELS, 0, 1, 0},   {"3x3", 3, 1, 1, 1, CHANNELS, 0, 0, 4},
        {"1x1", 1, 1, 0, 1, CHANNELS, 0, -1, 0},       {"stride 2", 3, 2, 1, 1, CHANNELS, 0, -1, 1},
        {"depthwise", 3, 1, 1, CHANNELS, CHANNELS, 0, -1, 0}, {"groups", 3, 1, 1, 4, CHANNELS, 0, -1, 0},
        {"first layer", 7, 2, 3, 1, 3, 0, -1, 0},      {"one channel", 3, 1, 1, 1, 1, 0, -1, 0},
        {"transposed", 4, 2, 1, 1, CHANNELS, 1, -1, 0},
    };
    for (size_t k = 0; k < sizeof convolutions / sizeof *convolutions; k++)
        RUN(count_convolution(&convolutions[k]));
    RUN(count_fully_connected(1, 1024, 1024));
    RUN(count_fully_connected(4, 1000, 70));
    RUN(count_fully_connected(64, 256, 256));
    RUN(count_fully_connected(200, 1024, 100));
    RUN(count_loss(BNNSLossFunctionSoftmaxCrossEntropy, 128, 1000));
    RUN(count_loss(BNNSLossFunctionSoftmaxCrossEntropy, 8, 30000));
    for (uint32_t function = 2; function <= 10; function++)
        if (function != BNNSLossFunctionYolo) RUN(count_loss(function, 100, 1000));
    RUN(count_optimizer());
    RUN(count_random());

    static const Normalization normalizations[] = {
        {"batch", BNNSBatchNorm, SIDE, 0, 0, 0},       {"batch of vectors", BNNSBatchNorm, 0, 0, 0, 0},
        {"batch, ReLU", BNNSBatchNorm, SIDE, 0, 0, 1}, {"instance, tanh", BNNSInstanceNorm, SIDE, 0, 0, 4},
        {"layer", BNNSLayerNorm, SIDE, 0, 0, 0},       {"layer of rows", BNNSLayerNorm, SIDE, 0, 2, 0},
        {"group", BNNSGroupNorm, SIDE, 4, 0, 0},
    };
    for (size_t k = 0; k < sizeof normalizations / sizeof *normalizations; k++)
        RUN(count_normalization(&normalizations[k]));
    RUN(count_arithmetic("of equal shapes", SIDE, 0));
    RUN(count_arithmetic("with a parameter", 1, 1));
    RUN(count_matmul("of two inputs", "a_xyc, b_yzc -> c_xzc", 0));
    RUN(count_matmul("with weights", "a_xyc, w_dc -> c_xyd", 1));
    RUN(count_direct_products());
    RUN(count_products());
    RUN(count_quantization());
    for (size_t k = 0; k < sizeof convolutions / sizeof *convolutions; k++)
        RUN(count_fused_convolution(&convolutions[k]));
    RUN(count_fused_others());
    RUN(count_attention("32x32", 4, 32, 64, 4, 0));
    RUN(count_attention("300x300", 1, 300, 128, 2, 0));
    RUN(count_attention("300x300 with a cache", 1, 300, 128, 2, 1));

#ifndef FAULTS
    atomic_store(&counting, 1);
    void *volatile block = malloc(1); /* the counter itself works */
    atomic_store(&counting, 0);
    printf("own malloc: %d\n", atomic_exchange(&allocations, 0));
    free(block);
    if (is_quiet) {
        pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
        atomic_store(&counting, 1);
        syscall(SYS_getppid);
        pthread_mutex_lock(&mutex);
        atomic_store(&counting, 0);
        pthread_mutex_unlock(&mutex);
        printf("own system call and lock: %d\n", atomic_exchange(&allocations, 0));
    }
#endif
    return failures;
}
