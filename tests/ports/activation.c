/* Softmax, its gradient from the output, and the alpha of a leaky rectifier changed in place. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>

static BNNSNDArrayDescriptor vector(size_t size, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutVector;
    d.size[0] = size;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %.4f", values[i]);
    printf("\n");
}

int main(void) {
    float x[7] = {3, 5, 1, 6, 2, 1, 4}, y[7], dx[7], dy[7] = {1, 0, 0, 0, 0, 0, 0};

    BNNSLayerParametersActivation layer = {0};
    layer.i_desc = layer.o_desc = vector(7, NULL);
    layer.activation.function = BNNSActivationFunctionSoftmax;
    BNNSFilter filter = BNNSFilterCreateLayerActivation(&layer, NULL);
    if (!filter) return 1;
    if (BNNSFilterApply(filter, x, y)) return 2;
    print("softmax", y, 7);
    BNNSNDArrayDescriptor in_delta = vector(7, dx), out_delta = vector(7, dy);
    if (BNNSFilterApplyBackwardBatch(filter, 1, NULL, 0, &in_delta, 7, y, 7, &out_delta, 7, NULL,
                                     NULL))
        return 3;
    print("gradient", dx, 7);
    BNNSFilterDestroy(filter);

    float a[2] = {-4, 3};
    layer.i_desc = layer.o_desc = vector(2, NULL);
    layer.activation.function = BNNSActivationFunctionLeakyRectifiedLinear;
    layer.activation.alpha = 0.25f;
    filter = BNNSFilterCreateLayerActivation(&layer, NULL);
    if (!filter || BNNSFilterApply(filter, a, y)) return 4;
    print("leaky", y, 2);
    BNNSNDArrayDescriptor alpha = BNNSGetPointer(filter, BNNSPointerSpecifierAlpha);
    if (!alpha.data) return 5;
    *(float *)alpha.data = 0.5f;
    if (BNNSFilterApply(filter, a, y)) return 6;
    print("steeper", y, 2);
    BNNSFilterDestroy(filter);
    return 0;
}
