// Winograd, the drive: cuts the tiles of a batch into blocks, gives them memory and hands them to the threads.
//
// Forward and input gradient: first all weights are transformed (work), then every block of tiles goes through its
// three steps alone, V and the products in the thread's scratch. Weight gradient with few channels: the tiles are cut
// into a fixed number of parts, each with its own sum (work). With many channels such sums are larger than V and Y
// together: then the threads make V and Y of many tiles together (work), and each takes some channels of the sum.
#include "convolution/winograd.h"

#include <algorithm>
#include <cstdlib>

#include "base/pool.h"

namespace obn {

namespace portable::winograd {
extern const convolution::winograd::Kernels kernels;
}
#if defined(OBN_X86)
namespace avx2::winograd {
extern const convolution::winograd::Kernels kernels;
}
namespace avx512::winograd {
extern const convolution::winograd::Kernels kernels;
}
#endif

namespace convolution {
namespace winograd {

#if defined(OBN_X86)
constinit const Targets<Kernels> targets = {&portable::winograd::kernels, &avx2::winograd::kernels,
                                            &avx512::winograd::kernels, nullptr};
#else
constinit const Targets<Kernels> targets = {&portable::winograd::kernels, nullptr, nullptr, nullptr};
#endif

namespace {

static size_t env(const char* n, size_t d) { const char* s = getenv(n); return s ? strtoul(s, 0, 10) : d; }

constexpr size_t kFloat = sizeof(float);
const size_t kBlockBytes = env("WB", 512) << 10;       // V and products of a block: half of a second-level cache of 1 MB
const size_t kLargeWeights = size_t{1} << 20;   // transformed weights that do not stay in such a cache
const size_t kTilesForLarge = env("WT", 32);            // then a block has so many tiles at least, to read them less often
const size_t kBlockColumns = env("WC", 16);             // at most: the lines of a block's tiles stay in the first-level cache
const size_t kEnoughPieces = env("WP", 4);              // with fewer blocks, output channels are split as well
const size_t kPartOutputs = 128;             // but not finer: every part makes its own V
const size_t kSums = env("WS", 16);                     // most parts of a weight gradient
const size_t kSharedBytes = env("WSB", 6144) << 10;  // V and Y that the threads make together
const size_t kSumInputs = env("WI", 56);                // channels of x that a thread then takes at a time

size_t as_size(int64_t v) { return static_cast<size_t>(v); }
size_t divide_up(size_t a, size_t b) { return (a + b - 1) / b; }
size_t round_up(size_t a, size_t b) { return divide_up(a, b) * b; }

// The tiles of a batch, in blocks of at most `rows` x `columns` tiles.
struct Cut {
  Block all;
  size_t rows, columns;
  size_t down, across;  // blocks

