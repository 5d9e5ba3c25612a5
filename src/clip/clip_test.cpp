#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "base/test.h"
#include "base/types.h"
#include "base/view.h"
#include "clip/clip.h"
#include "openbnns/bnns/optimizer.h"
#include "openbnns/openbnns.h"

using namespace obn;
using namespace obn::clip;

namespace {

struct Random : test::Random {
  using test::Random::Random;
  float real() { return static_cast<float>(between(0, 2000)) / 500.0f - 2.0f; }
  std::vector<float> reals(size_t n) {
    std::vector<float> values(n);
    for (float& v : values) v = real();
    return values;
  }
};

bool is_close(double got, double want) { return std::fabs(got - want) <= 1e-6 * (1e-6 + std::fabs(want)); }

void check_values(const char* what, const float* got, std::initializer_list<double> want) {
  size_t i = 0;
  for (double v : want) {
    CHECK(is_close(got[i], v), "%s [%zu] %.9g want %.9g", what, i, static_cast<double>(got[i]), v);
    ++i;
  }
}

}  // namespace

TEST(clip_examples_of_the_specification) {
  std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8}, y(9);
  auto from = array_of(BNNSDataLayoutVector, {8}, x.data()), to = array_of(BNNSDataLayoutVector, {8}, y.data());
  CHECK(BNNSClipByValue(&to, &from, 3, 6) == 0, "%s", obn_last_error());
  check_values("clip", y.data(), {3, 3, 3, 4, 5, 6, 6, 6});

  x = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  from = array_of(BNNSDataLayoutRowMajorMatrix, {3, 3}, x.data());
  to = array_of(BNNSDataLayoutRowMajorMatrix, {3, 3}, y.data());
  CHECK(BNNSClipByNorm(&to, &from, 10, 2) == 0, "%s", obn_last_error());
  check_values("rows", y.data(), {1, 2, 3, 4, 5, 6, 5.0257072, 5.743665, 6.461623});

  x = {3, 4, 12};
  auto pair = array_of(BNNSDataLayoutVector, {2}, x.data()), single = array_of(BNNSDataLayoutVector, {1}, x.data() + 2);
  auto pair_to = array_of(BNNSDataLayoutVector, {2}, y.data()),
       single_to = array_of(BNNSDataLayoutVector, {1}, y.data() + 2);
  CHECK(BNNSClipByNorm(&pair_to, &pair, 2.5f, 0) == 0, "%s", obn_last_error());
  check_values("norm", y.data(), {1.5, 2});
  const BNNSNDArrayDescriptor* both[] = {&pair, &single};
  BNNSNDArrayDescriptor* both_to[] = {&pair_to, &single_to};
  CHECK(BNNSClipByGlobalNorm(both_to, both, 2, 6.5f, 0) == 0, "%s", obn_last_error());
  check_values("global", y.data(), {1.5, 2, 6});
  CHECK(BNNSClipByGlobalNorm(both_to, both, 2, 6.5f, 26) == 0, "%s", obn_last_error());
  check_values("known norm", y.data(), {0.75, 1, 3});

  x = {3, 4, 12, 5};
  from = array_of(BNNSDataLayout2DFirstMajor, {2, 2}, x.data());
  to = array_of(BNNSDataLayoutVector, {2}, y.data());
  CHECK(BNNSComputeNorm(&to, &from, BNNSL2Norm, 1) == 0, "%s", obn_last_error());
  check_values("bit 0", y.data(), {12.369317, 6.4031243});
  CHECK(BNNSComputeNorm(&to, &from, BNNSL2Norm, 2) == 0, "%s", obn_last_error());
  check_values("bit 1", y.data(), {5, 13});

  float norm[] = {5}, dy[] = {2}, dx[2];
  x = {3, 4};
  auto dx_to = array_of(BNNSDataLayoutVector, {2}, dx), dy_from = array_of(BNNSDataLayoutVector, {1}, dy);
  CHECK(BNNSComputeNormBackward(x.data(), &dx_to, norm, &dy_from, BNNSL2Norm, 0) == 0, "%s", obn_last_error());
  check_values("backward", dx, {1.2, 1.6});
  dx_to.flags = BNNSNDArrayFlagBackpropAccumulate;
  CHECK(BNNSComputeNormBackward(x.data(), &dx_to, norm, &dy_from, BNNSL2Norm, 1) == 0, "%s", obn_last_error());
  check_values("accumulate", dx, {2.4, 3.2});
}

