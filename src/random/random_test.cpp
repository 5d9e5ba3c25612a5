#include "random/random.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "base/test.h"
#include "base/types.h"
#include "openbnns/bnns/random.h"
#include "openbnns/openbnns.h"

using namespace obn;
using namespace obn::random;

namespace {

struct Generator {
  BNNSRandomGenerator handle;
  explicit Generator(uint64_t seed) {
    handle = BNNSCreateRandomGeneratorWithSeed(BNNSRandomGeneratorMethodAES_CTR, seed, nullptr);
    CHECK(handle, "%s", obn_last_error());
  }
  Generator(const Generator&) = delete;
  ~Generator() { BNNSDestroyRandomGenerator(handle); }
};

std::vector<uint32_t> stream_of(uint64_t seed, uint64_t position, size_t n) {
  std::vector<uint32_t> values(n);
  RandomStream(seed).get_from_tables(position, values.data(), n);
  return values;
}

}  // namespace

TEST(random_stream_is_aes_in_counter_mode) {
  // Key 0, counters 0 and 1: published test vectors of AES-128 and of its Galois/counter mode.
  const uint32_t want[] = {0xd44be966, 0x3b2c8aef, 0x59fa4c88, 0x2e2b34ca,
                           0xcefce258, 0x61307efa, 0x571d7f36, 0x5a45e7a4};
  const RandomStream stream(0);
  uint32_t got[8];
  stream.get(0, got, 8);
  CHECK(std::memcmp(got, want, sizeof want) == 0, "0x%08x 0x%08x", got[0], got[4]);
  for (size_t start = 0; start < 8; ++start) {
    for (size_t n = 0; start + n <= 8; ++n) {
      uint32_t part[8] = {};
      stream.get(start, part, n);
      CHECK(std::memcmp(part, want + start, 4 * n) == 0, "from %zu, %zu values", start, n);
    }
  }
  CHECK(uniform(0, -1.0f, 3.0f) == -1.0f && uniform(0x80000000, -1.0f, 3.0f) == 1.0f &&
            uniform(UINT32_MAX, -1.0f, 3.0f) == 3.0f, "uniform");
}

TEST(random_instructions_and_tables_agree) {
  const RandomStream stream(0x0123456789abcdef);
  std::vector<uint32_t> a(200), b(200);
  for (uint64_t start : {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{255}, (uint64_t{1} << 34) - 7}) {
    for (size_t n = 0; n <= 199; ++n) {
      std::fill(a.begin(), a.end(), 7u);
      std::fill(b.begin(), b.end(), 7u);
      stream.get(start, a.data(), n);
      stream.get_from_tables(start, b.data(), n);
      CHECK(a == b, "from %llu, %zu values", static_cast<unsigned long long>(start), n);
    }
  }
}

TEST(random_uniform_is_the_stream_of_the_seed) {
  const Generator generator(42);
  std::vector<float> y(1001);
  auto to = array_of(BNNSDataLayoutVector, {1001}, y.data());
  CHECK(BNNSRandomFillUniformFloat(generator.handle, &to, -1.5f, 2.5f) == 0, "%s", obn_last_error());
  const auto v = stream_of(42, 0, 2002);
  for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == obn::uniform(v[i], -1.5f, 2.5f), "%zu", i);
  CHECK(BNNSRandomFillUniformFloat(generator.handle, &to, 0.0f, 1.0f) == 0, "%s", obn_last_error());
  for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == obn::uniform(v[1001 + i], 0.0f, 1.0f), "%zu", i);
}

