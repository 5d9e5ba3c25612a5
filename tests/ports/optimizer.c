/* Gradient descent with momentum, Adam with clipping by the joint norm, the clip functions and the
 * norm, as a program for Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>

static BNNSNDArrayDescriptor vector(size_t count, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutVector;
    d.size[0] = count;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %.4g", values[i]);
    printf("\n");
}

int main(void) {
    float w[4] = {1, 2, 3, 4}, g[4] = {.5f, -1, 2, 0};
    BNNSNDArrayDescriptor weights = vector(4, w), gradient = vector(4, g);
    BNNSNDArrayDescriptor *parameters[] = {&weights};
    const BNNSNDArrayDescriptor *gradients[] = {&gradient};
    BNNSOptimizerSGDMomentumFields sgd = {0};
    sgd.learning_rate = .1f;
    sgd.gradient_scale = 1;
    if (BNNSOptimizerStep(BNNSOptimizerFunctionSGDMomentum, &sgd, 1, parameters, gradients, NULL,
                          NULL))
        return 1;
    print("sgd", w, 4);

    float v[4] = {0};
    BNNSNDArrayDescriptor velocity = vector(4, v);
    BNNSNDArrayDescriptor *velocities[] = {&velocity};
    sgd.momentum = .5f;
    sgd.sgd_momentum_variant = BNNSSGDMomentumVariant1;
    for (int step = 0; step < 2; step++)
        if (BNNSOptimizerStep(BNNSOptimizerFunctionSGDMomentum, &sgd, 1, parameters, gradients,
                              velocities, NULL))
            return 2;
    print("momentum", w, 4);
    print("velocity", v, 4);

    float a[2] = {1, 1}, b[1] = {1}, ga[2] = {3, 4}, gb[1] = {12};
    float m[3] = {0}, s[3] = {0};
    BNNSNDArrayDescriptor pa = vector(2, a), pb = vector(1, b), da = vector(2, ga), db = vector(1, gb);
    BNNSNDArrayDescriptor ma = vector(2, m), mb = vector(1, m + 2);
    BNNSNDArrayDescriptor sa = vector(2, s), sb = vector(1, s + 2);
    BNNSNDArrayDescriptor *two[] = {&pa, &pb}, *moments[] = {&ma, &mb, &sa, &sb};
    const BNNSNDArrayDescriptor *two_gradients[] = {&da, &db};
    BNNSOptimizerAdamWithClippingFields adam = {0};
    adam.learning_rate = .1f;
    adam.beta1 = .5f;
    adam.beta2 = .75f;
    adam.epsilon = 1e-8f;
    adam.gradient_scale = 1;
    adam.clipping_func = BNNSOptimizerClippingByGlobalNorm;
    adam.clip_gradients_max_norm = 6.5f;
    for (int step = 1; step <= 2; step++) {
        adam.time_step = (float)step;
        if (BNNSOptimizerStep(BNNSOptimizerFunctionAdamWithClipping, &adam, 2, two, two_gradients,
                              moments, NULL))
            return 3;
    }
    print("adam", a, 2);
    print("moments", m, 3);
    print("squares", s, 3);

    BNNSNDArrayDescriptor out = vector(4, v);
    if (BNNSClipByValue(&out, &gradient, -.5f, 1)) return 4;
    print("clip", v, 4);
    out = vector(2, v);
    if (BNNSClipByNorm(&out, &da, 2.5f, 0)) return 5;
    print("by norm", v, 2);
    out = vector(1, v);
    if (BNNSComputeNorm(&out, &da, BNNSL2Norm, 0)) return 6;
    print("norm", v, 1);
    float dy = 2, dx[2];
    BNNSNDArrayDescriptor out_delta = vector(1, &dy), in_delta = vector(2, dx);
    if (BNNSComputeNormBackward(ga, &in_delta, v, &out_delta, BNNSL2Norm, 0)) return 7;
    print("gradient", dx, 2);
    return 0;
}