// CHW of size (3, 2, 4): the axes that are left keep their order.
TEST(clip_norm_of_an_image_drops_the_chosen_axes) {
  std::vector<float> x(24), y(8);
  for (size_t i = 0; i < 24; ++i) x[i] = static_cast<float>(i * i);
  auto from = array_of(BNNSDataLayoutImageCHW, {3, 2, 4}, x.data());
  const auto at = [&](size_t i, size_t j, size_t k) { return static_cast<double>(x[i + 3 * j + 6 * k]); };
  auto to = array_of(BNNSDataLayout2DLastMajor, {3, 2}, y.data());
  CHECK(BNNSComputeNorm(&to, &from, BNNSL2Norm, 4) == 0, "%s", obn_last_error());
  for (size_t j = 0; j < 2; ++j)
    for (size_t i = 0; i < 3; ++i) {
      double sum = 0;
      for (size_t k = 0; k < 4; ++k) sum += at(i, j, k) * at(i, j, k);
      CHECK(is_close(y[i + 3 * j], std::sqrt(sum)), "%zu %zu", i, j);
    }
  to = array_of(BNNSDataLayout2DFirstMajor, {3, 2}, y.data());
  CHECK(BNNSComputeNorm(&to, &from, BNNSL2Norm, 4) == 0, "%s", obn_last_error());
  for (size_t j = 0; j < 2; ++j)
    for (size_t i = 0; i < 3; ++i) {
      double sum = 0;
      for (size_t k = 0; k < 4; ++k) sum += at(i, j, k) * at(i, j, k);
      CHECK(is_close(y[2 * i + j], std::sqrt(sum)), "%zu %zu", i, j);
    }
  to = array_of(BNNSDataLayoutVector, {2}, y.data());
  CHECK(BNNSComputeNorm(&to, &from, BNNSL2Norm, 5) == 0, "%s", obn_last_error());
  for (size_t j = 0; j < 2; ++j) {
    double sum = 0;
    for (size_t k = 0; k < 4; ++k)
      for (size_t i = 0; i < 3; ++i) sum += at(i, j, k) * at(i, j, k);
    CHECK(is_close(y[j], std::sqrt(sum)), "%zu", j);
  }
}

TEST(clip_kernels_match_plain_loops_on_every_target) {
  Random random(1);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (size_t n = 0; n <= 70; ++n) {
      const std::vector<float> x = random.reals(n + 1);
      std::vector<float> y(n + 2, 7.0f);
      std::vector<double> sums(n + 1, 1.0), factors(n + 1);
      for (double& f : factors) f = static_cast<double>(random.real());
      const double norm = ref::norm(x.data() + 1, 1, n);
      CHECK(std::fabs(kernels.sum_squares(x.data() + 1, n) - norm * norm) <= 4e-12 * static_cast<double>(n), "%s %zu",
            name_of(isa), n);
      kernels.add_squares(x.data(), sums.data(), n);
      for (size_t i = 0; i < n; ++i) {
        const double v = x[i];
        CHECK(is_close(sums[i], 1.0 + v * v), "%zu", i);
      }
      CHECK(sums[n] == 1.0, "one too many");
      for (bool move : {false, true}) {
        for (bool accumulate : {false, true}) {
          std::fill(y.begin(), y.end(), 7.0f);
          kernels.scale(x.data(), factors.data(), move, y.data() + 1, accumulate, n);
          for (size_t i = 0; i < n; ++i) {
            const double want = static_cast<double>(x[i]) * factors[move ? i : 0] + (accumulate ? 7.0 : 0.0);
            CHECK(std::fabs(static_cast<double>(y[i + 1]) - want) <= 1e-6, "%zu", i);
          }
          CHECK(y[0] == 7.0f && y[n + 1] == 7.0f, "one too many");
        }
      }
      std::fill(y.begin(), y.end(), 7.0f);
      kernels.clamp(x.data(), -1.0f, 0.5f, y.data() + 1, n);
      for (size_t i = 0; i < n; ++i) CHECK(y[i + 1] == std::clamp(x[i], -1.0f, 0.5f), "%zu", i);
      CHECK(y[0] == 7.0f && y[n + 1] == 7.0f, "one too many");
    }
  }
}

