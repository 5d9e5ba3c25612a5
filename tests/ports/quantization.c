/* Rows to 16-bit integers with one scale per column, and back, as a program for Accelerate would
 * write it. */
#include <Accelerate/Accelerate.h>
#include <stdint.h>
#include <stdio.h>

static BNNSNDArrayDescriptor matrix(size_t columns, size_t rows, BNNSDataType type, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutRowMajorMatrix;
    d.size[0] = columns;
    d.size[1] = rows;
    d.data = data;
    d.data_type = type;
    return d;
}

int main(void) {
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int16_t stored[8], scale[4] = {1, 10, 100, 1000};
    BNNSLayerParametersQuantization layer = {0};
    layer.axis_mask = 1;
    layer.function = BNNSQuantizerFunctionQuantize;
    layer.i_desc = matrix(4, 2, BNNSDataTypeFloat32, x);
    layer.o_desc = matrix(4, 2, BNNSDataTypeInt16, stored);
    layer.scale.layout = BNNSDataLayoutVector;
    layer.scale.size[0] = 4;
    layer.scale.data = scale;
    layer.scale.data_type = BNNSDataTypeInt16;
    if (BNNSDirectApplyQuantizer(&layer, NULL, 1, 8, 8)) return 1;
    printf("stored");
    for (int i = 0; i < 8; i++) printf(" %d", stored[i]);

    BNNSNDArrayDescriptor from = layer.o_desc;
    layer.o_desc = layer.i_desc;
    layer.i_desc = from;
    layer.function = BNNSQuantizerFunctionDequantize;
    for (int i = 0; i < 8; i++) x[i] = 0;
    if (BNNSDirectApplyQuantizer(&layer, NULL, 1, 8, 8)) return 2;
    printf("\nback");
    for (int i = 0; i < 8; i++) printf(" %g", x[i]);
    printf("\n");
    return 0;
}
