/* Seconds of the smallest calls from C, as JSON: a list of samples per call. Float32, one thread:
 * max pooling 2x2 of one 1x4x4 image, ReLU of 16 values, a fully connected layer from 4 values to 4, and a convolution
 * 3x3 of one 1x4x4 image. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include <openbnns/bnns.h>
#include <stdio.h>
#include <time.h>

enum { SAMPLES = 21, CALLS = 100000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static BNNSNDArrayDescriptor image(size_t width, size_t height) {
    return (BNNSNDArrayDescriptor){.layout = BNNSDataLayoutImageCHW,
                                   .size = {width, height, 1},
                                   .data_type = BNNSDataTypeFloat32};
}

static BNNSNDArrayDescriptor vector(size_t values) {
    return (BNNSNDArrayDescriptor){.layout = BNNSDataLayoutVector,
                                   .size = {values},
                                   .data_type = BNNSDataTypeFloat32};
}

/* Prints the samples of one filter; x and y hold 16 values. Returns 0, or 1 when a call fails. */
static int print_samples(const char *name, BNNSFilter filter, const float *x, float *y) {
    if (filter == NULL) return 1;
    printf("\"%s\": [", name);
    for (int sample = 0; sample < SAMPLES; sample++) {
        int failed = 0;
        const double start = now();
        for (int call = 0; call < CALLS; call++) failed |= BNNSFilterApply(filter, x, y);
        printf("%s%.6g", sample > 0 ? ", " : "", (now() - start) / CALLS);
        if (failed != 0) return 1;
    }
    printf("]");
    BNNSFilterDestroy(filter);
    return 0;
}

int main(void) {
    float x[16], y[16];
    for (int k = 0; k < 16; k++) x[k] = (float)(k % 7) - 3.0F;
    const BNNSFilterParameters one_thread = {.n_threads = 1};
    const BNNSLayerParametersPooling pooling = {.i_desc = image(4, 4),
                                                .o_desc = image(2, 2),
                                                .pooling_function = BNNSPoolingFunctionMax,
                                                .k_width = 2,
                                                .k_height = 2,
                                                .x_stride = 2,
                                                .y_stride = 2};
    const BNNSLayerParametersActivation activation = {
        .i_desc = vector(16),
        .o_desc = vector(16),
        .activation = {.function = BNNSActivationFunctionRectifiedLinear}};
    float weights[16];
    for (int k = 0; k < 16; k++) weights[k] = (float)(k % 3) - 1.0F;
    const BNNSLayerParametersFullyConnected fully_connected = {
        .i_desc = vector(4),
        .o_desc = vector(4),
        .w_desc = {.layout = BNNSDataLayoutRowMajorMatrix,
                   .size = {4, 4},
                   .data = weights,
                   .data_type = BNNSDataTypeFloat32}};
    const BNNSLayerParametersConvolution convolution = {
        .i_desc = image(4, 4),
        .o_desc = image(4, 4),
        .w_desc = {.layout = BNNSDataLayoutConvolutionWeightsOIHW,
                   .size = {3, 3, 1, 1},
                   .data = weights,
                   .data_type = BNNSDataTypeFloat32},
        .x_padding = 1,
        .y_padding = 1};
    printf("{");
    if (print_samples("pooling", BNNSFilterCreateLayerPooling(&pooling, &one_thread), x, y) != 0)
        return 1;
    printf(", ");
    if (print_samples("activation", BNNSFilterCreateLayerActivation(&activation, &one_thread), x,
                      y) != 0)
        return 1;
    printf(", ");
    if (print_samples("fully_connected",
                      BNNSFilterCreateLayerFullyConnected(&fully_connected, &one_thread), x, y) != 0)
        return 1;
    printf(", ");
    if (print_samples("convolution", BNNSFilterCreateLayerConvolution(&convolution, &one_thread), x,
                      y) != 0)
        return 1;
    printf("}\n");
    return 0;
}
