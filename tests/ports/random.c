/* A seeded generator: fills of every kind, and a state that is restored, as a program for
 * Accelerate would write them. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static BNNSNDArrayDescriptor vector(size_t count, BNNSDataType type, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = BNNSDataLayoutVector;
    d.size[0] = count;
    d.data = data;
    d.data_type = type;
    return d;
}

int main(void) {
    BNNSRandomGenerator generator =
        BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, 0, NULL);
    if (!generator) return 1;
    float x[4], y[4];
    BNNSNDArrayDescriptor floats = vector(4, BNNSDataTypeFloat32, x);
    if (BNNSRandomFillUniformFloat(generator, &floats, 0, 1)) return 2;
    printf("uniform %.6f %.6f %.6f %.6f\n", x[0], x[1], x[2], x[3]);

    size_t size = BNNSRandomGeneratorStateSize(generator);
    void *state = malloc(size);
    if (!state || BNNSRandomGeneratorGetState(generator, size, state)) return 3;
    if (BNNSRandomFillNormalFloat(generator, &floats, 0, 1)) return 4;
    memcpy(y, x, sizeof y);
    if (BNNSRandomGeneratorSetState(generator, size, state)) return 5;
    if (BNNSRandomFillNormalFloat(generator, &floats, 0, 1)) return 6;
    printf("normal again %s\n", memcmp(x, y, sizeof y) ? "differs" : "equal");
    free(state);

    int whole[256], least = 99, most = 0;
    BNNSNDArrayDescriptor integers = vector(256, BNNSDataTypeInt32, whole);
    if (BNNSRandomFillUniformInt(generator, &integers, 10, 20)) return 7;
    for (int i = 0; i < 256; i++) {
        if (whole[i] < least) least = whole[i];
        if (whole[i] > most) most = whole[i];
    }
    printf("integers from %d to %d\n", least, most);

    float weights[3] = {0, 0, 2};
    BNNSNDArrayDescriptor probabilities = vector(3, BNNSDataTypeFloat32, weights);
    if (BNNSRandomFillCategoricalFloat(generator, &floats, &probabilities, false)) return 8;
    printf("categories %g %g %g %g\n", x[0], x[1], x[2], x[3]);
    BNNSDestroyRandomGenerator(generator);
    return 0;
}
