// Pooling, the obvious loops: one value at a time, sums in double precision. They serve geometries that the kernels
// refuse (enormous rows, planes or strides), and everything the kernels compute is compared with them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/memory.h"
#include "pooling/pooling.h"

namespace obn::pooling {
namespace {

// ---- single values ----

float get(BNNSDataType type, const std::byte* row, size_t i) {
  if (type == BNNSDataTypeFloat32) return reinterpret_cast<const float*>(row)[i];
  const uint16_t half = reinterpret_cast<const uint16_t*>(row)[i];
  return type == BNNSDataTypeFloat16 ? float_of_float16(half) : float_of_bfloat16(half);
}

void put(BNNSDataType type, std::byte* row, size_t i, float value) {
  if (type == BNNSDataTypeFloat32) {
    reinterpret_cast<float*>(row)[i] = value;
  } else {
    reinterpret_cast<uint16_t*>(row)[i] =
        type == BNNSDataTypeFloat16 ? float16_of_float(value) : bfloat16_of_float(value);
  }
}

// One plane of a tensor.
struct Plane {
  const Tensor& tensor;
  size_t n, c;

  Plane(const Tensor& all, size_t plane, size_t channels) : tensor(all), n(plane / channels), c(plane % channels) {}
  float value(size_t row, size_t column) const {
    return get(tensor.type, tensor.at(n, c, row), column * tensor.x_stride);
  }
  void set(size_t row, size_t column, float value) const {
    put(tensor.type, tensor.at(n, c, row), column * tensor.x_stride, value);
  }
  uint64_t index(size_t row, size_t column) const {
    const std::byte* p = tensor.at(n, c, row) + column * tensor.x_stride * bytes_of(tensor.type);
    return tensor.type == BNNSDataTypeUInt32 ? *reinterpret_cast<const uint32_t*>(p)
                                             : *reinterpret_cast<const uint64_t*>(p);
  }
  void set_index(size_t row, size_t column, uint64_t index) const {
    std::byte* p = tensor.at(n, c, row) + column * tensor.x_stride * bytes_of(tensor.type);
    if (tensor.type == BNNSDataTypeUInt32) {
      *reinterpret_cast<uint32_t*>(p) = static_cast<uint32_t>(index);
    } else {
      *reinterpret_cast<uint64_t*>(p) = index;
    }
  }
};

// ---- one window ----

// What is inside the image of window (q, p).
struct Window {
  const Axis &x, &y;
  int64_t q, p, first_x, end_x, first_y, end_y;

  Window(const Plan& plan, int64_t column, int64_t row)
      : x(plan.x), y(plan.y), q(column), p(row), first_x(x.first(q)), end_x(x.end(q)), first_y(y.first(p)),
        end_y(y.end(p)) {}
  bool is_empty() const { return first_x == end_x || first_y == end_y; }
  size_t column(int64_t k) const { return static_cast<size_t>(x.start(q) + x.dilation * k); }
  size_t row(int64_t k) const { return static_cast<size_t>(y.start(p) + y.dilation * k); }

  // Position y·W + x is one of the window's.
  bool holds(uint64_t position) const {
    const auto width = static_cast<uint64_t>(x.image);
    const int64_t dy = static_cast<int64_t>(position / width) - y.start(p);
    const int64_t dx = static_cast<int64_t>(position % width) - x.start(q);
    return dy >= 0 && dy % y.dilation == 0 && dy / y.dilation < y.kernel && dx >= 0 && dx % x.dilation == 0 &&
           dx / x.dilation < x.kernel;
  }

