/* Max pooling with indices, its gradient, and an average with bias, as a program for Accelerate
 * would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>

static BNNSNDArrayDescriptor image(size_t width, size_t height, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutImageCHW;
    d.size[0] = width;
    d.size[1] = height;
    d.size[2] = 1;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %g", values[i]);
    printf("\n");
}

int main(void) {
    float x[16], y[4], dx[16], dy[4] = {1, 2, 3, 4};
    size_t indices[4];
    for (int i = 0; i < 16; i++) x[i] = (float)(i + 1);

    BNNSLayerParametersPooling pooling = {0};
    pooling.i_desc = image(4, 4, NULL);
    pooling.o_desc = image(2, 2, NULL);
    pooling.pooling_function = BNNSPoolingFunctionMax;
    pooling.k_width = pooling.k_height = 2;
    pooling.x_stride = pooling.y_stride = 2;
    BNNSFilter filter = BNNSFilterCreateLayerPooling(&pooling, NULL);
    if (!filter) return 1;
    if (BNNSPoolingFilterApplyBatch(filter, 1, x, 16, y, 4, indices, 4)) return 2;
    print("max", y, 4);
    printf("indices %zu %zu %zu %zu\n", indices[0], indices[1], indices[2], indices[3]);

    BNNSNDArrayDescriptor in_delta = image(4, 4, dx), out_delta = image(2, 2, dy);
    if (BNNSPoolingFilterApplyBackwardBatch(filter, 1, x, 16, &in_delta, 16, y, 4, &out_delta, 4,
                                            NULL, indices, 4))
        return 3;
    print("gradient", dx, 16);
    BNNSFilterDestroy(filter);

    float bias = 10.0f;
    pooling.pooling_function = BNNSPoolingFunctionAverageCountExcludePadding;
    pooling.bias.layout = BNNSDataLayoutVector;
    pooling.bias.size[0] = 1;
    pooling.bias.data = &bias;
    pooling.bias.data_type = BNNSDataTypeFloat32;
    filter = BNNSFilterCreateLayerPooling(&pooling, NULL);
    if (!filter) return 4;
    if (BNNSFilterApply(filter, x, y)) return 5;
    print("average", y, 4);
    BNNSFilterDestroy(filter);
    return 0;
}