TEST(random_kernels_match_ref_and_each_other) {
  const size_t n = 1000;
  const auto v = stream_of(5, 0, 2 * n);
  const Kernels& first = targets.at(Isa::portable);
  for (Isa isa : kIsas) {
    if (!has_isa(isa)) continue;
    const Kernels& kernels = targets.at(isa);
    for (size_t count : {size_t{2}, size_t{6}, size_t{34}, n}) {
      std::vector<float> y(n, 7.0f), other(n, 7.0f);
      kernels.uniform(v.data(), -3.0f, 7.0f, 1.0f, y.data(), count);
      first.uniform(v.data(), -3.0f, 7.0f, 1.0f, other.data(), count);
      CHECK(y == other, "%s uniform", name_of(isa));
      for (size_t i = 0; i < count; ++i)
        CHECK(std::fabs(y[i] - ref::uniform(v[i], -3.0, 4.0)) <= 5e-7, "%s uniform %zu", name_of(isa), i);
      kernels.normal(v.data(), 1.0f, 2.0f, y.data(), count);
      first.normal(v.data(), 1.0f, 2.0f, other.data(), count);
      CHECK(std::memcmp(y.data(), other.data(), n * sizeof(float)) == 0, "%s normal", name_of(isa));
      CHECK(count == n || y[count] == 7.0f, "one too many");
      for (size_t i = 0; i < count; i += 2) {
        double want[2];
        ref::normal(&v[i], 1.0, 2.0, want);
        for (size_t k = 0; k < 2; ++k)
          CHECK(std::fabs(y[i + k] - want[k]) <= 4e-6, "%s normal %zu %g want %g", name_of(isa), i + k,
                static_cast<double>(y[i + k]), want[k]);
      }
    }
    for (uint64_t range : {uint64_t{1}, uint64_t{10}, uint64_t{1} << 32, (uint64_t{1} << 32) + 1, UINT64_MAX}) {
      std::vector<int64_t> y(n);
      kernels.integers[6](v.data(), -5, range, y.data(), n);
      for (size_t i = 0; i < n; ++i) {
        const int64_t want = ref::integer(&v[i * values_for(range)], -5, range);
        CHECK(y[i] == want, "%s %zu %lld", name_of(isa), i, static_cast<long long>(y[i]));
      }
    }
  }
  // The ends of the radius and every eighth turn.
  const uint32_t ends[] = {0, 0, 0xffffff00, 1, 5, 0x20000000, 5, 0x40000000, 5, 0x60000000, 5, 0x80000000,
                           5, 0xa0000000, 5, 0xc0000000, 5, 0xe0000000, 5, UINT32_MAX};
  float y[20];
  targets.best().normal(ends, 0.0f, 1.0f, y, 20);
  for (size_t i = 0; i < 20; i += 2) {
    double want[2];
    ref::normal(ends + i, 0.0, 1.0, want);
    for (size_t k = 0; k < 2; ++k)
      CHECK(std::fabs(y[i + k] - want[k]) <= 4e-6, "%zu %g want %g", i + k, static_cast<double>(y[i + k]), want[k]);
  }
}

// The same on every machine: a checksum (FNV-1a) of the bits, recorded on x86-64.
TEST(random_numbers_have_recorded_bits) {
  const Generator generator(20);
  std::vector<float> y(4001);
  auto to = array_of(BNNSDataLayoutVector, {4001}, y.data());
  uint32_t sum = 2166136261u;
  const auto add = [&] {
    for (float v : y) {
      uint32_t bits;
      std::memcpy(&bits, &v, sizeof bits);
      for (int k = 0; k < 4; ++k) sum = (sum ^ (bits >> 8 * k & 0xff)) * 16777619u;
    }
  };
  CHECK(BNNSRandomFillUniformFloat(generator.handle, &to, -0.3f, 1.7f) == 0, "%s", obn_last_error());
  add();
  CHECK(sum == 0xdc81d62eu, "uniform 0x%08x", sum);
  CHECK(BNNSRandomFillNormalFloat(generator.handle, &to, 0.1f, 0.7f) == 0, "%s", obn_last_error());
  add();
  CHECK(sum == 0x96379d87u, "normal 0x%08x", sum);
}

