// Winograd, the drive: cuts the tiles of a batch into blocks, gives them memory and hands them to the threads.
//
// Forward and input gradient, many tiles: first all weights are transformed (work), then every block of tiles goes
// through its three steps alone, V and the products in the thread's scratch. Few tiles, or very many weights: the
// threads make V together (work), then each takes some output channels, whose weights only it needs (scratch).
// Weight gradient, many tiles: they are cut into a fixed number of parts, each with its own sum (work). Few tiles, or
// sums that are larger than V and Y: the threads make Y together (work), then each takes some channels of the sum, and
// makes V of those (scratch).
#include "convolution/winograd/winograd.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/interrupt.h"
#include "base/pool.h"
#include "convolution/winograd/winograd_cut.h"

namespace obn {

namespace convolution {
namespace winograd {

namespace {

constexpr size_t kFloat = sizeof(float);
// Measured on a core with 32 KB and 1 MB of cache; half or twice as much changes the time by a few percent.
constexpr size_t kBlockBytes = size_t{512} << 10;   // V and products of a block, beside the weights in the same cache
constexpr size_t kLargeWeights = size_t{1} << 20;   // transformed weights that do not stay near
constexpr size_t kTilesForLarge = 28;               // then a block has so many tiles at least, to read them less often
constexpr size_t kBlockColumns = 16;                // at most: so the lines that tiles read stay in the first cache
constexpr size_t kHugeWeights = size_t{16} << 20;   // not kept at all: V is shared and the weights are made as needed
constexpr size_t kSharedTiles = 256;                // most tiles of a pass with shared V
constexpr size_t kFewTiles = 8;                     // it is shared too when fewer would fit into scratch
constexpr size_t kPanelBytes = size_t{1} << 20;     // transformed weights that a thread then makes at a time
constexpr size_t kSharedBytes = size_t{16} << 20;   // V that the threads make together
constexpr size_t kSharedSum = size_t{6} << 20;      // V and Y that the threads make together
constexpr size_t kSumBytes = size_t{1} << 20;       // V and Y of a block: longer sums are worth more than the cache
constexpr size_t kSumInputs = 28;                   // most channels of x that a thread takes at a time
constexpr size_t kLargeSum = size_t{1300} << 10;    // sums that should not be kept once per part
constexpr size_t kParts = 16;                       // most parts of a weight gradient
constexpr size_t kSumsPerPart = 8;                  // a part has V and Y of so many times the memory of its sum,
constexpr size_t kBlocksPerPart = 4;                // or so many blocks

constexpr size_t kPanelsPerV = 1;                   // V of a weight gradient's inputs takes as long as so many panels
constexpr size_t kTilesForWeights = 32;             // of a piece that makes its weights, at least:
constexpr size_t kTilesPerWeight = 20;              // which takes as long as the products of so many
constexpr double kPointWork = kPoints * kMultiplyAdd;

double work_of(size_t tiles, size_t inputs, size_t outputs) {
  return (kPointWork * inputs * outputs + kTile * (inputs + outputs)) * tiles;
}

size_t bytes_per_tile(size_t row_floats) { return kPoints * row_floats * kFloat; }

size_t floats_of(const Matrices& m) { return kPoints * m.point; }

// ---- forward and input gradient ----

struct Pass {
  size_t batch;
  Image x;
  int64_t up, left;
  Image y;
  const float* w;
  size_t k_step, j_step;  // from one input channel, one output channel of the pass to the next
  bool turned;
  const float* bias;
  bool accumulate;
  const activation::Fused* activation;
};

struct PassPlan {
  size_t v_row;
  bool is_shared;  // V is made together, and U only by whom it concerns
  Panels u;        // not shared
  Matrices v;      // shared
  Cut cut;
  size_t floats;   // of work
};

PassPlan plan_pass(const Kernels& kernels, size_t n, size_t inputs, size_t outputs, int64_t p, int64_t q,
                   size_t threads, float* work) {
  PassPlan plan;
  plan.v_row = round_up(inputs, kernels.lanes);
  plan.u.data = work;
  plan.u.step = inputs * kernels.panel;
  plan.u.point = divide_up(outputs, kernels.panel) * plan.u.step + kSpread;
  const size_t u_bytes = kPoints * plan.u.point * kFloat;
  const size_t all = count_tiles(n, p, q), per_tile = bytes_per_tile(plan.v_row + round_up(outputs, kernels.lanes));
  const size_t room = kernels.room_floats(kBlockColumns) * kFloat + 2 * kPoints * kSpread * kFloat;
  const size_t possible = (kScratchBytes - room) / per_tile;
  plan.is_shared = all <= std::min(outputs, kSharedTiles) || u_bytes > kHugeWeights || possible < kFewTiles;
  if (plan.is_shared) {
    const size_t wanted = std::max(kSharedBytes / bytes_per_tile(plan.v_row), kFewTiles);
    plan.cut = cut_tiles(n, p, q, std::min(wanted, kSharedTiles), kSharedTiles);
    plan.v = matrices(work, plan.cut.most_tiles(), plan.v_row);
    plan.floats = floats_of(plan.v);
  } else {
    const size_t wanted = std::max(kBlockBytes / per_tile, u_bytes > kLargeWeights ? kTilesForLarge : 1);
    plan.cut = cut_tiles(n, p, q, std::min(wanted, possible), kBlockColumns, threads);
    plan.floats = kPoints * plan.u.point;
  }
  return plan;
}

// A piece is a panel and some rows of it.
void make_weights(const Kernels& kernels, const Panels& u, const Pass& pass, size_t threads) {
  const size_t inputs = pass.x.channels, outputs = pass.y.channels, down = divide_up(inputs, kWeightRows);
  parallel(divide_up(outputs, kernels.panel) * down, threads, kWeight * inputs * outputs, [&](size_t piece) {
    const size_t first = piece / down * kernels.panel, end = std::min(outputs, first + kernels.panel);
    const size_t k = piece % down * kWeightRows;
    float* to = u.data + first / kernels.panel * u.step + k * kernels.panel;
    for (size_t j = first; j < end; j += kernels.lanes)
      kernels.weights(pass.w + k * pass.k_step + j * pass.j_step, pass.k_step, pass.j_step, pass.turned,
                      std::min(inputs - k, kWeightRows), std::min(end - j, kernels.lanes), to + (j - first), u.point);
  });
}

void run_blocks(const Kernels& kernels, const PassPlan& plan, const Pass& pass, size_t threads) {
  const size_t inputs = pass.x.channels, outputs = pass.y.channels;
  make_weights(kernels, plan.u, pass, threads);
  parallel(plan.cut.blocks(), threads, work_of(plan.cut.tiles(), inputs, outputs), [&](size_t piece) {
    const Block block = plan.cut.block(piece);
    float* room = reinterpret_cast<float*>(scratch());
    const Matrices v = matrices(room + kernels.room_floats(kBlockColumns), plan.cut.most_tiles(), plan.v_row);
    const Matrices m = matrices(v.data + floats_of(v), plan.cut.most_tiles(), round_up(outputs, kernels.lanes));
    kernels.data(pass.x, pass.up, pass.left, block, {0, inputs}, v, room);
    kernels.multiply(block, v, inputs, plan.u, outputs, false, m);
    kernels.outputs(m, block, {0, outputs}, pass.y, pass.bias, pass.accumulate, room);
    if (pass.activation) activate(*pass.activation, pass.y, block, {0, outputs});
  });
}

// One panel of outputs of a block: its weights are made some input channels at a time, so that they stay near.
void run_panel(const Kernels& kernels, const PassPlan& plan, const Pass& pass, const Block& block, Range channels) {
  const size_t inputs = pass.x.channels, depth = kPanelBytes / bytes_per_tile(kernels.panel);
  float* room = reinterpret_cast<float*>(scratch());
  const Matrices m = matrices(room + kernels.room_floats(block.columns), plan.cut.most_tiles(), kernels.panel);
  const Panels u = {m.data + floats_of(m), depth * kernels.panel + kSpread, 0};
  for (size_t k = 0; k < inputs; k += depth) {
    const size_t some = std::min(depth, inputs - k);
    for (size_t j = channels.first; j < channels.end; j += kernels.lanes)
      kernels.weights(pass.w + k * pass.k_step + j * pass.j_step, pass.k_step, pass.j_step, pass.turned, some,
                      std::min(channels.end - j, kernels.lanes), u.data + (j - channels.first), u.point);
    Matrices v = plan.v;
    v.data += k;
    kernels.multiply(block, v, some, u, channels.end - channels.first, k > 0, m);
  }
  kernels.outputs(m, block.alone(), channels, pass.y, pass.bias, pass.accumulate, room);
  if (pass.activation) activate(*pass.activation, pass.y, block, channels);
}

void run_panels(const Kernels& kernels, const PassPlan& plan, const Pass& pass, size_t threads) {
  const size_t inputs = pass.x.channels, outputs = pass.y.channels;
  const size_t groups = divide_up(inputs, kernels.lanes), panels = divide_up(outputs, kernels.panel);
  for (size_t i = 0; i < plan.cut.blocks(); ++i) {
    const Block block = plan.cut.block(i);
    const size_t tiles = block.rows * block.columns;
    const Parts data(block, groups, 1, threads);
    parallel(groups * data.count, threads, kTile * inputs * tiles, [&](size_t piece) {
      const size_t c = piece / data.count * kernels.lanes;
      kernels.data(pass.x, pass.up, pass.left, data.part(block, piece), {c, std::min(inputs, c + kernels.lanes)},
                   plan.v, reinterpret_cast<float*>(scratch()));
    });
    // The weights of a panel are made anew for each of its parts.
    const Parts products(block, panels, divide_up(kTilesForWeights, block.columns), threads,
                         divide_up(kTilesPerWeight, block.columns));
    parallel(panels * products.count, threads, kPointWork * inputs * outputs * tiles, [&](size_t piece) {
      const size_t j = piece / products.count * kernels.panel;
      run_panel(kernels, plan, pass, products.part(block, piece), {j, std::min(outputs, j + kernels.panel)});
    });
  }
}

void run_pass(const Kernels& kernels, const Pass& pass, size_t most_threads, std::byte* work) {
  // Cuts for more threads than the call is worth would cost it.
  const size_t tiles = count_tiles(pass.batch, pass.y.rows, pass.y.columns);
  const size_t threads = threads_worth(most_threads, work_of(tiles, pass.x.channels, pass.y.channels));
  const PassPlan plan = plan_pass(kernels, pass.batch, pass.x.channels, pass.y.channels, pass.y.rows, pass.y.columns,
                                  threads, reinterpret_cast<float*>(work));
  if (plan.is_shared) {
    run_panels(kernels, plan, pass, threads);
  } else {
    run_blocks(kernels, plan, pass, threads);
  }
}

// ---- weight gradient ----
// S = Σ V·Y over the tiles, at every point.

// Parts for V and Y of `all` bytes and a sum of `sum` bytes.
size_t count_parts(size_t all, size_t sum) {
  return std::clamp(std::max(all / (kSumsPerPart * sum), divide_up(all, kBlocksPerPart * kSumBytes)), size_t{1},
                    kParts);
}

// Most channels of x that a thread takes at a time of a sum that all make together, as even as they can be.
size_t inputs_together(size_t channels) { return divide_up(channels, divide_up(channels, kSumInputs)); }

struct SumPlan {
  size_t v_row, y_row;
  Cut cut;
  bool is_shared;      // Y is made together
  Matrices y;          // shared
  Matrices s;          // not shared: the sum of the first part
  size_t parts;
  size_t part_blocks;  // blocks in a part
  size_t floats;       // of work
};

// `work` is NULL when only its length is asked for.
SumPlan plan_sum(const Kernels& kernels, const Problem& s, float* work) {
  SumPlan plan;
  plan.v_row = round_up(s.in_channels, kernels.lanes);
  plan.y_row = round_up(s.out_channels, kernels.lanes);
  const size_t per_tile = bytes_per_tile(plan.v_row + plan.y_row);
  const size_t tiles = count_tiles(s.batch, s.y.out, s.x.out);
  const size_t all = tiles * per_tile, sum = bytes_per_tile(s.in_channels * plan.y_row);
  const size_t pieces = divide_up(s.in_channels, kSumInputs) * divide_up(s.out_channels, kernels.panel);
  const size_t parts = count_parts(all, sum);
  plan.is_shared = sum > kLargeSum || (all <= kSharedSum && pieces >= parts);
  const size_t part_tiles = round_up(divide_up(tiles, parts), divide_up(as_size(s.x.out), kOutputs));  // whole rows
  const size_t wanted = plan.is_shared ? kSharedSum / per_tile : std::min(kSumBytes / per_tile, part_tiles);
  plan.cut = cut_tiles(s.batch, s.y.out, s.x.out, wanted, plan.is_shared ? wanted : kBlockColumns);
  if (plan.is_shared) {  // V is in scratch: of inputs_together() channels 2 MB at most, as kSharedSum is
    plan.y = matrices(work, plan.cut.most_tiles(), plan.y_row);
    plan.floats = floats_of(plan.y);
  } else {
    plan.s = matrices(work, s.in_channels, plan.y_row);
    plan.part_blocks = divide_up(plan.cut.blocks(), parts);
    plan.parts = divide_up(plan.cut.blocks(), plan.part_blocks);
    plan.floats = plan.parts * floats_of(plan.s);
  }
  return plan;
}

// The threads make Y, which all need, together; then each takes some inputs, whose V it makes for itself: what others have
// just read takes long to write again. Few inputs: some panels of outputs each, and V once for each of them.
void run_shared(const Kernels& kernels, const SumPlan& plan, const Problem& s, const WeightGradient& g,
                const Image& x, const Image& dz, size_t threads) {
  const size_t groups = divide_up(dz.channels, kernels.lanes), panels = divide_up(dz.channels, kernels.panel);
  const size_t most = inputs_together(x.channels), some = even_pieces(x.channels, most / 2, most, 1, threads);
  const size_t across = divide_up(x.channels, some);
  const size_t together = even_pieces(panels, 1, panels, across, threads, kPanelsPerV);
  const size_t outputs_together = together * kernels.panel;
  for (size_t i = 0; i < plan.cut.blocks(); ++i) {
    const Block block = plan.cut.block(i);
    const size_t tiles = block.rows * block.columns;
    const Parts parts(block, groups, 1, threads);
    parallel(groups * parts.count, threads, kTile * dz.channels * tiles, [&](size_t piece) {
      const size_t o = piece / parts.count * kernels.lanes;
      kernels.gradient(dz, parts.part(block, piece), {o, std::min(dz.channels, o + kernels.lanes)}, plan.y,
                       reinterpret_cast<float*>(scratch()));
    });
    const double work = work_of(tiles, x.channels, dz.channels);
    parallel(across * divide_up(panels, together), threads, work, [&](size_t piece) {
      const size_t c = piece % across * some, first = piece / across * outputs_together;
      const Range inputs = {0, std::min(x.channels - c, some)};
      Image mine = x;
      mine.planes.data += c * x.planes.plane;
      float* room = reinterpret_cast<float*>(scratch());
      const Matrices v = matrices(room + kernels.room_floats(block.columns), tiles, round_up(some, kernels.lanes));
      const Matrices sum = matrices(v.data + floats_of(v), some, kernels.panel);
      kernels.data(mine, s.y.before, s.x.before, block, inputs, v, room);
      for (size_t o = first; o < std::min(dz.channels, first + outputs_together); o += kernels.panel) {
        const Range outputs = {o, std::min(dz.channels, o + kernels.panel)};
        kernels.correlate(block, v, plan.y, inputs, outputs, false, sum);
        kernels.weight_gradient(sum, 1, 0, {c, c + inputs.end}, outputs, x.channels, g.accumulate || i > 0, g.dw);
      }
    });
  }
}

void run_apart(const Kernels& kernels, const SumPlan& plan, const Problem& s, const WeightGradient& g, const Image& x,
               const Image& dz, size_t threads) {
  // Too few parts for the threads: some panels of a part each, and V made once for each of them.
  const size_t panels = divide_up(dz.channels, kernels.panel);
  const size_t some = even_pieces(panels, 1, panels, plan.parts, threads, kPanelsPerV), splits = divide_up(panels, some);
  parallel(plan.parts * splits, threads, work_of(plan.cut.tiles(), x.channels, dz.channels), [&](size_t piece) {
    const size_t part = piece / splits, o = piece % splits * some * kernels.panel;
    const Range outputs = {o, std::min(dz.channels, o + some * kernels.panel)};
    float* room = reinterpret_cast<float*>(scratch());
    const Matrices v = matrices(room + kernels.room_floats(kBlockColumns), plan.cut.most_tiles(), plan.v_row);
    const Matrices y = matrices(v.data + floats_of(v), plan.cut.most_tiles(), plan.y_row);
    Matrices sum = plan.s;
    sum.data += part * floats_of(plan.s) + o;
    const size_t first = part * plan.part_blocks, end = std::min(plan.cut.blocks(), first + plan.part_blocks);
    for (size_t i = first; i < end && !is_interrupted(); ++i) {
      const Block block = plan.cut.block(i);
      kernels.data(x, s.y.before, s.x.before, block, {0, x.channels}, v, room);
      kernels.gradient(dz, block, outputs, y, room);
      kernels.correlate(block, v, y, {0, x.channels}, outputs, i > first, sum);
    }
  });
  // A piece is a vector of outputs and some inputs.
  const size_t across = divide_up(x.channels, kWeightRows), groups = divide_up(dz.channels, kernels.lanes);
  parallel(groups * across, threads, kWeight * plan.parts * x.channels * dz.channels, [&](size_t piece) {
    const size_t o = piece / across * kernels.lanes, c = piece % across * kWeightRows;
    Matrices sum = plan.s;
    sum.data += o + c * sum.row;
    kernels.weight_gradient(sum, plan.parts, floats_of(plan.s), {c, std::min(x.channels, c + kWeightRows)},
                            {o, std::min(dz.channels, o + kernels.lanes)}, x.channels, g.accumulate, g.dw);
  });
}

// ---- where it is used ----

bool is_possible(const Problem& s) {
  const auto is_plain = [](const Axis& axis) { return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1; };
  return s.groups == 1 && is_plain(s.x) && is_plain(s.y);
}

// From here on it beats direct.cpp on every target; planes of one row or column are mostly padding.
bool forward_fits(const Problem& s) {
  return is_possible(s) && s.in_channels >= 8 && s.out_channels >= 8 && s.in_channels * s.out_channels >= 128 &&
         s.x.out >= 2 && s.y.out >= 2;
}
bool input_gradient_fits(const Problem& s) {
  return is_possible(s) && s.in_channels >= 8 && s.out_channels >= 8 && s.in_channels * s.out_channels >= 128 &&
         s.x.in >= 2 && s.y.in >= 2;
}
bool weight_gradient_fits(const Problem& s) {
  return is_possible(s) && s.in_channels >= 4 && s.out_channels >= 4 && s.x.out >= 2 && s.y.out >= 2;
}

}  // namespace

// ---- the three passes ----

size_t forward_bytes(const Kernels& kernels, const Problem& s) {
  return plan_pass(kernels, s.batch, s.in_channels, s.out_channels, s.y.out, s.x.out, 1, nullptr).floats * kFloat;
}

void forward(const Kernels& kernels, const Problem& s, const Forward& f, size_t threads, std::byte* work) {
  Pass pass;
  pass.batch = s.batch;
  pass.x = {f.x, s.in_channels, s.y.in, s.x.in};
  pass.up = s.y.before;
  pass.left = s.x.before;
  pass.y = {f.y, s.out_channels, s.y.out, s.x.out};
  pass.w = f.w;
  pass.k_step = 9;
  pass.j_step = 9 * s.in_channels;
  pass.turned = false;
  pass.bias = f.bias;
  pass.accumulate = false;
  pass.activation = f.activation;
  run_pass(kernels, pass, threads, work);
}

size_t input_gradient_bytes(const Kernels& kernels, const Problem& s) {
  return plan_pass(kernels, s.batch, s.out_channels, s.in_channels, s.y.in, s.x.in, 1, nullptr).floats * kFloat;
}

// dx(v) = Σ w(k) · dz(v + before - k): with k = 2 - k', dz is read at v + k' - (2 - before).
void input_gradient(const Kernels& kernels, const Problem& s, const InputGradient& g, size_t threads,
                    std::byte* work) {
  Pass pass;
  pass.batch = s.batch;
  pass.x = {g.dz, s.out_channels, s.y.out, s.x.out};
  pass.up = 2 - s.y.before;
  pass.left = 2 - s.x.before;
  pass.y = {g.dx, s.in_channels, s.y.in, s.x.in};
  pass.w = g.w;
  pass.k_step = 9 * s.in_channels;
  pass.j_step = 9;
  pass.turned = true;
  pass.bias = g.bias;
  pass.accumulate = g.accumulate;
  pass.activation = g.activation;
  run_pass(kernels, pass, threads, work);
}

size_t weight_gradient_bytes(const Kernels& kernels, const Problem& s) {
  return plan_sum(kernels, s, nullptr).floats * kFloat;
}

void weight_gradient(const Kernels& kernels, const Problem& s, const WeightGradient& g, size_t most_threads,
                     std::byte* work) {
  const SumPlan plan = plan_sum(kernels, s, reinterpret_cast<float*>(work));
  const size_t threads = threads_worth(most_threads, work_of(plan.cut.tiles(), s.in_channels, s.out_channels));
  const Image x = {g.x, s.in_channels, s.y.in, s.x.in}, dz = {g.dz, s.out_channels, s.y.out, s.x.out};
  if (plan.is_shared) {
    run_shared(kernels, plan, s, g, x, dz, threads);
  } else {
    run_apart(kernels, plan, s, g, x, dz, threads);
  }
}

}  // namespace winograd

namespace {

using winograd::targets;

size_t forward_bytes(const Problem& s) { return winograd::forward_bytes(targets.best(), s); }
void forward(const Problem& s, const Forward& f, size_t threads, std::byte* work) {
  winograd::forward(targets.best(), s, f, threads, work);
}
size_t input_gradient_bytes(const Problem& s) { return winograd::input_gradient_bytes(targets.best(), s); }
void input_gradient(const Problem& s, const InputGradient& g, size_t threads, std::byte* work) {
  winograd::input_gradient(targets.best(), s, g, threads, work);
}
size_t weight_gradient_bytes(const Problem& s) { return winograd::weight_gradient_bytes(targets.best(), s); }
void weight_gradient(const Problem& s, const WeightGradient& g, size_t threads, std::byte* work) {
  winograd::weight_gradient(targets.best(), s, g, threads, work);
}

}  // namespace

constinit const ForwardAlgorithm winograd_forward = {"winograd", winograd::forward_fits, forward_bytes, forward};
constinit const InputGradientAlgorithm winograd_input_gradient = {"winograd", winograd::input_gradient_fits,
                                                                  input_gradient_bytes, input_gradient};
constinit const WeightGradientAlgorithm winograd_weight_gradient = {"winograd", winograd::weight_gradient_fits,
                                                                    weight_gradient_bytes, weight_gradient};

}  // namespace convolution
}  // namespace obn
