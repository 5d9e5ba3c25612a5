/* Attention of one query to two keys with a cache and a workspace of one's own, as a program for
 * Accelerate would write it. */
#include <Accelerate/Accelerate.h>
#include <stdio.h>
#include <stdlib.h>

static BNNSNDArrayDescriptor array(BNNSDataLayout layout, size_t a, size_t b, size_t c, void *data) {
    BNNSNDArrayDescriptor d = {0};
    d.layout = layout;
    d.size[0] = a;
    d.size[1] = b;
    d.size[2] = c;
    d.data = data;
    d.data_type = BNNSDataTypeFloat32;
    return d;
}

static void print(const char *name, const float *values, size_t count) {
    printf("%s", name);
    for (size_t i = 0; i < count; i++) printf(" %.4f", values[i]);
    printf("\n");
}

int main(void) {
    float query[2] = {1, 2}, key[4] = {1, 0, 0, 1}, value[4] = {1, 2, 3, 4}, output[2];
    float identity[4] = {1, 0, 0, 1};
    BNNSDataLayout rows = BNNSDataLayout2DFirstMajor, weights = BNNSDataLayoutMHA_DHK;
    BNNSLayerParametersMultiheadAttention p = {0};
    p.query.target_desc = array(rows, 1, 2, 0, NULL);
    p.key.target_desc = p.value.target_desc = array(rows, 2, 2, 0, NULL);
    p.query.weights = p.key.weights = p.value.weights = array(weights, 2, 2, 1, identity);
    p.output.target_desc = array(rows, 1, 2, 0, NULL);
    p.output.weights = array(rows, 2, 2, 0, identity);
    BNNSFilter filter = BNNSFilterCreateLayerMultiheadAttention(&p, NULL);
    if (!filter) return 1;

    size_t cache_size = 0, workspace_size = 0;
    if (BNNSApplyMultiheadAttention(filter, 1, query, 0, key, 0, NULL, 0, value, 0, output, 0, NULL,
                                    &cache_size, NULL, &workspace_size, NULL))
        return 2;
    void *cache = malloc(cache_size), *workspace = malloc(workspace_size);
    if (BNNSApplyMultiheadAttention(filter, 1, query, 0, key, 0, NULL, 0, value, 0, output, 0, NULL,
                                    &cache_size, cache, &workspace_size, workspace))
        return 3;
    print("output", output, 2);
    free(workspace);

    float dq[2], dk[4], dv[4], dy[2] = {1, 2};
    BNNSMHAProjectionParameters query_delta = {0}, key_delta = {0}, value_delta = {0}, output_delta = {0};
    query_delta.target_desc = array(rows, 1, 2, 0, dq);
    key_delta.target_desc = array(rows, 2, 2, 0, dk);
    value_delta.target_desc = array(rows, 2, 2, 0, dv);
    output_delta.target_desc = array(rows, 1, 2, 0, dy);
    if (BNNSApplyMultiheadAttentionBackward(filter, 1, query, 0, &query_delta, key, 0, NULL, 0, &key_delta,
                                            value, 0, &value_delta, NULL, NULL, NULL, output, 0,
                                            &output_delta, cache_size, cache, NULL, NULL))
        return 4;
    print("query gradient", dq, 2);
    print("key gradient", dk, 4);
    print("value gradient", dv, 4);

    size_t too_small = cache_size - 1;
    printf("small cache %d\n", BNNSApplyMultiheadAttention(filter, 1, query, 0, key, 0, NULL, 0, value, 0,
                                                           output, 0, NULL, &too_small, cache, NULL, NULL));
    printf("another call %d\n", BNNSFilterApply(filter, query, output));
    free(cache);
    BNNSFilterDestroy(filter);
    BNNSLayerParametersMultiheadAttention empty = {0};
    printf("empty %d\n", BNNSFilterCreateLayerMultiheadAttention(&empty, NULL) == NULL);
    return 0;
}
