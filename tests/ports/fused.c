/* A fully connected layer with batch normalization, trained and applied; the sum of two arrays with
 * batch normalization; a convolution whose result becomes bytes. */
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

static BNNSNDArrayDescriptor image(size_t width, size_t height, size_t channels,
                                   BNNSDataType type) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutImageCHW;
    d.size[0] = width;
    d.size[1] = height;
    d.size[2] = channels;
    d.data_type = type;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) {
        float rounded = (float)(int)(values[i] * 1000 + (values[i] < 0 ? -0.5f : 0.5f)) / 1000;
        printf(" %g", rounded == 0 ? 0.0 : rounded);
    }
    printf("\n");
}

static BNNSLayerParametersNormalization norm(float *beta, float *gamma, float *mean,
                                             float *variance) {
    BNNSLayerParametersNormalization p = {0};
    p.i_desc = p.o_desc = vector(2, NULL);
    p.beta_desc = vector(2, beta);
    p.gamma_desc = vector(2, gamma);
    p.moving_mean_desc = vector(2, mean);
    p.moving_variance_desc = vector(2, variance);
    p.momentum = 0.5f;
    p.epsilon = 1e-5f;
    return p;
}

static int fully_connected(void) {
    float weights[4] = {1, 0, 0, 1}, bias[2] = {0, 0}, beta[2] = {0, 0}, gamma[2] = {1, 1};
    float mean[2] = {0, 0}, variance[2] = {1, 1};
    float x[4] = {1, 2, 3, 4}, y[4], dy[4] = {1, 0, 0, 2}, dx[4], dw[4], db[2], dbeta[2], dgamma[2];

    BNNSLayerParametersFullyConnected first = {0};
    first.i_desc = first.o_desc = vector(2, NULL);
    first.w_desc = vector(2, weights);
    first.w_desc.layout = BNNSDataLayoutRowMajorMatrix;
    first.w_desc.size[1] = 2;
    first.bias = vector(2, bias);
    BNNSLayerParametersNormalization second = norm(beta, gamma, mean, variance);
    const BNNSFilterType types[2] = {BNNSFullyConnected, BNNSBatchNorm};
    const void *blocks[2] = {&first, &second};
    BNNSFilterParameters shared = {0};
    shared.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, &shared);
    if (!filter) return 1;
    if (BNNSFusedFilterApplyBatch(filter, 2, x, 2, y, 2, true)) return 2;
    print("y", y, 4);
    print("mean", mean, 2);
    print("variance", variance, 2);

    BNNSNDArrayDescriptor in_delta = vector(2, dx), out_delta = vector(2, dy);
    BNNSNDArrayDescriptor weights_delta = first.w_desc, bias_delta = vector(2, db);
    BNNSNDArrayDescriptor beta_delta = vector(2, dbeta), gamma_delta = vector(2, dgamma);
    weights_delta.data = dw;
    BNNSNDArrayDescriptor *parameters[4] = {&weights_delta, &bias_delta, &beta_delta, &gamma_delta};
    if (BNNSFusedFilterApplyBackwardBatch(filter, 2, x, 2, &in_delta, 2, y, 2, &out_delta, 2,
                                          parameters))
        return 3;
    print("dx", dx, 4);
    print("dw", dw, 4);
    print("db", db, 2);
    print("dbeta", dbeta, 2);
    print("dgamma", dgamma, 2);

    parameters[0] = parameters[1] = parameters[2] = NULL; /* only gamma, added to what is there */
    gamma_delta.flags = BNNSNDArrayFlagBackpropAccumulate;
    if (BNNSFusedFilterApplyBackwardBatch(filter, 2, NULL, 0, NULL, 0, NULL, 0, &out_delta, 2,
                                          parameters))
        return 4;
    print("dgamma again", dgamma, 2);

    mean[0] = mean[1] = 1;
    variance[0] = variance[1] = 4;
    beta[0] = 10;
    if (BNNSFusedFilterApplyBatch(filter, 2, x, 2, y, 2, false)) return 5;
    print("inference", y, 4);
    if (BNNSFusedFilterApplyBackwardBatch(filter, 1, NULL, 0, NULL, 0, NULL, 0, &out_delta, 2,
                                          parameters) != -1)
        return 6; /* another batch size */
    BNNSFilterDestroy(filter);
    return 0;
}

