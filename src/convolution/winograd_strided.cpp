// Winograd for stride 2, the drive: which taps belong to which half of an axis, how the tiles of a batch are cut into
// blocks, and the walk over them.
//
// Forward and input gradient: first all weights are transformed (work), then every block of tiles goes through its
// three steps alone, V and the products in the thread's scratch.
// Weight gradient: the tiles are cut into a fixed number of parts, each with its own sum (work). Few tiles, or large
// sums: the threads make V and Y together (work), then each takes some channels of the sum (scratch).
#include "convolution/winograd_strided.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/pool.h"
#include "convolution/winograd_cut.h"
#include "convolution/winograd_sums.h"

namespace obn {

namespace portable::winograd::strided {
extern const convolution::winograd::strided::Kernels kernels;
}
#if defined(OBN_X86)
namespace avx2::winograd::strided {
extern const convolution::winograd::strided::Kernels kernels;
}
namespace avx512::winograd::strided {
extern const convolution::winograd::strided::Kernels kernels;
}
#endif

namespace convolution {
namespace winograd::strided {

#if defined(OBN_X86)
constinit const Targets<Kernels> targets = {&portable::winograd::strided::kernels, &avx2::winograd::strided::kernels,
                                            &avx512::winograd::strided::kernels, nullptr};
#else
constinit const Targets<Kernels> targets = {&portable::winograd::strided::kernels, nullptr, nullptr, nullptr};
#endif

namespace {

constexpr size_t kFloat = sizeof(float);
constexpr size_t kBlockBytes = size_t{1024} << 10;  // V and products of a block, beside the weights in the same cache
constexpr size_t kBlockColumns = 8;                 // at most: so the lines that tiles read stay near
constexpr size_t kFewTiles = 14;                    // of a block at least: a panel of the register tile

constexpr double kPointWork = 81 * kMultiplyAdd;    // of 3x3 taps, for a tile and a pair of channels

double work_of(const Cut& cut, size_t inputs, size_t outputs) {
  return (kPointWork * inputs * outputs + kTile * (inputs + outputs)) * cut.tiles();
}

size_t bytes_per_tile(size_t row_floats) { return kPoints * row_floats * kFloat; }
size_t floats_of(const Matrices& m) { return kPoints * m.point; }

// ---- halves ----

Taps taps_of(const Axis& axis) {
  const size_t odd = axis.kernel == 4 ? 2 : 1;
  return {as_size(axis.kernel), {{0, 2}, {1, 3}}, {2, odd}};
}

// Position u = half + 2·o of dx meets dz(p) through tap k where u + before = 2·p + k: of the half's taps the last one
// meets the first value. These values may begin at the same place for both halves: then they are one in the grid.
struct Turned {
  Taps taps;
  Grid grid;
};
Turned turned_taps(const Axis& axis) {
  Turned t = {{as_size(axis.kernel), {}, {}}, {0, 1, 1, {0, 0}}};
  int64_t first[2];
  for (size_t half = 0; half < 2; ++half) {
    const size_t parity = (half + as_size(axis.before)) % 2, last = as_size(axis.kernel - 1);
    const size_t k = last % 2 == parity ? last : last - 1;
    t.taps.count[half] = k >= 2 ? 2 : 1;
    t.taps.tap[half][0] = k;
    t.taps.tap[half][1] = k >= 2 ? k - 2 : 0;
    first[half] = (static_cast<int64_t>(half) + axis.before - static_cast<int64_t>(k)) / 2;
  }
  t.grid.start = first[0];
  t.grid.count = first[1] > first[0] ? 2 : 1;
  t.grid.shift[1] = first[1] > first[0] ? 1 : 0;
  return t;
}

Grid whole_grid() { return {0, 1, 1, {0, 0}}; }                          // stride 1
Grid split_grid(int64_t before) { return {-before, 2, 2, {0, 1}}; }      // every second position

// All halves of x lie side by side in a row of V, so that a product is one sum over all of them. In this order those
// that have a value at ∞ of an axis are neighbours, also where the odd half of that axis has none.
constexpr size_t kOrder[2][2] = {{1, 0}, {2, 3}};

Slots ordered_slots(size_t step) {
  Slots slots;
  for (size_t y = 0; y < 2; ++y)
    for (size_t x = 0; x < 2; ++x) slots.at[y][x] = kOrder[y][x] * step;
  return slots;
}

bool is_missing(const Taps& taps, size_t half, size_t point) { return point == 0 && taps.count[half] == 1; }

// Which slots have products at a point.
struct Present {
  size_t first, count;
};
Present present_at(const KernelTaps& taps, size_t p) {
  const bool no_y = is_missing(taps.y, 1, p / kSide), no_x = is_missing(taps.x, 1, p % kSide);
  return {no_x ? size_t{1} : size_t{0}, size_t{4} / (no_y ? 2 : 1) / (no_x ? 2 : 1)};
}

// ---- forward and input gradient ----

struct PassPlan {
  KernelTaps taps;
  Grids in, out;
  size_t slot;         // floats of V for the channels of one pair of halves
  size_t v_row, m_row;
  Slots v_slots, u_slots, m_slots;
  size_t u_step;       // from one panel of weights to the next
  size_t u_point;      // from one point to the next
  size_t u_rows;       // of a panel and one pair of halves
  Cut cut;
};

size_t tiles_per_block(const Kernels& kernels, size_t row_floats, size_t bytes) {
  const size_t room = kernels.room_floats(kBlockColumns) * kFloat + 2 * kPoints * kSpread * kFloat;
  const size_t per_tile = bytes_per_tile(row_floats);
  return std::min(std::max(bytes / per_tile, kFewTiles), (kScratchBytes - room) / per_tile);
}

PassPlan plan_forward(const Kernels& kernels, const Problem& s, size_t threads) {
  PassPlan plan;
  plan.taps = {taps_of(s.y), taps_of(s.x)};
  plan.in = {split_grid(s.y.before), split_grid(s.x.before)};
  plan.out = {whole_grid(), whole_grid()};
  plan.slot = round_up(s.in_channels, kernels.lanes);
  plan.v_row = 4 * plan.slot;
  plan.m_row = round_up(s.out_channels, kernels.lanes);
  plan.v_slots = ordered_slots(plan.slot);
  plan.u_slots = ordered_slots(plan.slot * kernels.panel);
  plan.m_slots = {};
  plan.u_rows = plan.slot;
  plan.u_step = 4 * plan.slot * kernels.panel;
  plan.u_point = divide_up(s.out_channels, kernels.panel) * plan.u_step + kSpread;
  plan.cut = cut_tiles(s.batch, s.y.out, s.x.out, tiles_per_block(kernels, plan.v_row + plan.m_row, kBlockBytes),
                       kBlockColumns, threads);
  return plan;
}

PassPlan plan_input_gradient(const Kernels& kernels, const Problem& s, size_t threads) {
  PassPlan plan;
  const Turned y = turned_taps(s.y), x = turned_taps(s.x);
  plan.taps = {y.taps, x.taps};
  plan.in = {y.grid, x.grid};
  plan.out = {split_grid(0), split_grid(0)};
  plan.slot = round_up(s.out_channels, kernels.lanes);
  plan.v_row = y.grid.count * x.grid.count * plan.slot;
  const size_t outputs = round_up(s.in_channels, kernels.lanes);
  plan.m_row = 4 * outputs;
  plan.u_rows = s.out_channels;
  plan.u_step = s.out_channels * kernels.panel;
  const size_t u_slot = divide_up(s.in_channels, kernels.panel) * plan.u_step;
  plan.u_point = 4 * u_slot + kSpread;
  for (size_t hy = 0; hy < 2; ++hy) {
    for (size_t hx = 0; hx < 2; ++hx) {
      const size_t half = (hy < y.grid.count ? hy : 0) * x.grid.count + (hx < x.grid.count ? hx : 0);
      plan.v_slots.at[hy][hx] = half * plan.slot;
      plan.u_slots.at[hy][hx] = (2 * hy + hx) * u_slot;
      plan.m_slots.at[hy][hx] = (2 * hy + hx) * outputs;
    }
  }
  plan.cut = cut_tiles(s.batch, (s.y.in + 1) / 2, (s.x.in + 1) / 2,
                       tiles_per_block(kernels, plan.v_row + plan.m_row, kBlockBytes), kBlockColumns, threads);
  return plan;
}

// One call of either.
struct Pass {
  Image x, y;
  const float* w;
  size_t k_step, j_step;  // from one input channel, one output channel of the pass to the next
  const float* bias;
  bool accumulate;
  const activation::Fused* activation;
};

// A piece is a panel and some rows of it: neighbouring lines of memory are left to one thread.
void make_weights(const Kernels& kernels, const PassPlan& plan, const Pass& pass, size_t threads, float* u) {
  constexpr size_t kRows = 16;
  const size_t outputs = pass.y.channels, inputs = pass.x.channels, down = divide_up(plan.u_rows, kRows);
  parallel(divide_up(outputs, kernels.panel) * down, threads, kWeight * inputs * outputs, [&](size_t piece) {
    const size_t first = piece / down * kernels.panel, end = std::min(outputs, first + kernels.panel);
    const size_t k = piece % down * kRows, rows = std::min(kRows, plan.u_rows - k);
    float* to = u + first / kernels.panel * plan.u_step + k * kernels.panel;
    for (size_t j = first; j < end; j += kernels.lanes)
      kernels.weights(plan.taps, pass.w + k * pass.k_step + j * pass.j_step, pass.k_step, pass.j_step,
                      std::min(inputs - std::min(inputs, k), rows), rows, std::min(end - j, kernels.lanes),
                      plan.u_slots, to + (j - first), plan.u_point);
  });
}

// multiply(block, v, m) does the products of all points.
template <class Multiply>
void run_blocks(const Kernels& kernels, const PassPlan& plan, const Pass& pass, size_t threads,
                const Multiply& multiply) {
  parallel(plan.cut.blocks(), threads, work_of(plan.cut, pass.x.channels, pass.y.channels), [&](size_t piece) {
    const Block block = plan.cut.block(piece);
    float* room = reinterpret_cast<float*>(scratch());
    const Matrices v = matrices(room + kernels.room_floats(kBlockColumns), plan.cut.most_tiles(), plan.v_row);
    const Matrices m = matrices(v.data + floats_of(v), plan.cut.most_tiles(), plan.m_row);
    kernels.data(pass.x, plan.in, block, {0, pass.x.channels}, plan.v_slots, v, room);
    multiply(block, v, m);
    kernels.outputs(m, plan.m_slots, plan.taps, plan.out, block, pass.y, pass.bias, pass.accumulate, room);
    if (pass.activation)
      activate(*pass.activation, pass.y, block, plan.out.x.step, {0, pass.y.channels});
  });
}

// ---- weight gradient ----

struct SumPlan : winograd::SumPlan {
  KernelTaps taps;
  Grids grids;
  size_t slot;
  Slots v_slots;
};

SumPlan plan_sum(const Kernels& kernels, const Problem& s, float* work) {
  SumPlan plan = {};
  plan.taps = {taps_of(s.y), taps_of(s.x)};
  plan.grids = {split_grid(s.y.before), split_grid(s.x.before)};
  plan.slot = round_up(s.in_channels, kernels.lanes);
  plan.v_row = 4 * plan.slot;
  plan.y_row = round_up(s.out_channels, kernels.lanes);
  plan.v_slots = ordered_slots(plan.slot);
  const size_t per_tile = bytes_per_tile(plan.v_row + plan.y_row), sum = bytes_per_tile(plan.v_row * plan.y_row);
  const size_t all = count_tiles(s.batch, s.y.out, s.x.out) * per_tile;
  const size_t parts = count_parts(all, sum);
  plan.is_shared = sum > kLargeSum || all <= kSharedSum;
  const size_t wanted = plan.is_shared ? std::max(kSharedSum / per_tile, kFewTiles)
                                       : tiles_per_block(kernels, plan.v_row + plan.y_row, kSumBytes);
  plan.cut = cut_tiles(s.batch, s.y.out, s.x.out, wanted, kBlockColumns);
  plan.place(work, kPoints, plan.v_row, parts);
  return plan;
}

// Some channels of the sum over a block: of all halves, one after the other.
void sum_channels(const Kernels& kernels, const SumPlan& plan, const Block& block, Range inputs, Range outputs,
                  const Matrices& s) {
  const size_t count = inputs.end - inputs.first;
  for (size_t p = 0; p < kPoints; ++p) {
    const Present present = present_at(plan.taps, p);
    for (size_t slot = present.first; slot < present.first + present.count; ++slot)
      kernels.correlate(plan.v.data + p * plan.v.point + slot * plan.slot + inputs.first, plan.v.row, count,
                        plan.y.data + p * plan.y.point + outputs.first, plan.y.row, outputs.end - outputs.first,
                        block.tiles_at(p / kSide, p % kSide), false, s.data + p * s.point + slot * count * s.row,
                        s.row);
  }
}

void run_shared(const Kernels& kernels, const SumPlan& plan, const Image& x, const Image& dz, bool accumulate,
                float* dw, size_t threads) {
  const size_t x_groups = divide_up(x.channels, kernels.lanes), dz_groups = divide_up(dz.channels, kernels.lanes);
  const size_t down = divide_up(dz.channels, kernels.panel), some = inputs_together(x.channels, down, threads);
  const size_t across = divide_up(x.channels, some);
  for (size_t i = 0; i < plan.cut.blocks(); ++i) {
    const Block block = plan.cut.block(i);
    const size_t tiles = block.rows * block.columns;
    const Parts parts(block, x_groups + dz_groups, 1, threads);
    const double work = kTile * (x.channels + dz.channels) * tiles;
    parallel((x_groups + dz_groups) * parts.count, threads, work, [&](size_t piece) {
      const Block part = parts.part(block, piece);
      const size_t group = piece / parts.count;
      float* room = reinterpret_cast<float*>(scratch());
      if (group < x_groups) {
        const size_t c = group * kernels.lanes;
        kernels.data(x, plan.grids, part, {c, std::min(x.channels, c + kernels.lanes)}, plan.v_slots, plan.v, room);
      } else {
        const size_t o = (group - x_groups) * kernels.lanes;
        kernels.gradient(dz, part, {o, std::min(dz.channels, o + kernels.lanes)}, plan.y, room);
      }
    });
    parallel(across * down, threads, kPointWork * x.channels * dz.channels * tiles, [&](size_t piece) {
      const size_t c = piece % across * some, o = piece / across * kernels.panel;
      const Range inputs = {c, std::min(x.channels, c + some)};
      const Range outputs = {o, std::min(dz.channels, o + kernels.panel)};
      const size_t count = inputs.end - inputs.first;
      const Matrices s = matrices(reinterpret_cast<float*>(scratch()), 4 * count, kernels.panel);
      sum_channels(kernels, plan, block, inputs, outputs, s);
      kernels.weight_gradient(s, ordered_slots(count * s.row), plan.taps, 1, 0, inputs, outputs, x.channels,
                              accumulate || i > 0, dw);
    });
  }
}

// Some outputs of a part of the sum.
void run_part(const Kernels& kernels, const SumPlan& plan, const Image& x, const Image& dz, size_t part,
              Range outputs) {
  float* room = reinterpret_cast<float*>(scratch());
  const Matrices v = matrices(room + kernels.room_floats(kBlockColumns), plan.cut.most_tiles(), plan.v_row);
  const Matrices y = matrices(v.data + floats_of(v), plan.cut.most_tiles(), plan.y_row);
  float* sum = plan.s.data + part * floats_of(plan.s) + outputs.first;
  const size_t first = part * plan.part_blocks, end = std::min(plan.cut.blocks(), first + plan.part_blocks);
  for (size_t i = first; i < end; ++i) {
    const Block block = plan.cut.block(i);
    kernels.data(x, plan.grids, block, {0, x.channels}, plan.v_slots, v, room);
    kernels.gradient(dz, block, outputs, y, room);
    for (size_t p = 0; p < kPoints; ++p) {
      const Present present = present_at(plan.taps, p);
      const size_t row = present.first * plan.slot;
      kernels.correlate(v.data + p * v.point + row, v.row, present.count * plan.slot,
                        y.data + p * y.point + outputs.first, y.row, outputs.end - outputs.first,
                        block.tiles_at(p / kSide, p % kSide), i > first, sum + p * plan.s.point + row * plan.s.row,
                        plan.s.row);
    }
  }
}

void run_apart(const Kernels& kernels, const SumPlan& plan, const Image& x, const Image& dz, bool accumulate,
               float* dw, size_t threads) {
  // Too few parts for the threads: some panels of a part each, and V made once for each of them.
  const size_t panels = divide_up(dz.channels, kernels.panel);
  const size_t some = even_pieces(panels, 1, panels, plan.parts, threads), splits = divide_up(panels, some);
  parallel(plan.parts * splits, threads, work_of(plan.cut, x.channels, dz.channels), [&](size_t piece) {
    const size_t o = piece % splits * some * kernels.panel;
    run_part(kernels, plan, x, dz, piece / splits, {o, std::min(dz.channels, o + some * kernels.panel)});
  });
  // A piece is a vector of outputs and some inputs.
  const size_t across = divide_up(x.channels, kWeightRows), groups = divide_up(dz.channels, kernels.lanes);
  parallel(groups * across, threads, kWeight * plan.parts * x.channels * dz.channels, [&](size_t piece) {
    const size_t o = piece / across * kernels.lanes, c = piece % across * kWeightRows;
    Matrices sum = plan.s;
    sum.data += o + c * sum.row;
    kernels.weight_gradient(sum, ordered_slots(plan.slot * plan.s.row), plan.taps, plan.parts, floats_of(plan.s),
                            {c, std::min(x.channels, c + kWeightRows)},
                            {o, std::min(dz.channels, o + kernels.lanes)}, x.channels, accumulate, dw);
  });
}

// ---- where it is used ----

// Products of a pass over `count` outputs of each half on an axis, for one pair of channels.
size_t products_of(const Axis& axis, int64_t count) {
  const size_t points = axis.kernel == 4 ? 10 : 9, short_points = axis.kernel == 4 ? 6 : 5;
  const bool has_short = count % 4 == 1 || count % 4 == 2;
  return divide_up(as_size(count), kOutputs) * points - (has_short ? points - short_points : 0);
}

// Fewer products must pay for the transforms: of images, which want channels in whole vectors, and of weights, which
// want enough outputs even of a single sample, and caches that hold the result.
bool pays(const Problem& s, int64_t rows, int64_t columns, int64_t all_rows, int64_t all_columns) {
  constexpr size_t kVector = 16, kFewest = 16, kMuchWeight = size_t{4} << 20, kMostWeight = size_t{8} << 20;
  constexpr double kGain = 1.5, kMuchGain = 2.0, kSmall = 900.0;
  if (!is_possible(s) || s.in_channels < kFewest || s.out_channels < kFewest) return false;
  const size_t inputs = round_up(s.in_channels, kVector), outputs = round_up(s.out_channels, kVector);
  const size_t weights = bytes_per_tile(4 * inputs * outputs);
  const double products = static_cast<double>(products_of(s.y, rows) * inputs) *
                          static_cast<double>(products_of(s.x, columns) * outputs);
  const double taps = static_cast<double>(all_rows * s.y.kernel) * static_cast<double>(all_columns * s.x.kernel);
  const double plain = taps * static_cast<double>(s.in_channels * s.out_channels);
  return taps >= kSmall && plain >= (weights > kMuchWeight ? kMuchGain : kGain) * products && weights <= kMostWeight;
}
bool forward_fits(const Problem& s) { return pays(s, s.y.out, s.x.out, s.y.out, s.x.out); }
// Every position of dx meets half of the taps of an axis.
bool input_gradient_fits(const Problem& s) {
  return pays(s, (s.y.in + 1) / 2, (s.x.in + 1) / 2, s.y.in / 2, s.x.in / 2);
}

}  // namespace

bool is_possible(const Problem& s) {
  const auto fits = [](const Axis& axis) {
    return (axis.kernel == 3 || axis.kernel == 4) && axis.stride == 2 && axis.dilation == 1;
  };
  return s.groups == 1 && fits(s.x) && fits(s.y);
}

// ---- the three passes ----

size_t forward_bytes(const Kernels& kernels, const Problem& s) {
  return kPoints * plan_forward(kernels, s, 1).u_point * kFloat;
}

void forward(const Kernels& kernels, const Problem& s, const Forward& f, size_t threads, std::byte* work) {
  const PassPlan plan = plan_forward(kernels, s, threads);
  const size_t taps = plan.taps.y.kernel * plan.taps.x.kernel;
  const Pass pass = {{f.x, s.in_channels, s.y.in, s.x.in}, {f.y, s.out_channels, s.y.out, s.x.out}, f.w, taps,
                     taps * s.in_channels, f.bias, false, f.activation};
  float* u = reinterpret_cast<float*>(work);
  make_weights(kernels, plan, pass, threads, u);
  run_blocks(kernels, plan, pass, threads, [&](const Block& block, const Matrices& v, const Matrices& m) {
    for (size_t p = 0; p < kPoints; ++p) {
      const Present present = present_at(plan.taps, p);
      const size_t row = present.first * plan.slot;
      kernels.multiply(v.data + p * v.point + row, v.row, block.tiles_at(p / kSide, p % kSide),
                       u + p * plan.u_point + row * kernels.panel, plan.u_step, present.count * plan.slot,
                       s.out_channels, m.data + p * m.point, m.row);
    }
  });
}

size_t input_gradient_bytes(const Kernels& kernels, const Problem& s) {
  return kPoints * plan_input_gradient(kernels, s, 1).u_point * kFloat;
}

void input_gradient(const Kernels& kernels, const Problem& s, const InputGradient& g, size_t threads,
                    std::byte* work) {
  const PassPlan plan = plan_input_gradient(kernels, s, threads);
  const size_t taps = plan.taps.y.kernel * plan.taps.x.kernel;
  const Pass pass = {{g.dz, s.out_channels, s.y.out, s.x.out}, {g.dx, s.in_channels, s.y.in, s.x.in}, g.w,
                     taps * s.in_channels, taps, g.bias, g.accumulate, g.activation};
  float* u = reinterpret_cast<float*>(work);
  make_weights(kernels, plan, pass, threads, u);
  run_blocks(kernels, plan, pass, threads, [&](const Block& block, const Matrices& v, const Matrices& m) {
    for (size_t p = 0; p < kPoints; ++p) {
      for (size_t half = 0; half < 4; ++half) {
        const size_t hy = half / 2, hx = half % 2;
        if (is_missing(plan.taps.y, hy, p / kSide) || is_missing(plan.taps.x, hx, p % kSide)) continue;
        kernels.multiply(v.data + p * v.point + plan.v_slots.at[hy][hx], v.row, block.tiles_at(p / kSide, p % kSide),
                         u + p * plan.u_point + plan.u_slots.at[hy][hx], plan.u_step, s.out_channels, s.in_channels,
                         m.data + p * m.point + plan.m_slots.at[hy][hx], m.row);
      }
    }
  });
}

size_t weight_gradient_bytes(const Kernels& kernels, const Problem& s) {
  return plan_sum(kernels, s, nullptr).floats * kFloat;
}

void weight_gradient(const Kernels& kernels, const Problem& s, const WeightGradient& g, size_t threads,
                     std::byte* work) {
  const SumPlan plan = plan_sum(kernels, s, reinterpret_cast<float*>(work));
  const Image x = {g.x, s.in_channels, s.y.in, s.x.in}, dz = {g.dz, s.out_channels, s.y.out, s.x.out};
  (plan.is_shared ? run_shared : run_apart)(kernels, plan, x, dz, g.accumulate, g.dw, threads);
}

}  // namespace winograd::strided

namespace {

using winograd::strided::targets;

size_t forward_bytes(const Problem& s) { return winograd::strided::forward_bytes(targets.best(), s); }
void forward(const Problem& s, const Forward& f, size_t threads, std::byte* work) {
  winograd::strided::forward(targets.best(), s, f, threads, work);
}
size_t input_gradient_bytes(const Problem& s) { return winograd::strided::input_gradient_bytes(targets.best(), s); }
void input_gradient(const Problem& s, const InputGradient& g, size_t threads, std::byte* work) {
  winograd::strided::input_gradient(targets.best(), s, g, threads, work);
}
size_t weight_gradient_bytes(const Problem& s) { return winograd::strided::weight_gradient_bytes(targets.best(), s); }
void weight_gradient(const Problem& s, const WeightGradient& g, size_t threads, std::byte* work) {
  winograd::strided::weight_gradient(targets.best(), s, g, threads, work);
}

}  // namespace

constinit const ForwardAlgorithm winograd_strided_forward = {"winograd of stride 2", winograd::strided::forward_fits,
                                                             forward_bytes, forward};
constinit const InputGradientAlgorithm winograd_strided_input_gradient = {
    "winograd of stride 2", winograd::strided::input_gradient_fits, input_gradient_bytes, input_gradient};
constinit const WeightGradientAlgorithm winograd_strided_weight_gradient = {
    "winograd of stride 2", winograd::strided::forward_fits, weight_gradient_bytes, weight_gradient};

}  // namespace convolution
}  // namespace obn