// Every choice of axes of a strided 3-D tensor of every float type against slices picked by hand.
TEST(clip_slices_match_ref) {
  const BNNSDataType types[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16};
  const size_t shapes[][3] = {{3, 4, 5}, {1, 7, 1}, {2, 1, 70}, {1, 1, 1}, {70, 3, 1}, {40, 50, 60}, {2, 3, 20000}};
  Random random(2);
  for (BNNSDataType type : types) {
    const double tolerance = type == BNNSDataTypeFloat32 ? 1e-6 : type == BNNSDataTypeFloat16 ? 2e-3 : 1e-2;
    for (const auto& shape : shapes) {
      for (size_t gap : {0, 3}) {
        for (uint32_t flags = 0; flags < 8; ++flags) {
          auto from = array_of(BNNSDataLayout3DFirstMajor, {shape[0], shape[1], shape[2]}, nullptr, type);
          if (gap) {
            from.stride[0] = 2;
            from.stride[1] = 2 * shape[2] + gap;
            from.stride[2] = from.stride[1] * shape[1] + gap;
          }
          View view;
          CHECK(read_view(from, Access::read, "x", &view) == 0, "%s", obn_last_error());
          const std::vector<float> reals = random.reals(view.span);
          std::vector<std::byte> x(view.span * 4), y(view.span * 4);
          std::vector<float> stored(view.span);
          const Kernels& kernels = targets.best();
          kernels.store(type, x.data(), 1, view.span, reals.data());
          kernels.load(type, x.data(), 1, view.span, stored.data());
          from.data = x.data();
          auto to = from;
          to.data = y.data();
          const float max_norm = 2.0f;
          CHECK(BNNSClipByNorm(&to, &from, max_norm, flags) == 0, "%s", obn_last_error());
          std::vector<float> got(view.span);
          kernels.load(type, y.data(), 1, view.span, got.data());

          // sizes outermost first: coordinate d has stride of view axis 2 - d
          std::vector<double> sums(view.count, 0.0);
          const auto each = [&](const auto& body) {
            for (size_t i = 0; i < shape[0]; ++i)
              for (size_t j = 0; j < shape[1]; ++j)
                for (size_t k = 0; k < shape[2]; ++k) {
                  const size_t kept[] = {flags & 1 || !flags ? 0 : i, flags & 2 || !flags ? 0 : j,
                                         flags & 4 || !flags ? 0 : k};
                  body(i * view.stride[2] + j * view.stride[1] + k * view.stride[0],
                       (kept[0] * shape[1] + kept[1]) * shape[2] + kept[2]);
                }
          };
          each([&](size_t at, size_t slice) {
            sums[slice] += static_cast<double>(stored[at]) * static_cast<double>(stored[at]);
          });
          each([&](size_t at, size_t slice) {
            const double want = stored[at] * factor_of(std::sqrt(sums[slice]), max_norm);
            CHECK(std::fabs(got[at] - want) <= tolerance * (std::fabs(want) + 1e-3),
                  "type %s flags %u [%zu] %g want %g", obn::name_of(type), static_cast<unsigned>(flags), at,
                  static_cast<double>(got[at]), want);
          });
        }
      }
    }
  }
}

TEST(clip_norm_and_its_gradient_match_ref) {
  Random random(3);
  for (size_t rows : {1, 5, 300}) {
    for (size_t columns : {1, 6, 700}) {
      std::vector<float> x = random.reals(rows * columns), y(rows + columns), dx(rows * columns, 1.0f);
      for (size_t j = 0; j < columns; ++j) x[j] = 0.0f;  // a slice of norm 0
      for (bool by_row : {true, false}) {
        auto from = array_of(BNNSDataLayoutRowMajorMatrix, {columns, rows}, x.data());
        const size_t slices = by_row ? rows : columns, n = by_row ? columns : rows;
        const size_t next = by_row ? columns : 1, stride = by_row ? 1 : columns;
        auto to = array_of(BNNSDataLayoutVector, {slices}, y.data());
        const uint32_t flags = by_row ? 2 : 1;  // the tuple is (row, column)
        CHECK(BNNSComputeNorm(&to, &from, BNNSL2Norm, flags) == 0, "%s", obn_last_error());
        std::vector<float> dy = random.reals(slices);
        auto gradient = array_of(BNNSDataLayoutVector, {slices}, dy.data());
        auto into = array_of(BNNSDataLayoutRowMajorMatrix, {columns, rows}, dx.data());
        CHECK(BNNSComputeNormBackward(x.data(), &into, y.data(), &gradient, BNNSL2Norm, flags) == 0, "%s",
              obn_last_error());
        std::vector<double> want(n);
        for (size_t s = 0; s < slices; ++s) {
          CHECK(is_close(y[s], ref::norm(x.data() + s * next, stride, n)), "norm %zu", s);
          ref::norm_backward(x.data() + s * next, y[s], dy[s], stride, n, want.data());
          for (size_t i = 0; i < n; ++i)
            CHECK(is_close(dx[s * next + i * stride], want[i]), "dx[%zu][%zu] %g want %g", s, i,
                  static_cast<double>(dx[s * next + i * stride]), want[i]);
        }
      }
    }
  }
}

