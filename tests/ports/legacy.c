/* The first form of the interface: image stacks and vectors, designated initializers. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>

int main(void) {
    float x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, y[4];
    BNNSImageStackDescriptor in = {.width = 3,
                                   .height = 3,
                                   .channels = 1,
                                   .row_stride = 3,
                                   .image_stride = 9,
                                   .data_type = BNNSDataTypeFloat32};
    BNNSImageStackDescriptor out = {.width = 2,
                                    .height = 2,
                                    .channels = 1,
                                    .row_stride = 2,
                                    .image_stride = 4,
                                    .data_type = BNNSDataTypeFloat32};
    BNNSPoolingLayerParameters parameters = {.x_stride = 1,
                                             .y_stride = 1,
                                             .k_width = 2,
                                             .k_height = 2,
                                             .in_channels = 1,
                                             .out_channels = 1,
                                             .pooling_function = BNNSPoolingFunctionMax};
    BNNSFilter filter = BNNSFilterCreatePoolingLayer(&in, &out, &parameters, NULL);
    if (!filter || BNNSFilterApply(filter, x, y)) return 1;
    printf("max %g %g %g %g\n", y[0], y[1], y[2], y[3]);
    BNNSFilterDestroy(filter);

    parameters.pooling_function = BNNSPoolingFunctionAverage;
    filter = BNNSFilterCreatePoolingLayer(&in, &out, &parameters, NULL);
    if (!filter || BNNSFilterApply(filter, x, y)) return 2;
    printf("average %g %g %g %g\n", y[0], y[1], y[2], y[3]);
    BNNSFilterDestroy(filter);

    float v[4] = {-1, 2, -3, 4};
    BNNSVectorDescriptor side = {.size = 4, .data_type = BNNSDataTypeFloat32};
    BNNSActivation relu = {.function = BNNSActivationFunctionRectifiedLinear};
    filter = BNNSFilterCreateVectorActivationLayer(&side, &side, &relu, NULL);
    if (!filter || BNNSFilterApplyBatch(filter, 1, v, 4, y, 4)) return 3;
    printf("relu %g %g %g %g\n", y[0], y[1], y[2], y[3]);
    BNNSFilterDestroy(filter);
    return 0;
}
