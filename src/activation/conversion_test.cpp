// Conversions between all data types: an activation layer that computes the identity.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/test.h"
#include "base/types.h"

using namespace obn;

namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kNan = __builtin_nanf("");

// Converts (n) values; data types and scales as in the descriptors.
int convert(BNNSNDArrayDescriptor x, BNNSNDArrayDescriptor y) {
  BNNSLayerParametersActivation p = {};
  p.i_desc = x;
  p.o_desc = y;
  p.activation.function = BNNSActivationFunctionIdentity;
  return BNNSDirectApplyActivationBatch(&p, nullptr, 1, 0, 0);
}

}  // namespace

TEST(conversion_of_every_half) {
  for (BNNSDataType type : {BNNSDataTypeFloat16, BNNSDataTypeBFloat16}) {
    const bool brain = type == BNNSDataTypeBFloat16;
    std::vector<uint16_t> half(65536), back(65536);
    std::vector<float> wide(65536);
    for (size_t i = 0; i < 65536; ++i) half[i] = static_cast<uint16_t>(i);
    CHECK(convert(vector_of(65536, type, half.data()), vector_of(65536, BNNSDataTypeFloat32, wide.data())) == 0, "%s",
          obn_last_error());
    CHECK(convert(vector_of(65536, BNNSDataTypeFloat32, wide.data()), vector_of(65536, type, back.data())) == 0, "%s",
          obn_last_error());
    for (size_t i = 0; i < 65536; ++i) {
      float want = brain ? float_of_bfloat16(half[i]) : float_of_float16(half[i]);
      CHECK(wide[i] == want || (std::isnan(wide[i]) && std::isnan(want)), "%s 0x%zx gave %g", name_of(type), i,
            wide[i]);
      CHECK(back[i] == half[i] || std::isnan(want), "%s 0x%zx came back as 0x%x", name_of(type), i, back[i]);
    }
    // Midway between neighbours: to the even one.
    for (size_t i = 0; i + 1 < 0x7c00; ++i)
      wide[i] = brain ? std::bit_cast<float>(static_cast<uint32_t>(i << 16 | 0x8000))
                      : (float_of_float16(half[i]) + float_of_float16(half[i + 1])) / 2;
    CHECK(convert(vector_of(0x7bff, BNNSDataTypeFloat32, wide.data()), vector_of(0x7bff, type, back.data())) == 0, "%s",
          obn_last_error());
    for (size_t i = 0; i < 0x7bff; ++i)
      CHECK(back[i] == i + (i & 1), "%s: midway above 0x%zx became 0x%x", name_of(type), i, back[i]);
  }
}

TEST(conversion_of_every_16_bit_integer) {
  for (BNNSDataType type : {BNNSDataTypeInt16, BNNSDataTypeUInt16}) {
    std::vector<uint16_t> stored(65536), back(65536);
    std::vector<float> real(65536);
    for (size_t i = 0; i < 65536; ++i) stored[i] = static_cast<uint16_t>(i);
    BNNSNDArrayDescriptor from = vector_of(65536, type, stored.data()), to = vector_of(65536, type, back.data());
    from.data_scale = to.data_scale = 0.5f;
    from.data_bias = 3.0f;
    CHECK(convert(from, vector_of(65536, BNNSDataTypeFloat32, real.data())) == 0, "%s", obn_last_error());
    CHECK(convert(vector_of(65536, BNNSDataTypeFloat32, real.data()), to) == 0, "%s", obn_last_error());
    for (size_t i = 0; i < 65536; ++i) {
      int value = type == BNNSDataTypeInt16 ? static_cast<int16_t>(i) : static_cast<int>(i);
      CHECK(real[i] == 0.5f * static_cast<float>(value) + 3.0f, "%s %d gave %g", name_of(type), value, real[i]);
      // real/scale - bias = value + 6 - 0, saturated
      int want = std::min(value + 6, type == BNNSDataTypeInt16 ? 32767 : 65535);
      CHECK(back[i] == static_cast<uint16_t>(want), "%s %d came back as %d", name_of(type), value, back[i]);
    }
  }
}

