// Softmax and its logarithm over any axes, and Gumbel noise, whose maximum runs over the same groups. Letters as in
// activation.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "activation/activation_filter.h"
#include "activation/activation_walk.h"
#include "base/integer.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/types.h"

namespace obn::activation {

// ---- groups ----

// The axes of several tensors side by side: the shape of the input and the batch, merged where all tensors agree.
// `reduced` axes are those the softmax runs over.
struct Groups {
  static constexpr size_t kTensors = 3;
  size_t tensors = 0;
  size_t rank = 0;
  size_t extent[kAxes] = {};
  size_t stride[kTensors][kAxes] = {};
  bool reduced[kAxes] = {};

  size_t values(bool of_reduced) const {
    size_t n = 1;
    for (size_t k = 0; k < rank; ++k)
      if (reduced[k] == of_reduced) n *= extent[k];
    return n;
  }
};

namespace {

constexpr size_t kTileColumns = 64;  // columns of a softmax across the fastest axis done at a time

// Some axes of the groups, fastest first, perhaps shortened: what is gathered at once.
struct Box {
  size_t rank = 0;
  size_t axis[kAxes] = {};
  size_t extent[kAxes] = {};

  void add(size_t which, size_t length) {
    axis[rank] = which;
    extent[rank++] = length;
  }
};

// Offset of the value whose index along the axes of `box` is `index`.
size_t offset_in(const Groups& groups, size_t tensor, const Box& box, size_t index) {
  size_t offset = 0;
  for (size_t k = 0; k < box.rank; ++k) {
    offset += index % box.extent[k] * groups.stride[tensor][box.axis[k]];
    index /= box.extent[k];
  }
  return offset;
}

// Calls body(offset, count) for every run of a box along its fastest axis, in order.
template <class Body>
void for_runs(const Groups& groups, size_t tensor, const Box& box, size_t base, const Body& body) {
  const size_t length = box.extent[0];
  size_t runs = 1;
  for (size_t k = 1; k < box.rank; ++k) runs *= box.extent[k];
  for (size_t run = 0; run < runs; ++run) body(base + offset_in(groups, tensor, box, run * length), length);
}

// How groups are cut into units that a kernel does at once: one group when its fastest axis is reduced (row), or up to
// kTileColumns neighbouring groups when not (columns).
struct Cut {
  bool in_columns;
  Box box;        // the values of one unit, all columns there
  Box others;     // the axes that number the units
  size_t columns; // of the whole fastest axis; 1 in rows
  size_t r;       // values of a group
  size_t tiles;   // units along the fastest axis
  size_t units;

  explicit Cut(const Groups& groups) : in_columns(!groups.reduced[0]), columns(in_columns ? groups.extent[0] : 1) {
    if (in_columns) box.add(0, std::min(columns, kTileColumns));
    for (size_t k = 0; k < groups.rank; ++k) {
      if (groups.reduced[k]) {
        box.add(k, groups.extent[k]);
      } else if (k > 0) {
        others.add(k, groups.extent[k]);
      }
    }
    r = groups.values(true);
    tiles = divide_up(columns, kTileColumns);
    units = groups.values(false) / columns * tiles;
  }

  size_t unit_values() const { return r * std::min(columns, kTileColumns); }
};

// One tensor's share of a unit: where it lies, or a packed copy in scratch.
struct Share {
  float* data;
  size_t step;  // columns: from row to row
};

// One tensor of a group walk.
struct Member {
  const Operand& operand;
  size_t tensor;

  // The kernel can work on the memory itself.
  bool is_direct(const Groups& groups, const Cut& cut) const {
    return type() == BNNSDataTypeFloat32 && groups.stride[tensor][cut.box.axis[0]] == 1 &&
           cut.box.rank <= (cut.in_columns ? 2u : 1u);
  }
  size_t offset(const Groups& groups, const Cut& cut, size_t unit) const {
    return offset_in(groups, tensor, cut.others, unit / cut.tiles) +
           unit % cut.tiles * kTileColumns * (cut.in_columns ? groups.stride[tensor][0] : 0);
  }
  Share direct(const Groups& groups, const Cut& cut, size_t unit) const {
    return {operand.floats() + offset(groups, cut, unit),
            cut.in_columns && cut.box.rank == 2 ? groups.stride[tensor][cut.box.axis[1]] : 0};
  }
  BNNSDataType type() const { return operand.view->type; }
  void* at(size_t offset) const {
    return static_cast<std::byte*>(const_cast<void*>(operand.data)) + offset * bytes_of(type());
  }