TEST(random_fills_respect_strides_types_and_threads) {
  const size_t before = obn_get_num_threads();
  const BNNSDataType types[] = {BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16, BNNSDataTypeInt8,
                                BNNSDataTypeUInt16, BNNSDataTypeInt32, BNNSDataTypeUInt64};
  for (BNNSDataType type : types) {
    const size_t bytes = bytes_of(type), rows = 37, columns = 1111, pitch = 3 * columns + 5;
    std::vector<std::byte> packed(rows * columns * bytes), spread(rows * pitch * bytes, std::byte{0x55});
    auto to = array_of(BNNSDataLayout2DFirstMajor, {rows, columns}, packed.data(), type);
    auto wide = to;
    wide.data = spread.data();
    wide.stride[0] = 3;
    wide.stride[1] = pitch;
    for (bool second : {false, true}) {
      for (size_t threads : {1, 3}) {
        obn_set_num_threads(threads);
        const auto fill = [&](BNNSNDArrayDescriptor* y) {
          const Generator generator(9);
          if (!is_float(type)) return BNNSRandomFillUniformInt(generator.handle, y, second ? -100 : 3, 90);
          return second ? BNNSRandomFillNormalFloat(generator.handle, y, 0.5f, 2.0f)
                        : BNNSRandomFillUniformFloat(generator.handle, y, -1.0f, 0.5f);
        };
        CHECK(fill(threads == 1 ? &to : &wide) == 0, "%s", obn_last_error());
      }
      size_t other = 0;
      for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j)
          other += std::memcmp(&packed[(i * columns + j) * bytes], &spread[(i * pitch + 3 * j) * bytes], bytes) != 0;
      CHECK(other == 0, "%s: %zu values differ", obn::name_of(type), other);
      CHECK(spread[bytes] == std::byte{0x55}, "a gap was written");
    }
  }
  obn_set_num_threads(before);
}

TEST(random_numbers_are_distributed_as_asked) {
  const Generator generator(2024);
  const size_t n = 200001;
  std::vector<float> y(n);
  auto to = array_of(BNNSDataLayoutVector, {n}, y.data());
  const auto moments = [&](double* mean, double* deviation) {
    double sum = 0, squares = 0;
    for (float v : y) sum += v;
    *mean = sum / n;
    for (float v : y) squares += (v - *mean) * (v - *mean);
    *deviation = std::sqrt(squares / n);
  };
  double mean, deviation;
  CHECK(BNNSRandomFillNormalFloat(generator.handle, &to, 3.0f, 0.5f) == 0, "%s", obn_last_error());
  moments(&mean, &deviation);
  CHECK(std::fabs(mean - 3.0) < 0.006 && std::fabs(deviation - 0.5) < 0.005, "%g %g", mean, deviation);
  const double below = static_cast<double>(std::count_if(y.begin(), y.end(), [](float v) { return v < 2.5f; }));
  CHECK(std::fabs(below / n - 0.158655) < 0.004, "%g", below / n);
  CHECK(BNNSRandomFillUniformFloat(generator.handle, &to, -1.0f, 1.0f) == 0, "%s", obn_last_error());
  moments(&mean, &deviation);
  CHECK(std::fabs(mean) < 0.006 && std::fabs(deviation - std::sqrt(1.0 / 3)) < 0.005, "%g %g", mean, deviation);

  std::vector<int32_t> whole(256);
  auto ints = array_of(BNNSDataLayoutVector, {256}, whole.data(), BNNSDataTypeInt32);
  CHECK(BNNSRandomFillUniformInt(generator.handle, &ints, 10, 20) == 0, "%s", obn_last_error());
  CHECK(*std::min_element(whole.begin(), whole.end()) == 10 && *std::max_element(whole.begin(), whole.end()) == 19,
        "half open");
  std::vector<uint8_t> small(5000);
  auto bytes = array_of(BNNSDataLayoutVector, {5000}, small.data(), BNNSDataTypeUInt8);
  CHECK(BNNSRandomFillUniformInt(generator.handle, &bytes, -1000, 1000) == 0, "%s", obn_last_error());
  CHECK(*std::min_element(small.begin(), small.end()) == 0 && *std::max_element(small.begin(), small.end()) == 255,
        "capped to the type");
  std::vector<uint16_t> halves(3000);
  auto narrow = array_of(BNNSDataLayoutVector, {3000}, halves.data(), BNNSDataTypeFloat16);
  CHECK(BNNSRandomFillNormalFloat(generator.handle, &narrow, 0.0f, 60000.0f) == 0, "%s", obn_last_error());
  for (uint16_t v : halves) CHECK((v & 0x7fff) < 0x7c00, "0x%04x is not finite", v);

  const float inf = std::numeric_limits<float>::infinity();
  CHECK(BNNSRandomFillUniformFloat(generator.handle, &to, -inf, inf) == 0, "%s", obn_last_error());
  for (float v : y) CHECK(std::isfinite(v), "%g", static_cast<double>(v));
  CHECK(*std::max_element(y.begin(), y.end()) > 3e38f && *std::min_element(y.begin(), y.end()) < -3e38f, "spread");
}

