// Pooling, the desk: checks every argument, plans at creation, cuts a call into pieces and hands them to the kernels.
#include "pooling/pooling.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/describe.h"
#include "base/integer.h"
#include "base/legacy.h"
#include "base/pool.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/workspace.h"

namespace obn::pooling {

namespace {

constexpr char kKind[] = "pooling";

constexpr size_t kPieceValues = size_t{1} << 15;     // work of one piece: some 10 us
constexpr size_t kMostPositions = size_t{1} << 12;   // windows of a plane that have a table: it stays near
constexpr double kValue = 0.3;                       // nanoseconds for one of an image, about
constexpr size_t kStageFloats = size_t{1} << 9;      // values staged at a time: short bursts let streaming stores drain while
                                                     // the next rows are computed (2^11 took 20 % longer in backward)
constexpr size_t kPlaneFloats = size_t{1} << 16;     // the same where a whole plane is filled in random order
constexpr size_t kRingFloats = size_t{1} << 17;      // split rows kept at a time
constexpr double kScatterOverlap = 12;  // windows per image position above which max backward scatters; estimated

// ---- choice ----

bool is_average(const Plan& plan) {
  return plan.function == BNNSPoolingFunctionAverageCountIncludePadding ||
         plan.function == BNNSPoolingFunctionAverageCountExcludePadding;
}
bool is_inverse(const Plan& plan) { return plan.function == BNNSPoolingFunctionUnMax; }
bool is_global_average(const Plan& plan) { return plan.is_global_average; }
bool is_max(const Plan& plan) { return plan.function == BNNSPoolingFunctionMax; }
template <bool kMax, int64_t kKernel>
bool pushes(const Plan& plan) {
  return plan.pushes && is_max(plan) == kMax && plan.x.kernel == kKernel;
}

bool has_float_planes(const Call& call) {
  return call.x.has_float_rows() && call.x.is_one_run(static_cast<size_t>(call.plan->x.image));
}
// Windows are taken straight from the image, and results put straight where they belong.
bool is_in_place(const Call& call) {
  const size_t windows = static_cast<size_t>(call.plan->x.windows);
  const auto is_kept = [&](const Tensor& tensor, BNNSDataType type) {
    return !tensor.data || (tensor.type == type && tensor.is_one_run(windows) && !tensor.stream);
  };
  return call.x.has_float_rows() && is_kept(call.y, BNNSDataTypeFloat32) && is_kept(call.indices, BNNSDataTypeUInt32);
}
bool has_own_indices(const Call& call) { return !call.stray_indices; }

constexpr Algorithm kForward[] = {
    {"inverse", is_inverse, nullptr, &Kernels::forward_inverse},
    {"global average", is_global_average, has_float_planes, &Kernels::forward_global},
    {"in place",
     [](const Plan& plan) {
       return plan.is_in_pairs && !plan.bias.data && !plan.has_activation && !plan.has_empty_columns;
     },
     is_in_place, &Kernels::forward_in_place},
    {"windows", [](const Plan&) { return true; }, nullptr, &Kernels::forward_windows},
    {"reference", nullptr, nullptr, &Kernels::forward_windows}};

// Where windows push, pulling takes 1.4 (from memory) to 14 times as long (2x2 maxima with indices, in cache).
constexpr Algorithm kBackward[] = {
    {"inverse", is_inverse, nullptr, &Kernels::backward_inverse},
    {"global average", is_global_average, nullptr, &Kernels::backward_global},
    {"push 2x2 maxima", pushes<true, 2>, has_own_indices, &Kernels::push_two_maxima},
    {"push 3x3 maxima", pushes<true, 3>, has_own_indices, &Kernels::push_three_maxima},
    {"push 2x2 averages", pushes<false, 2>, nullptr, &Kernels::push_two_averages},
    {"push 3x3 averages", pushes<false, 3>, nullptr, &Kernels::push_three_averages},
    {"pull", [](const Plan& plan) { return !plan.prefers_scatter; }, has_own_indices, &Kernels::backward_pull},
    {"scatter", is_max, nullptr, &Kernels::backward_scatter},
    {"reference", nullptr, nullptr, &Kernels::backward_pull}};

// The kernels run nothing without their tables.
const Algorithm* first_that_fits(const Algorithm* from, const Plan& plan) {
  while (from->fits && !(plan.fits && from->fits(plan))) ++from;
  return from;
}

// ---- geometry ----

// What the caller said, with the zeros read as the defaults they stand for.
struct Geometry {
  size_t kernel_x, kernel_y;
  size_t stride_x, stride_y;
  size_t dilation_x, dilation_y;
  size_t left, right, up, down;
};

// Largest number of windows whose first position exists: image + before + after >= stride·(windows - 1) + 1.
// False when the sum overflows.
bool most_windows(size_t image, size_t stride, size_t before, size_t after, size_t* windows) {
  size_t padded;
  if (__builtin_add_overflow(image, before, &padded) || __builtin_add_overflow(padded, after, &padded) ||
      padded > size_t{1} << 62)
    return false;
  *windows = (padded - 1) / stride + 1;
  return true;
}

Axis make_axis(size_t image, size_t windows, size_t kernel, size_t stride, size_t dilation, size_t before) {
  constexpr size_t kLimit = size_t{1} << 62;  // beyond the padded image anyway: no position further out is ever inside
  Axis axis;
  axis.image = static_cast<int64_t>(image);
  axis.windows = static_cast<int64_t>(windows);
  axis.stride = windows == 1 ? 1 : static_cast<int64_t>(stride);  // one window never steps
  axis.dilation = kernel == 1 ? 1 : static_cast<int64_t>(std::min(dilation, kLimit));
  const int64_t padding = static_cast<int64_t>(before), last_start = axis.stride * (axis.windows - 1) - padding;
  // Cut off the positions that even the last window has in front of the image, and the first one behind it.
  const int64_t skipped = last_start >= 0 ? 0 : divide_up(-last_start, axis.dilation);
  const int64_t reached = (axis.image - 1 + padding) / axis.dilation + 1;
  const int64_t useful = std::min(static_cast<int64_t>(std::min(kernel, kLimit)), reached);
  axis.kernel = std::max<int64_t>(0, useful - skipped);
  axis.before = axis.kernel > 0 ? padding - axis.dilation * skipped : padding;
  if (axis.kernel <= 1) axis.dilation = 1;
  return axis;
}

int check_geometry(const Geometry& g, const View& image, const View& windows, const char* windows_argument) {
  if (g.kernel_x == 0 || g.kernel_y == 0)
    return fail("kernel_size: expected at least (1, 1); got (%zu, %zu)", g.kernel_y, g.kernel_x);
  size_t area;
  if (__builtin_mul_overflow(g.kernel_x, g.kernel_y, &area))
    return fail("kernel_size: expected a window whose positions can be counted; got (%zu, %zu)", g.kernel_y,
                g.kernel_x);
  size_t most_x, most_y;
  if (!most_windows(image.extent[0], g.stride_x, g.left, g.right, &most_x) ||
      !most_windows(image.extent[1], g.stride_y, g.up, g.down, &most_y))
    return fail("padding: expected a padded image that can be addressed; got left %zu, right %zu, up %zu, down %zu",
                g.left, g.right, g.up, g.down);
  const size_t channels = image.extent[2];
  if (windows.extent[0] > most_x || windows.extent[1] > most_y || windows.extent[2] != channels) {
    ShapeText of_image, got;
    return fail("%s: expected at most (%zu, %zu, %zu) for %s %s, kernel_size (%zu, %zu), stride (%zu, %zu), "
                "padding (left %zu, right %zu, up %zu, down %zu), dilation (%zu, %zu); got %s",
                windows_argument, channels, most_y, most_x,
                std::strcmp(windows_argument, "output") == 0 ? "input" : "output", shape_text(image, &of_image),
                g.kernel_y, g.kernel_x, g.stride_y, g.stride_x, g.left, g.right, g.up, g.down, g.dilation_y,
                g.dilation_x, shape_text(windows, &got));
  }
  return 0;
}

int check_image(const View& view, const char* argument) {
  if (view.layout != BNNSDataLayoutImageCHW)
    return fail("%s: expected layout ImageCHW; got %s", argument, name_of(view.layout));
  if (!is_float_type(view.type))
    return fail("%s: expected float32, float16 or bfloat16; got %s", argument, name_of(view.type));
  return 0;
}

// A vector with one value per channel: any layout whose only extent above 1 is C. *stride is between channels.
int check_per_channel(const View& view, size_t channels, const char* argument, size_t* stride) {
  if (view.count == channels) {
    for (size_t k = 0; k < view.rank; ++k) {
      if (view.extent[k] != channels) continue;
      *stride = view.stride[k];
      return 0;
    }
  }
  ShapeText got;
  return fail("%s: expected %zu values, one per channel; got %s", argument, channels, shape_text(view, &got));
}

// ---- plan ----

// Small planes of maxima whose windows are all full and do not overlap have a table of where their windows begin.
size_t positions_of(const Plan& plan) { return static_cast<size_t>(plan.x.windows * plan.y.windows); }
bool wants_positions(const Plan& plan) {
  const auto is_full = [](const Axis& axis) {
    return axis.before == 0 && axis.dilation == 1 && axis.kernel > 0 && axis.kernel <= axis.stride &&
           axis.start(axis.windows - 1) + axis.kernel <= axis.image;
  };
  return is_max(plan) && is_full(plan.x) && is_full(plan.y) &&
         positions_of(plan) <= kMostPositions;
}

// The arrays of a plan, parts of one block.
void lay_out(Plan* plan, Workspace* block) {
  const size_t windows = static_cast<size_t>(plan->x.windows);
  plan->columns = block->take<Column>(plan->columns_count);
  plan->columns_by_residue = block->take<Column>(plan->columns_count);
  plan->residue_begin = block->take<int32_t>(plan->residues + 1);
  plan->used_residue = block->take<int32_t>(plan->residues);
  plan->first_column = block->take<int32_t>(windows + kPad);
  plan->column_count = block->take<int32_t>(windows + kPad);
  plan->first_position = wants_positions(*plan) ? block->take<int32_t>(positions_of(*plan) + kPad) : nullptr;
  plan->column_weight = block->take<float>(plan->forward_rows * windows + kPad);
  plan->column_factor = block->take<float>(plan->forward_rows * windows + kPad);
}

// Small enough for 32-bit positions and for rows in scratch.
bool may_fit(const Axis& x, const Axis& y) {
  constexpr int64_t kWidest = int64_t{1} << 17, kLongest = int64_t{1} << 26, kPlane = int64_t{1} << 30;
  return x.image <= kWidest && x.windows <= kWidest && x.kernel <= kWidest && x.stride <= kLongest &&
         x.dilation <= kLongest && x.before <= kLongest && x.before >= -kLongest && y.image <= kLongest &&
         y.windows <= kLongest && y.kernel <= kLongest && x.image * y.image <= kPlane &&
         x.windows * y.windows <= kPlane;
}

void fill_columns(Plan* plan) {
  const Axis& x = plan->x;
  int64_t least = 0, most = 0;
  std::fill_n(plan->residue_begin, plan->residues + 1, 0);
  plan->columns_count = 0;
  for (int64_t k = 0; k < x.kernel; ++k) {
    const int64_t offset = x.dilation * k - x.before;
    const int64_t residue = (offset % x.stride + x.stride) % x.stride, shift = (offset - residue) / x.stride;
    if (residue >= x.image) continue;  // strides wider than the image: no window has this column inside
    plan->columns[plan->columns_count++] = {static_cast<int32_t>(offset), static_cast<int32_t>(residue),
                                             static_cast<int32_t>(shift), 0};
    ++plan->residue_begin[residue + 1];
    least = std::min(least, shift);
    most = std::max(most, shift);
  }
  // Counts become borders; the residues that occur get a slot each.
  plan->used_residues = 0;
  for (size_t r = 0; r < plan->residues; ++r) {
    if (plan->residue_begin[r + 1] > 0) plan->used_residue[plan->used_residues++] = static_cast<int32_t>(r);
    plan->residue_begin[r + 1] += plan->residue_begin[r];
  }
  const size_t per_residue = static_cast<size_t>(divide_up(x.image, x.stride));
  const size_t windows = static_cast<size_t>(x.windows), before = static_cast<size_t>(-least),
               behind = static_cast<size_t>(most);
  plan->slot_left = before;
  plan->slot_floats = round_up(before + std::max(windows + behind, per_residue) + 2 * kPad, kPad);
  plan->row_floats = plan->used_residues * plan->slot_floats;
  plan->gradient_left = behind;
  plan->gradient_floats = round_up(behind + std::max(before + per_residue, windows) + 2 * kPad, kPad);
  // Sorted by residue, kx ascending within one: each residue's border walks to its end, then all move back by one.
  for (size_t k = 0; k < plan->columns_count; ++k) {
    Column& column = plan->columns[k];
    const int32_t* slot = std::lower_bound(plan->used_residue, plan->used_residue + plan->used_residues,
                                           column.residue);
    column.at = static_cast<int32_t>(static_cast<size_t>(slot - plan->used_residue) * plan->slot_floats + before) +
                column.shift;
    plan->columns_by_residue[plan->residue_begin[column.residue]++] = column;
  }
  for (size_t r = plan->residues; r > 0; --r) plan->residue_begin[r] = plan->residue_begin[r - 1];
  plan->residue_begin[0] = 0;
}

void fill_positions(const Plan& plan) {
  const size_t windows = static_cast<size_t>(plan.x.windows), all = positions_of(plan);
  for (size_t i = 0; i < all; ++i) {
    const int64_t p = static_cast<int64_t>(i / windows), q = static_cast<int64_t>(i % windows);
    plan.first_position[i] = static_cast<int32_t>(plan.y.start(p) * plan.x.image + plan.x.start(q));
  }
  std::fill_n(plan.first_position + all, kPad, 0);
}

void fill_windows(Plan* plan) {
  const Axis& x = plan->x;
  plan->has_empty_columns = false;
  for (int64_t q = 0; q < x.windows; ++q) {
    const int64_t count = x.end(q) - x.first(q);
    if (count == 0) plan->has_empty_columns = true;
    plan->first_column[q] = count == 0 ? 0 : static_cast<int32_t>(x.start(q) + x.dilation * x.first(q));
    plan->column_count[q] = static_cast<int32_t>(count);
    const float weight = plan->count_padding ? plan->full_width : static_cast<float>(std::max<int64_t>(count, 1));
    for (size_t r = 0; r < plan->forward_rows; ++r)
      plan->column_weight[static_cast<int64_t>(r) * x.windows + q] = weight;
  }
  for (size_t q = static_cast<size_t>(x.windows); q < static_cast<size_t>(x.windows) + kPad; ++q) {
    plan->first_column[q] = 0;
    plan->column_count[q] = 0;
  }
  const size_t weights = plan->forward_rows * static_cast<size_t>(x.windows);
  std::fill_n(plan->column_weight + weights, kPad, 1.0f);
  plan->weights_are_powers_of_two = true;
  for (size_t i = 0; i < weights + kPad; ++i) {
    plan->column_factor[i] = 1.0f / plan->column_weight[i];
    if ((std::bit_cast<uint32_t>(plan->column_weight[i]) & 0x7fffff) != 0) plan->weights_are_powers_of_two = false;
  }
}

// Rows of scratch, chosen so that everything a kernel carves out of its block is there.
bool choose_rows(Plan* plan) {
  const size_t w = static_cast<size_t>(plan->x.image), h = static_cast<size_t>(plan->y.image);
  const size_t q = static_cast<size_t>(plan->x.windows), p = static_cast<size_t>(plan->y.windows);
  constexpr size_t kBlock = kScratchBytes / sizeof(float);
  const size_t reach = static_cast<size_t>(plan->y.dilation * std::max<int64_t>(plan->y.kernel - 1, 0));
  const size_t row = std::max<size_t>(plan->row_floats, 1);
  if (row > kRingFloats) return false;
  // The rows under two rows of windows if they stay in the first-level cache, else under one, else what fits.
  const size_t stride = static_cast<size_t>(plan->y.stride), under_two = std::bit_ceil(stride + reach + 1);
  plan->splits_ahead = under_two * row <= kStageFloats;
  plan->ring_rows = plan->splits_ahead ? under_two
                                       : std::min(std::bit_ceil(reach + 1), std::bit_floor(kRingFloats / row));
  plan->rows_at_once = std::min((plan->ring_rows - 1) / static_cast<size_t>(plan->y.dilation) + 1, kRowsAtOnce);
  plan->line_floats = round_up(std::max(w, q) + 2 * kPad, kPad);
  const size_t shared = plan->is_in_pairs ? 4 * plan->slot_floats : 0;
  const size_t ring = 2 * round_up(plan->ring_rows, kPad) + plan->ring_rows * row + plan->line_floats + shared;

  const size_t forward = ring + 4 * round_up(plan->forward_rows * q + 2 * kPad, kPad);

  size_t backward = 0;
  for (plan->backward_rows = std::clamp<size_t>(kStageFloats / w, 1, h);; plan->backward_rows = 1) {
    plan->gradient_rows = std::min(p, (plan->backward_rows - 1 + reach) / stride + 2);
    backward = ring + (2 * plan->gradient_rows + 1) * plan->gradient_floats + 3 * plan->line_floats +
               round_up(plan->backward_rows * w + 4 * kPad, kPad);
    if (backward <= kBlock || plan->backward_rows == 1) break;
  }
  plan->push_rows = std::max<size_t>(2, plan->backward_rows);
  backward = std::max(backward, ring + 2 * round_up(plan->forward_rows * q + 2 * kPad, kPad) + 7 * plan->line_floats +
                                    round_up(plan->push_rows * w + 4 * kPad, kPad));
  // Scattering and UnMax: whole planes of the image where they fit.
  plan->scatter_rows = std::clamp<size_t>(kPlaneFloats / w, 1, h);
  const size_t scatter = ring + 4 * plan->line_floats + round_up(plan->scatter_rows * w + 4 * kPad, kPad);
  return forward <= kBlock && backward <= kBlock && scatter <= kBlock;
}

// By division: there may be as many windows over the padding as it has rows.
void find_full_rows(Plan* plan) {
  const Axis& y = plan->y;
  plan->full_begin = 0;
  plan->full_end = y.windows;
  if (y.kernel == 0) return;
  if (y.before > 0) plan->full_begin = std::min(y.windows, (y.before - 1) / y.stride + 1);
  const int64_t last = y.image - 1 + y.before - y.dilation * (y.kernel - 1);  // the lowest start, from the padding's
  plan->full_end = std::max(plan->full_begin, last < 0 ? 0 : std::min(y.windows, last / y.stride + 1));
}

// Decides how the kernels work, or leaves plan->fits false: then the reference loops serve. *block becomes the block of
// tables, which the filter keeps (NULL: none needed). Returns 0, or -1 without memory.
int make_tables(const Options& options, Plan* plan, void** block) {
  plan->fits = false;
  *block = nullptr;
  if (!may_fit(plan->x, plan->y)) return 0;
  plan->columns_count = static_cast<size_t>(plan->x.kernel);  // at most
  plan->forward_rows = std::clamp<size_t>(kStageFloats / 2 / static_cast<size_t>(plan->x.windows), 1,
                                          static_cast<size_t>(plan->y.windows));  // beside them lie as many indices
  find_full_rows(plan);
  plan->residues = static_cast<size_t>(std::min(plan->x.stride, plan->x.image));
  const int64_t rows_over = plan->y.dilation == 1 ? (plan->y.kernel - 1) / plan->y.stride + 1 : plan->y.kernel;
  const auto overlap = [](const Axis& axis) { return static_cast<double>(axis.kernel) / static_cast<double>(axis.stride); };
  plan->prefers_scatter =
      is_max(*plan) &&
      (overlap(plan->x) * overlap(plan->y) > kScatterOverlap || rows_over > static_cast<int64_t>(kOversAtOnce));
  plan->is_in_pairs = plan->x.stride == 2 && plan->x.dilation == 1 && plan->y.kernel <= 3 &&
                      ((plan->x.kernel == 2 && plan->x.before == 0) || (plan->x.kernel == 3 && plan->x.before == 1));
  const auto is_pair = [](const Axis& axis) {
    return axis.stride == 2 && axis.dilation == 1 && axis.kernel == axis.before + 2 && axis.before >= 0 && axis.before <= 1;
  };
  plan->pushes = (is_average(*plan) || is_max(*plan)) && is_pair(plan->x) && is_pair(plan->y) &&
                 plan->x.kernel == plan->y.kernel;
  const auto is_covered = [](const Axis& axis) {
    return axis.windows == 1 && axis.dilation == 1 && axis.before == 0 && axis.kernel == axis.image;
  };
  plan->is_global_average = is_average(*plan) && is_covered(plan->x) && is_covered(plan->y) &&
                            plan->x.image * plan->y.image <= static_cast<int64_t>(kStageFloats);
  Workspace count;
  lay_out(plan, &count);
  *block = options.get(count.used());
  if (!*block) return -1;
  Workspace tables(static_cast<std::byte*>(*block));
  lay_out(plan, &tables);
  fill_columns(plan);
  fill_windows(plan);
  if (plan->first_position) fill_positions(*plan);
  plan->fits = choose_rows(plan);
  return 0;
}

RowCut cut_rows(int64_t rows, size_t plane_values) {
  const size_t all = static_cast<size_t>(rows);
  const size_t per_piece =
      plane_values < 2 * kPieceValues ? all : std::max<size_t>(1, all / (plane_values / kPieceValues));
  return {all, per_piece, (all - 1) / per_piece + 1};
}

// ---- creation ----

Pooling* create(const Options& options, const View& input, const View& output, BNNSPoolingFunction function,
                const Geometry& geometry, const Bias& bias, const BNNSActivation& activation) {
  const bool inverse = function == BNNSPoolingFunctionUnMax;
  const View& image = inverse ? output : input;
  const View& windows = inverse ? input : output;
  if (input.type != output.type) {
    fail("output: expected %s, the type of input; got %s", name_of(input.type), name_of(output.type));
    return nullptr;
  }
  if (check_geometry(geometry, image, windows, inverse ? "input" : "output") != 0) return nullptr;

  Plan plan = {};
  plan.function = function;
  plan.channels = image.extent[2];
  plan.x = make_axis(image.extent[0], windows.extent[0], geometry.kernel_x, geometry.stride_x, geometry.dilation_x,
                     geometry.left);
  plan.y = make_axis(image.extent[1], windows.extent[1], geometry.kernel_y, geometry.stride_y, geometry.dilation_y,
                     geometry.up);
  plan.plane_values = image.extent[0] * image.extent[1] + windows.extent[0] * windows.extent[1];
  plan.planes_per_piece = std::max<size_t>(1, kPieceValues / plan.plane_values);
  plan.image_rows = cut_rows(plan.y.image, plan.plane_values);
  plan.window_rows = cut_rows(plan.y.windows, plan.plane_values);
  plan.count_padding = function == BNNSPoolingFunctionAverageCountIncludePadding;
  plan.full_width = static_cast<float>(geometry.kernel_x);
  plan.full_height = static_cast<float>(geometry.kernel_y);
  if (activation::Fused::read(activation, "activation", &plan.activation) != 0) return nullptr;
  plan.has_activation = !plan.activation.is_identity();
  plan.activation_needs_rows = activation.function == BNNSActivationFunctionSoftmax ||
                               activation.function == BNNSActivationFunctionLogSoftmax;
  if (plan.activation_needs_rows && output.extent[0] > kRingFloats / 2) {
    fail("activation: expected rows of at most %zu values for a softmax; got %zu", kRingFloats / 2, output.extent[0]);
    return nullptr;
  }
  plan.bias = bias;

  float* copied_bias = nullptr;
  if (bias.data && !options.use_client_ptr) {
    if (plan.channels > SIZE_MAX / sizeof(float)) {
      fail("bias: expected a number of channels that can be addressed; got %zu", plan.channels);
      return nullptr;
    }
    copied_bias = static_cast<float*>(options.get(plan.channels * sizeof(float)));
    if (!copied_bias) return nullptr;
    for (size_t c = 0; c < plan.channels; ++c) copied_bias[c] = bias_of(plan, c);
    plan.bias = {copied_bias, BNNSDataTypeFloat32, 1, 1.0f, 0.0f, nullptr};
  }
  void* tables;
  Pooling* filter = nullptr;
  if (make_tables(options, &plan, &tables) == 0)
    filter = options.make<Pooling>(options, input, output, plan, tables, copied_bias);
  if (!filter) {
    options.release(tables);
    options.release(copied_bias);
  }
  return filter;
}

size_t or_one(size_t n) { return n ? n : 1; }

}  // namespace

Pooling* make_pooling(const BNNSLayerParametersPooling& p, const Options& options) {
  View input, output;
  if (read_view(p.i_desc, Access::read, "input", &input) != 0 || check_image(input, "input") != 0 ||
      read_view(p.o_desc, Access::write, "output", &output) != 0 || check_image(output, "output") != 0)
    return nullptr;
  if (p.pooling_function > BNNSPoolingFunctionL2Norm) {
    fail("pooling: expected a function from 0 to 4; got %u", static_cast<unsigned>(p.pooling_function));
    return nullptr;
  }
  Bias bias = {};
  if (p.bias.data) {
    View view;
    size_t stride = 0, unused;
    if (read_view(p.bias, Access::read, "bias", &view) != 0 ||
        check_per_channel(view, input.extent[2], "bias", &stride) != 0 ||
        read_batch(view, view.data, 1, 0, Access::read, "bias", &unused) != 0)
      return nullptr;
    if (!is_float_type(view.type)) {
      fail("bias: expected float32, float16 or bfloat16; got %s", name_of(view.type));
      return nullptr;
    }
    bias = {view.data, view.type, stride, 1.0f, 0.0f, nullptr};
  }
  const bool symmetric = p.x_padding != 0 || p.y_padding != 0;
  const Geometry geometry = {p.k_width,
                             p.k_height,
                             or_one(p.x_stride),
                             or_one(p.y_stride),
                             or_one(p.x_dilation_stride),
                             or_one(p.y_dilation_stride),
                             symmetric ? p.x_padding : p.pad[0],
                             symmetric ? p.x_padding : p.pad[1],
                             symmetric ? p.y_padding : p.pad[2],
                             symmetric ? p.y_padding : p.pad[3]};
  return create(options, input, output, p.pooling_function, geometry, bias, p.activation);
}

float bias_of(const Plan& plan, size_t channel) {
  const Bias& bias = plan.bias;
  if (!bias.data) return -0.0f;
  const auto at = [&](auto first) { return static_cast<const decltype(first)*>(bias.data)[channel * bias.stride]; };
  const auto scaled = [&](auto stored) { return bias.scale * static_cast<float>(stored) + bias.offset; };
  switch (bias.type) {
    case BNNSDataTypeFloat32: return at(float{});
    case BNNSDataTypeFloat16: return float_of_float16(at(uint16_t{}));
    case BNNSDataTypeBFloat16: return float_of_bfloat16(at(uint16_t{}));
    case BNNSDataTypeInt8: return scaled(at(int8_t{}));
    case BNNSDataTypeInt16: return scaled(at(int16_t{}));
    case BNNSDataTypeInt32: return scaled(at(int32_t{}));
    case BNNSDataTypeInt64: return scaled(at(int64_t{}));
    case BNNSDataTypeUInt8: return scaled(at(uint8_t{}));
    case BNNSDataTypeUInt16: return scaled(at(uint16_t{}));
    case BNNSDataTypeUInt32: return scaled(at(uint32_t{}));
    case BNNSDataTypeUInt64: return scaled(at(uint64_t{}));
    case BNNSDataTypeIndexed8: return bias.table[at(uint8_t{})];
    default: return -0.0f;  // creation let nothing else in
  }
}

Pooling::Pooling(const Options& options, const View& input, const View& output, const Plan& plan, void* tables,
                 void* copied_bias)
    : Filter(kKind, options),
      kernels(plan.fits ? &targets.best() : &reference),
      input_(input),
      output_(output),
      plan_(plan),
      forward_(first_that_fits(kForward, plan)),
      backward_(first_that_fits(kBackward, plan)),
      tables_(tables),
      copied_bias_(copied_bias) {
  indices_[0] = indices_[1] = plan.function == BNNSPoolingFunctionUnMax ? input : output;
  indices_[0].type = BNNSDataTypeUInt32;
  indices_[1].type = BNNSDataTypeUInt64;
  if (!plan.bias.data || copied_bias) return;
  bias_.rank = 1;
  bias_.extent[0] = bias_.count = plan.channels;
  bias_.stride[0] = plan.bias.stride;
  bias_.span = 1 + (plan.channels - 1) * plan.bias.stride;
  bias_.type = plan.bias.type;
  bias_.data = const_cast<void*>(plan.bias.data);
}

void Pooling::pack_indices() {
  for (View& view : indices_) {
    size_t step = 1;
    for (size_t k = 0; k < view.rank; ++k) {
      view.stride[k] = step;
      step *= view.extent[k];
    }
    view.span = view.packed_batch = view.count;
  }
}

Pooling::~Pooling() {
  options().release(tables_);
  options().release(copied_bias_);
}

void Pooling::describe(Description* description) const {
  constexpr const char* kNames[] = {"max", "average", "average_exclude_padding", "unmax", "l2_norm"};
  description->kinds[0] = kNames[plan_.function];
  description->forward = forward_->name;
  description->input_gradient = backward_->name;
  description->inputs[0] = &input_;
  description->output = &output_;
}

// ---- running a call ----

namespace {

RowCut uncut(const RowCut& cut) { return {cut.rows, cut.rows, 1}; }

void set_tensor(const View& view, const void* data, size_t stride, size_t batch, BNNSDataType type, Tensor* tensor) {
  tensor->data = static_cast<std::byte*>(const_cast<void*>(data));
  tensor->x_stride = view.stride[0];
  tensor->y_stride = view.stride[1];
  tensor->c_stride = view.stride[2];
  tensor->n_stride = stride;
  tensor->type = type;
  tensor->accumulate = false;
  tensor->stream = view.count * bytes_of(type) * batch > kStreamBytes;
}

// Nanoseconds of a call on one thread, about.
double work_of(const Plan& plan, size_t batch) { return kValue * batch * plan.channels * plan.plane_values; }

int check_index_type(BNNSDataType type) {
  if (type == BNNSDataTypeUInt32 || type == BNNSDataTypeUInt64) return 0;
  return fail("indices: expected uint32 or uint64; got %s", name_of(type));
}

int refuse_indices(const Plan& plan) {
  return fail("indices: expected values below %lld, the number of values in a plane; got a larger one",
              static_cast<long long>(plan.x.image * plan.y.image));
}

// Memory that is written is apart from everything that is read.
template <size_t n>
int check_apart_from(const Place (&read)[n], const Place& written) {
  for (const Place& place : read)
    if (check_apart(written, place) != 0) return -1;
  return 0;
}

}  // namespace

Run Pooling::kernel_of(const Algorithm* chosen, const Call& call) const {
  while (chosen->takes && !chosen->takes(call)) chosen = first_that_fits(chosen + 1, plan_);
  return kernels->*chosen->run;
}

int Pooling::apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) {
  return apply_indexed(batch, x, x_stride, y, y_stride, BNNSDataTypeUInt64, nullptr, 0);
}

