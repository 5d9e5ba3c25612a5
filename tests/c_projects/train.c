/* Trains y = w·x of two inputs until it is y = 2·x0 - x1, and says the loss before and after. */
#include <Accelerate/Accelerate.h>
#include <openbnns/openbnns.h>

enum { SAMPLES = 4, INPUTS = 2, STEPS = 60 };

static int failed(const char *call) {
    fprintf(stderr, "%s: %s\n", call, obn_last_error());
    return 1;
}

static BNNSNDArrayDescriptor vector(size_t n, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutVector;
    d.size[0] = n;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

int main(void) {
    const float x[SAMPLES * INPUTS] = {1, 0, 0, 1, 1, 1, 2, -1};
    const float wanted[SAMPLES] = {2, -1, 1, 5};
    float w[INPUTS] = {0, 0}, dw[INPUTS], y[SAMPLES], dy[SAMPLES], first = 0, loss = 0;

    BNNSLayerParametersFullyConnected p;
    memset(&p, 0, sizeof p);
    p.i_desc = vector(INPUTS, NULL);
    p.o_desc = vector(1, NULL);
    p.w_desc = vector(INPUTS, w);
    p.w_desc.layout = BNNSDataLayoutRowMajorMatrix;
    p.w_desc.size[1] = 1;
    BNNSFilterParameters options;
    memset(&options, 0, sizeof options);
    options.flags = BNNSFlagsUseClientPtr; /* the layer reads w where it lies */
    BNNSFilter layer = BNNSFilterCreateLayerFullyConnected(&p, &options);
    if (!layer) return failed("create");

    BNNSNDArrayDescriptor out_delta = vector(1, dy), weights_delta = vector(INPUTS, dw);
    weights_delta.layout = BNNSDataLayoutRowMajorMatrix;
    weights_delta.size[1] = 1;
    for (int step = 0; step < STEPS; ++step) {
        if (BNNSFilterApplyBatch(layer, SAMPLES, x, INPUTS, y, 1) != 0) return failed("apply");
        loss = 0;
        for (int s = 0; s < SAMPLES; ++s) {
            dy[s] = y[s] - wanted[s];
            loss += 0.5f * dy[s] * dy[s];
        }
        if (step == 0) first = loss;
        if (BNNSFilterApplyBackwardBatch(layer, SAMPLES, x, INPUTS, NULL, 0, y, 1, &out_delta, 1,
                                         &weights_delta, NULL) != 0)
            return failed("apply backward");
        for (int i = 0; i < INPUTS; ++i) w[i] -= 0.1f * dw[i];
    }
    BNNSFilterDestroy(layer);
    printf("version %s, loss %.1f, then %.6f; w = %.3f %.3f\n", obn_version(), first, loss, w[0], w[1]);
    return fabsf(w[0] - 2) < 1e-3f && fabsf(w[1] + 1) < 1e-3f ? 0 : 1;
}