TEST(random_state_replays) {
  const Generator a(1), b(77);
  std::vector<float> y(33), again(33);
  auto to = array_of(BNNSDataLayoutVector, {33}, y.data());
  CHECK(BNNSRandomFillUniformFloat(a.handle, &to, 0, 1) == 0, "%s", obn_last_error());
  const size_t size = BNNSRandomGeneratorStateSize(a.handle);
  CHECK(size == 40, "%zu", size);
  unsigned char state[40];
  CHECK(BNNSRandomGeneratorGetState(a.handle, 40, state) == 0, "%s", obn_last_error());
  CHECK(BNNSRandomFillNormalFloat(a.handle, &to, 0, 1) == 0, "%s", obn_last_error());
  auto other = array_of(BNNSDataLayoutVector, {33}, again.data());
  CHECK(BNNSRandomGeneratorSetState(b.handle, 40, state) == 0, "%s", obn_last_error());
  CHECK(BNNSRandomFillNormalFloat(b.handle, &other, 0, 1) == 0, "%s", obn_last_error());
  CHECK(y == again, "the restored generator goes on differently");

  CHECK(BNNSRandomGeneratorGetState(a.handle, 39, state) != 0 &&
            failed_with("state: expected room for 40 bytes; got 39"),
        "%s", obn_last_error());
  CHECK(BNNSRandomGeneratorSetState(a.handle, 39, state) != 0 && failed_with("state: expected 40 bytes"), "%s",
        obn_last_error());
  state[32] = 9;
  CHECK(BNNSRandomGeneratorSetState(a.handle, 40, state) != 0 && failed_with("state: expected bytes that"), "%s",
        obn_last_error());
  CHECK(BNNSRandomGeneratorStateSize(nullptr) == 0, "NULL");
}

TEST(random_generators_without_a_seed_differ) {
  BNNSRandomGenerator a = BNNSCreateRandomGenerator(BNNSRandomGeneratorMethodAES_CTR, nullptr);
  BNNSRandomGenerator b = BNNSCreateRandomGenerator(BNNSRandomGeneratorMethodAES_CTR, nullptr);
  unsigned char x[40], y[40];
  CHECK(BNNSRandomGeneratorGetState(a, 40, x) == 0 && BNNSRandomGeneratorGetState(b, 40, y) == 0, "%s",
        obn_last_error());
  CHECK(std::memcmp(x, y, 40) != 0, "two seeds agree");
  BNNSDestroyRandomGenerator(a);
  BNNSDestroyRandomGenerator(b);
  BNNSDestroyRandomGenerator(nullptr);
  CHECK(BNNSRandomGeneratorGetState(a, 40, x) != 0, "destroyed");
}

TEST(random_categories_match_ref) {
  const size_t before = obn_get_num_threads();
  for (BNNSDataLayout layout : {BNNSDataLayout2DFirstMajor, BNNSDataLayout2DLastMajor}) {
    for (bool log : {false, true}) {
      const size_t rows = 5, categories = 7, draws = 20000;
      const bool is_last = layout == BNNSDataLayout2DLastMajor;
      std::vector<float> p(rows * categories), y(rows * draws);
      test::Random random(3);
      for (float& v : p) v = random.below(4) == 0 ? 0.0f : static_cast<float>(random.between(1, 9));
      p[0] = p[1] = 1.0f;
      for (size_t r = 0; r < rows; ++r) p[is_last ? r + rows * 3 : r * categories + 3] = 2.0f;
      std::vector<double> weights(p.begin(), p.end());
      if (log)
        for (float& v : p) v = std::log(v) + 5.0f;
      auto from = array_of(layout, {rows, categories}, p.data());
      auto to = array_of(layout, {rows, draws}, y.data());
      for (size_t threads : {1, 4}) {
        obn_set_num_threads(threads);
        const Generator generator(11);
        CHECK(BNNSRandomFillCategoricalFloat(generator.handle, &to, &from, log) == 0, "%s", obn_last_error());
        const auto v = stream_of(11, 0, rows * draws);
        size_t other = 0;
        for (size_t r = 0; r < rows; ++r) {
          double row[7];
          for (size_t k = 0; k < categories; ++k) row[k] = weights[is_last ? r + rows * k : r * categories + k];
          for (size_t i = 0; i < draws; ++i) {
            const size_t at = is_last ? r + rows * i : r * draws + i;
            other += y[at] != static_cast<float>(ref::category(v[at], row, categories));
          }
        }
        CHECK(other <= (log ? 1u : 0u), "%zu draws differ", other);  // rounded logarithms may move a border
      }
    }
  }
  obn_set_num_threads(before);
}

