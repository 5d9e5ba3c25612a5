/* A product with gradients, a product of a batch with weights, a contraction and a Gram matrix, as a
 * program for Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>
#include <stdlib.h>

static BNNSNDArrayDescriptor matrix(size_t rows, size_t columns, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutRowMajorMatrix;
    d.size[0] = columns;
    d.size[1] = rows;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %g", values[i]);
    printf("\n");
}

static int product(void) {
    float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, y[4], da[4], db[4], dy[4] = {1, 2, 3, 4};
    BNNSLayerParametersBroadcastMatMul layer = {0};
    layer.alpha = 1;
    layer.iA_desc = layer.iB_desc = layer.o_desc = matrix(2, 2, NULL);
    BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&layer, NULL);
    if (!filter) return 1;
    if (BNNSFilterApplyTwoInput(filter, a, b, y)) return 2;
    print("product", y, 4);
    BNNSNDArrayDescriptor a_delta = matrix(2, 2, da), b_delta = matrix(2, 2, db), out_delta = matrix(2, 2, dy);
    if (BNNSFilterApplyBackwardTwoInputBatch(filter, 1, a, 0, &a_delta, 0, b, 0, &b_delta, 0, NULL, 0, &out_delta, 0,
                                             NULL, NULL))
        return 3;
    print("gradient of a", da, 4);
    print("gradient of b", db, 4);
    if (BNNSFilterApply(filter, a, y) == 0) return 4; /* it has two inputs */
    BNNSFilterDestroy(filter);
    return 0;
}

static int weights(void) {
    float x[12] = {1, 2, 3, 4, 5, 6, 1, 0, 0, 0, 1, 0}, w[6] = {1, 0, 0, 1, 1, 1}, y[8];
    float dx[12], dw[6], dy[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    BNNSLayerParametersBroadcastMatMul layer = {0};
    layer.alpha = 1;
    layer.b_is_weights = true;
    layer.iA_desc = matrix(2, 3, NULL);
    layer.iB_desc = matrix(3, 2, w);
    layer.o_desc = matrix(2, 2, NULL);
    BNNSFilter filter = BNNSFilterCreateLayerBroadcastMatMul(&layer, NULL);
    if (!filter) return 1;
    if (BNNSFilterApplyBatch(filter, 2, x, 6, y, 4)) return 2;
    print("with weights", y, 8);
    BNNSNDArrayDescriptor in_delta = matrix(2, 3, dx), w_delta = matrix(3, 2, dw), out_delta = matrix(2, 2, dy);
    if (BNNSFilterApplyBackwardBatch(filter, 2, x, 6, &in_delta, 6, NULL, 0, &out_delta, 4, &w_delta, NULL)) return 3;
    print("input gradient", dx, 12);
    print("weights gradient", dw, 6);
    BNNSFilterDestroy(filter);
    return 0;
}

static int contraction(void) {
    float a[2] = {1, 2}, b[2] = {3, 4}, y[4];
    BNNSLayerParametersTensorContraction layer = {0};
    layer.operation = "a_ip, b_iq -> o_pq";
    layer.alpha = 10;
    layer.iA_desc = layer.iB_desc = matrix(1, 2, NULL);
    layer.o_desc = matrix(2, 2, NULL);
    BNNSFilter filter = BNNSFilterCreateLayerTensorContraction(&layer, NULL);
    if (!filter) return 1;
    if (BNNSFilterApplyTwoInput(filter, a, b, y)) return 2;
    print("outer product", y, 4);
    BNNSFilterDestroy(filter);
    return 0;
}

static int gram(void) {
    float x[4] = {1, 2, 3, 4}, y[4];
    BNNSLayerParametersGram layer = {0};
    layer.alpha = 2;
    layer.i_desc.layout = BNNSDataLayoutImageCHW;
    layer.i_desc.size[0] = layer.i_desc.size[2] = 2;
    layer.i_desc.size[1] = 1;
    layer.i_desc.data_type = BNNSDataTypeFloat32;
    layer.o_desc = matrix(2, 2, NULL);
    BNNSFilter filter = BNNSFilterCreateLayerGram(&layer, NULL);
    if (!filter) return 1;
    if (BNNSFilterApply(filter, x, y)) return 2;
    print("Gram matrix", y, 4);
    BNNSFilterDestroy(filter);
    return 0;
}

static int direct(void) {
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {7, 8, 9, 10, 11, 12}, y[4];
    BNNSNDArrayDescriptor from_a = matrix(2, 3, a), from_b = matrix(3, 2, b), to = matrix(2, 2, y);
    ssize_t size = BNNSMatMulWorkspaceSize(false, false, 2, &from_a, &from_b, &to, NULL);
    if (size < 0) return 1;
    void *workspace = malloc((size_t)size + 1);
    if (BNNSMatMul(false, false, 2, &from_a, &from_b, &to, workspace, NULL)) return 2;
    free(workspace);
    print("twice the product", y, 4);
    BNNSDirectApplyBroadcastMatMul(false, false, 1, &from_a, &from_b, &to, NULL);
    print("the product", y, 4);
    return BNNSMatMulWorkspaceSize(false, false, 1, &from_a, &from_a, &to, NULL) < 0 ? 0 : 3;
}

int main(void) { return product() || weights() || contraction() || gram() || direct(); }
