// A two-layer gradient descent through pooling and tanh: find an image whose pooled, squashed form
// is a wanted one. Exercises repeated forward and backward calls as a training loop makes them.
#include <Accelerate/Accelerate.h>

#include <cmath>
#include <cstdio>
#include <vector>

BNNSNDArrayDescriptor image(size_t width, size_t height, size_t channels, void* data = nullptr) {
  BNNSNDArrayDescriptor d{};
  d.layout = BNNSDataLayoutImageCHW;
  d.size[0] = width;
  d.size[1] = height;
  d.size[2] = channels;
  d.data = data;
  d.data_type = BNNSDataTypeFloat32;
  return d;
}

int main() {
  constexpr size_t batch = 3, channels = 2, side = 8, pooled = 4;
  constexpr size_t in = channels * side * side, out = channels * pooled * pooled;
  BNNSLayerParametersPooling pooling{};
  pooling.i_desc = image(side, side, channels);
  pooling.o_desc = image(pooled, pooled, channels);
  pooling.pooling_function = BNNSPoolingFunctionAverageCountIncludePadding;
  pooling.k_width = pooling.k_height = 3;
  pooling.x_stride = pooling.y_stride = 2;
  pooling.x_padding = pooling.y_padding = 1;
  BNNSLayerParametersActivation squash{};
  squash.i_desc = squash.o_desc = image(pooled, pooled, channels);
  squash.activation.function = BNNSActivationFunctionTanh;
  BNNSFilter pool = BNNSFilterCreateLayerPooling(&pooling, nullptr);
  BNNSFilter tanh = BNNSFilterCreateLayerActivation(&squash, nullptr);
  if (!pool || !tanh) return 1;

  std::vector<float> x(batch * in), z(batch * out), y(batch * out), dz(batch * out), dy(batch * out), dx(batch * in);
  std::vector<float> wanted(batch * out);
  for (size_t i = 0; i < wanted.size(); i++) wanted[i] = 0.4f * std::sin(static_cast<float>(i));

  double first = 0.0, loss = 0.0;
  for (int step = 0; step < 200; step++) {
    if (BNNSFilterApplyBatch(pool, batch, x.data(), in, z.data(), out)) return 2;
    if (BNNSFilterApplyBatch(tanh, batch, z.data(), out, y.data(), out)) return 3;
    loss = 0.0;
    for (size_t i = 0; i < y.size(); i++) {
      dy[i] = y[i] - wanted[i];
      loss += 0.5 * dy[i] * dy[i];
    }
    if (step == 0) first = loss;
    BNNSNDArrayDescriptor small_in = image(pooled, pooled, channels, dz.data());
    BNNSNDArrayDescriptor small_out = image(pooled, pooled, channels, dy.data());
    BNNSNDArrayDescriptor large_in = image(side, side, channels, dx.data());
    if (BNNSFilterApplyBackwardBatch(tanh, batch, z.data(), out, &small_in, out, y.data(), out, &small_out, out,
                                     nullptr, nullptr))
      return 4;
    if (BNNSFilterApplyBackwardBatch(pool, batch, x.data(), in, &large_in, in, z.data(), out, &small_in, out, nullptr,
                                     nullptr))
      return 5;
    for (size_t i = 0; i < x.size(); i++) x[i] -= 4.0f * dx[i];
  }
  std::printf("loss fell a thousandfold %d\n", loss < first / 1000.0);
  BNNSFilterDestroy(pool);
  BNNSFilterDestroy(tanh);
  return 0;
}