int Pooling::apply_indexed(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride,
                           BNNSDataType indices_type, void* indices, size_t indices_stride) {
  if (is_inverse(plan_) && !indices) return fail("indices: expected those of the max pooling; got NULL");
  if (!is_max(plan_) && !is_inverse(plan_)) indices = nullptr;
  if (indices && check_index_type(indices_type) != 0) return -1;
  if (batch == 0) return 0;
  if (read_batch(input_, x, batch, x_stride, Access::read, "input", &x_stride) != 0 ||
      read_batch(output_, y, batch, y_stride, Access::write, "output", &y_stride) != 0)
    return -1;
  const Place place_of_y{"output", &output_, y, y_stride, batch};
  const Place read[] = {{"input", &input_, x, x_stride, batch}, own_bias()};
  if (check_apart_from(read, place_of_y) != 0) return -1;
  Call call;
  call.plan = &plan_;
  call.batch = batch;
  set_tensor(input_, x, x_stride, batch, input_.type, &call.x);
  set_tensor(output_, y, y_stride, batch, output_.type, &call.y);
  if (indices) {
    const View& view = indices_of(indices_type);
    const Access access = is_max(plan_) ? Access::write : Access::read;
    if (read_batch(view, indices, batch, indices_stride, access, "indices", &indices_stride) != 0) return -1;
    const Place place{"indices", &view, indices, indices_stride, batch};
    if (check_apart(place, place_of_y) != 0 || (is_max(plan_) && check_apart_from(read, place) != 0)) return -1;
    set_tensor(view, indices, indices_stride, batch, indices_type, &call.indices);
  }
  if (!scratch()) return -1;

  const size_t threads = threads_for(options().threads);
  if (is_inverse(plan_) && (look_at_indices(call, threads) & kIndexOutOfRange)) return refuse_indices(plan_);
  call.cut = Cut(batch * plan_.channels, plan_.planes_per_piece,
                 is_inverse(plan_) ? uncut(plan_.image_rows) : plan_.window_rows);
  run_pieces(call.cut.pieces, threads, work_of(plan_, batch), kernel_of(forward_, call), &call);
  return 0;
}