TEST(clip_same_bits_for_any_number_of_threads) {
  const size_t before = obn_get_num_threads();
  Random random(4);
  std::vector<float> x = random.reals(1000 * 333);
  auto from = array_of(BNNSDataLayout2DFirstMajor, {1000, 333}, x.data());
  for (uint32_t flags : {0, 1, 2}) {
    std::vector<float> first(x.size()), again(x.size());
    for (size_t threads : {1, 2, 5}) {
      obn_set_num_threads(threads);
      auto& y = threads == 1 ? first : again;
      auto to = array_of(BNNSDataLayout2DFirstMajor, {1000, 333}, y.data());
      CHECK(BNNSClipByNorm(&to, &from, 0.5f, flags) == 0, "%s", obn_last_error());
      CHECK(threads == 1 || first == again, "%zu threads, flags %u", threads, static_cast<unsigned>(flags));
    }
  }
  obn_set_num_threads(before);
}

TEST(clip_in_place_and_strange_values) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x = {1, std::nanf(""), -inf, inf, -0.0f};
  auto both = array_of(BNNSDataLayoutVector, {5}, x.data());
  CHECK(BNNSClipByValue(&both, &both, -2, 2) == 0, "%s", obn_last_error());
  CHECK(x[0] == 1 && std::isnan(x[1]) && x[2] == -2 && x[3] == 2 && x[4] == 0, "%g %g", x[2], x[3]);
  CHECK(BNNSClipByNorm(&both, &both, 1, 0) == 0, "%s", obn_last_error());
  CHECK(x[0] == 1 && std::isnan(x[1]) && x[2] == -2, "a norm that is NaN changes nothing");
  x.assign(5, 0.0f);
  CHECK(BNNSClipByNorm(&both, &both, 0, 0) == 0, "%s", obn_last_error());
  CHECK(x[0] == 0.0f, "%g", static_cast<double>(x[0]));
  x.assign(5, 1e30f);  // squares overflow float32
  CHECK(BNNSClipByNorm(&both, &both, 1, 0) == 0, "%s", obn_last_error());
  CHECK(is_close(x[0], std::sqrt(0.2)), "%g", static_cast<double>(x[0]));
}

TEST(clip_refuses_before_it_writes) {
  std::vector<float> x(12, 1.0f), y(12, 5.0f);
  auto from = array_of(BNNSDataLayout2DFirstMajor, {3, 4}, x.data());
  auto to = array_of(BNNSDataLayout2DFirstMajor, {3, 4}, y.data());
  const auto untouched = [&] { return std::count(y.begin(), y.end(), 5.0f) == 12; };
  CHECK(BNNSClipByValue(&to, &from, 2, 1) != 0 && failed_with("bounds: expected"), "%s", obn_last_error());
  CHECK(BNNSClipByValue(nullptr, &from, 1, 2) != 0 && failed_with("out: expected"), "%s", obn_last_error());
  CHECK(BNNSClipByValue(&to, nullptr, 1, 2) != 0 && failed_with("x: expected"), "%s", obn_last_error());
  CHECK(BNNSClipByNorm(&to, &from, -1, 0) != 0 && failed_with("threshold: expected"), "%s", obn_last_error());
  CHECK(BNNSClipByNorm(&to, &from, 1, 4) != 0 && failed_with("axes: expected bits 0 to 1; got 0x4"), "%s",
        obn_last_error());
  to.size[1] = 3;
  CHECK(BNNSClipByNorm(&to, &from, 1, 0) != 0 && failed_with("out: expected (3, 4)"), "%s", obn_last_error());
  to.size[1] = 4;
  to.data = x.data() + 1;
  to.size[0] = from.size[0] = 2;
  CHECK(BNNSClipByNorm(&to, &from, 1, 0) != 0 && failed_with("out: expected memory apart"), "%s", obn_last_error());
  to.data = y.data();
  from.data_type = BNNSDataTypeInt32;
  CHECK(BNNSClipByNorm(&to, &from, 1, 0) != 0 && failed_with("x: expected a float type"), "%s", obn_last_error());
  from.data_type = BNNSDataTypeFloat32;
  CHECK(BNNSComputeNorm(&to, &from, BNNSL2Norm, 1) != 0 &&
            failed_with("out: expected the axes that are left, size (4)"),
        "%s", obn_last_error());
  CHECK(BNNSComputeNorm(&to, &from, static_cast<BNNSNormType>(2), 1) != 0 && failed_with("norm_type: expected"), "%s",
        obn_last_error());
  CHECK(BNNSClipByGlobalNorm(nullptr, nullptr, 1, 1, 0) != 0, "NULL");
  CHECK(BNNSClipByGlobalNorm(nullptr, nullptr, 0, 1, 0) == 0, "nothing to do");
  auto vector = array_of(BNNSDataLayoutVector, {4}, y.data() + 8);
  CHECK(BNNSComputeNormBackward(nullptr, &to, y.data(), &vector, BNNSL2Norm, 1) != 0 && failed_with("x: expected data"),
        "%s", obn_last_error());
  CHECK(untouched(), "something was written");
}