  template <class Visit>  // void visit(row, column), in window order
  void each(const Visit& visit) const {
    for (int64_t ky = first_y; ky < end_y; ++ky)
      for (int64_t kx = first_x; kx < end_x; ++kx) visit(row(ky), column(kx));
  }
  // What an average divides by.
  double weight(const Plan& plan) const {
    if (plan.count_padding) return static_cast<double>(plan.full_width) * static_cast<double>(plan.full_height);
    return std::max(1.0, static_cast<double>(end_x - first_x) * static_cast<double>(end_y - first_y));
  }
};

struct Largest {
  float value = 0.0f;
  uint64_t index = 0;
};

Largest largest_of(const Plan& plan, const Window& window, const Plane& x) {
  Largest best;
  bool has_one = false;
  window.each([&](size_t row, size_t column) {
    const float value = x.value(row, column);
    const bool wins = !has_one || value > best.value || (std::isnan(value) && !std::isnan(best.value));
    if (wins) best = {value, row * static_cast<size_t>(plan.x.image) + column};
    has_one = true;
  });
  return best;
}

double norm_of(const Window& window, const Plane& x) {
  double squares = 0.0;
  window.each([&](size_t row, size_t column) {
    const double value = x.value(row, column);
    squares += value * value;
  });
  return std::sqrt(squares);
}

// ---- rows of y ----

// A row is worked on in parts that fit into scratch; only the softmax family needs a whole row (creation made sure
// that it fits).
constexpr size_t kPart = size_t{1} << 14;

size_t part_of(const Plan& plan, size_t row) { return plan.activation_needs_rows ? row : std::min(row, kPart); }

// dz (count) = dy · activation'(y) of columns [from, from + count) of one row; y_part (count) is scratch.
void window_gradient(const Call& call, size_t plane, size_t row, size_t from, size_t count, float* dz, float* y_part) {
  const Plan& plan = *call.plan;
  const Plane dy(call.dy, plane, plan.channels);
  for (size_t i = 0; i < count; ++i) dz[i] = dy.value(row, from + i);
  if (!plan.has_activation) return;
  const Plane y(call.y, plane, plan.channels);
  for (size_t i = 0; i < count; ++i) y_part[i] = y.value(row, from + i);
  plan.activation.backward(y_part, dz, count);
}

// z (count) + bias, activated, into columns [from, from + count) of one row of y.
void finish(const Call& call, size_t plane, size_t row, size_t from, size_t count, float* z) {
  const Plan& plan = *call.plan;
  const float bias = bias_of(plan, plane % plan.channels);
  for (size_t i = 0; i < count; ++i) z[i] += bias;
  if (plan.has_activation) plan.activation.forward(z, count);
  const Plane y(call.y, plane, plan.channels);
  for (size_t i = 0; i < count; ++i) y.set(row, from + i, z[i]);
}

// ---- forward ----

void forward_windows(const Call& call, size_t plane, size_t p, float* z) {
  const Plan& plan = *call.plan;
  const size_t windows = static_cast<size_t>(plan.x.windows), part = part_of(plan, windows);
  const Plane x(call.x, plane, plan.channels);
  for (size_t from = 0; from < windows; from += part) {
    const size_t count = std::min(part, windows - from);
    for (size_t i = 0; i < count; ++i) {
      const Window window(plan, static_cast<int64_t>(from + i), static_cast<int64_t>(p));
      if (plan.function == BNNSPoolingFunctionMax) {
        const Largest best = largest_of(plan, window, x);
        z[i] = best.value;
        if (call.indices.data) Plane(call.indices, plane, plan.channels).set_index(p, from + i, best.index);
      } else if (plan.function == BNNSPoolingFunctionL2Norm) {
        z[i] = static_cast<float>(norm_of(window, x));
      } else {
        double sum = 0.0;
        window.each([&](size_t row, size_t column) { sum += static_cast<double>(x.value(row, column)); });
        z[i] = static_cast<float>(sum / window.weight(plan));
      }
    }
    finish(call, plane, p, from, count, z);
  }
}

// y (H, W) = 0, then y[index] = x for every value of x (P, Q), in scan order.
void forward_inverse(const Call& call, size_t plane, size_t h, float* z) {
  const Plan& plan = *call.plan;
  const size_t width = static_cast<size_t>(plan.x.image), part = part_of(plan, width);
  const Plane x(call.x, plane, plan.channels), indices(call.indices, plane, plan.channels);
  for (size_t from = 0; from < width; from += part) {
    const size_t count = std::min(part, width - from), first = h * width + from;
    std::fill_n(z, count, 0.0f);
    for (size_t p = 0; p < static_cast<size_t>(plan.y.windows); ++p)
      for (size_t q = 0; q < static_cast<size_t>(plan.x.windows); ++q) {
        const uint64_t position = indices.index(p, q) - first;  // wraps far away when it lies before the part
        if (position < count) z[position] = x.value(p, q);
      }
    finish(call, plane, h, from, count, z);
  }
}

void forward(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Piece piece = call.cut.piece(i);
  float* z = reinterpret_cast<float*>(scratch());
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane)
    for (size_t row = piece.row; row < piece.row + piece.rows; ++row) {
      if (call.plan->function == BNNSPoolingFunctionUnMax) {
        forward_inverse(call, plane, row, z);
      } else {
        forward_windows(call, plane, row, z);
      }
    }
}

// ---- backward ----

// Adds what window (q, p) with gradient dz gives to the positions [first, first + count) of the image plane.
//   max:     y = x[index]           dx[index] += dz
//   average: y = sum x / weight     dx += dz / weight
//   l2 norm: y = sqrt(sum x²)       dx += dz · x / y, 0 where y is 0
void add_window(const Call& call, size_t plane, int64_t q, int64_t p, float dz, size_t first, size_t count,
                double* dx) {
  const Plan& plan = *call.plan;
  const Window window(plan, q, p);
  if (window.is_empty()) return;
  const Plane x(call.x, plane, plan.channels);
  const size_t width = static_cast<size_t>(plan.x.image);
  auto add = [&](size_t position, double value) {
    if (position - first < count) dx[position - first] += value;
  };
  if (plan.function == BNNSPoolingFunctionMax) {
    const uint64_t index = call.indices.data ? Plane(call.indices, plane, plan.channels)
                                                   .index(static_cast<size_t>(p), static_cast<size_t>(q))
                                             : largest_of(plan, window, x).index;
    add(index, static_cast<double>(dz));
  } else if (plan.function == BNNSPoolingFunctionL2Norm) {
    const double norm = norm_of(window, x);
    if (norm == 0.0) return;
    window.each([&](size_t row, size_t column) {
      add(row * width + column, static_cast<double>(dz) * static_cast<double>(x.value(row, column)) / norm);
    });
  } else {
    const double share = static_cast<double>(dz) / window.weight(plan);
    window.each([&](size_t row, size_t column) { add(row * width + column, share); });
  }
}

// Rows [row, row + rows) of dx (H, W), a part of a row at a time, from all windows that may reach it.
void backward_windows(const Call& call, size_t plane, size_t row, size_t rows, std::byte* work) {
  const Plan& plan = *call.plan;
  const size_t width = static_cast<size_t>(plan.x.image), windows = static_cast<size_t>(plan.x.windows);
  const size_t part = part_of(plan, windows);
  double* sums = reinterpret_cast<double*>(work);      // (kPart)
  float* dz = reinterpret_cast<float*>(sums + kPart);  // (part)
  float* y_part = dz + part;                           // (part)
  const Plane dx(call.dx, plane, plan.channels);
  for (size_t h = row; h < row + rows; ++h)
    for (size_t first = 0; first < width; first += kPart) {
      const size_t count = std::min(kPart, width - first);
      const int64_t last = static_cast<int64_t>(first + count - 1);
      const bool all = call.stray_indices;
      const size_t p0 = all ? 0 : static_cast<size_t>(plan.y.first_window(static_cast<int64_t>(h)));
      const size_t p1 = static_cast<size_t>(all ? plan.y.windows : plan.y.end_window(static_cast<int64_t>(h)));
      const bool whole_rows = all || plan.activation_needs_rows;
      const size_t q0 = whole_rows ? 0 : static_cast<size_t>(plan.x.first_window(static_cast<int64_t>(first)));
      const size_t q1 = whole_rows ? windows : static_cast<size_t>(plan.x.end_window(last));
      std::fill_n(sums, count, 0.0);
      for (size_t p = p0; p < p1; ++p)
        for (size_t from = q0; from < q1; from += part) {
          const size_t here = std::min(part, q1 - from);
          window_gradient(call, plane, p, from, here, dz, y_part);
          for (size_t i = 0; i < here; ++i)
            add_window(call, plane, static_cast<int64_t>(from + i), static_cast<int64_t>(p), dz[i],
                       h * width + first, count, sums);
        }
      for (size_t i = 0; i < count; ++i) {
        const double before = call.dx.accumulate ? static_cast<double>(dx.value(h, first + i)) : 0.0;
        dx.set(h, first + i, static_cast<float>(before + sums[i]));
      }
    }
}

// Rows of dx (P, Q): y[index] = x, so dx = dz[index].
void backward_inverse(const Call& call, size_t plane, size_t row, size_t rows, std::byte* work) {
  const Plan& plan = *call.plan;
  const size_t width = static_cast<size_t>(plan.x.image), part = part_of(plan, width);
  float* dz = reinterpret_cast<float*>(work);  // (part)
  float* y_part = dz + part;                   // (part)
  const Plane dx(call.dx, plane, plan.channels), indices(call.indices, plane, plan.channels);
  for (size_t h = 0; h < static_cast<size_t>(plan.y.image); ++h)
    for (size_t from = 0; from < width; from += part) {
      const size_t count = std::min(part, width - from), first = h * width + from;
      window_gradient(call, plane, h, from, count, dz, y_part);
      for (size_t p = row; p < row + rows; ++p)
        for (size_t q = 0; q < static_cast<size_t>(plan.x.windows); ++q) {
          const uint64_t position = indices.index(p, q) - first;
          if (position >= count) continue;
          dx.set(p, q, dz[position] + (call.dx.accumulate ? dx.value(p, q) : -0.0f));
        }
    }
}

void backward(void* context, size_t i) {
  const Call& call = *static_cast<const Call*>(context);
  const Piece piece = call.cut.piece(i);
  std::byte* work = scratch();
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    if (call.plan->function == BNNSPoolingFunctionUnMax) {
      backward_inverse(call, plane, piece.row, piece.rows, work);
    } else {
      backward_windows(call, plane, piece.row, piece.rows, work);
    }
  }
}