unsigned Pooling::look_at_indices(const Call& call, size_t threads) const {
  const Cut cut(call.batch * plan_.channels, plan_.planes_per_piece, plan_.window_rows);
  std::atomic<unsigned> found{0};
  parallel(cut.pieces, threads, work_of(plan_, call.batch), [&](size_t i) {
    const unsigned here = kernels->look_at_indices(call, cut.piece(i), scratch());
    if (here) found.fetch_or(here, std::memory_order_relaxed);
  });
  return found.load(std::memory_order_relaxed);
}

// ---- backward ----

int Pooling::apply_backward(const Backward& arguments) {
  return apply_backward_indexed(arguments, BNNSDataTypeUInt64, nullptr, 0);
}

// Fills *call and *db_view, or says what is wrong. Nothing is written.
int Pooling::check_backward(const Backward& a, BNNSDataType indices_type, const void* indices, size_t indices_stride,
                            Call* call, View* db_view) const {
  const bool needs_indices = a.dx && indices;  // Max may, UnMax must have them
  const bool needs_x = a.dx && (plan_.function == BNNSPoolingFunctionL2Norm || (is_max(plan_) && !indices));
  if (a.dx && a.batch > 0 && is_inverse(plan_) && !indices)
    return fail("indices: expected those of the max pooling; got NULL");
  if (needs_indices && check_index_type(indices_type) != 0) return -1;

  View dy;
  size_t dy_stride;
  if (read_gradient(*a.dy, output_, Access::read, a.batch, a.dy_stride, "grad_output", &dy, &dy_stride) != 0) return -1;
  call->plan = &plan_;
  call->batch = a.batch;
  set_tensor(dy, dy.data, dy_stride, a.batch, dy.type, &call->dy);

  size_t y_stride = 0, x_stride = 0;
  if (plan_.has_activation) {
    if (plan_.activation.check_backward() != 0) return -1;
    if (!a.y && a.batch > 0)
      return fail("output: expected the result of apply, which the activation's gradient needs; got NULL");
    if (read_batch(output_, a.y, a.batch, a.y_stride, Access::read, "output", &y_stride) != 0) return -1;
    set_tensor(output_, a.y, y_stride, a.batch, output_.type, &call->y);
  }
  if (needs_x) {
    if (!a.x && a.batch > 0)
      return fail("input: expected the input of apply, which the gradient %s; got NULL",
                  is_max(plan_) ? "without indices needs" : "of an L2 norm needs");
    if (read_batch(input_, a.x, a.batch, a.x_stride, Access::read, "input", &x_stride) != 0) return -1;
    set_tensor(input_, a.x, x_stride, a.batch, input_.type, &call->x);
  }
  const View& index = indices_of(indices_type);
  if (needs_indices) {
    if (read_batch(index, indices, a.batch, indices_stride, Access::read, "indices", &indices_stride) != 0) return -1;
    set_tensor(index, indices, indices_stride, a.batch, indices_type, &call->indices);
  }
  View dx;
  size_t dx_stride = 0;
  if (a.dx) {
    if (read_gradient(*a.dx, input_, Access::write, a.batch, a.dx_stride, "input_gradient", &dx, &dx_stride) != 0)
      return -1;
    set_tensor(dx, dx.data, dx_stride, a.batch, dx.type, &call->dx);
    call->dx.accumulate = dx.accumulate;
  }
  const Place place_of_dx{"input_gradient", &dx, dx.data, dx_stride, a.batch};
  const Place read[] = {{"grad_output", &dy, dy.data, dy_stride, a.batch},
                        {"input", &input_, call->x.data, x_stride, a.batch},
                        {"output", &output_, call->y.data, y_stride, a.batch},
                        {"indices", &index, call->indices.data, indices_stride, a.batch},
                        own_bias()};
  if (check_apart_from(read, place_of_dx) != 0) return -1;
  if (a.db) {
    View& db = *db_view;
    size_t unused;
    const char* name = "bias_gradient";
    if (read_view(*a.db, Access::write, name, &db) != 0 ||
        check_per_channel(db, plan_.channels, name, &call->db_stride) != 0 ||
        read_batch(db, db.data, 1, 0, Access::write, name, &unused) != 0)
      return -1;
    if (!is_float_type(db.type))
      return fail("%s: expected float32, float16 or bfloat16; got %s", name, name_of(db.type));
    const Place place{name, &db, db.data, 0, 1};
    if (check_apart_from(read, place) != 0 || check_apart(place, place_of_dx) != 0) return -1;
    call->db = static_cast<std::byte*>(db.data);
    call->db_type = db.type;
    call->db_accumulate = db.accumulate;
  }
  return scratch() ? 0 : -1;
}