  // box is the unit's, shortened at the last tile; row is packed.
  void gather(const Kernels& kernels, const Groups& groups, const Box& box, size_t base, float* row) const {
    for_runs(groups, tensor, box, base, [&](size_t offset, size_t n) {
      kernels.load(type(), at(offset), groups.stride[tensor][box.axis[0]], n, row);
      row += n;
    });
  }
  void scatter(const Kernels& kernels, const Groups& groups, const Box& box, size_t base, const float* row) const {
    for_runs(groups, tensor, box, base, [&](size_t offset, size_t n) {
      kernels.store(type(), at(offset), groups.stride[tensor][box.axis[0]], n, row);
      row += n;
    });
  }
};

// The unit's box, with the columns that are left in the last tile.
Box box_of(const Cut& cut, size_t unit) {
  Box box = cut.box;
  if (cut.in_columns) box.extent[0] = std::min(kTileColumns, cut.columns - unit % cut.tiles * kTileColumns);
  return box;
}

void softmax_share(const Kernels& kernels, Function function, const Cut& cut, size_t columns, Share x, Share y) {
  if (cut.in_columns) {
    kernels.softmax_columns(x.data, x.step, y.data, y.step, cut.r, columns,
                            function == BNNSActivationFunctionLogSoftmax);
  } else {
    kernels.forward[function](x.data, y.data, cut.r, 0.0f, 0.0f);
  }
}

// The value of a float tensor at one linear index.
float value_at(const Kernels& kernels, const Walk& walk, size_t index) {
  float value;
  Cursor at(walk, index);
  read_row(kernels, at, 1, &value);
  return value;
}
void set_value_at(const Kernels& kernels, const Walk& walk, size_t index, double value) {
  const float rounded = static_cast<float>(value);
  Cursor at(walk, index);
  write_row(kernels, at, 1, &rounded);
}

}  // namespace

// Appends a tensor to the groups: its strides along the axes of the input and the batch. False when its own shape is
// another one and not packed either.
bool Activation::align(const Operand& operand, size_t batch, Groups* groups) const {
  size_t* stride = groups->stride[groups->tensors];
  const View& view = *operand.view;
  const Walk walk = operand.walk(batch);
  if (view.rank == x_.rank && std::equal(view.extent, view.extent + view.rank, x_.extent)) {
    std::copy_n(view.stride, view.rank, stride);
    stride[x_.rank] = operand.step;
  } else if (walk.rank == 1) {
    size_t next = walk.stride[0];
    for (size_t k = 0; k <= x_.rank; ++k) {
      stride[k] = next;
      next *= k < x_.rank ? x_.extent[k] : batch;
    }
  } else {
    return false;
  }
  ++groups->tensors;
  return true;
}

// Gives the groups their axes, once all tensors are in.
void Activation::merge(size_t batch, Groups* groups) const {
  Groups merged;
  merged.tensors = groups->tensors;
  for (size_t k = 0; k <= x_.rank; ++k) {
    const size_t extent = k < x_.rank ? x_.extent[k] : batch;
    if (extent == 1) continue;
    const size_t last = merged.rank > 0 ? merged.rank - 1 : 0;
    bool joins = merged.rank > 0 && merged.reduced[last] == reduced_[k];
    for (size_t t = 0; joins && t < merged.tensors; ++t)
      joins = groups->stride[t][k] == merged.stride[t][last] * merged.extent[last];
    if (joins) {
      merged.extent[last] *= extent;
      continue;
    }
    merged.extent[merged.rank] = extent;
    merged.reduced[merged.rank] = reduced_[k];
    for (size_t t = 0; t < merged.tensors; ++t) merged.stride[t][merged.rank] = groups->stride[t][k];
    ++merged.rank;
  }
  if (merged.rank == 0) {  // a single value
    merged.rank = merged.extent[0] = 1;
    merged.reduced[0] = true;
    for (size_t t = 0; t < merged.tensors; ++t) merged.stride[t][0] = 1;
  }
  *groups = merged;
}

// Calls body(for_values) for every group, where for_values(visit) calls visit(linear index) for each of its values.
template <class Body>
void Activation::for_groups(size_t batch, const Body& body) const {
  Groups groups;  // of one packed tensor: offsets are linear indices
  View linear = x_;
  for (size_t k = 0, next = 1; k < linear.rank; next *= linear.extent[k++]) linear.stride[k] = next;
  align({&linear, nullptr, linear.count}, batch, &groups);
  merge(batch, &groups);
  Box within, others;
  for (size_t k = 0; k < groups.rank; ++k) (groups.reduced[k] ? within : others).add(k, groups.extent[k]);
  const size_t n = groups.values(true);
  by_pieces(groups.values(false), std::max<size_t>(1, kPiece / n), options().threads,
            [&](size_t first, size_t count) {
    for (size_t group = first; group < first + count; ++group) {
      const size_t base = offset_in(groups, 0, others, group);
      body([&](const auto& visit) {
        for (size_t i = 0; i < n; ++i) visit(base + offset_in(groups, 0, within, i));
      });
    }
  });
}

// ---- softmax ----

void Activation::softmax(const Operand& x, const Operand& y, size_t batch) const {
  Groups groups;
  if (!align(x, batch, &groups) || !align(y, batch, &groups)) return softmax_slow(x, y, batch);
  merge(batch, &groups);
  const Cut cut(groups);
  const Member from{x, 0}, to{y, 1};
  const bool direct_x = from.is_direct(groups, cut), direct_y = to.is_direct(groups, cut);
  if (!(direct_x && direct_y) && cut.unit_values() * sizeof(float) > kScratchBytes) return softmax_slow(x, y, batch);
  by_pieces(cut.units, std::max<size_t>(1, kPiece / cut.unit_values()), options().threads,
            [&](size_t first, size_t count) {
    float* row = reinterpret_cast<float*>(scratch());
    for (size_t unit = first; unit < first + count; ++unit) {
      const Box box = box_of(cut, unit);
      const Share packed{row, box.extent[0]};
      if (!direct_x) from.gather(kernels_, groups, box, from.offset(groups, cut, unit), row);
      softmax_share(kernels_, function_, cut, box.extent[0], direct_x ? from.direct(groups, cut, unit) : packed,
                    direct_y ? to.direct(groups, cut, unit) : packed);
      if (!direct_y) to.scatter(kernels_, groups, box, to.offset(groups, cut, unit), row);
    }
  });
}

void Activation::softmax_backward(const Gradients& g) const {
  if (row_ > 0 && g.is_dense() && !g.from_x && !g.accumulate) {
    const size_t rows = g.batch * x_.count / row_;
    by_pieces(rows, std::max<size_t>(1, kPiece / row_), options().threads, [&](size_t first, size_t count) {
      for (size_t i = first * row_; i < (first + count) * row_; i += row_)
        kernels_.from_y[function_](g.s.floats() + i, g.dy.floats() + i, g.dx.floats() + i, row_, alpha_, beta_);
    });
    return;
  }
  Groups groups;
  if (!align(g.s, g.batch, &groups) || !align(g.dy, g.batch, &groups) || !align(g.dx, g.batch, &groups))
    return softmax_backward_slow(g);
  merge(g.batch, &groups);
  const Cut cut(groups);
  const Member s{g.s, 0}, dy{g.dy, 1}, dx{g.dx, 2};
  const bool direct_s = s.is_direct(groups, cut), direct_dy = dy.is_direct(groups, cut);
  const bool direct_dx = dx.is_direct(groups, cut) && !g.accumulate;
  const size_t values = cut.unit_values();
  if (!(direct_s && direct_dy && direct_dx && !g.from_x) && 2 * values * sizeof(float) > kScratchBytes)
    return softmax_backward_slow(g);
  by_pieces(cut.units, std::max<size_t>(1, kPiece / values), options().threads, [&](size_t first, size_t count) {
    float* row = reinterpret_cast<float*>(scratch());
    for (size_t unit = first; unit < first + count; ++unit) {
      const Box box = box_of(cut, unit);
      const size_t columns = box.extent[0];
      const Share packed_y{row, columns}, packed_dy{row + values, columns};
      Share y = direct_s ? s.direct(groups, cut, unit) : packed_y;
      if (!direct_s) s.gather(kernels_, groups, box, s.offset(groups, cut, unit), row);
      if (g.from_x) {
        softmax_share(kernels_, function_, cut, columns, y, packed_y);
        y = packed_y;
      }
      const Share gradient = direct_dy ? dy.direct(groups, cut, unit) : packed_dy;
      if (!direct_dy) dy.gather(kernels_, groups, box, dy.offset(groups, cut, unit), row + values);
      const Share result = direct_dx ? dx.direct(groups, cut, unit) : packed_dy;
      if (cut.in_columns) {
        kernels_.softmax_columns_backward(y.data, y.step, gradient.data, gradient.step, result.data, result.step,
                                          cut.r, columns, is_log());
      } else {
        kernels_.from_y[function_](y.data, gradient.data, result.data, cut.r, 0.0f, 0.0f);
      }
      if (direct_dx) continue;
      const size_t base = dx.offset(groups, cut, unit);
      if (g.accumulate) {
        dx.gather(kernels_, groups, box, base, row);  // y is not needed any more
        kernels_.add(row, row + values, cut.in_columns ? cut.r * columns : cut.r);
      }
      dx.scatter(kernels_, groups, box, base, row + values);
    }
  });
}

namespace {

// max and Σ e^(x - max) of a group; the sum of a logarithm leaves out NaN, as in log_softmax of the kernels
struct Normalizer {
  double max = -INFINITY;
  double total = 0.0;

