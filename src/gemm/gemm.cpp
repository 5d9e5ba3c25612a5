// Which way a product takes, how it is cut, and who computes which part. No cut across rows or columns of c changes a
// bit, so those may depend on the number of threads; the cuts of k depend on k alone.
#include "gemm/gemm.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/system.h"
#include "base/types.h"
#include "gemm/gemm_kernels.h"

namespace obn::gemm {

namespace {

constexpr double kPackValue = 0.5;              // nanoseconds to pack one, about
constexpr size_t kPerTicket = size_t{1} << 19;  // those that a ticket should hold at least
constexpr size_t kMostPerThread = 8;            // tickets; the more, the less the others wait for the last one
constexpr size_t kFewestRows = 128;             // of a ticket that packs or copies b for itself
constexpr size_t kFewestNarrow = 16;            // the same where c is too narrow to be cut across


size_t second_level_cache() {
  return once([] {
    const size_t found = second_level_cache_bytes();
    return found > 0 ? std::clamp(found, size_t{256} << 10, size_t{2} << 20) : size_t{512} << 10;
  });
}

// ---- ways ----

enum class Way { few_rows, dots, turned, plain, packed };

bool is_float32(const Product& p) { return p.a.type == BNNSDataTypeFloat32 && p.b.type == BNNSDataTypeFloat32; }

// Strides along extents of 1 do not matter and are made those that open the most ways. A column vector that lies as a
// run is done as a row: cᵀ = bᵀ · aᵀ; `turns` says whether.
Product simplified(const Product& given, bool* turns = nullptr) {
  Product p = given;
  static const float nothing = 0.0f;
  if (p.k == 0) p.a = p.b = {&nothing, 0, 1};
  if (p.k == 1) p.a.column = p.b.row = 1;
  if (p.n == 1) p.b.column = 1;
  const bool can_turn = p.n == 1 && (p.m == 1 || p.c_row == 1) && p.a.row == 1 && p.a.column != 1 &&
                        (!p.activation || p.activation->is_elementwise());
  if (turns) *turns = can_turn;
  if (!can_turn) return p;
  Product turned = p;
  turned.m = 1;
  turned.n = p.m;
  turned.a = {p.b.data, 1, p.b.row, p.b.type};
  turned.b = {p.a.data, p.a.column, 1, p.a.type};
  turned.c_row = p.m;
  turned.row_bias = p.column_bias;
  turned.column_bias = p.row_bias;
  return turned;
}

// Straight from the operands, when both are at home in the caches, or when c is so narrow that a is read only once.
bool can_be_plain(const Product& p) {
  constexpr size_t kMostBytes = 96 << 10;  // gaps included
  constexpr size_t kFewColumns = 32, kShortRow = 64;
  if (p.b.column != 1) return false;
  if (p.n <= kFewColumns && p.b.row <= kShortRow) return true;
  const size_t a_span = (p.m - 1) * p.a.row + (p.k - 1) * p.a.column + 1, b_span = (p.k - 1) * p.b.row + p.n;
  return (a_span + b_span) * sizeof(float) <= kMostBytes;
}

// Costs are counted in vector multiply-adds. The constants are measured: what it costs to pack or turn a value, and to
// bring a dot product from lanes to one number.
constexpr double kPack = 0.5, kTurn = 0.6, kSum = 6.0;

double cost_of_dots(const Product& p, Way way, size_t lanes) {
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  return m * n * (k / static_cast<double>(lanes) + kSum) + (way == Way::turned ? kTurn * n * k : 0.0);
}

// The cheapest way for float32 operands.
Way way_of(const Product& p, const Kernels& kernels) {
  constexpr size_t kMostTurned = 1 << 18;  // floats of b, in scratch
  if (p.k == 0) return Way::plain;
  const size_t lanes = kernels.floats.tile_columns / 2;
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const double tiles = m * k * static_cast<double>(divide_up(p.n, lanes));
  if (p.a.column == 1 && p.b.row == 1) {
    const double packing = kPack * k * (is_a_in_place(p, p.n, kernels.floats.tile_columns) ? n : m + n);
    return cost_of_dots(p, Way::dots, lanes) < tiles + packing ? Way::dots : Way::packed;
  }
  if (p.b.column != 1) return Way::packed;
  if (p.m == 1) return Way::few_rows;
  const Way way = can_be_plain(p) ? Way::plain : p.m <= kFewRows ? Way::few_rows : Way::packed;
  const bool packs_a = way == Way::packed && !is_a_in_place(p, p.n, kernels.floats.tile_columns);
  const double cost = tiles + (packs_a ? kPack * m * k : 0.0);
  const bool can_turn = p.a.column == 1 && p.n * p.k <= kMostTurned;
  return can_turn && cost_of_dots(p, Way::turned, lanes) < cost ? Way::turned : way;
}

// ---- cuts ----

struct Cut {
  size_t rows, columns;  // of one ticket
  size_t down, across;   // tickets

