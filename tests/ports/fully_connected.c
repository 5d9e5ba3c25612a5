/* A fully connected layer and its gradients, and one with sparse weights, as a program for
 * Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>
#include <stdlib.h>

static BNNSNDArrayDescriptor vector(size_t size, BNNSDataType type, void *data) {
    BNNSNDArrayDescriptor found = {0};
    found.layout = BNNSDataLayoutVector;
    found.size[0] = size;
    found.data = data;
    found.data_type = type;
    return found;
}

static BNNSNDArrayDescriptor matrix(BNNSDataLayout layout, size_t columns, size_t rows, void *data) {
    BNNSNDArrayDescriptor found = vector(columns, BNNSDataTypeFloat32, data);
    found.layout = layout;
    found.size[1] = rows;
    return found;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %g", values[i]);
    printf("\n");
}

static int dense(void) {
    float x[4] = {1, 2, 10, 20}, w[2] = {3, 4}, bias = 5, y[2];
    float dx[4], dy[2] = {1, 2}, dw[2], db[1];
    const BNNSDataType type = BNNSDataTypeFloat32;
    BNNSLayerParametersFullyConnected layer = {0};
    layer.i_desc = vector(2, type, NULL);
    layer.w_desc = matrix(BNNSDataLayoutRowMajorMatrix, 2, 1, w);
    layer.o_desc = vector(1, type, NULL);
    layer.bias = vector(1, type, &bias);
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&layer, NULL);
    if (!filter) return 1;
    if (BNNSFilterApplyBatch(filter, 2, x, 2, y, 1)) return 2;
    print("forward", y, 2);
    BNNSNDArrayDescriptor in_delta = vector(2, type, dx), out_delta = vector(1, type, dy);
    BNNSNDArrayDescriptor weights_delta = matrix(BNNSDataLayoutRowMajorMatrix, 2, 1, dw);
    BNNSNDArrayDescriptor bias_delta = vector(1, type, db);
    if (BNNSFilterApplyBackwardBatch(filter, 2, x, 2, &in_delta, 2, y, 1, &out_delta, 1,
                                     &weights_delta, &bias_delta))
        return 3;
    print("input gradient", dx, 4);
    print("weights gradient", dw, 2);
    print("bias gradient", db, 1);
    BNNSFilterDestroy(filter);
    return 0;
}

static int sparse(void) {
    uint32_t columns[9] = {0, 1, 2, 0, 3, 4, 5, 6, 7}, starts[9] = {0, 1, 2, 3, 5, 6, 7, 8, 9};
    float values[9] = {2, 2, 2, 7, 2, 2, 2, 2, 2}, x[8], y[8];
    for (int i = 0; i < 8; i++) x[i] = (float)(i + 1);
    BNNSNDArrayDescriptor shape = matrix(BNNSDataLayoutRowMajorMatrix, 8, 8, NULL);
    BNNSNDArrayDescriptor packed = matrix(BNNSDataLayoutFullyConnectedSparse, 8, 8, NULL);
    BNNSNDArrayDescriptor places = vector(9, BNNSDataTypeUInt32, columns);
    BNNSNDArrayDescriptor row_starts = vector(9, BNNSDataTypeUInt32, starts);
    BNNSNDArrayDescriptor nonzeros = vector(9, BNNSDataTypeFloat32, values);
    if (BNNSNDArrayFullyConnectedSparsifySparseCSR(&shape, &places, &row_starts, &nonzeros, &packed,
                                                   NULL, 1, NULL, 0, NULL))
        return 4;
    size_t bytes = BNNSNDArrayGetDataSize(&packed);
    printf("packed smaller than dense: %d\n", bytes > 0 && bytes < 8 * 8 * sizeof(float));
    BNNSLayerParametersFullyConnected layer = {0};
    layer.i_desc = layer.o_desc = vector(8, BNNSDataTypeFloat32, NULL);
    layer.w_desc = packed;
    BNNSFilter filter = BNNSFilterCreateLayerFullyConnected(&layer, NULL);
    if (!filter) return 5;
    if (BNNSFilterApply(filter, x, y)) return 6;
    print("sparse", y, 8);
    BNNSFilterDestroy(filter);
    free(packed.data);
    return 0;
}

int main(void) {
    int failed = dense();
    return failed ? failed : sparse();
}
