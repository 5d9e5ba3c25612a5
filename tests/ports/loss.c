/* The loss of a classifier with its gradient, a weighted Huber loss with a gradient from above, and
 * a few steps of training with them, as a program for Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>

static BNNSNDArrayDescriptor vector(size_t n, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutVector;
    d.size[0] = n;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %.5g", values[i]);
    printf("\n");
}

int main(void) {
    /* two samples, three classes, one-hot labels */
    float logits[] = {2, 0, 0, 0, 0, 2}, labels[] = {1, 0, 0, 0, 1, 0}, loss, gradient[6];
    BNNSLayerParametersLossSoftmaxCrossEntropy softmax = {0};
    softmax.function = BNNSLossFunctionSoftmaxCrossEntropy;
    softmax.i_desc = vector(3, NULL);
    softmax.o_desc = vector(1, NULL);
    softmax.reduction = BNNSLossReductionMean;
    BNNSFilter filter = BNNSFilterCreateLayerLoss(&softmax, NULL);
    if (!filter) return 1;
    BNNSNDArrayDescriptor in_delta = vector(3, gradient);
    if (BNNSLossFilterApplyBatch(filter, 2, logits, 3, labels, 3, NULL, 0, &loss, &in_delta, 3))
        return 2;
    print("softmax", &loss, 1);
    print("gradient", gradient, 6);

    /* the same gradient in a call of its own, from 1 above */
    float one = 1, again[6];
    BNNSNDArrayDescriptor out_delta = vector(1, &one), again_delta = vector(3, again);
    if (BNNSLossFilterApplyBackwardBatch(filter, 2, logits, 3, &again_delta, 3, labels, 3, NULL, 0,
                                         &out_delta, 0))
        return 3;
    print("again", again, 6);

    /* ten steps downhill */
    for (int step = 0; step < 10; step++) {
        if (BNNSLossFilterApplyBatch(filter, 2, logits, 3, labels, 3, NULL, 0, &loss, &in_delta, 3))
            return 4;
        for (int i = 0; i < 6; i++) logits[i] -= 2 * gradient[i];
    }
    print("trained", &loss, 1);
    BNNSFilterDestroy(filter);

    /* one loss per value, one weight per sample, a gradient for each, added to what is there */
    float x[] = {0.5f, -4, 3, 0}, zero[4] = {0}, weights[] = {1, 2}, losses[4];
    float dy[] = {1, 1, 10, 10}, dx[] = {100, 100, 100, 100};
    BNNSLayerParametersLossHuber huber = {0};
    huber.function = BNNSLossFunctionHuber;
    huber.i_desc = huber.o_desc = vector(2, NULL);
    huber.reduction = BNNSLossReductionNone;
    huber.huber_delta = 1;
    filter = BNNSFilterCreateLayerLoss(&huber, NULL);
    if (!filter) return 5;
    if (BNNSLossFilterApplyBatch(filter, 2, x, 2, zero, 2, weights, 2, losses, NULL, 0)) return 6;
    print("huber", losses, 4);
    BNNSNDArrayDescriptor dx_delta = vector(2, dx), dy_delta = vector(2, dy);
    dx_delta.flags = BNNSNDArrayFlagBackpropAccumulate;
    if (BNNSLossFilterApplyBackwardBatch(filter, 2, x, 2, &dx_delta, 2, zero, 2, weights, 2,
                                         &dy_delta, 2))
        return 7;
    print("added", dx, 4);
    BNNSFilterDestroy(filter);
    return 0;
}