TEST(random_refuses_before_it_writes) {
  const Generator generator(1);
  std::vector<float> y(6, 5.0f), p(6, 1.0f);
  auto to = array_of(BNNSDataLayoutVector, {6}, y.data()), from = array_of(BNNSDataLayoutVector, {6}, p.data());
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  unsigned char before[40], after[40];
  BNNSRandomGeneratorGetState(generator.handle, 40, before);
  const auto refused = [&](int status, const char* start) {
    CHECK(status != 0 && failed_with(start), "%s: %s", start, obn_last_error());
  };
  refused(BNNSRandomFillUniformFloat(generator.handle, &to, 1, 0), "low: expected at most high, 0; got 1");
  refused(BNNSRandomFillUniformFloat(generator.handle, &to, nan, 0), "low: expected a number");
  refused(BNNSRandomFillUniformFloat(generator.handle, nullptr, 0, 1), "out: expected a descriptor");
  refused(BNNSRandomFillUniformFloat(nullptr, &to, 0, 1), "");
  refused(BNNSRandomFillNormalFloat(generator.handle, &to, inf, 1), "mean: expected a finite number");
  refused(BNNSRandomFillNormalFloat(generator.handle, &to, 0, -1), "std: expected a finite number of at least 0");
  refused(BNNSRandomFillUniformInt(generator.handle, &to, 0, 5), "out: expected an integer type");
  to.data_type = BNNSDataTypeFloat16;
  refused(BNNSRandomFillUniformFloat(generator.handle, &to, 0.1f, 1), "low: expected a number that float16 can hold");
  to.data_type = BNNSDataTypeInt32;
  refused(BNNSRandomFillUniformInt(generator.handle, &to, 5, 5), "low: expected less than high");
  refused(BNNSRandomFillUniformFloat(generator.handle, &to, 0, 1), "out: expected a float type; got int32");
  to.data_type = BNNSDataTypeFloat32;
  refused(BNNSRandomFillCategoricalFloat(generator.handle, &to, nullptr, false), "probabilities: expected a desc");
  p[2] = -1.0f;
  refused(BNNSRandomFillCategoricalFloat(generator.handle, &to, &from, false), "probabilities: expected rows");
  p.assign(6, 0.0f);
  refused(BNNSRandomFillCategoricalFloat(generator.handle, &to, &from, false), "probabilities: expected rows");
  p.assign(6, -inf);
  refused(BNNSRandomFillCategoricalFloat(generator.handle, &to, &from, true), "probabilities: expected rows");
  p[0] = nan;
  p[1] = 0.0f;
  refused(BNNSRandomFillCategoricalFloat(generator.handle, &to, &from, true), "probabilities: expected rows");
  from.data_type = BNNSDataTypeFloat16;
  refused(BNNSRandomFillCategoricalFloat(generator.handle, &to, &from, false), "probabilities: expected float32");
  CHECK(std::count(y.begin(), y.end(), 5.0f) == 6, "something was written");
  BNNSRandomGeneratorGetState(generator.handle, 40, after);
  CHECK(std::memcmp(before, after, 40) == 0, "the generator moved");
  CHECK(!BNNSCreateRandomGeneratorWithSeed(static_cast<BNNSRandomGeneratorMethod>(1), 0, nullptr) &&
            failed_with("method: expected"),
        "%s", obn_last_error());
  p.assign(6, 0.0f);
  p[2] = 3.0f;
  from.data_type = BNNSDataTypeFloat32;
  CHECK(BNNSRandomFillCategoricalFloat(generator.handle, &to, &from, false) == 0, "%s", obn_last_error());
  CHECK(std::count(y.begin(), y.end(), 2.0f) == 6, "all the mass is on category 2");
}
