/* Counts every allocation of the process around warm calls: this program's malloc family comes
 * before the C library's for all shared libraries, the core included. */
#define _GNU_SOURCE
#include <Accelerate/Accelerate.h>
#include <openbnns/openbnns.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int counting, allocations;

static void count(void) {
    if (atomic_load(&counting)) atomic_fetch_add(&allocations, 1);
}

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
    count();
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *block, size_t size) {
    count();
    return __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    count();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    count();
    *block = __libc_memalign(alignment, size);
    return *block ? 0 : 12;
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset) {
    count();
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

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

int main(void) {
    for (int i = 0; i < BATCH * IN; i++) x[i] = (float)(i % 101) - 50.0f;
    for (int i = 0; i < BATCH * OUT; i++) dy[i] = (float)(i % 7);
    obn_set_num_threads(2);
    int failures = 0;

    for (uint32_t function = 0; function < 5; function++) {
        if (function == BNNSPoolingFunctionUnMax) continue;
        BNNSLayerParametersPooling parameters = {0};
        parameters.i_desc = image(SIDE, CHANNELS, NULL);
        parameters.o_desc = image(POOLED, CHANNELS, NULL);
        parameters.pooling_function = function;
        parameters.k_width = parameters.k_height = 3;
        parameters.x_stride = parameters.y_stride = 2;
        parameters.x_padding = parameters.y_padding = 1;
        BNNSFilter pool = BNNSFilterCreateLayerPooling(&parameters, NULL);
        if (!pool || pool_step(pool, 0) || pool_step(pool, 1)) return 1;
        atomic_store(&counting, 1);
        for (int i = 0; i < 20; i++) failures += pool_step(pool, i % 2);
        atomic_store(&counting, 0);
        BNNSFilterDestroy(pool);
        printf("pooling %u: %d\n", (unsigned)function, atomic_exchange(&allocations, 0));
    }

    static const uint32_t functions[] = {1, 3, 4, 11, 16, 21, 31, 34};
    for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
        BNNSLayerParametersActivation parameters = {0};
        parameters.i_desc = parameters.o_desc = image(SIDE, CHANNELS, NULL);
        parameters.activation.function = functions[k];
        parameters.activation.alpha = parameters.activation.beta = 1.0f;
        parameters.axis_flags = functions[k] == 21 ? 4 : 0; /* one softmax over channels */
        BNNSFilter activation = BNNSFilterCreateLayerActivation(&parameters, NULL);
        if (!activation || activation_step(activation) || activation_step(activation)) return 2;
        atomic_store(&counting, 1);
        for (int i = 0; i < 20; i++) failures += activation_step(activation);
        atomic_store(&counting, 0);
        BNNSFilterDestroy(activation);
        printf("activation %u: %d\n", (unsigned)functions[k], atomic_exchange(&allocations, 0));
    }

    atomic_store(&counting, 1);
    void *volatile block = malloc(1); /* the counter itself works */
    atomic_store(&counting, 0);
    printf("own malloc: %d\n", atomic_exchange(&allocations, 0));
    free(block);
    return failures;
}
