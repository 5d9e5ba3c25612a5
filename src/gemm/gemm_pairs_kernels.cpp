// The packed way over pairs of bfloat16 with AVX512_BF16, whose one instruction adds two products to a float32 in every
// lane. Of a pair it adds the product of the upper halves first; each sum is fused and rounded to nearest. Operands and
// sums below the smallest normal float32 count as 0.
#include "gemm/gemm_blocks.h"
#include "gemm/gemm_pairs.h"

namespace obn::OBN_TARGET::gemm {
namespace {

using obn::gemm::Steps;

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

template <size_t kRows>
void multiply_pairs(const Tile& t) {
  if (t.columns == kTileColumns) return multiply_rows<kRows, 2, true, true, false, PairStep>(t, nullptr);
  if (t.columns > kLanes) return multiply_rows<kRows, 2, true, false, false, PairStep>(t, nullptr);
  multiply_rows<kRows, 1, true, false, false, PairStep>(t, nullptr);
}

constexpr MultiplyTile multiply[kTileRows + 1] = {
    nullptr,            multiply_pairs<1>,  multiply_pairs<2>,  multiply_pairs<3>,  multiply_pairs<4>,
    multiply_pairs<5>,  multiply_pairs<6>,  multiply_pairs<7>,  multiply_pairs<8>,  multiply_pairs<9>,
    multiply_pairs<10>, multiply_pairs<11>, multiply_pairs<12>, multiply_pairs<13>, multiply_pairs<14>};

void pack_a(const Product& p, size_t row, size_t rows, size_t first, size_t depth, size_t part, size_t parts,
            float* to) {
  const Panels panels(rows);
  const size_t end = panels.count * (part + 1) / parts;
  for (size_t r = panels.count * part / parts; r < end; ++r) {
    const size_t height = panels.rows_of(r), i = panels.row_of(r);
    pack_by_step(rows_of_a(p, row + i, height), height, first, depth, to + i * depth);
  }
}

void pack_b(const Product& p, size_t column, size_t columns, size_t first, size_t depth, float* to) {
  pack_by_step(columns_of_b(p, column, columns), kTileColumns, first, depth, to);
}

void packed(const Product& p, const Block& block, const float* packed_a, const float* packed_b, float* work) {
  const Steps steps(p.k, 2, 1);
  const size_t width = (p.n + kTileColumns - 1) / kTileColumns * kTileColumns, end = block.column + block.columns;
  const size_t group = columns_at_once(p, block, kTileColumns);
  const Panels panels(block.rows);
  float* own_b = work;
  float* own_a = packed_a ? nullptr : work + steps.depth * kTileColumns;
  Tile t;
  t.a_row = 1;
  t.b_step = kTileColumns;
  for (size_t first = 0; first < steps.all; first += steps.depth) {
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
          t.a = a + i * t.k;
          t.a_step = panels.rows_of(r);
          multiply[panels.rows_of(r)](t);
        }
      }
      if (first + t.k == steps.all) activate(p, block.row, block.rows, from, to - from);
    }
  }
}

}  // namespace

extern const obn::gemm::Packing pairs;
const obn::gemm::Packing pairs = {kTileRows, kTileColumns, 2, 1, 1, pack_a, pack_b, packed};

}  // namespace obn::OBN_TARGET::gemm