TEST(conversion_float_to_integer_rounds_and_saturates) {
  float x[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 1e20f, -1e20f, kInfinity, -kInfinity, kNan, 126.6f};
  const size_t n = std::size(x);
  int8_t want8[] = {0, 2, 2, 0, -2, -2, 127, -128, 127, -128, 0, 127};
  int8_t got8[n];
  CHECK(convert(vector_of(n, BNNSDataTypeFloat32, x), vector_of(n, BNNSDataTypeInt8, got8)) == 0, "%s",
        obn_last_error());
  CHECK(std::memcmp(want8, got8, n) == 0, "int8");
  uint32_t want32[] = {0, 2, 2, 0, 0, 0, UINT32_MAX, 0, UINT32_MAX, 0, 0, 127};
  uint32_t got32[n];
  CHECK(convert(vector_of(n, BNNSDataTypeFloat32, x), vector_of(n, BNNSDataTypeUInt32, got32)) == 0, "%s",
        obn_last_error());
  CHECK(std::memcmp(want32, got32, sizeof want32) == 0, "uint32");
  int64_t want64[] = {0, 2, 2, 0, -2, -2, INT64_MAX, INT64_MIN, INT64_MAX, INT64_MIN, 0, 127};
  int64_t got64[n];
  CHECK(convert(vector_of(n, BNNSDataTypeFloat32, x), vector_of(n, BNNSDataTypeInt64, got64)) == 0, "%s",
        obn_last_error());
  CHECK(std::memcmp(want64, got64, sizeof want64) == 0, "int64");
  // X = round(Y / scale - bias), as written: not the inverse of scale·X + bias.
  float four = 4.0f;
  int8_t stored;
  BNNSNDArrayDescriptor to = vector_of(1, BNNSDataTypeInt8, &stored);
  to.data_scale = 2.0f;
  to.data_bias = 1.0f;
  CHECK(convert(vector_of(1, BNNSDataTypeFloat32, &four), to) == 0 && stored == 1, "stored %d", stored);
}

TEST(conversion_64_bit_integers_are_exact) {
  int64_t x[] = {INT64_MAX, INT64_MIN, (int64_t{1} << 53) + 1, -7, 0};
  uint64_t u[5], back[5];
  CHECK(convert(vector_of(5, BNNSDataTypeInt64, x), vector_of(5, BNNSDataTypeUInt64, u)) == 0, "%s", obn_last_error());
  const uint64_t want[] = {static_cast<uint64_t>(INT64_MAX), 0, (uint64_t{1} << 53) + 1, 0, 0};
  CHECK(std::memcmp(u, want, sizeof want) == 0, "int64 to uint64");
  uint64_t big[] = {UINT64_MAX, uint64_t{1} << 63, 5};
  CHECK(convert(vector_of(3, BNNSDataTypeUInt64, big), vector_of(3, BNNSDataTypeUInt64, back)) == 0, "%s",
        obn_last_error());
  CHECK(std::memcmp(big, back, sizeof big) == 0, "uint64 to uint64");
  int64_t small[3];
  CHECK(convert(vector_of(3, BNNSDataTypeUInt64, big), vector_of(3, BNNSDataTypeInt64, small)) == 0, "%s",
        obn_last_error());
  CHECK(small[0] == INT64_MAX && small[1] == INT64_MAX && small[2] == 5, "uint64 to int64");
  // One rounding on the way to float32: 2^60 + 2^36 + 1 lies just above the middle of two floats.
  int64_t near_middle = (int64_t{1} << 60) + (int64_t{1} << 36) + 1;
  float rounded;
  CHECK(convert(vector_of(1, BNNSDataTypeInt64, &near_middle), vector_of(1, BNNSDataTypeFloat32, &rounded)) == 0, "%s",
        obn_last_error());
  CHECK(rounded == static_cast<float>(near_middle), "%.9g", rounded);
  int16_t narrow[5];
  CHECK(convert(vector_of(5, BNNSDataTypeInt64, x), vector_of(5, BNNSDataTypeInt16, narrow)) == 0, "%s",
        obn_last_error());
  CHECK(narrow[0] == 32767 && narrow[1] == -32768 && narrow[2] == 32767 && narrow[3] == -7, "int64 to int16");
}

TEST(conversion_packed_types_are_little_endian_bits) {
  struct Packed {
    BNNSDataType type;
    std::vector<float> values;
    std::vector<uint8_t> bytes;
  };
  const Packed cases[] = {
      {BNNSDataTypeUInt1, {1, 0, 0, 0, 0, 0, 0, 1, 1}, {0x81, 0x01}},
      {BNNSDataTypeInt1, {-1, 0, 0, -1}, {0x09}},
      {BNNSDataTypeUInt2, {1, 2, 3, 0, 2}, {0x39, 0x02}},
      {BNNSDataTypeInt2, {1, -2, -1, 0}, {0x39}},
      {BNNSDataTypeUInt3, {1, 2, 7, 4, 5}, {0xd1, 0x59}},  // 001, 010, 111, 100, 101 from the low end
      {BNNSDataTypeUInt4, {1, 15, 8}, {0xf1, 0x08}},
      {BNNSDataTypeInt4, {1, -1, -8}, {0xf1, 0x08}},
      {BNNSDataTypeUInt6, {63, 1, 32, 2}, {0x7f, 0x00, 0x0a}},
  };
  for (const Packed& c : cases) {
    std::vector<uint8_t> bytes(c.bytes.size());
    std::vector<float> values(c.values.size());
    const size_t n = values.size();
    CHECK(convert(vector_of(n, BNNSDataTypeFloat32, const_cast<float*>(c.values.data())),
                  vector_of(n, c.type, bytes.data())) == 0, "%s", obn_last_error());
    CHECK(bytes == c.bytes, "%s: 0x%02x …", name_of(c.type), bytes[0]);
    CHECK(convert(vector_of(n, c.type, bytes.data()), vector_of(n, BNNSDataTypeFloat32, values.data())) == 0, "%s",
          obn_last_error());
    CHECK(values == c.values, "%s came back as %g, %g, …", name_of(c.type), values[0], values[1]);
  }
  // Bits behind the last value stay.
  uint8_t byte = 0xff;
  float one = 1.0f;
  CHECK(convert(vector_of(1, BNNSDataTypeFloat32, &one), vector_of(1, BNNSDataTypeUInt4, &byte)) == 0 && byte == 0xf1,
        "0x%02x", byte);
  float big[] = {100.0f, -100.0f};
  CHECK(convert(vector_of(2, BNNSDataTypeFloat32, big), vector_of(2, BNNSDataTypeInt4, &byte)) == 0 && byte == 0x87,
        "0x%02x", byte);
}