// ---- the rest ----

// y = activation(bias + …): db = Σ dz over samples, rows and columns.
void bias_backward(void* context, size_t piece_number) {
  const Call& call = *static_cast<const Call*>(context);
  const Piece piece = call.cut.piece(piece_number);
  const Plan& plan = *call.plan;
  const size_t columns = plan.output_columns(), part = part_of(plan, columns);
  float* dz = reinterpret_cast<float*>(scratch());  // (part)
  float* y_part = dz + part;                   // (part)
  for (size_t c = piece.plane; c < piece.plane + piece.planes; ++c) {
    double sum = 0.0;
    for (size_t n = 0; n < call.batch; ++n)
      for (size_t row = 0; row < plan.output_rows(); ++row)
        for (size_t from = 0; from < columns; from += part) {
          const size_t count = std::min(part, columns - from);
          window_gradient(call, n * plan.channels + c, row, from, count, dz, y_part);
          for (size_t i = 0; i < count; ++i) sum += static_cast<double>(dz[i]);
        }
    if (call.db_accumulate) sum += static_cast<double>(get(call.db_type, call.db, c * call.db_stride));
    put(call.db_type, call.db, c * call.db_stride, static_cast<float>(sum));
  }
}

unsigned look_at_indices(const Call& call, const Piece& piece, std::byte*) {
  const Plan& plan = *call.plan;
  const auto limit = static_cast<uint64_t>(plan.x.image * plan.y.image);
  unsigned found = 0;
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const Plane indices(call.indices, plane, plan.channels);
    for (size_t p = piece.row; p < piece.row + piece.rows; ++p)
      for (size_t q = 0; q < static_cast<size_t>(plan.x.windows); ++q) {
        const uint64_t index = indices.index(p, q);
        if (index >= limit) {
          found |= kIndexOutOfRange;
          continue;
        }
        const Window window(plan, static_cast<int64_t>(q), static_cast<int64_t>(p));
        if (!window.is_empty() && !window.holds(index)) found |= kIndexStray;
      }
  }
  return found;
}

