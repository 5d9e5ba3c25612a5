/* Convolution with weights that are updated in place, its three gradients, and a transposed one, as
 * a program for Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>

static BNNSNDArrayDescriptor array(BNNSDataLayout layout, size_t a, size_t b, size_t c, size_t d,
                                   void *data) {
    BNNSNDArrayDescriptor found = {0};
    found.layout = layout;
    found.size[0] = a;
    found.size[1] = b;
    found.size[2] = c;
    found.size[3] = d;
    found.data = data;
    found.data_type = BNNSDataTypeFloat32;
    return found;
}

static BNNSNDArrayDescriptor image(size_t side, void *data) {
    return array(BNNSDataLayoutImageCHW, side, side, 1, 0, data);
}

static BNNSNDArrayDescriptor kernel(size_t side, void *data) {
    return array(BNNSDataLayoutConvolutionWeightsOIHW, side, side, 1, 1, data);
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %g", values[i]);
    printf("\n");
}

int main(void) {
    float x[9], y[16], w[4] = {1, 1, 1, 1}, bias = 0.5f;
    float dx[9], dy[4] = {1, 1, 1, 1}, dw[4], db[1];
    for (int i = 0; i < 9; i++) x[i] = (float)(i + 1);

    BNNSFilterParameters shared = {0};
    shared.flags = BNNSFlagsUseClientPtr;
    BNNSLayerParametersConvolution layer = {0};
    layer.i_desc = image(3, NULL);
    layer.w_desc = kernel(2, w);
    layer.o_desc = image(2, NULL);
    layer.bias = array(BNNSDataLayoutVector, 1, 0, 0, 0, &bias);
    BNNSFilter filter = BNNSFilterCreateLayerConvolution(&layer, &shared);
    if (!filter) return 1;
    if (BNNSFilterApply(filter, x, y)) return 2;
    print("forward", y, 4);

    BNNSNDArrayDescriptor in_delta = image(3, dx), out_delta = image(2, dy);
    BNNSNDArrayDescriptor weights_delta = kernel(2, dw);
    BNNSNDArrayDescriptor bias_delta = array(BNNSDataLayoutVector, 1, 0, 0, 0, db);
    if (BNNSFilterApplyBackwardBatch(filter, 1, x, 9, &in_delta, 9, y, 4, &out_delta, 4,
                                     &weights_delta, &bias_delta))
        return 3;
    print("input gradient", dx, 9);
    print("weights gradient", dw, 4);
    print("bias gradient", db, 1);

    for (int i = 0; i < 4; i++) w[i] -= 0.125f * dw[i];
    if (BNNSFilterApply(filter, x, y)) return 4;
    print("after an update", y, 4);
    BNNSFilterDestroy(filter);

    float ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    layer.i_desc = image(2, NULL);
    layer.w_desc = kernel(3, ones);
    layer.o_desc = image(4, NULL);
    layer.bias.data = NULL;
    filter = BNNSFilterCreateLayerTransposedConvolution(&layer, NULL);
    if (!filter) return 5;
    if (BNNSFilterApply(filter, ones, y)) return 6;
    print("transposed", y, 16);
    BNNSFilterDestroy(filter);
    return 0;
}