TEST(conversion_every_pair_of_types_keeps_small_numbers) {
  constexpr BNNSDataType kAll[] = {
      BNNSDataTypeFloat32, BNNSDataTypeFloat16, BNNSDataTypeBFloat16, BNNSDataTypeInt2,  BNNSDataTypeInt4,
      BNNSDataTypeInt8,    BNNSDataTypeInt16,   BNNSDataTypeInt32,    BNNSDataTypeInt64, BNNSDataTypeUInt1,
      BNNSDataTypeUInt2,   BNNSDataTypeUInt3,   BNNSDataTypeUInt4,    BNNSDataTypeUInt6, BNNSDataTypeUInt8,
      BNNSDataTypeUInt16,  BNNSDataTypeUInt32,  BNNSDataTypeUInt64,   BNNSDataTypeBoolean};
  float bits[1200], back[1200];
  for (size_t i = 0; i < 1200; ++i) bits[i] = static_cast<float>(i * i / 7 % 2);
  for (BNNSDataType a : kAll) {
    for (BNNSDataType b : kAll) {
      alignas(8) uint8_t first[1200 * 8] = {}, second[1200 * 8] = {};
      CHECK(convert(vector_of(1200, BNNSDataTypeFloat32, bits), vector_of(1200, a, first)) == 0 &&
                convert(vector_of(1200, a, first), vector_of(1200, b, second)) == 0 &&
                convert(vector_of(1200, b, second), vector_of(1200, BNNSDataTypeFloat32, back)) == 0,
            "%s to %s: %s", name_of(a), name_of(b), obn_last_error());
      CHECK(std::memcmp(bits, back, sizeof bits) == 0, "%s to %s changed 0 or 1", name_of(a), name_of(b));
    }
  }
}

TEST(conversion_indexed_types_read_their_table) {
  float floats[256];
  int64_t wholes[4] = {INT64_MAX, -1, 7, 0};
  for (size_t i = 0; i < 256; ++i) floats[i] = static_cast<float>(i) * 0.25f;
  uint8_t bytes[] = {0, 255, 17};
  BNNSNDArrayDescriptor x = vector_of(3, BNNSDataTypeIndexed8, bytes);
  x.table_data = floats;
  x.table_data_type = BNNSDataTypeFloat32;
  x.data_scale = 100.0f;  // ignored
  float y[4];
  CHECK(convert(x, vector_of(3, BNNSDataTypeFloat32, y)) == 0, "%s", obn_last_error());
  CHECK(y[0] == 0.0f && y[1] == 63.75f && y[2] == 4.25f, "%g %g %g", y[0], y[1], y[2]);
  uint8_t packed = 0b11100100;  // 0, 1, 2, 3
  x = vector_of(4, BNNSDataTypeIndexed2, &packed);
  x.table_data = wholes;
  x.table_data_type = BNNSDataTypeInt64;
  int64_t z[4];
  CHECK(convert(x, vector_of(4, BNNSDataTypeInt64, z)) == 0, "%s", obn_last_error());
  CHECK(std::memcmp(z, wholes, sizeof z) == 0, "table of int64");
  CHECK(convert(vector_of(4, BNNSDataTypeFloat32, y), x) == -1 && failed_with("output: expected"), "%s",
        obn_last_error());
}

TEST(conversion_booleans_are_zero_or_one) {
  uint8_t x[] = {0, 1, 2, 255}, y[4];
  float f[] = {0.0f, -0.0f, 0.25f, kNan};
  CHECK(convert(vector_of(4, BNNSDataTypeBoolean, x), vector_of(4, BNNSDataTypeUInt8, y)) == 0, "%s", obn_last_error());
  CHECK(y[0] == 0 && y[1] == 1 && y[2] == 1 && y[3] == 1, "boolean to uint8");
  CHECK(convert(vector_of(4, BNNSDataTypeFloat32, f), vector_of(4, BNNSDataTypeBoolean, y)) == 0, "%s",
        obn_last_error());
  CHECK(y[0] == 0 && y[1] == 0 && y[2] == 1 && y[3] == 1, "float32 to boolean");
}