static int addition(void) {
    float a[4] = {1, 2, 2, 3}, b[4] = {0, 0, 1, 1}, y[4], dy[4] = {1, 0, 0, 2};
    float da[4], db[4], dbeta[2], dgamma[2];
    BNNSArithmeticBinary fields = {0};
    fields.in1 = fields.in2 = fields.out = vector(2, NULL);
    fields.in1_type = fields.in2_type = fields.out_type = BNNSSample;
    BNNSLayerParametersArithmetic first = {0};
    first.arithmetic_function = BNNSArithmeticAdd;
    first.arithmetic_function_fields = &fields;
    BNNSLayerParametersNormalization second = norm(NULL, NULL, NULL, NULL);
    const BNNSFilterType types[2] = {BNNSArithmetic, BNNSBatchNorm};
    const void *blocks[2] = {&first, &second};
    BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, NULL);
    if (!filter) return 11;
    const void *in[2] = {a, b};
    const size_t strides[2] = {2, 2};
    if (BNNSFusedFilterApplyMultiInputBatch(filter, 2, 2, in, strides, y, 2, true)) return 12;
    print("sum", y, 4);
    BNNSNDArrayDescriptor a_delta = vector(2, da), b_delta = vector(2, db);
    BNNSNDArrayDescriptor out_delta = vector(2, dy);
    BNNSNDArrayDescriptor beta_delta = vector(2, dbeta), gamma_delta = vector(2, dgamma);
    BNNSNDArrayDescriptor *in_delta[2] = {&a_delta, &b_delta};
    BNNSNDArrayDescriptor *parameters[2] = {&beta_delta, &gamma_delta};
    if (BNNSFusedFilterApplyBackwardMultiInputBatch(filter, 2, 2, NULL, NULL, in_delta, strides,
                                                    NULL, 0, &out_delta, 2, parameters))
        return 13;
    print("da", da, 4);
    print("db", db, 4);
    print("dbeta", dbeta, 2);
    print("dgamma", dgamma, 2);
    BNNSFilterDestroy(filter);
    return 0;
}

static int bytes(void) {
    float x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, kernel[4] = {1, 1, 1, 1}, scale = 10, bias = -100;
    int8_t y[4];
    BNNSLayerParametersConvolution first = {0};
    first.i_desc = image(3, 3, 1, BNNSDataTypeFloat32);
    first.o_desc = image(2, 2, 1, BNNSDataTypeFloat32);
    first.w_desc = image(2, 2, 1, BNNSDataTypeFloat32);
    first.w_desc.layout = BNNSDataLayoutConvolutionWeightsOIHW;
    first.w_desc.size[3] = 1;
    first.w_desc.data = kernel;
    first.x_stride = first.y_stride = 1;
    BNNSLayerParametersQuantization second = {0};
    second.function = BNNSQuantizerFunctionQuantize;
    second.i_desc = first.o_desc;
    second.o_desc = image(2, 2, 1, BNNSDataTypeInt8);
    second.scale = vector(1, &scale);
    second.bias = vector(1, &bias);
    const BNNSFilterType types[2] = {BNNSConvolution, BNNSQuantization};
    const void *blocks[2] = {&first, &second};
    BNNSFilter filter = BNNSFilterCreateFusedLayer(2, types, blocks, NULL);
    if (!filter) return 21;
    if (BNNSFusedFilterApplyBatch(filter, 1, x, 9, y, 4, false)) return 22;
    printf("bytes %d %d %d %d\n", y[0], y[1], y[2], y[3]);
    BNNSFilterDestroy(filter);
    return 0;
}

int main(void) {
    int status = fully_connected();
    if (status == 0) status = addition();
    if (status == 0) status = bytes();
    return status;
}