int Pooling::apply_backward_indexed(const Backward& a, BNNSDataType indices_type, const void* indices,
                                    size_t indices_stride) {
  if (!is_max(plan_) && !is_inverse(plan_)) indices = nullptr;
  if (a.dw) return fail("weights_gradient: expected NULL, pooling has no weights; got a descriptor");
  if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (!a.dx && !a.db) return 0;
  Call call;
  View db;
  if (check_backward(a, indices_type, indices, indices_stride, &call, &db) != 0) return -1;
  if (a.batch == 0) {
    clear_sum(db);
    return 0;
  }

  const size_t threads = threads_for(options().threads);
  const double work = work_of(plan_, a.batch);
  const size_t planes = a.batch * plan_.channels;
  if (plan_.has_activation && plan_.activation.depends_on_values()) {
    const Cut cut(planes, plan_.planes_per_piece, is_inverse(plan_) ? plan_.image_rows : plan_.window_rows);
    std::atomic<bool> accepted{true};
    parallel(cut.pieces, threads, work, [&](size_t i) {
      if (!kernels->accepts_output(call, cut.piece(i), scratch())) accepted.store(false, std::memory_order_relaxed);
    });
    if (!accepted.load(std::memory_order_relaxed))
      return fail("output: expected values from which the activation's gradient is known; got ambiguous ones");
  }
  if (call.indices.data) {
    const unsigned found = look_at_indices(call, threads);
    if (found & kIndexOutOfRange) return refuse_indices(plan_);
    call.stray_indices = found & kIndexStray;
  }
  if (call.db) {
    size_t channel_values;
    if (__builtin_mul_overflow(plan_.plane_values, a.batch, &channel_values)) channel_values = SIZE_MAX;
    call.cut = Cut(plan_.channels, std::max<size_t>(1, kPieceValues / channel_values), {1, 1, 1});
    run_pieces(call.cut.pieces, threads, work, kernels->bias_backward, &call);
  }
  if (call.dx.data) {
    const RowCut rows = is_inverse(plan_) ? uncut(plan_.window_rows) : plan_.image_rows;
    call.cut = Cut(planes, plan_.planes_per_piece, call.stray_indices ? uncut(rows) : rows);
    run_pieces(call.cut.pieces, threads, work, kernel_of(backward_, call), &call);
  }
  return 0;
}

}  // namespace obn::pooling

