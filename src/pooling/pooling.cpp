// Pooling, the desk: checks every argument, plans at creation, cuts a call into pieces and hands them to the kernels.
#include "pooling/pooling.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/legacy.h"
#include "base/pool.h"
#include "base/status.h"

namespace obn::portable::pooling {
extern const obn::pooling::Kernels kernels;
}
#if defined(OBN_X86)
namespace obn::avx2::pooling {
extern const obn::pooling::Kernels kernels;
}
namespace obn::avx512::pooling {
extern const obn::pooling::Kernels kernels;
}
#endif

namespace obn::pooling {

#if defined(OBN_X86)
const Targets<Kernels> targets = {&portable::pooling::kernels, &avx2::pooling::kernels, &avx512::pooling::kernels,
                                  nullptr};
#else
const Targets<Kernels> targets = {&portable::pooling::kernels, nullptr, nullptr, nullptr};
#endif

namespace {

constexpr char kKind[] = "pooling";

constexpr size_t kPieceValues = size_t{1} << 15;     // work of one piece: some 10 us
constexpr size_t kMostPositions = size_t{1} << 12;   // windows of a plane that have a table: it stays near
constexpr double kValue = 0.3;                       // nanoseconds for one of an image, about
constexpr size_t kStreamBytes = size_t{16} << 20;    // arrays above this are written past the caches
constexpr size_t kStageFloats = size_t{1} << 9;      // values staged at a time: short bursts let streaming stores drain while
                                                     // the next rows are computed (2^11 took 20 % longer in backward)
constexpr size_t kPlaneFloats = size_t{1} << 16;     // the same where a whole plane is filled in random order
constexpr size_t kRingFloats = size_t{1} << 17;      // split rows kept at a time
constexpr double kScatterOverlap = 12;  // windows per image position above which max backward scatters; estimated

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
  const int64_t skipped = last_start >= 0 ? 0 : (-last_start + axis.dilation - 1) / axis.dilation;
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

bool is_float_type(BNNSDataType type) {
  return type == BNNSDataTypeFloat32 || type == BNNSDataTypeFloat16 || type == BNNSDataTypeBFloat16;
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

size_t round_up(size_t n) { return (n + kPad - 1) / kPad * kPad; }

// The arrays of a plan, as parts of one block; with block NULL only their size is counted.
struct Tables {
  std::byte* block;
  size_t used = 0;

  template <class T>
  T* take(size_t n) {
    T* part = block ? reinterpret_cast<T*>(block + used) : nullptr;
    used += round_up(n * sizeof(T));
    return part;
  }
};

// Small planes of maxima whose windows are all full and do not overlap have a table of where their windows begin.
size_t positions_of(const Plan& plan) { return static_cast<size_t>(plan.x.windows * plan.y.windows); }
bool wants_positions(const Plan& plan) {
  const auto is_full = [](const Axis& axis) {
    return axis.before == 0 && axis.dilation == 1 && axis.kernel > 0 && axis.kernel <= axis.stride &&
           axis.start(axis.windows - 1) + axis.kernel <= axis.image;
  };
  return plan.function == BNNSPoolingFunctionMax && is_full(plan.x) && is_full(plan.y) &&
         positions_of(plan) <= kMostPositions;
}

struct PlanTables {
  Column *columns, *by_residue;
  int32_t *residue_begin, *used_residue, *first_column, *column_count;
  int32_t* first_position;  // NULL: not wanted
  float *weight, *factor;

  PlanTables(const Plan& plan, Tables* tables) {
    const size_t windows = static_cast<size_t>(plan.x.windows) + kPad;
    columns = tables->take<Column>(plan.columns_count);
    by_residue = tables->take<Column>(plan.columns_count);
    residue_begin = tables->take<int32_t>(plan.residues + 1);
    used_residue = tables->take<int32_t>(plan.residues);
    first_column = tables->take<int32_t>(windows);
    column_count = tables->take<int32_t>(windows);
    first_position = wants_positions(plan) ? tables->take<int32_t>(positions_of(plan) + kPad) : nullptr;
    const size_t weights = plan.forward_rows * static_cast<size_t>(plan.x.windows) + kPad;
    weight = tables->take<float>(weights);
    factor = tables->take<float>(weights);
  }
};

// Small enough for 32-bit positions and for rows in scratch.
bool may_fit(const Axis& x, const Axis& y) {
  constexpr int64_t kWidest = int64_t{1} << 17, kLongest = int64_t{1} << 26, kPlane = int64_t{1} << 30;
  return x.image <= kWidest && x.windows <= kWidest && x.kernel <= kWidest && x.stride <= kLongest &&
         x.dilation <= kLongest && x.before <= kLongest && x.before >= -kLongest && y.image <= kLongest &&
         y.windows <= kLongest && y.kernel <= kLongest && x.image * y.image <= kPlane &&
         x.windows * y.windows <= kPlane;
}

void fill_columns(Plan* plan, const PlanTables& tables) {
  const Axis& x = plan->x;
  int64_t least = 0, most = 0;
  std::fill_n(tables.residue_begin, plan->residues + 1, 0);
  plan->columns_count = 0;
  for (int64_t k = 0; k < x.kernel; ++k) {
    const int64_t offset = x.dilation * k - x.before;
    const int64_t residue = (offset % x.stride + x.stride) % x.stride, shift = (offset - residue) / x.stride;
    if (residue >= x.image) continue;  // strides wider than the image: no window has this column inside
    tables.columns[plan->columns_count++] = {static_cast<int32_t>(offset), static_cast<int32_t>(residue),
                                             static_cast<int32_t>(shift), 0};
    ++tables.residue_begin[residue + 1];
    least = std::min(least, shift);
    most = std::max(most, shift);
  }
  // Counts become borders; the residues that occur get a slot each.
  plan->used_residues = 0;
  for (size_t r = 0; r < plan->residues; ++r) {
    if (tables.residue_begin[r + 1] > 0) tables.used_residue[plan->used_residues++] = static_cast<int32_t>(r);
    tables.residue_begin[r + 1] += tables.residue_begin[r];
  }
  const size_t per_residue = static_cast<size_t>((x.image + x.stride - 1) / x.stride);
  const size_t windows = static_cast<size_t>(x.windows), before = static_cast<size_t>(-least),
               behind = static_cast<size_t>(most);
  plan->slot_left = before;
  plan->slot_floats = round_up(before + std::max(windows + behind, per_residue) + 2 * kPad);
  plan->row_floats = plan->used_residues * plan->slot_floats;
  plan->gradient_left = behind;
  plan->gradient_floats = round_up(behind + std::max(before + per_residue, windows) + 2 * kPad);
  // Sorted by residue, kx ascending within one: each residue's border walks to its end, then all move back by one.
  for (size_t k = 0; k < plan->columns_count; ++k) {
    Column& column = tables.columns[k];
    const int32_t* slot = std::lower_bound(tables.used_residue, tables.used_residue + plan->used_residues,
                                           column.residue);
    column.at = static_cast<int32_t>(static_cast<size_t>(slot - tables.used_residue) * plan->slot_floats + before) +
                column.shift;
    tables.by_residue[tables.residue_begin[column.residue]++] = column;
  }
  for (size_t r = plan->residues; r > 0; --r) tables.residue_begin[r] = tables.residue_begin[r - 1];
  tables.residue_begin[0] = 0;
}

void fill_positions(const Plan& plan, int32_t* first_position) {
  const size_t windows = static_cast<size_t>(plan.x.windows), all = positions_of(plan);
  for (size_t i = 0; i < all; ++i) {
    const int64_t p = static_cast<int64_t>(i / windows), q = static_cast<int64_t>(i % windows);
    first_position[i] = static_cast<int32_t>(plan.y.start(p) * plan.x.image + plan.x.start(q));
  }
  std::fill_n(first_position + all, kPad, 0);
}

void fill_windows(Plan* plan, const PlanTables& tables) {
  const Axis& x = plan->x;
  plan->has_empty_columns = false;
  for (int64_t q = 0; q < x.windows; ++q) {
    const int64_t count = x.end(q) - x.first(q);
    if (count == 0) plan->has_empty_columns = true;
    tables.first_column[q] = count == 0 ? 0 : static_cast<int32_t>(x.start(q) + x.dilation * x.first(q));
    tables.column_count[q] = static_cast<int32_t>(count);
    const float weight = plan->count_padding ? plan->full_width : static_cast<float>(std::max<int64_t>(count, 1));
    for (size_t r = 0; r < plan->forward_rows; ++r)
      tables.weight[static_cast<int64_t>(r) * x.windows + q] = weight;
  }
  for (size_t q = static_cast<size_t>(x.windows); q < static_cast<size_t>(x.windows) + kPad; ++q) {
    tables.first_column[q] = 0;
    tables.column_count[q] = 0;
  }
  const size_t weights = plan->forward_rows * static_cast<size_t>(x.windows);
  std::fill_n(tables.weight + weights, kPad, 1.0f);
  plan->weights_are_powers_of_two = true;
  for (size_t i = 0; i < weights + kPad; ++i) {
    tables.factor[i] = 1.0f / tables.weight[i];
    if ((std::bit_cast<uint32_t>(tables.weight[i]) & 0x7fffff) != 0) plan->weights_are_powers_of_two = false;
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
  plan->line_floats = round_up(std::max(w, q) + 2 * kPad);
  const size_t shared = plan->is_in_pairs ? 4 * plan->slot_floats : 0;
  const size_t ring = 2 * round_up(plan->ring_rows) + plan->ring_rows * row + plan->line_floats + shared;

  const size_t forward = ring + 4 * round_up(plan->forward_rows * q + 2 * kPad);

  size_t backward = 0;
  for (plan->backward_rows = std::clamp<size_t>(kStageFloats / w, 1, h);; plan->backward_rows = 1) {
    plan->gradient_rows = std::min(p, (plan->backward_rows - 1 + reach) / stride + 2);
    backward = ring + (2 * plan->gradient_rows + 1) * plan->gradient_floats + 3 * plan->line_floats +
               round_up(plan->backward_rows * w + 4 * kPad);
    if (backward <= kBlock || plan->backward_rows == 1) break;
  }
  plan->push_rows = std::max<size_t>(2, plan->backward_rows);
  backward = std::max(backward, ring + 2 * round_up(plan->forward_rows * q + 2 * kPad) + 7 * plan->line_floats +
                                    round_up(plan->push_rows * w + 4 * kPad));
  // Scattering and UnMax: whole planes of the image where they fit.
  plan->scatter_rows = std::clamp<size_t>(kPlaneFloats / w, 1, h);
  const size_t scatter = ring + 4 * plan->line_floats + round_up(plan->scatter_rows * w + 4 * kPad);
  return forward <= kBlock && backward <= kBlock && scatter <= kBlock;
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
  plan->full_begin = 0;
  plan->full_end = plan->y.windows;
  while (plan->full_begin < plan->full_end && plan->y.first(plan->full_begin) > 0) ++plan->full_begin;
  while (plan->full_begin < plan->full_end && plan->y.end(plan->full_end - 1) < plan->y.kernel) --plan->full_end;
  plan->residues = static_cast<size_t>(std::min(plan->x.stride, plan->x.image));
  const int64_t rows_over = plan->y.dilation == 1 ? (plan->y.kernel - 1) / plan->y.stride + 1 : plan->y.kernel;
  const auto overlap = [](const Axis& axis) { return static_cast<double>(axis.kernel) / static_cast<double>(axis.stride); };
  plan->prefer_scatter =
      overlap(plan->x) * overlap(plan->y) > kScatterOverlap || rows_over > static_cast<int64_t>(kOversAtOnce);
  plan->is_in_pairs = plan->x.stride == 2 && plan->x.dilation == 1 && plan->y.kernel <= 3 &&
                      ((plan->x.kernel == 2 && plan->x.before == 0) || (plan->x.kernel == 3 && plan->x.before == 1));
  const bool is_average = plan->function == BNNSPoolingFunctionAverageCountIncludePadding ||
                          plan->function == BNNSPoolingFunctionAverageCountExcludePadding;
  const auto is_pair = [](const Axis& axis) {
    return axis.stride == 2 && axis.dilation == 1 && axis.kernel == axis.before + 2 && axis.before >= 0 && axis.before <= 1;
  };
  plan->pushes = (is_average || plan->function == BNNSPoolingFunctionMax) && is_pair(plan->x) && is_pair(plan->y) &&
                 plan->x.kernel == plan->y.kernel;
  const auto is_covered = [](const Axis& axis) {
    return axis.windows == 1 && axis.dilation == 1 && axis.before == 0 && axis.kernel == axis.image;
  };
  plan->is_global_average = is_average && is_covered(plan->x) && is_covered(plan->y) &&
                            plan->x.image * plan->y.image <= static_cast<int64_t>(kStageFloats);
  Tables count{nullptr};
  PlanTables unused(*plan, &count);
  *block = options.get(count.used);
  if (!*block) return -1;
  Tables tables{static_cast<std::byte*>(*block)};
  PlanTables parts(*plan, &tables);
  fill_columns(plan, parts);
  fill_windows(plan, parts);
  if (parts.first_position) fill_positions(*plan, parts.first_position);
  plan->first_position = parts.first_position;
  plan->columns = parts.columns;
  plan->columns_by_residue = parts.by_residue;
  plan->residue_begin = parts.residue_begin;
  plan->used_residue = parts.used_residue;
  plan->first_column = parts.first_column;
  plan->column_count = parts.column_count;
  plan->column_weight = parts.weight;
  plan->column_factor = parts.factor;
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
      tables_(tables),
      copied_bias_(copied_bias) {
  indices_[0] = indices_[1] = plan.function == BNNSPoolingFunctionUnMax ? input : output;
  indices_[0].type = BNNSDataTypeUInt32;
  indices_[1].type = BNNSDataTypeUInt64;
}

Pooling::~Pooling() {
  options().release(tables_);
  options().release(copied_bias_);
}

// ---- running a call ----

namespace {

// How a call is cut: whole planes together while they are small, parts of one plane when it is large. Depends on the
// shapes only. Most small calls are one piece and pay no division.
struct Cut {
  size_t planes;
  size_t planes_per_piece;
  RowCut rows;
  size_t pieces;

  Cut(size_t all_planes, size_t together, const RowCut& row_cut)
      : planes(all_planes), planes_per_piece(together), rows(row_cut),
        pieces(all_planes <= together ? row_cut.pieces : ((all_planes - 1) / together + 1) * row_cut.pieces) {}
  Piece piece(size_t i) const {
    if (pieces == 1) return {0, planes, 0, rows.rows};
    const size_t plane = i / rows.pieces * planes_per_piece, row = i % rows.pieces * rows.rows_per_piece;
    return {plane, std::min(planes_per_piece, planes - plane), row, std::min(rows.rows_per_piece, rows.rows - row)};
  }
};

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

// Values of work in a call, and how many threads it deserves.
double work_of(const Plan& plan, size_t batch) { return kValue * batch * plan.channels * plan.plane_values; }

int check_index_type(BNNSDataType type) {
  if (type == BNNSDataTypeUInt32 || type == BNNSDataTypeUInt64) return 0;
  return fail("indices: expected uint32 or uint64; got %s", name_of(type));
}

int refuse_indices(const Plan& plan) {
  return fail("indices: expected values below %lld, the number of values in a plane; got a larger one",
              static_cast<long long>(plan.x.image * plan.y.image));
}

// Refuses memory of `a` (one sample) inside the reach of the batch `b`.
int check_apart(const View& a, const View& b, const void* b_data, size_t b_stride, size_t batch, const char* a_argument,
                const char* b_argument) {
  const auto a_first = reinterpret_cast<uintptr_t>(a.data), b_first = reinterpret_cast<uintptr_t>(b_data);
  const uintptr_t a_end = a_first + a.span * bytes_of(a.type);
  const uintptr_t b_end = b_first + ((batch - 1) * b_stride + b.span) * bytes_of(b.type);
  if (a_end <= b_first || b_end <= a_first) return 0;
  return fail("%s: expected memory apart from %s; the two overlap", a_argument, b_argument);
}

}  // namespace

int Pooling::apply(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride) {
  return apply_indexed(batch, x, x_stride, y, y_stride, BNNSDataTypeUInt64, nullptr, 0);
}

int Pooling::apply_indexed(size_t batch, const void* x, size_t x_stride, void* y, size_t y_stride,
                           BNNSDataType indices_type, void* indices, size_t indices_stride) {
  const bool is_max = plan_.function == BNNSPoolingFunctionMax;
  const bool is_inverse = plan_.function == BNNSPoolingFunctionUnMax;
  if (is_inverse && !indices) return fail("indices: expected those of the max pooling; got NULL");
  if (!is_max && !is_inverse) indices = nullptr;
  if (indices && check_index_type(indices_type) != 0) return -1;
  if (batch == 0) return 0;
  if (read_batch(input_, x, batch, x_stride, Access::read, "input", &x_stride) != 0 ||
      read_batch(output_, y, batch, y_stride, Access::write, "output", &y_stride) != 0 ||
      check_disjoint(output_, y, y_stride, "output", input_, x, x_stride, "input", batch) != 0)
    return -1;
  Call call;
  call.plan = &plan_;
  call.batch = batch;
  set_tensor(input_, x, x_stride, batch, input_.type, &call.x);
  set_tensor(output_, y, y_stride, batch, output_.type, &call.y);
  if (indices) {
    const View& view = indices_of(indices_type);
    const Access access = is_max ? Access::write : Access::read;
    if (read_batch(view, indices, batch, indices_stride, access, "indices", &indices_stride) != 0 ||
        check_disjoint(view, indices, indices_stride, "indices", output_, y, y_stride, "output", batch) != 0)
      return -1;
    if (is_max && check_disjoint(view, indices, indices_stride, "indices", input_, x, x_stride, "input", batch) != 0)
      return -1;
    set_tensor(view, indices, indices_stride, batch, indices_type, &call.indices);
  }
  if (!scratch()) return -1;

  const size_t threads = threads_for(options().threads);
  if (is_inverse && (look_at_indices(call, threads) & kIndexOutOfRange)) return refuse_indices(plan_);
  const Cut cut(batch * plan_.channels, plan_.planes_per_piece,
                is_inverse ? uncut(plan_.image_rows) : plan_.window_rows);
  parallel(cut.pieces, threads, work_of(plan_, batch), [&](size_t i) { kernels->forward(call, cut.piece(i), scratch()); });
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

// Fills *call, or says what is wrong. Nothing is written.
int Pooling::check_backward(const Backward& a, BNNSDataType indices_type, const void* indices, size_t indices_stride,
                            Call* call) const {
  const bool is_inverse = plan_.function == BNNSPoolingFunctionUnMax;
  const bool needs_indices = a.dx && indices;  // Max may, UnMax must have them
  const bool needs_x = a.dx && (plan_.function == BNNSPoolingFunctionL2Norm ||
                                (plan_.function == BNNSPoolingFunctionMax && !indices));
  if (a.dx && is_inverse && !indices) return fail("indices: expected those of the max pooling; got NULL");
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
    if (!a.y) return fail("output: expected the result of apply, which the activation's gradient needs; got NULL");
    if (read_batch(output_, a.y, a.batch, a.y_stride, Access::read, "output", &y_stride) != 0) return -1;
    set_tensor(output_, a.y, y_stride, a.batch, output_.type, &call->y);
  }
  if (needs_x) {
    if (!a.x)
      return fail("input: expected the input of apply, which the gradient %s; got NULL",
                  plan_.function == BNNSPoolingFunctionMax ? "without indices needs" : "of an L2 norm needs");
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
    const char* name = "input_gradient";
    if (check_disjoint(dx, dx.data, dx_stride, name, dy, dy.data, dy_stride, "grad_output", a.batch) != 0) return -1;
    if (needs_x && check_disjoint(dx, dx.data, dx_stride, name, input_, a.x, x_stride, "input", a.batch) != 0)
      return -1;
    if (call->y.data && check_disjoint(dx, dx.data, dx_stride, name, output_, a.y, y_stride, "output", a.batch) != 0)
      return -1;
    if (needs_indices &&
        check_disjoint(dx, dx.data, dx_stride, name, index, indices, indices_stride, "indices", a.batch) != 0)
      return -1;
  }
  if (a.db) {
    View db;
    size_t unused;
    const char* name = "bias_gradient";
    if (read_view(*a.db, Access::write, name, &db) != 0 ||
        check_per_channel(db, plan_.channels, name, &call->db_stride) != 0 ||
        read_batch(db, db.data, 1, 0, Access::write, name, &unused) != 0)
      return -1;
    if (!is_float_type(db.type))
      return fail("%s: expected float32, float16 or bfloat16; got %s", name, name_of(db.type));
    if (check_apart(db, dy, dy.data, dy_stride, a.batch, name, "grad_output") != 0) return -1;
    if (call->x.data && check_apart(db, input_, a.x, x_stride, a.batch, name, "input") != 0) return -1;
    if (call->y.data && check_apart(db, output_, a.y, y_stride, a.batch, name, "output") != 0) return -1;
    if (needs_indices && check_apart(db, index, indices, indices_stride, a.batch, name, "indices") != 0) return -1;
    if (a.dx && check_apart(db, dx, dx.data, dx_stride, a.batch, name, "input_gradient") != 0) return -1;
    call->db = static_cast<std::byte*>(db.data);
    call->db_type = db.type;
    call->db_accumulate = db.accumulate;
  }
  return scratch() ? 0 : -1;
}

int Pooling::apply_backward_indexed(const Backward& a, BNNSDataType indices_type, const void* indices,
                                    size_t indices_stride) {
  const bool is_max = plan_.function == BNNSPoolingFunctionMax;
  const bool is_inverse = plan_.function == BNNSPoolingFunctionUnMax;
  if (!is_max && !is_inverse) indices = nullptr;
  if (a.dw) return fail("weights_gradient: expected NULL, pooling has no weights; got a descriptor");
  if (!a.dy) return fail("grad_output: expected a descriptor; got NULL");
  if (a.batch == 0 || (!a.dx && !a.db)) return 0;
  Call call;
  if (check_backward(a, indices_type, indices, indices_stride, &call) != 0) return -1;

  const size_t threads = threads_for(options().threads);
  const double work = work_of(plan_, a.batch);
  const size_t planes = a.batch * plan_.channels;
  if (plan_.has_activation && plan_.activation.depends_on_values()) {
    const Cut cut(planes, plan_.planes_per_piece, is_inverse ? plan_.image_rows : plan_.window_rows);
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
    const Cut cut(plan_.channels, std::max<size_t>(1, kPieceValues / channel_values), {1, 1, 1});
    parallel(cut.pieces, threads, work, [&](size_t i) { kernels->bias_backward(call, cut.piece(i), scratch()); });
  }
  if (call.dx.data) {
    const RowCut rows = is_inverse ? uncut(plan_.window_rows) : plan_.image_rows;
    const Cut cut(planes, plan_.planes_per_piece, call.stray_indices ? uncut(rows) : rows);
    parallel(cut.pieces, threads, work, [&](size_t i) { kernels->backward(call, cut.piece(i), scratch()); });
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
  return found ? found->apply_indexed(batch_size, in, in_stride, out, out_stride, indices_data_type, indices,
                                      idx_stride)
               : -1;
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
  return found->apply_backward_indexed({batch_size, in, in_stride, in_delta, in_delta_stride, out, out_stride,
                                        out_delta, out_delta_stride, nullptr, bias_delta},
                                       indices_data_type, indices, idx_stride);
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