  template <class ForValues>
  Normalizer(const Kernels& kernels, const Walk& x, bool log, const ForValues& for_values) {
    for_values([&](size_t i) { max = std::fmax(max, value_at(kernels, x, i)); });
    for_values([&](size_t i) {
      const double e = std::exp(value_at(kernels, x, i) - max);
      if (!log || !std::isnan(e)) total += e;
    });
    if (log && total == 0.0) total = NAN;
  }
  double softmax(double x, bool log) const { return log ? x - max - std::log(total) : std::exp(x - max) / total; }
};

}  // namespace

// Shapes that do not fit side by side, or groups larger than scratch: value by value.
void Activation::softmax_slow(const Operand& in, const Operand& out, size_t batch) const {
  const Walk x = in.walk(batch), y = out.walk(batch);
  for_groups(batch, [&](const auto& for_values) {
    const Normalizer all(kernels_, x, is_log(), for_values);
    for_values([&](size_t i) {
      set_value_at(kernels_, y, i, all.softmax(value_at(kernels_, x, i), is_log()));
    });
  });
}

void Activation::softmax_backward_slow(const Gradients& g) const {
  const Walk s_walk = g.s.walk(g.batch), dy_walk = g.dy.walk(g.batch), dx_walk = g.dx.walk(g.batch);
  for_groups(g.batch, [&](const auto& for_values) {
    const Normalizer all(kernels_, s_walk, is_log(), for_values);
    const auto y_at = [&](size_t i) -> double {
      double s = value_at(kernels_, s_walk, i);
      return g.from_x ? all.softmax(s, is_log()) : s;
    };
    double total = 0.0;
    for_values([&](size_t i) { total += value_at(kernels_, dy_walk, i) * (is_log() ? 1.0 : y_at(i)); });
    for_values([&](size_t i) {
      double dy = value_at(kernels_, dy_walk, i), y = y_at(i);
      double dx = is_log() ? dy - std::exp(y) * total : y * (dy - total);
      set_value_at(kernels_, dx_walk, i, g.accumulate ? value_at(kernels_, dx_walk, i) + dx : dx);
    });
  });
}

// ---- Gumbel: value i of the call takes value i of its part of the stream ----

void Activation::gumbel(const Operand&, const Operand& out, size_t batch) const {
  const Walk y = out.walk(batch);
  const size_t total = batch * x_.count;
  const RandomDraw draw = draw_random(total);
  by_pieces(total, kPiece, options().threads, [&](size_t first, size_t count) {
    uint32_t random[kBlock];
    float row[kBlock];
    Cursor to(y, first);
    by_blocks(first, count, kBlock, [&](size_t i, size_t n) {
      draw.stream.get(draw.start + i, random, n);
      for (size_t k = 0; k < n; ++k)
        row[k] = static_cast<float>(ref::gumbel(uniform(random[k], 0.0f, 1.0f), alpha_, beta_));
      write_row(kernels_, to, n, row);
    });
  });
}

// Every y of a group is the largest x + g of it.
void Activation::gumbel_max(const Operand& in, const Operand& out, size_t batch) const {
  const Walk x = in.walk(batch), y = out.walk(batch);
  const RandomDraw draw = draw_random(batch * x_.count);
  for_groups(batch, [&](const auto& for_values) {
    double best = -INFINITY;
    for_values([&](size_t index) {
      uint32_t random;
      draw.stream.get(draw.start + index, &random, 1);
      double noise = ref::gumbel(uniform(random, 0.0f, 1.0f), alpha_, beta_);
      best = std::fmax(best, value_at(kernels_, x, index) + noise);
    });
    for_values([&](size_t index) { set_value_at(kernels_, y, index, best); });
  });
}

}  // namespace obn::activation