  size_t blocks() const { return down * across; }
  size_t most_tiles() const { return rows * columns; }
  Block block(size_t i) const {
    Block b = all;
    b.row = i / across * rows;
    b.rows = std::min(rows, all.rows - b.row);
    b.column = i % across * columns;
    b.columns = std::min(columns, all.columns - b.column);
    return b;
  }
};

// Blocks of about `tiles` tiles over output planes of p rows and q columns, as even as they can be.
Cut cut_tiles(size_t n, int64_t p, int64_t q, size_t tiles) {
  Cut cut;
  const size_t rows = divide_up(as_size(p), kOutputs), columns = divide_up(as_size(q), kOutputs);
  const bool short_row = p % 4 == 1 || p % 4 == 2, short_column = q % 4 == 1 || q % 4 == 2;
  cut.all = {0, n * rows, 0, columns, rows, columns, short_row, short_column};
  cut.across = divide_up(columns, std::clamp(tiles, size_t{1}, kBlockColumns));
  cut.columns = divide_up(columns, cut.across);
  cut.across = divide_up(columns, cut.columns);
  cut.down = divide_up(n * rows, std::max(tiles / cut.columns, size_t{1}));
  cut.rows = divide_up(n * rows, cut.down);
  cut.down = divide_up(n * rows, cut.rows);
  return cut;
}

size_t bytes_per_tile(size_t row_floats) { return kPoints * row_floats * kFloat; }

Matrices matrices(float* data, size_t rows, size_t row) { return {data, rows * row + kSpread, row}; }
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
  size_t part_outputs;  // output channels of a piece
  size_t parts;
  Matrices u;
  Cut cut;
};

PassPlan plan_pass(const Kernels& kernels, size_t n, size_t inputs, size_t outputs, int64_t p, int64_t q,
                   float* work) {
  PassPlan plan;
  plan.v_row = round_up(inputs, kernels.lanes);
  plan.u.data = work;
  plan.u.row = inputs * kernels.panel;
  plan.u.point = divide_up(outputs, kernels.panel) * plan.u.row + kSpread;
  plan.part_outputs = round_up(outputs, kernels.panel);
  for (size_t split = 1;; ++split) {
    const size_t per_tile = bytes_per_tile(plan.v_row + plan.part_outputs);
    size_t tiles = kBlockBytes / per_tile;
    if (floats_of(plan.u) * kFloat > kLargeWeights) tiles = std::max(tiles, kTilesForLarge);
    const size_t room = kernels.room_floats(kBlockColumns) * kFloat + 2 * kPoints * kSpread * kFloat;
    tiles = std::clamp((kScratchBytes - room) / per_tile, size_t{1}, tiles);
    plan.cut = cut_tiles(n, p, q, tiles);
    plan.parts = divide_up(outputs, plan.part_outputs);
    const size_t smaller = round_up(divide_up(outputs, split + 1), kernels.panel);
    if (plan.cut.blocks() * plan.parts >= kEnoughPieces || smaller < kPartOutputs) return plan;
    plan.part_outputs = smaller;
  }
}

// Rows of y that the block has finished.
void activate(const Pass& pass, const Block& block, Range channels) {
  const size_t first = block.column * kOutputs;
  const size_t columns = std::min(block.columns * kOutputs, as_size(pass.y.columns) - first);
  const Planes& y = pass.y.planes;
  for (size_t r = block.row; r < block.row + block.rows; ++r) {
    const size_t row = r % block.tile_rows * kOutputs, rows = std::min(kOutputs, as_size(pass.y.rows) - row);
    for (size_t c = channels.first; c < channels.end; ++c) {
      float* at = y.data + r / block.tile_rows * y.sample + c * y.plane + row * y.row + first;
      if (columns == y.row) {
        pass.activation->forward(at, rows * columns);
      } else {
        for (size_t i = 0; i < rows; ++i) pass.activation->forward(at + i * y.row, columns);
      }
    }
  }
}

void run_pass(const Kernels& kernels, const Pass& pass, size_t threads, std::byte* work) {
  const size_t inputs = pass.x.channels, outputs = pass.y.channels;
  const PassPlan plan = plan_pass(kernels, pass.batch, inputs, outputs, pass.y.rows, pass.y.columns,
                                  reinterpret_cast<float*>(work));
  parallel(divide_up(outputs, kernels.lanes), threads, [&](size_t piece) {
    const size_t first = piece * kernels.lanes;
    kernels.weights(pass.w, pass.k_step, pass.j_step, pass.turned, {0, inputs},
                    {first, std::min(outputs, first + kernels.lanes)}, plan.u);
  });
  parallel(plan.cut.blocks() * plan.parts, threads, [&](size_t piece) {
    const Block block = plan.cut.block(piece / plan.parts);
    const size_t first = piece % plan.parts * plan.part_outputs;
    const Range channels = {first, std::min(outputs, first + plan.part_outputs)};
    float* room = reinterpret_cast<float*>(scratch());
    const Matrices v = matrices(room + kernels.room_floats(kBlockColumns), plan.cut.most_tiles(), plan.v_row);
    const Matrices m = matrices(v.data + floats_of(v), plan.cut.most_tiles(), plan.part_outputs);
    kernels.data(pass.x, pass.up, pass.left, block, {0, inputs}, v, room);
    kernels.multiply(block, v, inputs, plan.u, channels, m);
    kernels.outputs(m, block, channels, pass.y, pass.bias, pass.accumulate, room);
    if (pass.activation) activate(pass, block, channels);
  });
}

// ---- weight gradient ----

struct SumPlan {
  size_t v_row, y_row;
  bool is_shared;    // V and Y are made together
  size_t parts;      // otherwise: sums
  size_t part_rows;  // rows of blocks that go into one of them
  Matrices v, y;     // shared
  Matrices s;        // not shared: the first sum
  Cut cut;
  size_t floats;     // of work
};

SumPlan plan_sum(const Kernels& kernels, const Problem& s, float* work) {
  SumPlan plan;
  plan.v_row = round_up(s.in_channels, kernels.lanes);
  plan.y_row = round_up(s.out_channels, kernels.lanes);
  const size_t per_tile = bytes_per_tile(plan.v_row + plan.y_row);
  const size_t sum_bytes = bytes_per_tile(s.in_channels * plan.y_row);
  plan.is_shared = sum_bytes > env("WSH", 1300) << 10;
  const size_t tiles = (plan.is_shared ? kSharedBytes : kBlockBytes) / per_tile;
  plan.cut = cut_tiles(s.batch, s.y.out, s.x.out, std::max(tiles, size_t{1}));
  plan.v = matrices(work, plan.cut.most_tiles(), plan.v_row);
  plan.y = matrices(work + floats_of(plan.v), plan.cut.most_tiles(), plan.y_row);
  plan.s = matrices(work, s.in_channels, plan.y_row);
  const size_t parts = std::min(kSums, divide_up(plan.cut.blocks(), 4));
  plan.part_rows = divide_up(plan.cut.blocks(), parts);
  plan.parts = divide_up(plan.cut.blocks(), plan.part_rows);
  plan.floats = plan.is_shared ? floats_of(plan.v) + floats_of(plan.y) : plan.parts * floats_of(plan.s);
  return plan;
}

void run_shared(const Kernels& kernels, const SumPlan& plan, const Problem& s, const WeightGradient& g,
                const Image& x, const Image& dz, size_t threads) {
  const size_t x_groups = divide_up(x.channels, kernels.lanes), dz_groups = divide_up(dz.channels, kernels.lanes);
  const size_t across = divide_up(x.channels, kSumInputs), down = divide_up(dz.channels, kernels.panel);
  for (size_t i = 0; i < plan.cut.blocks(); ++i) {
    const Block block = plan.cut.block(i);
    parallel(x_groups + dz_groups, threads, [&](size_t piece) {
      float* room = reinterpret_cast<float*>(scratch());
      if (piece < x_groups) {
        const size_t c = piece * kernels.lanes;
        kernels.data(x, s.y.before, s.x.before, block, {c, std::min(x.channels, c + kernels.lanes)}, plan.v, room);
      } else {
        const size_t o = (piece - x_groups) * kernels.lanes;
        kernels.gradient(dz, block, {o, std::min(dz.channels, o + kernels.lanes)}, plan.y, room);
      }
    });
    parallel(across * down, threads, [&](size_t piece) {
      const size_t c = piece % across * kSumInputs, o = piece / across * kernels.panel;
      const Range inputs = {c, std::min(x.channels, c + kSumInputs)};
      const Range outputs = {o, std::min(dz.channels, o + kernels.panel)};
      const Matrices sum = matrices(reinterpret_cast<float*>(scratch()), kSumInputs, kernels.panel);
      kernels.correlate(block, plan.v, plan.y, inputs, outputs, false, sum);
      kernels.weight_gradient(sum, 1, 0, inputs, outputs, x.channels, g.accumulate || i > 0, g.dw);
    });
  }
}

void run_apart(const Kernels& kernels, const SumPlan& plan, const Problem& s, const WeightGradient& g, const Image& x,
               const Image& dz, size_t threads) {
  parallel(plan.parts, threads, [&](size_t part) {
    float* room = reinterpret_cast<float*>(scratch());
    const Matrices v = matrices(room + kernels.room_floats(kBlockColumns), plan.cut.most_tiles(), plan.v_row);
    const Matrices y = matrices(v.data + floats_of(v), plan.cut.most_tiles(), plan.y_row);
    Matrices sum = plan.s;
    sum.data += part * floats_of(plan.s);
    const size_t first = part * plan.part_rows, end = std::min(plan.cut.blocks(), first + plan.part_rows);
    for (size_t i = first; i < end; ++i) {
      const Block block = plan.cut.block(i);
      kernels.data(x, s.y.before, s.x.before, block, {0, x.channels}, v, room);
      kernels.gradient(dz, block, {0, dz.channels}, y, room);
      kernels.correlate(block, v, y, {0, x.channels}, {0, dz.channels}, i > first, sum);
    }
  });
  parallel(divide_up(dz.channels, kernels.lanes), threads, [&](size_t piece) {
    const size_t o = piece * kernels.lanes;
    Matrices sum = plan.s;
    sum.data += o;
    kernels.weight_gradient(sum, plan.parts, floats_of(plan.s), {0, x.channels},
                            {o, std::min(dz.channels, o + kernels.lanes)}, x.channels, g.accumulate, g.dw);
  });
}

// ---- where it is used ----

bool is_possible(const Problem& s) {
  const auto is_plain = [](const Axis& axis) { return axis.kernel == 3 && axis.stride == 1 && axis.dilation == 1; };
  return s.groups == 1 && is_plain(s.x) && is_plain(s.y);
}

bool fits(const Problem& s) {
  return is_possible(s) && s.in_channels >= 16 && s.out_channels >= 16;
}

}  // namespace

// ---- the three passes ----

size_t forward_bytes(const Kernels& kernels, const Problem& s) {
  return floats_of(plan_pass(kernels, s.batch, s.in_channels, s.out_channels, s.y.out, s.x.out, nullptr).u) * kFloat;
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
  return floats_of(plan_pass(kernels, s.batch, s.out_channels, s.in_channels, s.y.in, s.x.in, nullptr).u) * kFloat;
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

void weight_gradient(const Kernels& kernels, const Problem& s, const WeightGradient& g, size_t threads,
                     std::byte* work) {
  const SumPlan plan = plan_sum(kernels, s, reinterpret_cast<float*>(work));
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

constinit const ForwardAlgorithm winograd_forward = {"winograd", winograd::fits, forward_bytes, forward};
constinit const InputGradientAlgorithm winograd_input_gradient = {"winograd", winograd::fits, input_gradient_bytes,
                                                                  input_gradient};
constinit const WeightGradientAlgorithm winograd_weight_gradient = {"winograd", winograd::fits,
                                                                    weight_gradient_bytes, weight_gradient};

}  // namespace convolution
}  // namespace obn
