// The loops of the matrix engine, once per instruction set. Letters as in gemm.h; p counts steps of k.
#include "gemm/gemm_kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/integer.h"
#include "base/interrupt.h"
#include "base/memory.h"
#include "gemm/gemm_blocks.h"
#include "simd/convert.h"
#include "simd/tile.h"

namespace obn::OBN_TARGET {

// ---- the register tile ----

namespace {

template <size_t kRows>
void multiply_some(const Tile& t) {
  const bool packed = is_packed(t, kRows);
  if (t.columns == kTileColumns) {
    if (packed) return multiply_rows<kRows, 2, true, true, false>(t, nullptr);
    return multiply_rows<kRows, 2, false, true, false>(t, nullptr);
  }
  if (t.columns > kLanes) {
    if (packed) return multiply_rows<kRows, 2, true, false, false>(t, nullptr);
    return multiply_rows<kRows, 2, false, false, false>(t, nullptr);
  }
  if (packed) return multiply_rows<kRows, 1, true, false, false>(t, nullptr);
  multiply_rows<kRows, 1, false, false, false>(t, nullptr);
}

}  // namespace

#if defined(__AVX512F__)
const MultiplyTile multiply_tile[kTileRows + 1] = {
    nullptr,           multiply_some<1>,  multiply_some<2>,  multiply_some<3>,  multiply_some<4>,
    multiply_some<5>,  multiply_some<6>,  multiply_some<7>,  multiply_some<8>,  multiply_some<9>,
    multiply_some<10>, multiply_some<11>, multiply_some<12>, multiply_some<13>, multiply_some<14>};
#elif defined(__AVX2__) || defined(__SSE2__)
const MultiplyTile multiply_tile[kTileRows + 1] = {
    nullptr,          multiply_some<1>, multiply_some<2>, multiply_some<3>,
    multiply_some<4>, multiply_some<5>, multiply_some<6>};
#else
const MultiplyTile multiply_tile[kTileRows + 1] = {
    nullptr,          multiply_some<1>,  multiply_some<2>,  multiply_some<3>, multiply_some<4>,
    multiply_some<5>, multiply_some<6>,  multiply_some<7>,  multiply_some<8>, multiply_some<9>,
    multiply_some<10>, multiply_some<11>, multiply_some<12>};
#endif

namespace gemm {
namespace {

using obn::gemm::even_part;
using obn::gemm::is_a_in_place;
using obn::gemm::is_b_in_place;
using obn::gemm::is_b_widened;
using obn::gemm::kDepth;
using obn::gemm::kDotDepth;
using obn::gemm::kRowStrip;

template <class Value>
OBN_INLINE const Value* values(const Operand& o, size_t i, size_t j) {
  return static_cast<const Value*>(o.data) + i * o.row + j * o.column;
}
OBN_INLINE const float* floats(const Operand& o, size_t i, size_t j) { return values<float>(o, i, j); }

// ---- packing ----

struct Float32 {
  using Value = float;
  OBN_INLINE float one(const float* p) { return *p; }
  OBN_INLINE F whole(const float* p) { return load(p); }
  OBN_INLINE F some(const float* p, size_t n) { return load_first(p, n); }
  OBN_INLINE void put(float* p, F v) { store(p, v); }
};

template <bool kBrain>
struct Half {
  using Value = uint16_t;
  OBN_INLINE float one(const uint16_t* p) { return kBrain ? float_of_bfloat16(*p) : float_of_float16(*p); }
  OBN_INLINE F whole(const uint16_t* p) { return kBrain ? load_bfloat16(p) : load_float16(p); }
  OBN_INLINE F some(const uint16_t* p, size_t n) {
    uint16_t lanes[kLanes];
    copy_first(p, n, lanes);
    return whole(lanes);
  }
  OBN_INLINE void put(uint16_t* p, F v) { kBrain ? store_bfloat16(p, v) : store_float16(p, v); }
};

#if defined(__F16C__) || defined(__AVX512F__) || defined(__ARM_NEON)
constexpr bool kConvertsFast = true;  // float16
#else
constexpr bool kConvertsFast = false;  // once is enough
#endif

template <class Type>
OBN_INLINE F up_to(const typename Type::Value* p, size_t n) {
  return n >= kLanes ? Type::whole(p) : Type::some(p, n);
}

OBN_INLINE void store_up_to(float* p, F v, size_t n) {
  if (n >= kLanes) return store(p, v);
  store_first(p, v, n);
}

// An operand as a panel sees it: lines (rows of a, columns of b) across, k down.
struct Source {
  const Operand& operand;
  size_t offset;  // of line 0, step 0
  size_t line;    // values from one line to the next
  size_t step;    // values from one step of k to the next
};

constexpr size_t kMostWidth = kTileRows > kTileColumns ? kTileRows : kTileColumns;
constexpr size_t kMostVectors = divide_up(kMostWidth, kLanes);

// kLanes steps of k at p, of the kLanes lines from the first one on, turned; 0 for lines and steps that are not there.
template <class Type>
OBN_INLINE void load_turned(const typename Type::Value* from, size_t line, size_t lines, size_t first, size_t p,
                            size_t steps, F (&v)[kLanes]) {
  for (size_t i = 0; i < kLanes; ++i)
    v[i] = first + i < lines ? up_to<Type>(from + (first + i) * line + p, steps) : F{};
  transpose(v);
}

// Rows of a panel that can be written as whole vectors without leaving it.
OBN_INLINE size_t loose_rows(size_t width, size_t depth) {
  const size_t vectors = divide_up(width, kLanes), last = divide_up(vectors * kLanes, width) - 1;
  return depth > last ? depth - last : 0;
}

// The same of 2 · kLanes steps, to whole rows of the panel: a cache line of half values is read by neighbouring loads.
template <class Type>
OBN_INLINE void pack_two_squares(const typename Type::Value* from, size_t line, size_t lines, size_t width, float* to) {
  F low[kLanes], high[kLanes];
#pragma GCC unroll 16
  for (size_t i = 0; i < kLanes; ++i) {
    low[i] = i < lines ? Type::whole(from + i * line) : F{};
    high[i] = i < lines ? Type::whole(from + i * line + kLanes) : F{};
  }
  transpose(low);
#pragma GCC unroll 16
  for (size_t q = 0; q < kLanes; ++q) store(to + q * width, low[q]);
  transpose(high);
#pragma GCC unroll 16
  for (size_t q = 0; q < kLanes; ++q) store(to + (kLanes + q) * width, high[q]);
}

// Runs along k. Lines are often a power of two apart and then throw each other out of the first-level cache: so every
// cache line is read by a single load, and where rows of the panel are whole vectors, one vector of lines is done after
// the other.
template <class Type>
OBN_INLINE void pack_turned(const typename Type::Value* from, size_t line, size_t lines, size_t width, size_t depth,
                            float* to) {
  const size_t vectors = divide_up(width, kLanes), at_once = width % kLanes == 0 ? 1 : vectors;
  const size_t loose = loose_rows(width, depth);
  const size_t offset = reinterpret_cast<uintptr_t>(from) / sizeof *from % kLanes;
  const size_t misaligned = line % kLanes == 0 && sizeof *from == 4 ? offset : 0;
  const bool in_twos = sizeof *from == 2 && at_once == 1;
  for (size_t g = 0; g < vectors; g += at_once) {
    for (size_t p = 0, steps = kLanes - misaligned; p < depth; p += steps, steps = kLanes) {
      if (in_twos && p + 2 * kLanes <= loose) {
        const size_t first = g * kLanes;
        pack_two_squares<Type>(from + first * line + p, line, lines > first ? lines - first : 0, width,
                               to + p * width + first);
        steps = 2 * kLanes;
        continue;
      }
      steps = least(steps, depth - p);
      F v[kMostVectors][kLanes];
      for (size_t i = 0; i < at_once; ++i)
        load_turned<Type>(from, line, lines, (g + i) * kLanes, p, steps, v[i]);
      if (p + steps <= loose) {
        for (size_t q = 0; q < steps; ++q)  // in order: what a row scribbles behind its end, the next one writes over
          for (size_t i = 0; i < at_once; ++i) store(to + (p + q) * width + (g + i) * kLanes, v[i][q]);
        continue;
      }
      for (size_t q = 0; q < steps; ++q)
        for (size_t i = 0; i < at_once; ++i)
          store_up_to(to + (p + q) * width + (g + i) * kLanes, v[i][q], width - (g + i) * kLanes);
    }
  }
}

// Runs along the lines. What lies a few steps of k ahead is fetched: no run is long enough for the hardware to follow.
constexpr size_t kStepsAhead = 24;
template <class Type>
OBN_INLINE void pack_straight(const typename Type::Value* from, size_t step, size_t lines, size_t width, size_t depth,
                              float* to) {
  const size_t vectors = divide_up(width, kLanes);
  const size_t reach = step >= vectors * kLanes ? depth - 1 : 0;  // steps whose memory can be read to whole vectors
  size_t p = 0;
  if (lines == width) {
    for (const size_t end = least(reach, loose_rows(width, depth)); p < end; ++p) {
      prefetch_l1(from + (p + kStepsAhead) * step);
      prefetch_l1(from + (p + kStepsAhead) * step + width - 1);
      for (size_t g = 0; g < vectors; ++g)
        store(to + p * width + g * kLanes, Type::whole(from + p * step + g * kLanes));
    }
  }
  for (; p < depth; ++p) {
    for (size_t g = 0; g < vectors; ++g) {
      const size_t first = g * kLanes;
      store_up_to(to + p * width + first, first < lines ? up_to<Type>(from + p * step + first, lines - first) : F{},
                  width - first);
    }
  }
}

template <class Type>
[[gnu::noinline]] void pack_as(const Source& s, size_t lines, size_t width, size_t depth, float* to) {
  const auto* from = static_cast<const typename Type::Value*>(s.operand.data) + s.offset;
  if (s.line == 1) return pack_straight<Type>(from, s.step, lines, width, depth, to);
  if (s.step == 1) return pack_turned<Type>(from, s.line, lines, width, depth, to);
  for (size_t p = 0; p < depth; ++p)
    for (size_t i = 0; i < width; ++i)
      to[p * width + i] = i < lines ? Type::one(from + i * s.line + p * s.step) : 0.0f;
}

// to[p · width + i] = value p of line i, 0 for lines that are not there.
void pack(const Source& s, size_t lines, size_t width, size_t depth, float* to) {
  if (s.operand.type == BNNSDataTypeFloat32) return pack_as<Float32>(s, lines, width, depth, to);
  if (s.operand.type == BNNSDataTypeBFloat16) return pack_as<Half<true>>(s, lines, width, depth, to);
  pack_as<Half<false>>(s, lines, width, depth, to);
}

void pack_a(const Product& product, size_t row, size_t rows, size_t first, size_t depth, size_t part, size_t parts,
            float* to) {
  const Operand& a = product.a;
  const Panels panels(rows);
  const size_t end = panels.count * (part + 1) / parts;
  for (size_t r = panels.count * part / parts; r < end; ++r) {
    const size_t height = panels.rows_of(r), i = panels.row_of(r);
    pack({a, (row + i) * a.row + first * a.column, a.row, a.column}, height, height, depth, to + i * depth);
  }
}

void pack_b(const Product& product, size_t column, size_t columns, size_t first, size_t depth, float* to) {
  const Operand& b = product.b;
  pack({b, first * b.row + column * b.column, b.column, b.row}, columns, kTileColumns, depth, to);
}

void widen(const Operand& o, size_t rows, size_t columns, float* to) {
  const auto* from = static_cast<const unsigned char*>(o.data);
  const size_t bytes = o.type == BNNSDataTypeFloat32 ? 4 : 2;
  if (o.column == 1 && o.row == columns) {
    columns *= rows;
    rows = 1;
  }
  for (size_t i = 0; i < rows; ++i) load_row(o.type, from + i * o.row * bytes, o.column, columns, to + i * columns);
}

// ---- packed ----

// The first row panel reads b where it lies and leaves a packed copy for the others; the copying rides along in slots
// that the multiplications leave idle.
template <bool kPacked>
constexpr const TileHeights& copying_tiles = tiles_of<kPacked, true, FusedStep>;

// The tile of packed a with half values of b where they lie, which become floats in registers.
template <bool kBrain>
struct HalfStep : FusedStep {
  using Stored = uint16_t;
  OBN_INLINE F get(const uint16_t* p) { return Half<kBrain>::whole(p); }
  OBN_INLINE F get_first(const uint16_t* p, size_t n) { return Half<kBrain>::some(p, n); }