  Block block(const Product& p, size_t ticket) const {
    const size_t i = ticket / across * rows, j = ticket % across * columns;
    return {i, std::min(rows, p.m - i), j, std::min(columns, p.n - j)};
  }
};

Steps steps_of(const Product& p, const Packing& packing) {
  return {p.k, packing.word_values, packing.step_unit};
}

// Nanoseconds of one thread, about: c is written, and a is read, also where there is little to multiply.
double work_of(const Product& p) {
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  return kMultiplyAdd * m * n * k + kByte * sizeof(float) * (m * n + n * k + m * k);
}

size_t tickets_wanted(const Product& p, size_t threads) {
  if (threads == 1) return 1;
  return std::clamp(p.m * p.n * p.k / kPerTicket, threads, kMostPerThread * threads);
}

Cut cut_of(const Product& p, Way way, const Packing& packing, size_t threads) {
  const size_t wanted = tickets_wanted(p, threads);
  Cut cut = {p.m, p.n, 1, 1};
  if (way == Way::packed) {
    // A block of packed a leaves the second-level cache some room for b and c.
    const size_t depth = steps_of(p, packing).depth;
    const size_t most = std::max(second_level_cache() * 5 / 8 / sizeof(float) / depth, packing.tile_rows);
    cut.rows = even_part(p.m, std::min<size_t>(most, 1024));
    const size_t fewest = p.n <= packing.tile_columns ? kFewestNarrow : kFewestRows;
    if (divide_up(p.m, cut.rows) < wanted) cut.rows = std::max(divide_up(p.m, wanted), std::min(p.m, fewest));
    cut.rows = std::min(round_up(cut.rows, packing.row_unit), p.m);
  } else if (p.m >= p.n || way == Way::turned) {
    cut.rows = divide_up(p.m, wanted);
  }
  cut.down = divide_up(p.m, cut.rows);
  if (cut.down < wanted)
    cut.columns = std::min(p.n, round_up(divide_up(p.n, divide_up(wanted, cut.down)), packing.tile_columns));
  cut.across = divide_up(p.n, cut.columns);
  return cut;
}

// ---- running ----

// Packed operands that serve several tickets. Every thread packs a for itself and keeps it in its scratch for tickets
// side by side: fetched from the core that has packed it, a would come no sooner. All share an a that has no room
// there; and b, where there are several tickets down and it is not multiplied where it lies.
constexpr size_t kMostShared = size_t{16} << 20;  // bytes of either
constexpr size_t kFewestAgain = size_t{1} << 19;  // floats of b packed more than once: below, waiting costs more
constexpr size_t kPackParts = 4;                  // that a block of a is packed in, for each cut of k

bool can_share(size_t words) { return words <= kMostShared / sizeof(float); }
bool fits_scratch(size_t words) { return words <= kScratchBytes / sizeof(float); }
size_t words_of(size_t lines, const Product& p, size_t word_values) { return lines * divide_up(p.k, word_values); }

struct Shared {
  float* a = nullptr;  // NULL: not shared
  float* b = nullptr;
};

// Which rows of a, packed, lie in a thread's scratch. Between two tickets of a run it holds nothing else.
struct Held {
  uint64_t run;  // number of the run; 0: none
  size_t down;
};
thread_local Held held = {};
std::atomic<uint64_t> runs{0};

// The packed way of one product.
struct PackedRun {
  const Product& p;
  const Packing& packing;
  Cut cut;
  Steps steps;
  size_t threads;