bool accepts_output(const Call& call, const Piece& piece, std::byte* work) {
  const Plan& plan = *call.plan;
  const size_t columns = plan.output_columns(), part = part_of(plan, columns);
  float* y_part = reinterpret_cast<float*>(work);  // (part)
  for (size_t plane = piece.plane; plane < piece.plane + piece.planes; ++plane) {
    const Plane y(call.y, plane, plan.channels);
    for (size_t row = piece.row; row < piece.row + piece.rows; ++row)
      for (size_t from = 0; from < columns; from += part) {
        const size_t count = std::min(part, columns - from);
        for (size_t i = 0; i < count; ++i) y_part[i] = y.value(row, from + i);
        if (!plan.activation.accepts(y_part, count)) return false;
      }
  }
  return true;
}

}  // namespace

// One loop for every algorithm of a direction.
const Kernels reference = {
    .forward_inverse = forward,
    .forward_global = forward,
    .forward_in_place = forward,
    .forward_windows = forward,
    .backward_inverse = backward,
    .backward_global = backward,
    .push_two_maxima = backward,
    .push_two_averages = backward,
    .push_three_maxima = backward,
    .push_three_averages = backward,
    .backward_pull = backward,
    .backward_scatter = backward,
    .bias_backward = bias_backward,
    .look_at_indices = look_at_indices,
    .accepts_output = accepts_output};

}  // namespace obn::pooling