  static constexpr bool kSplits = kBrain;  // which are floats already, one shift and one mask away
  OBN_INLINE void get_split(const uint16_t* p, F* even, F* odd) {
    U pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    *even = reinterpret_cast<F>(pairs << 16);
    *odd = reinterpret_cast<F>(pairs & 0xffff0000u);
  }
};
template <bool kBrain>
constexpr const TileHeights& widening_tiles = tiles_of<true, false, HalfStep<kBrain>>;

// Rows up to which converting b again for every panel costs less than packing it once.
constexpr size_t kWidenedRows = kConvertsFast ? 42 : kTileRows;

// One tile's width of columns, one cut of k, all rows of the block.
struct Strip {
  const Product& product;
  const Block& block;
  size_t column, columns;
  size_t first, depth;
  const float* a;  // packed, or NULL: in place
  const float* b;  // packed, or NULL: not yet
  float* copy;     // (depth, kTileColumns)
  float* rows;     // for a panel of a that is converted: kTileRows rows; NULL: a is float32
  const float* next;  // b of the strip that comes next, packed or where it lies; NULL: there is none, or it is packed
                      // only then
};

// What the tile of row panel r fetches for the next strip: b, one line per step of k, from the second panel on. A panel
// all alone fetches nothing, as rows of b a power of two apart would throw each other out of the first-level cache.
void fetch_next(const Strip& s, size_t r, Tile* t) {
  const Operand& b = s.product.b;
  const bool by_columns = !s.b && !is_b_in_place(s.product);  // which are runs
  const size_t lines = by_columns ? s.depth / kLineFloats + 1 : s.depth;
  const size_t columns = by_columns ? s.depth / lines : kLineFloats, first = r > 0 ? (r - 1) * columns : 0;
  const bool fetches = s.next && r > 0 && first < kTileColumns;
  t->ahead = fetches ? s.next + first * (by_columns ? b.column : 1) : nullptr;
  t->ahead_step = !fetches ? 0 : by_columns ? kLineFloats : s.b ? kTileColumns : b.row;
  t->ahead_run = lines;
  const ptrdiff_t back = static_cast<ptrdiff_t>(lines * kLineFloats);
  t->ahead_jump = fetches && by_columns ? static_cast<ptrdiff_t>(b.column) - back : 0;
}

// Rows converted for one panel lie so far apart that they do not throw each other out of the first-level cache.
OBN_INLINE size_t apart(size_t depth) { return depth + 16; }

// Panels of packed a, b of half values where it lies. The second one fetches b of the next strip.
void multiply_widened(const Strip& s) {
  const Product& p = s.product;
  const Panels panels(s.block.rows);
  const TileHeights& tiles = p.b.type == BNNSDataTypeBFloat16 ? widening_tiles<true> : widening_tiles<false>;
  const bool has_next = s.column + s.columns < s.block.column + s.block.columns && p.b.row % 2 == 0;
  Tile t;
  t.k = s.depth;
  t.a_row = 1;
  t.b = reinterpret_cast<const float*>(values<uint16_t>(p.b, s.first, s.column));
  t.b_step = p.b.row;
  for (size_t r = 0, i = 0; r < panels.count; i += panels.rows_of(r++)) {
    const size_t rows = panels.rows_of(r);
    begin(p, s.block.row + i, s.column, s.columns, s.first == 0, &t);
    t.a = s.a + i * s.depth;
    t.a_step = rows;
    t.ahead = has_next && r == 1 ? t.b + s.columns / 2 : nullptr;
    t.ahead_step = t.ahead ? p.b.row / 2 : 0;
    tiles.of[rows](t, nullptr);
  }
}

void multiply_strip(const Strip& s) {
  const Product& p = s.product;
  const Panels panels(s.block.rows);
  const bool b_in_place = !s.b && is_b_in_place(p);
  const float* b = b_in_place ? floats(p.b, s.first, s.column) : nullptr;
  Tile t;
  t.k = s.depth;
  if (!s.b && !b_in_place) pack_b(p, s.column, s.columns, s.first, s.depth, s.copy);
  for (size_t r = 0, i = 0; r < panels.count; i += panels.rows_of(r++)) {
    const size_t rows = panels.rows_of(r);
    begin(p, s.block.row + i, s.column, s.columns, s.first == 0, &t);
    if (s.rows) {
      const auto* from = values<uint16_t>(p.a, s.block.row + i, s.first);
      for (size_t q = 0; q < rows; ++q)
        load_row(p.a.type, from + q * p.a.row, 1, s.depth, s.rows + q * apart(s.depth));
    }
    t.a = s.a ? s.a + i * s.depth : s.rows ? s.rows : floats(p.a, s.block.row + i, s.first);
    t.a_row = s.a ? 1 : s.rows ? apart(s.depth) : p.a.row;
    t.a_step = s.a ? rows : p.a.column;
    t.b = s.b ? s.b : s.copy;
    t.b_step = kTileColumns;
    fetch_next(s, r, &t);
    if (b_in_place && r == 0) {  // reads b where it lies
      t.b = b;
      t.b_step = p.b.row;
    }
    if (b_in_place && r == 0 && panels.count > 1) {
      (s.a ? copying_tiles<true> : copying_tiles<false>).of[rows](t, s.copy);
    } else {
      multiply_tile[rows](t);
    }
  }
}

constexpr size_t kAskedColumns = 8 * kTileColumns;  // after which a long block asks whether it is still wanted

void packed(const Product& p, const Block& block, const float* packed_a, const float* packed_b, float* work) {
  const size_t depth = even_part(p.k, kDepth), width = round_up(p.n, kTileColumns);
  const size_t end = block.column + block.columns, group = columns_at_once(p, block, kTileColumns);
  float* copy = work;
  float* behind = work + depth * kTileColumns;
  // A single tile's width: every row of a is read once, so that its panels are converted rather than packed.
  const bool is_half = p.a.type != BNNSDataTypeFloat32, is_narrow = block.columns <= kTileColumns;
  const bool widens = !packed_b && is_b_widened(p, block.rows, kWidenedRows);
  const bool converts = !packed_a && is_half && is_narrow && p.a.column == 1 && !widens;
  const bool a_in_place = is_a_in_place(p, block.columns, kTileColumns) && !widens;
  float* own_a = packed_a || converts || a_in_place ? nullptr : behind;
  const bool has_columns = p.b.type == BNNSDataTypeFloat32 && p.b.row == 1;
  const auto b_at = [&](size_t first, size_t column) -> const float* {
    if (packed_b) return packed_b + first * width + column * least(depth, p.k - first);
    return is_b_in_place(p) || has_columns ? floats(p.b, first, column) : nullptr;
  };
  for (size_t first = 0; first < p.k; first += depth) {
    const size_t steps = least(depth, p.k - first);
    if (own_a) pack_a(p, block.row, block.rows, first, steps, 0, 1, own_a);
    const float* a = packed_a ? packed_a + first * block.rows : own_a;
    for (size_t from = block.column; from < end; from += group) {
      const size_t to = least(end, from + group);
      for (size_t j = from; j < to; j += kTileColumns) {
        if ((j - from) % kAskedColumns == 0 && is_interrupted()) return;
        const float* next = j + kTileColumns < end ? b_at(first, j + kTileColumns)
                            : first + steps < p.k  ? b_at(first + steps, block.column)
                            : end < p.n            ? b_at(0, end)  // likely the same thread's next block
                                                   : nullptr;
        const Strip strip = {p, block, j, least(kTileColumns, end - j), first, steps, a,
                             packed_b ? b_at(first, j) : nullptr, copy, converts ? behind : nullptr, next};
        (widens ? multiply_widened : multiply_strip)(strip);
      }
      if (first + steps == p.k) activate(p, block.row, block.rows, from, to - from);
    }
  }
}

// ---- plain ----

void plain(const Product& p, const Block& block) {
  const size_t end = block.column + block.columns;
  const Panels panels(block.rows);
  Tile t;
  t.a_row = p.a.row;
  t.a_step = p.a.column;
  t.b_step = p.b.row;
  t.k = p.k;
  for (size_t j = block.column; j < end; j += kTileColumns) {
    if ((j - block.column) % kAskedColumns == 0 && is_interrupted()) return;
    for (size_t r = 0, i = 0; r < panels.count; i += panels.rows_of(r++)) {
      begin(p, block.row + i, j, least(kTileColumns, end - j), true, &t);
      t.a = floats(p.a, block.row + i, 0);
      t.b = floats(p.b, 0, j);
      multiply_tile[panels.rows_of(r)](t);
    }
  }
  activate(p, block.row, block.rows, block.column, block.columns);
}

// ---- dot products ----

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr size_t kDotRows = 4;  // 20 of 32 registers hold sums
#else
constexpr size_t kDotRows = 2;  // 10 of 16
#endif
constexpr size_t kDotColumns = 5;

typedef float Quad __attribute__((vector_size(16)));

OBN_INLINE Quad fold(F v) {
#if defined(__AVX512F__)
  const __m512 w = reinterpret_cast<__m512>(v);
  return reinterpret_cast<Quad>(
      _mm_add_ps(_mm_add_ps(_mm512_castps512_ps128(w), _mm512_extractf32x4_ps(w, 1)),
                 _mm_add_ps(_mm512_extractf32x4_ps(w, 2), _mm512_extractf32x4_ps(w, 3))));
#elif defined(__AVX2__)
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
#else
  return v;
#endif
}

// The sums of four vectors side by side.
OBN_INLINE Quad sums(F a, F b, F c, F d) {
  const Quad w = fold(a), x = fold(b), y = fold(c), z = fold(d);
  const Quad wx = __builtin_shufflevector(w, x, 0, 4, 1, 5) + __builtin_shufflevector(w, x, 2, 6, 3, 7);
  const Quad yz = __builtin_shufflevector(y, z, 0, 4, 1, 5) + __builtin_shufflevector(y, z, 2, 6, 3, 7);
  return __builtin_shufflevector(wx, yz, 0, 1, 4, 5) + __builtin_shufflevector(wx, yz, 2, 3, 6, 7);
}

// How a dot product reads k: some vectors at a time, of a and b in the same order.
struct DotFloat32 {
  using Value = float;
  static constexpr size_t kVectors = 1;
  OBN_INLINE void read(const float* p, F (&v)[1]) { v[0] = load(p); }
  OBN_INLINE void read_some(const float* p, size_t n, F (&v)[1]) { v[0] = load_first(p, n); }
};
struct DotFloat16 {
  using Value = uint16_t;
  [[maybe_unused]] static constexpr size_t kVectors = 1;
  OBN_INLINE void read(const uint16_t* p, F (&v)[1]) { v[0] = load_float16(p); }
  OBN_INLINE void read_some(const uint16_t* p, size_t n, F (&v)[1]) { v[0] = Half<false>::some(p, n); }
};
struct DotBrain {  // even values, then odd ones: cheaper than in their order
  using Value = uint16_t;
  static constexpr size_t kVectors = 2;
  OBN_INLINE void read(const uint16_t* p, F (&v)[2]) {
    U pairs;
    std::memcpy(&pairs, p, sizeof pairs);
    v[0] = reinterpret_cast<F>(pairs << 16);
    v[1] = reinterpret_cast<F>(pairs & 0xffff0000u);
  }
  OBN_INLINE void read_some(const uint16_t* p, size_t n, F (&v)[2]) {
    uint16_t values[2 * kLanes];
    copy_first(p, n, values);
    read(values, v);
  }
};

// A tile whose b is turned: b(p, j) lies at b[j·b_step + p], a(i, p) at a[i·a_row + p], both of one type, whatever the
// tile's pointers say. Lanes run along k.
template <class Type, size_t kRows, size_t kColumns>
[[gnu::noinline]] void dot_tile(const Tile& t) {
  using Value = typename Type::Value;
  const auto* a = reinterpret_cast<const Value*>(t.a);
  const auto* b = reinterpret_cast<const Value*>(t.b);
  constexpr size_t kCount = kRows * kColumns, kPadded = (kCount + 3) / 4 * 4;
  F sum[kPadded];
#pragma GCC unroll 24
  for (size_t i = 0; i < kPadded; ++i) sum[i] = F{};
  auto step = [&](size_t p, auto read) __attribute__((always_inline)) {
    F x[kRows][Type::kVectors];
#pragma GCC unroll 4
    for (size_t i = 0; i < kRows; ++i) read(a + i * t.a_row + p, x[i]);
#pragma GCC unroll 5
    for (size_t j = 0; j < kColumns; ++j) {
      F w[Type::kVectors];
      read(b + j * t.b_step + p, w);
#pragma GCC unroll 2
      for (size_t v = 0; v < Type::kVectors; ++v)
#pragma GCC unroll 4
        for (size_t i = 0; i < kRows; ++i) sum[i * kColumns + j] = fma(x[i][v], w[v], sum[i * kColumns + j]);
    }
  };
  constexpr size_t kStep = Type::kVectors * kLanes;
  size_t p = 0;
  for (; p + kStep <= t.k; p += kStep)
    step(p, [](const Value* from, F(&v)[Type::kVectors]) __attribute__((always_inline)) { Type::read(from, v); });
  if (p < t.k)
    step(p, [&](const Value* from, F(&v)[Type::kVectors]) __attribute__((always_inline)) {
      Type::read_some(from, t.k - p, v);
    });
  float value[kPadded];
#pragma GCC unroll 6
  for (size_t i = 0; i < kPadded; i += 4) {
    const Quad four = sums(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]) * t.alpha;
    std::memcpy(value + i, &four, sizeof four);
  }
  for (size_t i = 0; i < kRows; ++i) {
    float* c = t.c + i * t.c_row;
    for (size_t j = 0; j < kColumns; ++j) {
      float v = value[i * kColumns + j];
      if (t.row_bias) v += t.row_bias[i];
      if (t.column_bias) v += t.column_bias[j];
      c[j] = t.accumulate ? v + c[j] : v;
    }
  }
}

struct DotTiles {
  MultiplyTile of_size[kDotRows + 1][kDotColumns + 1] = {};
};
template <class Type, size_t kRows, size_t kColumns>
constexpr void list(DotTiles& tiles) {
  tiles.of_size[kRows][kColumns] = dot_tile<Type, kRows, kColumns>;
  if constexpr (kColumns > 1) {
    list<Type, kRows, kColumns - 1>(tiles);
  } else if constexpr (kRows > 1) {
    list<Type, kRows - 1, kDotColumns>(tiles);
  }
}
template <class Type>
constexpr DotTiles list_all_dots() {
  DotTiles tiles;
  list<Type, kDotRows, kDotColumns>(tiles);
  return tiles;
}
template <class Type>
constexpr DotTiles dot_tiles = list_all_dots<Type>();

template <class Type>
void dots_of(const Product& p, const Block& block) {
  using Value = typename Type::Value;
  const size_t depth = even_part(p.k, kDotDepth);
  const size_t rows = even_part(block.rows, kDotRows), columns = even_part(block.columns, kDotColumns);
  const size_t down = divide_up(block.rows, rows), across = divide_up(block.columns, columns);
  const bool by_rows = block.rows >= block.columns;  // the longer side is walked once, the other stays in the cache
  Tile t;
  t.a_row = p.a.row;
  t.b_step = p.b.column;
  for (size_t first = 0; first < p.k; first += depth) {
    t.k = least(depth, p.k - first);
    for (size_t tile = 0; tile < down * across; ++tile) {
      if (tile % 256 == 0 && is_interrupted()) return;
      const size_t i = (by_rows ? tile / across : tile % down) * rows;
      const size_t j = (by_rows ? tile % across : tile / down) * columns;
      const size_t height = least(rows, block.rows - i), width = least(columns, block.columns - j);
      begin(p, block.row + i, block.column + j, width, first == 0, &t);
      t.a = reinterpret_cast<const float*>(values<Value>(p.a, block.row + i, first));
      t.b = reinterpret_cast<const float*>(values<Value>(p.b, first, block.column + j));
      dot_tiles<Type>.of_size[height][width](t);
    }
  }
  activate(p, block.row, block.rows, block.column, block.columns);
}

// The block's columns of b, whose rows are runs, one after the other: (columns, k).
template <class Type>
void turn(const Product& p, const Block& block, typename Type::Value* copy) {
  using Value = typename Type::Value;
  const Value* from = values<Value>(p.b, 0, block.column);
  for (size_t q = 0; q < p.k; q += kLanes) {
    const size_t steps = least(kLanes, p.k - q);
    for (size_t j = 0; j < block.columns; j += kLanes) {
      const size_t columns = least(kLanes, block.columns - j);
      F v[kLanes];
      for (size_t i = 0; i < kLanes; ++i)
        v[i] = i < steps ? up_to<Type>(from + (q + i) * p.b.row + j, columns) : F{};
      transpose(v);
      for (size_t i = 0; i < columns; ++i) {
        Value* to = copy + (j + i) * p.k + q;
        if (steps == kLanes) {
          Type::put(to, v[i]);
        } else {
          Value lanes[kLanes];
          Type::put(lanes, v[i]);
          for (size_t r = 0; r < steps; ++r) to[r] = lanes[r];
        }
      }
    }
  }
}

void dots(const Product& p, const Block& block) {
  if (p.a.type == BNNSDataTypeBFloat16) return dots_of<DotBrain>(p, block);
  if constexpr (kConvertsFast)
    if (p.a.type == BNNSDataTypeFloat16) return dots_of<DotFloat16>(p, block);
  dots_of<DotFloat32>(p, block);
}

// b (k, n) turned to (n, k), then dot products: for few columns, which would leave lanes of a tile idle.
void turned(const Product& p, const Block& block, float* work) {
  Product q = p;
  q.b = {work, 1, p.k, p.b.type};
  q.n = block.columns;
  q.c = p.c + block.column;
  q.column_bias = p.column_bias ? p.column_bias + block.column : nullptr;
  if (p.b.type == BNNSDataTypeBFloat16) {
    turn<Half<true>>(p, block, reinterpret_cast<uint16_t*>(work));
  } else if (kConvertsFast && p.b.type == BNNSDataTypeFloat16) {
    turn<Half<false>>(p, block, reinterpret_cast<uint16_t*>(work));
  } else {
    turn<Float32>(p, block, work);
  }
  dots(q, {block.row, block.rows, 0, block.columns});
}

// ---- few rows ----

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr size_t kRowRegisters = 18;  // of 32 hold values of a
#else
constexpr size_t kRowRegisters = 8;  // of 16
#endif

// sum (kRows, n) += a (kRows, kSteps) · b (kSteps, n), in the order of k; rows of sum lie kRowStrip apart.
template <class Type, size_t kRows, size_t kSteps>
void add_rows(const float (*a)[kSteps], const typename Type::Value* b, size_t b_step, size_t n, float* sum) {
  F x[kRows][kSteps];
  for (size_t i = 0; i < kRows; ++i)
    for (size_t q = 0; q < kSteps; ++q) x[i][q] = splat(a[i][q]);
  for (size_t j = 0; j < n; j += kLanes) {
    F s[kRows];
    for (size_t i = 0; i < kRows; ++i) s[i] = load(sum + i * kRowStrip + j);  // its rows are whole vectors
    for (size_t q = 0; q < kSteps; ++q) {
      const F w = up_to<Type>(b + q * b_step + j, n - j);
      for (size_t i = 0; i < kRows; ++i) s[i] = fma(x[i][q], w, s[i]);
    }
    for (size_t i = 0; i < kRows; ++i) store(sum + i * kRowStrip + j, s[i]);
  }
}

// The sums of kRows rows from `row` on and of columns [from, from + n), from 0 on.
template <class Type, size_t kRows>
void sum_rows(const Product& p, size_t row, size_t from, size_t n, float* sum) {
  constexpr size_t kSteps = (kRows <= 2 ? 8 : kRowRegisters) / kRows;  // more rows of b at once are slower to stream
  for (size_t i = 0; i < kRows; ++i)
    for (size_t j = 0; j < kRowStrip; ++j) sum[i * kRowStrip + j] = 0.0f;
  const float* a = floats(p.a, row, 0);
  const auto* b = static_cast<const typename Type::Value*>(p.b.data) + from;
  size_t q = 0;
  for (; q + kSteps <= p.k; q += kSteps) {
    float x[kRows][kSteps];
    for (size_t i = 0; i < kRows; ++i)
      for (size_t s = 0; s < kSteps; ++s) x[i][s] = a[i * p.a.row + (q + s) * p.a.column];
    add_rows<Type, kRows, kSteps>(x, b + q * p.b.row, p.b.row, n, sum);
  }
  for (; q < p.k; ++q) {
    float x[kRows][1];
    for (size_t i = 0; i < kRows; ++i) x[i][0] = a[i * p.a.row + q * p.a.column];
    add_rows<Type, kRows, 1>(x, b + q * p.b.row, p.b.row, n, sum);
  }
}

template <class Type>
void sum_rows(const Product& p, size_t row, size_t rows, size_t from, size_t n, float* sum) {
  if (rows == 4) return sum_rows<Type, 4>(p, row, from, n, sum);
  if (rows == 3) return sum_rows<Type, 3>(p, row, from, n, sum);
  if (rows == 2) return sum_rows<Type, 2>(p, row, from, n, sum);
  sum_rows<Type, 1>(p, row, from, n, sum);
}

void few_rows(const Product& p, const Block& block, float* work) {
  const size_t end = block.column + block.columns;
  for (size_t from = block.column; from < end; from += kRowStrip) {
    const size_t n = least(kRowStrip, end - from);
    if (is_interrupted()) return;
    switch (p.b.type) {
      case BNNSDataTypeFloat16: sum_rows<Half<false>>(p, block.row, block.rows, from, n, work); break;
      case BNNSDataTypeBFloat16: sum_rows<Half<true>>(p, block.row, block.rows, from, n, work); break;
      default: sum_rows<Float32>(p, block.row, block.rows, from, n, work);
    }
    for (size_t i = 0; i < block.rows; ++i) {
      const float* sum = work + i * kRowStrip;
      float* c = p.c + (block.row + i) * p.c_row + from;
      const float bias = p.row_bias ? p.row_bias[block.row + i] : 0.0f;
      for (size_t j = 0; j < n; ++j) {
        float v = sum[j] * p.alpha;
        if (p.row_bias) v += bias;
        if (p.column_bias) v += p.column_bias[from + j];
        c[j] = p.accumulate ? v + c[j] : v;
      }
    }
  }
  activate(p, block.row, block.rows, block.column, block.columns);
}

constexpr obn::gemm::Kernels kernels = {{kTileRows, kTileColumns, 1, 1, 1, kWidenedRows, pack_a, pack_b, packed},
                                        plain,
                                        dots,
                                        turned,
                                        kConvertsFast,
                                        widen,
                                        few_rows};

}  // namespace

}  // namespace gemm
}  // namespace obn::OBN_TARGET

constinit const obn::gemm::Kernels obn::gemm::Compiled::OBN_TARGET = obn::OBN_TARGET::gemm::kernels;