  size_t a_block(size_t rows) const { return round_up(round_up(rows, packing.row_unit) * steps.all, kLineFloats); }
  size_t all_of_a() const {  // the last block may be lower
    const size_t full = cut.down - 1;
    return full * a_block(cut.rows) + a_block(p.m - full * cut.rows);
  }
  size_t before_a() const { return round_up(steps.depth * packing.tile_columns, kLineFloats); }  // in scratch
  bool reuses_a() const {
    const bool widens_b = is_b_widened(p, cut.rows, packing.widened_rows);
    const bool packs_a = packing.word_values > 1 || widens_b || !is_a_in_place(p, p.n, packing.tile_columns);
    return packs_a && cut.across > 1;
  }
  bool keeps_a() const { return reuses_a() && fits_scratch(before_a() + a_block(cut.rows)); }

  Shared shared(float* work) const {
    const bool is_float = packing.word_values == 1, packs_b = !is_float || !is_b_in_place(p);
    const size_t words_of_b = words_of(p.n, p, packing.word_values);
    const bool is_cheap = is_float || p.n <= packing.tile_columns;
    const bool b_pays = cut.down > 1 && (!is_cheap || (cut.down - 1) * words_of_b >= kFewestAgain);
    Shared found;
    if (work && reuses_a() && !keeps_a() && can_share(words_of(p.m, p, packing.word_values))) found.a = work;
    if (work && b_pays && packs_b && can_share(words_of_b))
      found.b = found.a ? work + all_of_a() : work;
    return found;
  }

  void pack_part_of_a(size_t piece, float* to) const {
    const size_t cuts = divide_up(steps.all, steps.depth), part = piece % kPackParts;
    const size_t first = piece / kPackParts % cuts * steps.depth, down = piece / kPackParts / cuts;
    const Block block = cut.block(p, down * cut.across);
    packing.pack_a(p, block.row, block.rows, first, std::min(steps.depth, steps.all - first), part, kPackParts,
                   to + down * a_block(cut.rows) + first * round_up(block.rows, packing.row_unit));
  }
  void pack_tile_of_b(size_t tile, float* to) const {
    const size_t width = packing.tile_columns, whole = round_up(p.n, width), column = tile * width;
    for (size_t first = 0; first < steps.all; first += steps.depth) {
      const size_t depth = std::min(steps.depth, steps.all - first);
      packing.pack_b(p, column, std::min(width, p.n - column), first, depth, to + first * whole + column * depth);
    }
  }
  void pack(const Shared& to) const {
    const size_t of_a = to.a ? cut.down * divide_up(steps.all, steps.depth) * kPackParts : 0;
    const size_t of_b = to.b ? divide_up(p.n, packing.tile_columns) : 0;
    const size_t values = (to.a ? p.m * p.k : 0) + (to.b ? p.n * p.k : 0);
    parallel(of_a + of_b, threads, kPackValue * values, [&](size_t piece) {
      if (piece < of_a) {
        pack_part_of_a(piece, to.a);
      } else {
        pack_tile_of_b(piece - of_a, to.b);
      }
    });
  }

  const float* kept_a(uint64_t number, size_t down) const {
    float* to = reinterpret_cast<float*>(scratch()) + before_a();
    if (held.run == number && held.down == down) return to;
    const Block block = cut.block(p, down * cut.across);
    for (size_t first = 0; first < steps.all; first += steps.depth)
      packing.pack_a(p, block.row, block.rows, first, std::min(steps.depth, steps.all - first), 0, 1,
                     to + first * round_up(block.rows, packing.row_unit));
    held = {number, down};
    return to;
  }

