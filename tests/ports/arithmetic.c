/* Scale and shift of images by parameters, with gradients, and a square in place, as a program for
 * Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>

static BNNSNDArrayDescriptor image(size_t width, size_t height, size_t channels, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutImageCHW;
    d.size[0] = width;
    d.size[1] = height;
    d.size[2] = channels;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %g", values[i]);
    printf("\n");
}

static int multiply_add(void) {
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, scale[2] = {10, 100}, shift[2] = {1, -1}, y[8];
    float dx[8], dscale[2], dshift[2], dy[8] = {1, 1, 1, 1, 2, 2, 2, 2};
    BNNSArithmeticTernary fields = {0};
    fields.in1 = fields.out = image(2, 1, 2, NULL);
    fields.in2 = fields.in3 = image(1, 1, 2, NULL);
    fields.in1_type = fields.out_type = BNNSSample;
    fields.in2_type = fields.in3_type = BNNSParameter;
    BNNSLayerParametersArithmetic layer = {0};
    layer.arithmetic_function = BNNSArithmeticMultiplyAdd;
    layer.arithmetic_function_fields = &fields;
    BNNSFilter filter = BNNSFilterCreateLayerArithmetic(&layer, NULL);
    if (!filter) return 1;
    const void *in[3] = {x, scale, shift};
    const size_t strides[3] = {4, 0, 0};
    if (BNNSArithmeticFilterApplyBatch(filter, 2, 3, in, strides, y, 4)) return 2;
    print("scaled", y, 8);
    BNNSNDArrayDescriptor deltas[3] = {image(2, 1, 2, dx), image(1, 1, 2, dscale),
                                       image(1, 1, 2, dshift)};
    BNNSNDArrayDescriptor *in_delta[3] = {&deltas[0], &deltas[1], &deltas[2]};
    BNNSNDArrayDescriptor out_delta = image(2, 1, 2, dy);
    if (BNNSArithmeticFilterApplyBackwardBatch(filter, 2, 3, in, strides, in_delta, strides, NULL, 0,
                                               &out_delta, 4))
        return 3;
    print("input gradient", dx, 8);
    print("scale gradient", dscale, 2);
    print("shift gradient", dshift, 2);
    if (BNNSArithmeticFilterApplyBatch(filter, 2, 2, in, strides, y, 4) != -1) return 4;
    BNNSFilterDestroy(filter);
    return 0;
}

static int square(void) {
    float x[4] = {-3, -1, 2, 4};
    BNNSArithmeticUnary fields = {0};
    fields.in = fields.out = image(4, 1, 1, NULL);
    fields.in_type = fields.out_type = BNNSSample;
    BNNSLayerParametersArithmetic layer = {0};
    layer.arithmetic_function = BNNSArithmeticSquare;
    layer.arithmetic_function_fields = &fields;
    BNNSFilter filter = BNNSFilterCreateLayerArithmetic(&layer, NULL);
    if (!filter) return 5;
    const void *in[1] = {x};
    const size_t stride = 4;
    if (BNNSArithmeticFilterApplyBatch(filter, 1, 1, in, &stride, x, 4)) return 6;
    print("square", x, 4);
    BNNSFilterDestroy(filter);
    return 0;
}

int main(void) {
    int failure = multiply_add();
    return failure ? failure : square();
}