// ---- the C interface ----

using namespace obn;
using namespace obn::pooling;

extern "C" {

BNNSFilter BNNSFilterCreateLayerPooling(const BNNSLayerParametersPooling* layer_params,
                                        const BNNSFilterParameters* filter_params) {
  if (!layer_params) {
    fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Pooling* filter = make_pooling(*layer_params, options);
  return filter ? publish(filter) : nullptr;
}

int BNNSPoolingFilterApplyBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride, void* out,
                                size_t out_stride, size_t* indices, size_t idx_stride) {
  static_assert(sizeof(size_t) == sizeof(uint64_t));
  return BNNSPoolingFilterApplyBatchEx(filter, batch_size, in, in_stride, out, out_stride, BNNSDataTypeUInt64, indices,
                                       idx_stride);
}

int BNNSPoolingFilterApplyBatchEx(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride, void* out,
                                  size_t out_stride, BNNSDataType indices_data_type, void* indices,
                                  size_t idx_stride) {
  auto* found = static_cast<Pooling*>(find_filter(filter, kKind));
  if (!found) return -1;
  return call_filter(found, Pass::forward, batch_size, [&] {
    return found->apply_indexed(batch_size, in, in_stride, out, out_stride, indices_data_type, indices, idx_stride);
  });
}

int BNNSPoolingFilterApplyBackwardBatch(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride,
                                        BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride, const void* out,
                                        size_t out_stride, BNNSNDArrayDescriptor* out_delta, size_t out_delta_stride,
                                        BNNSNDArrayDescriptor* bias_delta, const size_t* indices, size_t idx_stride) {
  return BNNSPoolingFilterApplyBackwardBatchEx(filter, batch_size, in, in_stride, in_delta, in_delta_stride, out,
                                               out_stride, out_delta, out_delta_stride, bias_delta, BNNSDataTypeUInt64,
                                               indices, idx_stride);
}

int BNNSPoolingFilterApplyBackwardBatchEx(BNNSFilter filter, size_t batch_size, const void* in, size_t in_stride,
                                          BNNSNDArrayDescriptor* in_delta, size_t in_delta_stride, const void* out,
                                          size_t out_stride, BNNSNDArrayDescriptor* out_delta, size_t out_delta_stride,
                                          BNNSNDArrayDescriptor* bias_delta, BNNSDataType indices_data_type,
                                          const void* indices, size_t idx_stride) {
  auto* found = static_cast<Pooling*>(find_filter(filter, kKind));
  if (!found) return -1;
  return call_filter(found, Pass::backward, batch_size, [&] {
    return found->apply_backward_indexed({batch_size, in, in_stride, in_delta, in_delta_stride, out, out_stride,
                                          out_delta, out_delta_stride, nullptr, bias_delta},
                                         indices_data_type, indices, idx_stride);
  });
}

// The first form of the interface: image stacks become ImageCHW descriptors.
BNNSFilter BNNSFilterCreatePoolingLayer(const BNNSImageStackDescriptor* in_desc,
                                        const BNNSImageStackDescriptor* out_desc,
                                        const BNNSPoolingLayerParameters* layer_params,
                                        const BNNSFilterParameters* filter_params) {
  if (!in_desc || !out_desc || !layer_params) {
    fail("layer_params: expected input, output and parameters; got NULL");
    return nullptr;
  }
  const BNNSPoolingLayerParameters& p = *layer_params;
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  View views[2];
  const BNNSImageStackDescriptor* stacks[2] = {in_desc, out_desc};
  const size_t channels[2] = {p.in_channels, p.out_channels};
  const char* names[2] = {"input", "output"};
  for (int i = 0; i < 2; ++i) {
    const BNNSImageStackDescriptor& stack = *stacks[i];
    if (read_view(describe(stack), Access::write, names[i], &views[i]) != 0 || check_image(views[i], names[i]) != 0)
      return nullptr;
    if (stack.channels != channels[i]) {
      fail("%s: expected %zu channels, as layer_params says; got %zu", names[i], channels[i], stack.channels);
      return nullptr;
    }
  }
  if (p.pooling_function > BNNSPoolingFunctionAverage) {
    fail("pooling: expected 0 (max) or 1 (average); got %u", static_cast<unsigned>(p.pooling_function));
    return nullptr;
  }
  Bias bias = {};
  if (p.bias.data) {
    const BNNSDataType type = p.bias.data_type;
    if (!is_known(type) || bytes_of(type) == 0 || type == BNNSDataTypeBoolean) {
      fail("bias: expected a type of whole bytes; got %s", name_of(type));
      return nullptr;
    }
    if (is_indexed(type) && !p.bias.data_table) {
      fail("bias: expected a table of 256 values for %s; got NULL", name_of(type));
      return nullptr;
    }
    if (reinterpret_cast<uintptr_t>(p.bias.data) % bytes_of(type) != 0) {
      fail("bias: expected an address aligned to %s; got %p", name_of(type), p.bias.data);
      return nullptr;
    }
    bias = {p.bias.data, type, 1, p.bias.data_scale == 0.0f ? 1.0f : p.bias.data_scale, p.bias.data_bias,
            p.bias.data_table};
  }
  const Geometry geometry = {p.k_width, p.k_height, or_one(p.x_stride), or_one(p.y_stride), 1, 1,
                             p.x_padding, p.x_padding, p.y_padding, p.y_padding};
  Pooling* filter = create(options, views[0], views[1], p.pooling_function, geometry, bias, p.activation);
  return filter ? publish(filter) : nullptr;
}
}