  void run(float* work) const {
    const Shared packed = shared(work);
    const uint64_t number = keeps_a() ? runs.fetch_add(1, std::memory_order_relaxed) + 1 : 0;
    pack(packed);
    parallel(cut.down * cut.across, threads, work_of(p), [&](size_t ticket) {
      const size_t down = ticket / cut.across;
      const float* a = packed.a ? packed.a + down * a_block(cut.rows) : number ? kept_a(number, down) : nullptr;
      packing.packed(p, cut.block(p, ticket), a, packed.b, reinterpret_cast<float*>(scratch()));
    });
  }
};

// ---- operands that are not float32 ----

// The packed way converts them as it packs. The others need float32, so every ticket converts what it reads: of the
// operand with fewer lines (rows of a, columns of b) all, of the other one a piece after the other, which stays in the
// cache. few_rows() reads any b; and a small a is converted for the packed way too, which then reads it in place.
struct Choice {
  Way way;
  bool widens = false;    // operands to float32, in scratch
  bool as_pairs = false;  // the packed way, over pairs of bfloat16
};

// Values converted whole, and those of a piece; b may be copied once more to be turned.
constexpr size_t kMostWidened = kScratchBytes / 4 / sizeof(float);
constexpr size_t kPieceOfOperand = size_t{1} << 15;
constexpr size_t kFewestLines = 20;  // of a piece: whole tiles of dot products

// A narrow b that is read where it lies has rows too short for pieces of its columns.
bool widens_by_rows(const Product& p, Way way) {
  return p.m >= p.n || way == Way::plain || (p.activation && !p.activation->is_elementwise());
}

bool can_widen(const Product& p, Way way) {
  constexpr size_t kSmall = size_t{1} << 14;
  if (way == Way::packed) return p.m * p.k <= kSmall;
  if (way == Way::few_rows) return p.m * p.k <= kMostWidened;
  return (widens_by_rows(p, way) ? p.n : p.m) * p.k <= kMostWidened && kFewestLines * p.k <= kMostWidened;
}

// Whether few columns of bfloat16 are cheaper as pairs than as dot products. Measured too: what it costs to pair two
// rows of b, or what lies along its columns. The sums differ, so where the operands lie must not count.
bool pairs_beat_dots(const Product& p, Way way, const Kernels& kernels) {
  constexpr double kPairRows = 4.0, kPairColumns = 10.0;  // for each value of k
  const size_t lanes = kernels.floats.tile_columns / 2;
  const double m = static_cast<double>(p.m), k = static_cast<double>(p.k);
  const double tiles = m * k / 2 * static_cast<double>(divide_up(p.n, lanes));
  Product in_words = p;
  in_words.a.data = nullptr;
  const double of_a = is_paired_a_in_place(in_words, p.n) ? 0.0 : kPack * m * k;
  return tiles + of_a + (p.b.column == 1 ? kPairRows : kPairColumns) * k < cost_of_dots(p, way, lanes);
}

Choice choice_of(const Product& p, const Kernels& kernels, const Packing* pairs) {
  const size_t few_rows = is_float32(p) ? 48 : 8, few_columns = is_float32(p) ? 48 : 16;  // to pay for packing pairs
  Product floats = p;
  floats.a.type = floats.b.type = BNNSDataTypeFloat32;
  const Way way = way_of(floats, kernels);
  const bool are_dots = way == Way::dots || way == Way::turned;
  const bool may_pair = pairs && p.k > 0 && can_be_pairs(p);
  const bool is_narrow = p.n < few_columns && (is_float32(p) || (are_dots && !pairs_beat_dots(p, way, kernels)));
  if (may_pair && p.m >= few_rows && !is_narrow && (!is_float32(p) || way == Way::packed || way == Way::plain))
    return {.way = Way::packed, .as_pairs = true};
  if (way == Way::packed && is_b_widened(p, p.m, kernels.floats.widened_rows)) return {.way = way};
  const bool may_be_halves = p.a.type == p.b.type && (p.a.type == BNNSDataTypeBFloat16 || kernels.dots_float16);
  if (is_float32(p) || (are_dots && may_be_halves)) return {.way = way};
  if (can_widen(p, way) && !(may_pair && way == Way::packed)) return {.way = way, .widens = true};
  return {.way = Way::packed, .as_pairs = may_pair};
}

// The product of one block alone, with one operand or both as float32: converted to `to` where they are not, which
// moves behind them.
struct Widen {
  bool a, b;
};
Product widened(const Product& p, Widen which, const Block& block, const Kernels& kernels, float** to) {
  const auto part = [&](const Operand& o, bool widens, size_t i, size_t rows, size_t j, size_t columns) -> Operand {
    const auto* from = static_cast<const std::byte*>(o.data) + (i * o.row + j * o.column) * bytes_of(o.type);
    if (o.type == BNNSDataTypeFloat32 || !widens) return {from, o.row, o.column, o.type};
    float* copy = *to;
    *to += round_up(rows * columns, kLineFloats);
    if (o.row == 1 && o.column != 1) {  // runs stay runs
      kernels.widen({from, o.column, o.row, o.type}, columns, rows, copy);
      return {copy, 1, rows};
    }
    kernels.widen({from, o.row, o.column, o.type}, rows, columns, copy);
    return {copy, columns, 1};
  };
  Product q = p;
  q.m = block.rows;
  q.n = block.columns;
  q.a = part(p.a, which.a, block.row, block.rows, 0, p.k);
  q.b = part(p.b, which.b, 0, p.k, block.column, block.columns);
  q.c = p.c + block.row * p.c_row + block.column;
  q.row_bias = p.row_bias ? p.row_bias + block.row : nullptr;
  q.column_bias = p.column_bias ? p.column_bias + block.column : nullptr;
  return q;
}

// ---- the whole product ----

// A block of c from operands that nobody has packed.
void run_block(const Kernels& kernels, Way way, const Product& p, const Block& block, float* work) {
  switch (way) {
    case Way::plain: return kernels.plain(p, block);
    case Way::dots: return kernels.dots(p, block);
    case Way::turned: return kernels.turned(p, block, work);
    case Way::few_rows: return kernels.few_rows(p, block, work);
    case Way::packed: return kernels.floats.packed(p, block, nullptr, nullptr, work);
  }
}

void run_widened(const Kernels& kernels, Way way, const Product& p, const Block& block, float* work) {
  if (way == Way::packed || way == Way::few_rows) {
    const Product q = widened(p, {true, false}, block, kernels, &work);
    return run_block(kernels, way, q, {0, q.m, 0, q.n}, work);
  }
  const bool by_rows = widens_by_rows(p, way);
  const Product q = widened(p, {!by_rows, by_rows}, block, kernels, &work);
  const size_t values = way == Way::turned ? 2 * kPieceOfOperand : kPieceOfOperand;  // b is turned for every piece
  const size_t lines = by_rows ? q.m : q.n, step = round_up(std::max<size_t>(values / p.k, 1), kFewestLines);
  for (size_t i = 0; i < lines; i += step) {
    const size_t count = std::min(step, lines - i);
    float* piece = work;
    const Product r = widened(q, {true, true}, by_rows ? Block{i, count, 0, q.n} : Block{0, q.m, i, count}, kernels,
                              &piece);
    run_block(kernels, way, r, {0, r.m, 0, r.n}, piece);
  }
}

void run_simplified(const Kernels& kernels, const Packing* pairs, Product p, size_t threads, std::byte* work) {
  const Choice choice = choice_of(p, kernels, pairs);
  const Packing& packing = choice.as_pairs ? *pairs : kernels.floats;
  const Cut cut = cut_of(p, choice.way, packing, threads);
  // A softmax wants whole rows.
  const activation::Fused* last = nullptr;
  if (p.activation && cut.across > 1 && !p.activation->is_elementwise()) std::swap(last, p.activation);
  if (choice.way == Way::packed && !choice.widens) {
    PackedRun{p, packing, cut, steps_of(p, packing), threads}.run(reinterpret_cast<float*>(work));
  } else {
    parallel(cut.down * cut.across, threads, work_of(p), [&](size_t ticket) {
      const Block block = cut.block(p, ticket);
      float* own = reinterpret_cast<float*>(scratch());
      (choice.widens ? run_widened : run_block)(kernels, choice.way, p, block, own);
    });
  }
  if (last) parallel(p.m, threads, kFunction * p.m * p.n, [&](size_t i) { last->forward(p.c + i * p.c_row, p.n); });
}

// The most that any cut shares.
size_t shared_words(const Product& p, size_t word_values, bool packs_b) {
  constexpr size_t kNarrowestTile = 8, kWidestTile = 32;
  constexpr size_t kLowestBlock = 32;  // rows: below half of what the smallest second-level cache holds
  constexpr size_t kUnit = 32;         // the largest of rows and steps
  const bool is_float = word_values == 1;
  const size_t steps = Steps(p.k, word_values, is_float ? 1 : kUnit).all, rows = is_float ? p.m : round_up(p.m, kUnit);
  size_t words = 0;
  const bool keeps_a = fits_scratch(rows * steps + kLineFloats + kDepth * kWidestTile + kLineFloats);
  // Products narrower than a tile are not cut across.
  if (p.n > kNarrowestTile && !keeps_a && can_share(words_of(p.m, p, word_values)))
    words += rows * steps + divide_up(p.m, kLowestBlock) * kLineFloats;
  if (p.m > (p.n <= kWidestTile ? kFewestNarrow : kLowestBlock) && packs_b && can_share(words_of(p.n, p, word_values)))
    words += round_up(p.n, kWidestTile) * steps;
  return words;
}

}  // namespace

// Enough for any precision: the setting may change between counting and running.
size_t work_bytes(const Product& product) {
  Product p = simplified(product);
  const size_t floats = shared_words(p, 1, !is_b_in_place(p));
  if (best_pairs()) p.precision = Precision::medium;
  return std::max(floats, can_be_pairs(p) ? shared_words(p, 2, true) : 0) * sizeof(float);
}

void run_on(const Kernels& kernels, const Packing* pairs, const Product& product, size_t threads, std::byte* work) {
  run_simplified(kernels, pairs, simplified(product), threads, work);
}

void run(const Product& product, size_t threads, std::byte* work) {
  run_on(targets.best(), can_be_pairs(product) ? best_pairs() : nullptr, product,
         threads_worth(threads, work_of(product)), work);
}

// ---- one after the other ----

Repeated::Repeated(const Product& like) : product_(like), is_turned_(false), way_(-1), as_pairs_(false) {
  product_ = simplified(like, &is_turned_);
  const Product& p = product_;
  const Kernels& kernels = targets.best();
  const Choice choice = choice_of(p, kernels, can_be_pairs(p) ? best_pairs() : nullptr);
  const Cut cut = cut_of(p, choice.way, choice.as_pairs ? *best_pairs() : kernels.floats, 1);
  if (!choice.widens && cut.down * cut.across == 1) way_ = static_cast<int>(choice.way);
  as_pairs_ = choice.as_pairs;
}

void Repeated::run(const void* a, const void* b, float* c, bool accumulate) const {
  Product p = product_;
  if (p.k > 0) {
    p.a.data = is_turned_ ? b : a;
    p.b.data = is_turned_ ? a : b;
  }
  p.c = c;
  p.accumulate = accumulate;
  if (way_ < 0) return gemm::run(p, 1, nullptr);
  const Block all = {0, p.m, 0, p.n};
  float* work = reinterpret_cast<float*>(scratch());
  if (as_pairs_) return best_pairs()->packed(p, all, nullptr, nullptr, work);
  run_block(targets.best(), static_cast<Way>(way_), p, all, work);
}

// ---- batches ----

namespace {

Product product_at(const Product& first, size_t i, size_t a_step, size_t b_step, size_t c_step) {
  Product p = first;
  p.a.data = static_cast<const std::byte*>(first.a.data) + i * a_step * bytes_of(first.a.type);
  p.b.data = static_cast<const std::byte*>(first.b.data) + i * b_step * bytes_of(first.b.type);
  p.c = first.c + i * c_step;
  return p;
}

}  // namespace

size_t work_bytes(const Product& first, size_t count) {
  Product all = first;
  all.m *= count;
  return std::max(work_bytes(first), work_bytes(all));
}

void run_batch(const Product& first, size_t count, size_t a_step, size_t b_step, size_t c_step, size_t threads,
               std::byte* work) {
  // The same b for samples that follow each other: one tall product.
  if (b_step == 0 && !first.row_bias && a_step == first.m * first.a.row && c_step == first.m * first.c_row) {
    Product all = first;
    all.m *= count;
    return run(all, threads, work);
  }
  // One after the other by all threads, where side by side would leave too many of them without one.
  constexpr double kLoss = 1.2;  // of products that are cut
  const size_t turns = divide_up(count, threads), worth = threads_worth(threads, work_of(first));
  if (kLoss * count < static_cast<double>(turns * worth)) {
    for (size_t i = 0; i < count; ++i) run(product_at(first, i, a_step, b_step, c_step), threads, work);
    return;
  }
  const size_t at_once = divide_up(kPerTicket, std::max<size_t>(first.m * first.n * first.k, 1));
  const Repeated each(first);
  parallel(divide_up(count, at_once), threads, work_of(first) * count, [&](size_t ticket) {
    for (size_t i = ticket * at_once; i < std::min(count, (ticket + 1) * at_once); ++i) {
      const Product p = product_at(first, i, a_step, b_step, c_step);
      each.run(p.a.data, p.b.data, p.c, p.accumulate);
    }
  });
}

}  // namespace obn::gemm
