// Convolution of integers and of tables: against the definition on real numbers.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "convolution/convolution_test.h"

namespace obn::convolution {

using namespace layer_test;

namespace {

// The definition on real numbers.
using Real = std::function<double(float)>;  // what a stored number stands for
std::vector<double> real_output(const Layer& l, const Image& x, const Weights& w, const Vector& bias,
                                const Real& x_real, const Real& w_real) {
  std::vector<double> y(l.n * l.out * l.p * l.q);
  for (size_t i = 0; i < y.size(); ++i) y[i] = bias.get(i / (l.p * l.q) % l.out);
  for_products(l, [&](size_t xi, size_t yi, size_t wi) { y[yi] += x_real(x.get(xi)) * w_real(w.get(wi)); });
  return y;
}

Layer integer_layer(Random& random) {
  Layer l;
  l.n = 2;
  l.groups = random.between(1, 2);
  l.in = 4 * l.groups;
  l.out = 3 * l.groups;
  l.h = random.between(4, 9);
  l.w = random.between(4, 40);
  l.kh = 3;
  l.kw = random.between(1, 3);
  l.sx = random.between(1, 2);
  l.left = random.below(3);
  l.down = random.below(3);
  l.x_step = random.between(1, 2);
  l.set_outputs();
  l.use_client_ptr = random.one_in(2);
  return l;
}

}  // namespace

TEST(convolution_of_bytes_sums_integers) {
  Random random{4};
  constexpr BNNSDataType kBytes[] = {BNNSDataTypeInt8, BNNSDataTypeUInt8};
  for (int round = 0; round < 200; ++round) {
    Layer l = integer_layer(random);
    l.x_type = kBytes[random.below(2)];
    l.w_type = random.one_in(4) ? BNNSDataTypeUInt8 : BNNSDataTypeInt8;
    constexpr BNNSDataType kOutputs[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeInt8, BNNSDataTypeUInt8};
    l.y_type = kOutputs[random.below(4)];
    Image x = l.input(), y = l.output();
    Weights w = l.weights();
    Vector bias(l.out);
    bias.fill(random);
    for (size_t i = 0; i < x.count(); ++i)
      x.set(i, static_cast<float>(random.below(256)) - (l.x_type == BNNSDataTypeInt8 ? 128.0f : 0.0f));
    for (size_t i = 0; i < w.count(); ++i)
      w.set(i, static_cast<float>(random.below(256)) - (l.w_type == BNNSDataTypeInt8 ? 128.0f : 0.0f));
    auto parameters = l.parameters(w, bias);
    parameters.i_desc.data_scale = 0.5f;
    parameters.w_desc.data_scale = 0.25f;
    if (random.one_in(2)) parameters.i_desc.data_bias = 3.0f;
    if (random.one_in(2)) parameters.w_desc.data_bias = -2.0f;
    parameters.o_desc.data_scale = 1024.0f;
    parameters.o_desc.data_bias = 5.0f;
    BNNSFilterParameters client = {};
    if (l.use_client_ptr) client.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerConvolution(&parameters, &client);
    CHECK(filter, "%s", obn_last_error());
    const int status =
        BNNSFilterApplyBatch(filter, l.n, x.data(), x.batch_stride, y.data(), y.batch_stride);
    CHECK(status == 0, "%s", obn_last_error());
    BNNSFilterDestroy(filter);
    const auto real = real_output(
        l, x, w, bias, [&](float v) { return 0.5 * static_cast<double>(v) + parameters.i_desc.data_bias; },
        [&](float v) { return 0.25 * static_cast<double>(v) + parameters.w_desc.data_bias; });
    for (size_t i = 0; i < y.count(); ++i) {
      double expected = real[i];
      if (!is_float(l.y_type)) {
        const double low = l.y_type == BNNSDataTypeInt8 ? -128 : 0, high = low + 255;
        expected = std::clamp(std::nearbyint(real[i] / 1024.0 - 5.0), low, high);
      } else if (l.y_type == BNNSDataTypeFloat16) {
        expected = float_of_float16(float16_of_float(static_cast<float>(real[i])));
      }
      CHECK(static_cast<double>(y.get(i)) == expected, "value %zu is %g, expected %g", i,
            static_cast<double>(y.get(i)), expected);
    }
  }
}

TEST(convolution_of_bytes_does_not_overflow) {
  // 300 · 300 taps of 255 · -128: more than 32 bits hold.
  Layer l;
  l.h = l.w = l.kh = l.kw = 300;
  l.x_type = BNNSDataTypeUInt8;
  l.w_type = BNNSDataTypeInt8;
  l.has_bias = false;
  Image x = l.input(), y = l.output();
  Weights w = l.weights();
  std::fill(x.bytes.begin(), x.bytes.end(), std::byte{255});
  std::fill(w.bytes.begin(), w.bytes.end(), std::byte{0x80});
  BNNSFilter filter = l.create(w, Vector());
  CHECK(BNNSFilterApply(filter, x.data(), y.data()) == 0, "%s", obn_last_error());
  BNNSFilterDestroy(filter);
  CHECK(y.get(0) == 90000.0f * 255.0f * -128.0f, "%g", y.get(0));
}

TEST(convolution_mixed_integers_and_tables_are_real_numbers) {
  Random random{5};
  for (int round = 0; round < 60; ++round) {
    Layer l = integer_layer(random);
    l.x_type = random.one_in(2) ? BNNSDataTypeUInt8 : BNNSDataTypeFloat32;
    const bool is_table = l.x_type == BNNSDataTypeUInt8 || random.one_in(2);
    l.w_type = is_table ? BNNSDataTypeIndexed8 : BNNSDataTypeInt8;
    float table[256];
    for (float& value : table) value = random.value();
    Image x = l.input(), y = l.output();
    Weights w = l.weights();
    Vector bias(l.out);
    bias.fill(random);
    for (size_t i = 0; i < x.count(); ++i) x.set(i, static_cast<float>(random.below(100)));
    for (size_t i = 0; i < w.count(); ++i) w.set(i, static_cast<float>(random.below(100)));
    auto parameters = l.parameters(w, bias);
    parameters.i_desc.data_scale = 0.5f;
    parameters.w_desc.data_scale = 2.0f;
    parameters.w_desc.table_data = table;
    parameters.w_desc.table_data_type = BNNSDataTypeFloat32;
    BNNSFilterParameters client = {};
    if (l.use_client_ptr) client.flags = BNNSFlagsUseClientPtr;
    BNNSFilter filter = BNNSFilterCreateLayerConvolution(&parameters, &client);
    CHECK(filter, "%s", obn_last_error());
    CHECK(BNNSFilterApplyBatch(filter, l.n, x.data(), x.batch_stride, y.data(), y.batch_stride) == 0, "%s",
          obn_last_error());
    Image dx = l.input(), dy = l.output();
    CHECK(BNNSFilterApplyBackwardBatch(filter, l.n, x.data(), x.batch_stride, &dx.descriptor, dx.batch_stride, nullptr,
                                       0, &dy.descriptor, dy.batch_stride, nullptr, nullptr) == -1,
          "integers have no gradient");
    BNNSFilterDestroy(filter);
    const double x_scale = l.x_type == BNNSDataTypeUInt8 ? 0.5 : 1.0;
    const auto real = real_output(
        l, x, w, bias, [&](float v) { return x_scale * static_cast<double>(v); },
        [&](float v) { return is_table ? table[static_cast<size_t>(v)] : 2.0 * static_cast<double>(v); });
    for (size_t i = 0; i < y.count(); ++i)
      CHECK(std::fabs(y.get(i) - real[i]) <= 0.1, "value %zu is %g, expected %g", i, static_cast<double>(y.get(i)),
            real[i]);
  }
}

}  // namespace obn::convolution
