// The packed way over pairs of bfloat16 with AVX512_BF16, whose one instruction adds two products to a float32 in every
// lane. Of a pair it adds the product of the upper halves first; each sum is fused and rounded to nearest. Operands and
// sums below the smallest normal float32 count as 0.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/integer.h"
#include "base/interrupt.h"
#include "gemm/gemm_blocks.h"
#include "gemm/gemm_pairs.h"

namespace obn::OBN_TARGET::gemm {
namespace {

using obn::gemm::Steps;
using obn::gemm::is_paired_a_in_place;

struct PairStep : WordsOfB {
  OBN_INLINE F spread(const float* a) {
    int32_t word;
    std::memcpy(&word, a, sizeof word);
    return from_bits(splat(word));
  }
  OBN_INLINE F add(F sum, F x, F w) {
    return reinterpret_cast<F>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(x),
                                                reinterpret_cast<__m512bh>(w)));
  }
};

void pack_a(const Product& p, size_t row, size_t rows, size_t first, size_t depth, size_t part, size_t parts,
            float* to) {
  const Panels panels(rows);
  const size_t end = panels.count * (part + 1) / parts;
  for (size_t r = panels.count * part / parts; r < end; ++r) {
    const size_t height = panels.rows_of(r), i = panels.row_of(r);
    pack_by_step(rows_of_a(p, row + i, height), height, first, depth, to + i * depth);
  }
}

// Words of n <= kTileColumns columns from two rows of bfloat16; without `high` its values are 0.
OBN_INLINE void pair_rows(const uint16_t* low, const uint16_t* high, size_t n, float* to) {
  alignas(64) static constexpr uint16_t kOrder[] = {
      0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
      11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
      22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  const __mmask32 mask = n == kTileColumns ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
  const __m512i x = _mm512_maskz_loadu_epi16(mask, low);
  const __m512i y = high ? _mm512_maskz_loadu_epi16(mask, high) : _mm512_setzero_si512();
  _mm512_storeu_si512(to, _mm512_permutex2var_epi16(x, _mm512_load_si512(kOrder), y));
  _mm512_storeu_si512(to + kLanes, _mm512_permutex2var_epi16(x, _mm512_load_si512(kOrder + 2 * kLanes), y));
}

void pack_b(const Product& p, size_t column, size_t columns, size_t first, size_t depth, float* to) {
  if (p.b.type != BNNSDataTypeBFloat16 || p.b.column != 1)
    return pack_by_step(columns_of_b(p, column, columns), kTileColumns, first, depth, to);
  constexpr size_t kAhead = 32;  // rows, which are often pages apart: the machine does not foresee them
  const auto* from = static_cast<const uint16_t*>(p.b.data) + 2 * first * p.b.row + column;
  const size_t whole = least(depth, p.k / 2 - first);
  for (size_t q = 0; q < whole; ++q, from += 2 * p.b.row, to += kTileColumns) {
    prefetch_l1(from + kAhead * p.b.row);
    prefetch_l1(from + (kAhead + 1) * p.b.row);
    pair_rows(from, from + p.b.row, columns, to);
  }
  if (whole < depth) pair_rows(from, nullptr, columns, to);
}

const float* words_of_row(const Operand& o, size_t row, size_t first) {
  return reinterpret_cast<const float*>(static_cast<const uint16_t*>(o.data) + row * o.row + 2 * first);
}

// What the tile of row panel r fetches for the columns to come, where rows of b are runs: the second panel the even
// ones, one per step, the third the odd ones.
const float* next_of_b(const Product& p, size_t column, size_t first, size_t r) {
  if (p.b.type != BNNSDataTypeBFloat16 || p.b.column != 1 || r == 0 || r > 2) return nullptr;
  return words_of_row(p.b, 2 * first + r - 1, 0) + column / 2;
}

void packed(const Product& p, const Block& block, const float* packed_a, const float* packed_b, float* work) {
  const Steps steps(p.k, 2, 1);
  const size_t width = round_up(p.n, kTileColumns), end = block.column + block.columns;
  const size_t group = columns_at_once(p, block, kTileColumns);
  const Panels panels(block.rows);
  float* own_b = work;
  const bool in_place = !packed_a && is_paired_a_in_place(p, block.columns);
  float* own_a = packed_a || in_place ? nullptr : work + steps.depth * kTileColumns;
  const TileHeights& tiles = in_place ? tiles_of<false, false, PairStep> : tiles_of<true, false, PairStep>;
  Tile t;
  t.a_row = in_place ? p.a.row / 2 : 1;
  t.a_step = 1;
  t.b_step = kTileColumns;
  for (size_t first = 0; first < steps.all && !is_interrupted(); first += steps.depth) {
    t.k = least(steps.depth, steps.all - first);
    if (own_a) pack_a(p, block.row, block.rows, first, t.k, 0, 1, own_a);
    const float* a = packed_a ? packed_a + first * block.rows : own_a;
    for (size_t from = block.column; from < end; from += group) {
      const size_t to = least(end, from + group);
      for (size_t j = from; j < to; j += kTileColumns) {
        const size_t columns = least(kTileColumns, end - j);
        t.b = packed_b ? packed_b + first * width + j * t.k : own_b;
        if (!packed_b) pack_b(p, j, columns, first, t.k, own_b);
        for (size_t r = 0, i = 0; r < panels.count; i += panels.rows_of(r++)) {
          begin(p, block.row + i, j, columns, first == 0, &t);
          t.ahead = !packed_b && j + kTileColumns < end ? next_of_b(p, j + kTileColumns, first, r) : nullptr;
          t.ahead_step = t.ahead ? p.b.row : 0;
          t.a = in_place ? words_of_row(p.a, block.row + i, first) : a + i * t.k;
          tiles.of[panels.rows_of(r)](t, nullptr);
        }
      }
      if (first + t.k == steps.all) activate(p, block.row, block.rows, from, to - from);
    }
  }
}

}  // namespace

extern const obn::gemm::Packing pairs;
const obn::gemm::Packing pairs = {kTileRows, kTileColumns, 2, 1, 1, 0, pack_a, pack_b, packed};

}  // namespace obn::OBN_TARGET::gemm
