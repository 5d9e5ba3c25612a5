/* Batch normalization in training and inference, its gradients, and a layer normalization, as a
 * program for Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <math.h>
#include <stdio.h>

static BNNSNDArrayDescriptor vector(size_t size, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutVector;
    d.size[0] = size;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

/* Rounded, so that the last bits do not show. */
static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %g", round((double)values[i] * 1000) / 1000 + 0.0);
    printf("\n");
}

static int batch_norm(void) {
    float x[4] = {1, 2, 3, 4}, y[4], dx[4], dy[4] = {1, 0, 0, 2};
    float beta[2] = {0, 10}, gamma[2] = {1, 2}, dbeta[2], dgamma[2];
    float mean[2] = {0, 0}, variance[2] = {1, 1};
    BNNSLayerParametersNormalization layer = {0};
    layer.i_desc = layer.o_desc = vector(2, NULL);
    layer.beta_desc = vector(2, beta);
    layer.gamma_desc = vector(2, gamma);
    layer.moving_mean_desc = vector(2, mean);
    layer.moving_variance_desc = vector(2, variance);
    layer.momentum = 0.5f;
    layer.epsilon = 1e-5f;
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(BNNSBatchNorm, &layer, NULL);
    if (!filter) return 1;
    if (BNNSNormalizationFilterApplyBatch(filter, 2, x, 2, y, 2, true)) return 2;
    print("training", y, 4);
    print("running mean", mean, 2);
    print("running variance", variance, 2);
    BNNSNDArrayDescriptor in_delta = vector(2, dx), out_delta = vector(2, dy);
    BNNSNDArrayDescriptor beta_delta = vector(2, dbeta), gamma_delta = vector(2, dgamma);
    if (BNNSNormalizationFilterApplyBackwardBatch(filter, 2, &in_delta, 2, y, 2, &out_delta, 2,
                                                  &beta_delta, &gamma_delta))
        return 3;
    print("beta gradient", dbeta, 2);
    print("gamma gradient", dgamma, 2);
    print("input gradient", dx, 4);
    if (BNNSNormalizationFilterApplyBatch(filter, 2, x, 2, x, 2, false)) return 4;
    print("inference in place", x, 4);
    BNNSFilterDestroy(filter);
    return 0;
}

static int layer_norm(void) {
    float x[4] = {1, 2, 3, 4}, y[4];
    BNNSLayerParametersNormalization layer = {0};
    layer.i_desc = layer.o_desc = vector(4, NULL);
    BNNSFilter filter = BNNSFilterCreateLayerNormalization(BNNSLayerNorm, &layer, NULL);
    if (!filter) return 5;
    if (BNNSNormalizationFilterApplyBatch(filter, 1, x, 4, y, 4, false)) return 6;
    print("layer", y, 4);
    printf("generic apply: %d\n", BNNSFilterApply(filter, x, y));
    BNNSFilterDestroy(filter);
    return 0;
}

int main(void) {
    int failure = batch_norm();
    return failure ? failure : layer_norm();
}
