#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "activation/activation.h"
#include "base/test.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/openbnns.h"
#include "quantization/quantization.h"

using namespace obn;
using namespace obn::quantization;

namespace {

constexpr BNNSDataType kWhole[] = {BNNSDataTypeInt8,   BNNSDataTypeUInt8, BNNSDataTypeInt16,
                                   BNNSDataTypeUInt16, BNNSDataTypeInt32, BNNSDataTypeUInt32};
constexpr BNNSDataType kReal[] = {BNNSDataTypeInt32, BNNSDataTypeFloat16, BNNSDataTypeFloat32};

activation::ref::Values values_of(void* data, BNNSDataType type) {
  return {data, type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
}
double get(void* data, BNNSDataType type, size_t i) {
  double v;
  activation::ref::get_reals(values_of(data, type), i, 1, 1, &v);
  return v;
}
void put(void* data, BNNSDataType type, size_t i, double v) {
  activation::ref::put_reals(values_of(data, type), i, 1, 1, &v);
}

}  // namespace

TEST(quantization_examples_of_the_specification) {
  float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
  int16_t y[8], scales[] = {1, 10, 100, 1000};
  BNNSLayerParametersQuantization p{};
  p.axis_mask = 1;
  p.i_desc.layout = p.o_desc.layout = BNNSDataLayoutRowMajorMatrix;
  p.i_desc.size[0] = p.o_desc.size[0] = 4;
  p.i_desc.size[1] = p.o_desc.size[1] = 2;
  p.i_desc.data_type = BNNSDataTypeFloat32;
  p.o_desc.data_type = BNNSDataTypeInt16;
  p.i_desc.data = x;
  p.o_desc.data = y;
  p.scale = vector_of(4, BNNSDataTypeInt16, scales);
  CHECK(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  const int16_t want[] = {1, 20, 300, 4000, 5, 60, 700, 8000};
  CHECK(std::memcmp(y, want, sizeof want) == 0, "%d %d %d %d", y[0], y[1], y[2], y[3]);

  int16_t q[] = {1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000};
  std::swap(p.i_desc, p.o_desc);
  p.i_desc.data = q;
  p.function = BNNSQuantizerFunctionDequantize;
  CHECK(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  const float back[] = {1000, 200, 30, 4, 5000, 600, 70, 8};
  CHECK(std::memcmp(x, back, sizeof back) == 0, "%g %g %g %g", x[0], x[1], x[2], x[3]);

  float four[] = {0, 2, 4, 6}, half = 0.5f, one = 1.0f;
  int8_t small[4];
  BNNSLayerParametersQuantization single{};
  single.i_desc = vector_of(4, BNNSDataTypeFloat32, four);
  single.o_desc = vector_of(4, BNNSDataTypeInt8, small);
  single.scale = vector_of(1, BNNSDataTypeFloat32, &half);
  single.bias = vector_of(1, BNNSDataTypeFloat32, &one);
  CHECK(BNNSDirectApplyQuantizer(&single, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  CHECK(small[0] == 1 && small[1] == 2 && small[2] == 3 && small[3] == 4, "%d %d", small[0], small[1]);
  std::swap(single.i_desc, single.o_desc);
  single.function = BNNSQuantizerFunctionDequantize;
  std::fill_n(four, 4, 9.0f);
  CHECK(BNNSDirectApplyQuantizer(&single, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  CHECK(four[0] == 0 && four[1] == 2 && four[2] == 4 && four[3] == 6, "%g %g", four[0], four[1]);
}

TEST(quantization_rows_match_ref_on_every_target) {
  std::vector<double> reals = {0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 127.49, 127.5, 128.0, -128.5, -129.0, 255.5, 32767.6,
                               65535.5, 2147483647.0, 4294967040.0, 1e30, -1e30, HUGE_VAL, -HUGE_VAL, std::nan("")};
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0.0, 100.0);
  for (int i = 0; i < 300; ++i) reals.push_back(normal(random));
  const size_t n = reals.size();
  std::vector<double> scale(n, 0.25), bias(n, 3.0);
  for (size_t i = 40; i < n; ++i) {
    scale[i] = static_cast<float>(normal(random));
    bias[i] = static_cast<float>(normal(random));
  }
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (size_t w = 0; w < kIntegers; ++w) {
      for (size_t r = 0; r < kReals; ++r) {
        const BNNSDataType real = r ? BNNSDataTypeFloat32 : BNNSDataTypeInt32;
        for (bool quantizes : {true, false}) {
          for (bool moves : {true, false}) {
            for (size_t stride : {1, 2}) {
              const BNNSDataType from = quantizes ? real : kWhole[w], to = quantizes ? kWhole[w] : real;
              std::vector<uint32_t> x(n * stride), y(n * stride + 1, 0x5a5a5a5a);
              for (size_t i = 0; i < n; ++i) put(x.data(), from, i * stride, reals[i]);
              const Row row = quantizes ? kernels.quantize[r][w] : kernels.dequantize[w][r];
              row(x.data(), stride, y.data(), stride, scale.data(), bias.data(), moves, n);
              for (size_t i = 0; i < n; ++i) {
                const double v = get(x.data(), from, i * stride), s = scale[moves ? i : 0], b = bias[moves ? i : 0];
                double want = quantizes ? ref::quantize(v, s, b, to) : ref::dequantize(v, s, b, to);
                if (to == BNNSDataTypeFloat32) want = static_cast<float>(want);
                const double got = get(y.data(), to, i * stride);
                CHECK(got == want || (std::isnan(got) && std::isnan(want)), "%s %s to %s: %.9g becomes %.9g, want %.9g",
                      name_of(isa), name_of(from), name_of(to), v, got, want);
              }
            }
          }
        }
      }
    }
  }
}

// Types, axes, layouts, strides, batches at random.
TEST(quantization_any_call_matches_single_values) {
  std::mt19937 random(9);
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  constexpr BNNSDataLayout kLayouts[] = {BNNSDataLayoutVector, BNNSDataLayoutRowMajorMatrix,
                                         BNNSDataLayoutColumnMajorMatrix, BNNSDataLayoutImageCHW,
                                         BNNSDataLayout3DFirstMajor, BNNSDataLayout4DLastMajor};
  constexpr BNNSDataType kFactors[] = {BNNSDataTypeFloat32, BNNSDataTypeInt16, BNNSDataTypeUInt8, BNNSDataTypeFloat16};
  for (int round = 0; round < 3000; ++round) {
    const bool quantizes = pick(2);
    const BNNSDataType real = kReal[pick(3)], whole = kWhole[pick(6)];
    BNNSLayerParametersQuantization p{};
    p.function = quantizes ? BNNSQuantizerFunctionQuantize : BNNSQuantizerFunctionDequantize;
    p.i_desc.layout = p.o_desc.layout = kLayouts[pick(std::size(kLayouts))];
    const size_t rank = rank_of(p.i_desc.layout), batch = 1 + pick(4);
    for (size_t i = 0; i < rank; ++i) p.i_desc.size[i] = p.o_desc.size[i] = 1 + pick(rank > 2 ? 9 : 40);
    if (pick(8) == 0) p.i_desc.size[0] = p.o_desc.size[0] = 1200;
    if (pick(2)) p.i_desc.stride[0] = 1 + pick(3);
    if (pick(2)) p.o_desc.stride[0] = 1 + pick(3);
    p.i_desc.data_type = quantizes ? real : whole;
    p.o_desc.data_type = quantizes ? whole : real;
    p.i_desc.data_scale = 3.0f;  // not used
    const size_t axis = pick(rank + 2);
    p.axis_mask = axis > rank ? 0 : size_t{1} << axis;
    const size_t length = axis > rank ? 1 : (axis == rank ? batch : p.i_desc.size[axis]);
    View x_view, y_view;
    CHECK(read_view(p.i_desc, Access::read, "x", &x_view) == 0 && read_view(p.o_desc, Access::write, "y", &y_view) == 0,
          "%s", obn_last_error());
    const size_t x_step = x_view.packed_batch + pick(2) * 5, y_step = y_view.packed_batch + pick(2) * 3;
    std::vector<uint32_t> x(batch * x_step), y(batch * y_step + 1, 0x5a5a5a5a), scale(length), bias(length);
    p.i_desc.data = x.data();
    p.o_desc.data = y.data();
    const BNNSDataType scale_type = kFactors[pick(4)], bias_type = kFactors[pick(4)];
    const bool has_scale = pick(5), has_bias = pick(5);
    for (size_t i = 0; i < length; ++i) {
      put(scale.data(), scale_type, i, static_cast<double>(1 + pick(5)));
      put(bias.data(), bias_type, i, static_cast<double>(pick(7)));
    }
    if (has_scale) p.scale = vector_of(length, scale_type, scale.data());
    if (has_bias) p.bias = vector_of(length, bias_type, bias.data());
    for (size_t i = 0; i < x.size(); ++i)
      put(x.data(), p.i_desc.data_type, i, (static_cast<double>(pick(4001)) - 1000.0) / (pick(2) ? 8.0 : 40.0));
    CHECK(BNNSDirectApplyQuantizer(&p, nullptr, batch, x_step, y_step) == 0, "%s", obn_last_error());
    for (size_t b = 0; b < batch; ++b) {
      size_t at[8] = {};
      for (size_t i = 0; i < x_view.count; ++i) {
        size_t from = b * x_step, to = b * y_step;
        for (size_t k = 0; k < rank; ++k) {
          from += at[k] * x_view.stride[k];
          to += at[k] * y_view.stride[k];
        }
        const size_t f = axis > rank ? 0 : (axis == rank ? b : at[x_view.axis_of_size[axis]]);
        const double s = has_scale ? get(scale.data(), scale_type, f) : 1.0;
        const double o = has_bias ? get(bias.data(), bias_type, f) : 0.0;
        const double v = get(x.data(), p.i_desc.data_type, from), got = get(y.data(), p.o_desc.data_type, to);
        double want = quantizes ? ref::quantize(v, s, o, whole) : ref::dequantize(v, s, o, real);
        if (real == BNNSDataTypeFloat32 && !quantizes) want = static_cast<float>(want);
        const double slack = !quantizes && real == BNNSDataTypeFloat16 ? 1e-3 * std::fabs(want) : 0.0;
        CHECK(std::fabs(got - want) <= slack, "%d: %g becomes %g, want %g", round, v, got, want);
        for (size_t k = 0; k < rank && ++at[k] == x_view.extent[k]; ++k) at[k] = 0;
      }
    }
    CHECK(y.back() == 0x5a5a5a5a, "%d: writes beyond the end", round);
  }
}

TEST(quantization_threads_do_not_change_bits) {
  const size_t n = 300000, threads_before = obn_get_num_threads();
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i % 997) * 0.37f - 100.0f;
  std::vector<int8_t> first;
  for (size_t threads : {1, 2, 7}) {
    obn_set_num_threads(threads);
    std::vector<int8_t> y(n);
    float scale = 0.7f;
    BNNSLayerParametersQuantization p{};
    p.i_desc = vector_of(n, BNNSDataTypeFloat32, x.data());
    p.o_desc = vector_of(n, BNNSDataTypeInt8, y.data());
    p.scale = vector_of(1, BNNSDataTypeFloat32, &scale);
    CHECK(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
    if (threads == 1) first = y;
    CHECK(y == first, "%zu threads differ", threads);
  }
  obn_set_num_threads(threads_before);
}

TEST(quantization_works_in_place_where_widths_agree) {
  float x[] = {1.25f, -3.5f, 100.0f};
  BNNSLayerParametersQuantization p{};
  p.i_desc = vector_of(3, BNNSDataTypeFloat32, x);
  p.o_desc = vector_of(3, BNNSDataTypeInt32, x);
  CHECK(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0) == 0, "%s", obn_last_error());
  CHECK(get(x, BNNSDataTypeInt32, 0) == 1 && get(x, BNNSDataTypeInt32, 1) == -4, "%g", get(x, BNNSDataTypeInt32, 1));
  p.o_desc = vector_of(3, BNNSDataTypeInt8, x);
  CHECK(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0) != 0 && failed_with("output: expected memory apart"), "%s",
        obn_last_error());
}

TEST(quantization_only_the_pairs_of_the_table) {
  constexpr BNNSDataType kAll[] = {
      BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16, BNNSDataTypeInt1,  BNNSDataTypeInt4,
      BNNSDataTypeInt8,    BNNSDataTypeInt16,   BNNSDataTypeInt32,    BNNSDataTypeInt64, BNNSDataTypeUInt4,
      BNNSDataTypeUInt8,   BNNSDataTypeUInt16,  BNNSDataTypeUInt32,   BNNSDataTypeUInt64, BNNSDataTypeBoolean};
  const auto is_in = [](const auto& list, BNNSDataType type) {
    return std::find(std::begin(list), std::end(list), type) != std::end(list);
  };
  for (BNNSDataType from : kAll) {
    for (BNNSDataType to : kAll) {
      for (bool quantizes : {true, false}) {
        uint64_t x[4] = {}, y[4] = {7, 7, 7, 7};
        BNNSLayerParametersQuantization p{};
        p.function = quantizes ? BNNSQuantizerFunctionQuantize : BNNSQuantizerFunctionDequantize;
        p.i_desc = vector_of(4, from, x);
        p.o_desc = vector_of(4, to, y);
        const bool is_listed = is_in(kReal, quantizes ? from : to) && is_in(kWhole, quantizes ? to : from);
        CHECK((BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0) == 0) == is_listed, "%s to %s", name_of(from),
              name_of(to));
        if (!is_listed) CHECK(y[0] == 7 && y[3] == 7, "%s to %s is written", name_of(from), name_of(to));
      }
    }
  }
}

TEST(quantization_refuses_with_a_sentence) {
  float x[12] = {}, factors[12] = {};
  int8_t y[12];
  std::fill_n(y, 12, int8_t{7});
  BNNSLayerParametersQuantization good{};
  good.i_desc.layout = good.o_desc.layout = BNNSDataLayoutRowMajorMatrix;
  good.i_desc.size[0] = good.o_desc.size[0] = 3;
  good.i_desc.size[1] = good.o_desc.size[1] = 2;
  good.i_desc.data_type = BNNSDataTypeFloat32;
  good.o_desc.data_type = BNNSDataTypeInt8;
  good.i_desc.data = x;
  good.o_desc.data = y;
  const auto refused = [&](const BNNSLayerParametersQuantization& p, const char* start, size_t batch = 1) {
    obn_clear_error();
    return BNNSDirectApplyQuantizer(&p, nullptr, batch, 0, 0) != 0 && failed_with(start);
  };
  CHECK(BNNSDirectApplyQuantizer(nullptr, nullptr, 1, 0, 0) != 0 && failed_with("layer_params"), "%s",
        obn_last_error());
  BNNSLayerParametersQuantization p = good;
  p.function = static_cast<BNNSQuantizerFunction>(2);
  CHECK(refused(p, "function"), "%s", obn_last_error());
  for (size_t mask : {size_t{3}, size_t{8}, size_t{6}, SIZE_MAX, size_t{1} << 63}) {
    p = good;
    p.axis_mask = mask;
    CHECK(refused(p, "axis"), "%zx: %s", mask, obn_last_error());
  }
  p = good;
  p.o_desc.size[0] = 2;
  CHECK(refused(p, "output: expected (2, 3)"), "%s", obn_last_error());
  p = good;
  p.axis_mask = 1;
  p.scale = vector_of(2, BNNSDataTypeFloat32, factors);
  CHECK(refused(p, "scale: expected 3"), "%s", obn_last_error());
  p.axis_mask = 4;  // the batch
  CHECK(refused(p, "batch_size: expected 2"), "%s", obn_last_error());
  p.bias = vector_of(1, BNNSDataTypeFloat32, factors);
  CHECK(refused(p, "bias: expected 2", 2), "%s", obn_last_error());
  p = good;
  p.scale = good.i_desc;
  CHECK(refused(p, "scale: expected a vector"), "%s", obn_last_error());
  p = good;
  p.i_desc.data = nullptr;
  CHECK(refused(p, "input: expected data"), "%s", obn_last_error());
  p = good;
  p.o_desc.data = nullptr;
  CHECK(refused(p, "output: expected data"), "%s", obn_last_error());
  CHECK(BNNSDirectApplyQuantizer(&p, nullptr, 0, 0, 0) == 0, "%s", obn_last_error());
  for (int8_t v : y) CHECK(v == 7, "output written");

  // And by the thousand, at random.
  std::mt19937 random(4);
  const auto pick = [&](size_t n) { return static_cast<size_t>(random() % n); };
  constexpr size_t kSizes[] = {0, 1, 2, 3, SIZE_MAX, size_t{1} << 40};
  for (int round = 0; round < 20000; ++round) {
    p = good;
    BNNSNDArrayDescriptor* all[] = {&p.i_desc, &p.o_desc, &p.scale, &p.bias};
    p.scale = vector_of(1, BNNSDataTypeFloat32, factors);
    for (BNNSNDArrayDescriptor* d : all) {
      if (!pick(6)) d->layout = pick(2) ? static_cast<BNNSDataLayout>(random()) : BNNSDataLayoutVector;
      if (!pick(6)) d->data_type = static_cast<BNNSDataType>(random() & 0x1f803f);
      if (!pick(6)) d->size[pick(3)] = kSizes[pick(6)];
      if (!pick(6)) d->stride[pick(3)] = kSizes[pick(6)];
    }
    p.axis_mask = pick(9);
    p.function = static_cast<BNNSQuantizerFunction>(pick(3));
    View view;
    bool inside = true;
    for (BNNSNDArrayDescriptor* d : all)
      inside = inside && (!d->data || read_view(*d, Access::read, "x", &view) != 0 ||
                          view.span * bits_of(view.type) <= 8 * sizeof y);
    if (!inside) continue;
    obn_clear_error();
    CHECK(BNNSDirectApplyQuantizer(&p, nullptr, 1, 0, 0) == 0 || *obn_last_error(), "round %d fails silently", round);
  }
}
