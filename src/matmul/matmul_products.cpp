// How a sum of products becomes matrix products: axes are merged where they can be, three of them become rows, columns
// and sums of the matrix engine, the others are loops. Nothing is copied that the engine can read where it lies. The
// order of every sum depends on shapes and strides alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/pool.h"
#include "base/precision.h"
#include "base/types.h"
#include "matmul/matmul.h"

namespace obn::matmul {
namespace {

constexpr size_t kBlock = 512;                       // values of a row that are done at a time
constexpr size_t kPieceValues = size_t{1} << 14;     // of a piece that only moves them
constexpr size_t kAlone = size_t{1} << 18;           // multiplications below which threads are not worth waking
constexpr size_t kTicketWork = size_t{1} << 19;      // multiplications of a ticket, at least
constexpr size_t kTicketsPerThread = 2;              // at most: neighbours that two threads write disturb each other
constexpr size_t kManyUses = 4;                      // of an operand, which pay for converting or turning it first


std::byte* address(const Values& values, size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(values.data)) + offset * bytes_of(values.type);
}

// n values from `offset` on, `stride` apart (0: one value n times), as float32.
void load(const Values& from, size_t offset, size_t stride, size_t n, float* row) {
  if (is_float_type(from.type))
    return activation::targets.best().load(from.type, address(from, offset), stride, n, row);
  double reals[kBlock];
  for (size_t done = 0; done < n; done += kBlock) {
    const size_t m = std::min(kBlock, n - done);
    activation::ref::get_reals(from, offset + done * stride, stride, m, reals);
    for (size_t i = 0; i < m; ++i) row[done + i] = static_cast<float>(reals[i]);
  }
}

// The same without copying what can be read in place.
const float* row_at(const Values& from, size_t offset, size_t stride, size_t n, float* buffer) {
  if (from.type == BNNSDataTypeFloat32 && stride == 1) return static_cast<const float*>(from.data) + offset;
  load(from, offset, stride, n, buffer);
  return buffer;
}

// to += row, rounded once; without `accumulate`, to = row.
void store(const Values& to, size_t offset, size_t stride, size_t n, const float* row, bool accumulate) {
  const activation::Kernels& kernels = activation::targets.best();
  if (!accumulate) return kernels.store(to.type, address(to, offset), stride, n, row);
  float sum[kBlock];
  for (size_t done = 0; done < n; done += kBlock) {
    const size_t m = std::min(kBlock, n - done);
    void* here = address(to, offset + done * stride);
    kernels.load(to.type, here, stride, m, sum);
    kernels.add(row + done, sum, m);
    kernels.store(to.type, here, stride, m, sum);
  }
}

// Cuts [0, count) into pieces of so many, which are shared out.
template <class Body>  // void body(size_t index)
void by_index(size_t count, size_t at_once, size_t threads, const Body& body) {
  const size_t pieces = divide_up(count, at_once);
  const auto piece = [&](size_t i) {
    for (size_t index = i * at_once; index < std::min(count, (i + 1) * at_once); ++index) body(index);
  };
  if (pieces == 1) return piece(0);
  parallel(pieces, threads_for(threads), kUsualPiece * pieces, piece);
}

// Calls body(from, to, extent of steps[row]) for every row of a move, which runs along steps[row].
template <class Body>
void each_row(const Move& move, size_t row, size_t threads, const Body& body) {
  const size_t n = move.steps[row].extent;
  by_index(move.values / n, std::max<size_t>(1, kPieceValues / n), threads, [&](size_t index) {
    size_t from = 0, to = 0;
    for (size_t k = 0; k < move.count; ++k) {
      if (k == row) continue;
      const Move::Step& step = move.steps[k];
      from += index % step.extent * step.from;
      to += index % step.extent * step.to;
      index /= step.extent;
    }
    body(from, to);
  });
}

void copy_in(const Move& move, const Values& from, size_t threads) {
  each_row(move, 0, threads, [&](size_t offset, size_t to) {
    load(from, offset, move.steps[0].from, move.steps[0].extent, move.floats + to);
  });
}

void copy_out(const Move& move, const Values& result, bool accumulate, size_t threads) {
  size_t row = 0;  // along the result's runs
  for (size_t k = 1; k < move.count; ++k)
    if (move.steps[k].from < move.steps[row].from) row = k;
  const Move::Step& step = move.steps[row];
  const Values copy = {move.floats, BNNSDataTypeFloat32, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
  each_row(move, row, threads, [&](size_t offset, size_t from) {
    float buffer[kBlock];
    for (size_t done = 0; done < step.extent; done += kBlock) {
      const size_t n = std::min(kBlock, step.extent - done);
      store(result, offset + done * step.from, step.from, n, row_at(copy, from + done * step.to, step.to, n, buffer),
            accumulate);
    }
  });
}

}  // namespace

// ---- axes ----

Product::Product(const Problem& problem, size_t threads) : p_(problem), threads_(threads) {
  merge_axes();
  by_rows_ = is_row_wise();
  if (!by_rows_) {
    choose_axes();
    copy_inputs();
  }
  for (size_t i = 0; i < p_.count; ++i) {
    if (i == m_ || i == n_ || i == k_) continue;
    if (class_of(p_.axes[i]) == Class::sum) {
      sums_[sums_count_++] = i;
    } else {
      outer_[outer_count_++] = i;
    }
  }
}

// An axis that neither input moves along repeats the result: like a row.
Product::Class Product::class_of(const Axis& axis) const {
  if (axis.stride[kResult] == 0) return Class::sum;
  if (axis.stride[kSecond] == 0) return Class::row;
  return axis.stride[kFirst] == 0 ? Class::column : Class::batch;
}

// Drops axes that do not move. Two axes become one where, in every tensor, one begins where the other ends.
void Product::merge_axes() {
  size_t count = 0;
  for (size_t i = 0; i < p_.count; ++i)
    if (p_.axes[i].extent > 1) p_.axes[count++] = p_.axes[i];
  p_.count = count;
  const auto continues = [](const Axis& fast, const Axis& slow) {
    for (size_t t = 0; t < kTensors; ++t)
      if (slow.stride[t] != fast.stride[t] * fast.extent) return false;
    return true;
  };
  for (size_t i = 0; i < p_.count;) {
    size_t j = 0;
    while (j < p_.count && (i == j || !continues(p_.axes[i], p_.axes[j]))) ++j;
    if (j == p_.count) {
      ++i;
      continue;
    }
    p_.axes[i].extent *= p_.axes[j].extent;
    std::copy(p_.axes + j + 1, p_.axes + p_.count, p_.axes + j);
    --p_.count;
    i = 0;  // from the start
  }
}

// What is no matrix product: nothing is summed and a factor belongs to each value of the result, or dot products of
// numbers that lie side by side with others of the batch.
bool Product::is_row_wise() const {
  bool has_rows = false, has_columns = false, has_sums = false, runs = false;
  for (size_t i = 0; i < p_.count; ++i) {
    const Axis& axis = p_.axes[i];
    const Class kind = class_of(axis);
    has_rows |= kind == Class::row;
    has_columns |= kind == Class::column;
    has_sums |= kind == Class::sum;
    runs |= kind == Class::batch && axis.stride[kFirst] == 1 && axis.stride[kSecond] == 1 && axis.stride[kResult] == 1;
  }
  if (!has_sums) return !has_rows || !has_columns;
  return p_.inputs == 2 && !has_rows && !has_columns && runs;
}

// The axis of a class along which the result takes its smallest steps.
size_t Product::smallest_step(Class wanted) const {
  size_t best = kNone;
  for (size_t i = 0; i < p_.count; ++i) {
    if (class_of(p_.axes[i]) != wanted) continue;
    if (best == kNone || p_.axes[i].stride[kResult] < p_.axes[best].stride[kResult]) best = i;
  }
  return best;
}

// The longest axis of a class that has no part yet; for sums, one that both inputs move along if there is one.
size_t Product::longest(Class wanted) const {
  size_t best = kNone, most = 0;
  for (size_t i = 0; i < p_.count; ++i) {
    const Axis& axis = p_.axes[i];
    if (i == n_ || class_of(axis) != wanted) continue;
    const bool both = axis.stride[kFirst] != 0 && axis.stride[kSecond] != 0;
    const size_t worth = wanted == Class::sum && !both ? 1 : axis.extent;
    if (worth <= most) continue;
    best = i;
    most = worth;
  }
  return best;
}

// Rows, columns and sums. The engine writes rows that are runs: columns are the axis along which the result takes its
// smallest steps, and the inputs change places where it is the first one's. A result that has no runs is computed
// elsewhere and copied, as are halves. A single column or row may lie anyhow.
void Product::choose_axes() {
  const size_t column = smallest_step(Class::column), row = smallest_step(Class::row);
  const auto step = [&](size_t axis) { return p_.axes[axis].stride[kResult]; };
  bool swaps = false;
  if (column != kNone && row != kNone) {
    swaps = step(row) < step(column);
    n_ = swaps ? row : column;
  } else if (column != kNone) {
    swaps = step(column) != 1;
    n_ = swaps ? kNone : column;
  }
  if (swaps) {
    for (size_t i = 0; i < p_.count; ++i) std::swap(p_.axes[i].stride[kFirst], p_.axes[i].stride[kSecond]);
    std::swap(p_.tensor[kFirst], p_.tensor[kSecond]);
  }
  m_ = longest(Class::row);
  k_ = longest(Class::sum);
  if (p_.tensor[kResult].type != BNNSDataTypeFloat32 || (n_ != kNone && step(n_) != 1))
    rearrange(kResult, n_, m_, &move_[kResult]);
}

// Matrices that the same operand is multiplied with, one after the other.
size_t Product::uses_of(size_t tensor) const {
  size_t uses = 1;
  for (size_t i = 0; i < p_.count; ++i) {
    const Axis& axis = p_.axes[i];
    if (i != m_ && i != n_ && class_of(axis) != Class::sum && axis.stride[tensor] == 0) uses *= axis.extent;
  }
  return uses;
}

// Integers become floats. So do halves that are used often, unless both operands are bfloat16, which the engine may
// multiply as they are, and a second operand whose rows the engine would have to pack every time. A sum of one input is
// a product with ones.
void Product::copy_inputs() {
  if (p_.inputs == 1) {
    ones_ = p_.axes[k_].extent;
    p_.axes[k_].stride[kSecond] = 1;
    p_.tensor[kSecond] = {nullptr, BNNSDataTypeFloat32, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
  }
  const bool are_brain =
      p_.tensor[kFirst].type == BNNSDataTypeBFloat16 && p_.tensor[kSecond].type == BNNSDataTypeBFloat16;
  const auto needs_copy = [&](size_t tensor, bool has_runs) {
    const BNNSDataType type = p_.tensor[tensor].type;
    if (!is_float_type(type)) return true;
    return !are_brain && !(has_runs && type == BNNSDataTypeFloat32) && uses_of(tensor) >= kManyUses;
  };
  const bool has_runs = n_ == kNone || p_.axes[n_].stride[kSecond] == 1;
  if (needs_copy(kFirst, true)) rearrange(kFirst, k_, m_, &move_[kFirst]);
  if (ones_ == 0 && needs_copy(kSecond, has_runs)) rearrange(kSecond, n_, k_, &move_[kSecond]);
}

// The axes of one tensor as those of a packed copy: `fastest`, `next`, then the others by the size of their steps.
void Product::rearrange(size_t tensor, size_t fastest, size_t next, Move* move) {
  const auto before = [&](size_t a, size_t b) {
    if (a == fastest || b == fastest) return a == fastest;
    if (a == next || b == next) return a == next;
    return p_.axes[a].stride[tensor] < p_.axes[b].stride[tensor];
  };
  size_t order[kMostAxes], count = 0;
  for (size_t i = 0; i < p_.count; ++i) {
    if (p_.axes[i].stride[tensor] == 0) continue;
    size_t place = count++;
    for (; place > 0 && before(i, order[place - 1]); --place) order[place] = order[place - 1];
    order[place] = i;
  }
  move->values = 1;
  for (size_t i = 0; i < count; ++i) {
    Axis& axis = p_.axes[order[i]];
    move->steps[move->count++] = {axis.extent, axis.stride[tensor], move->values};
    axis.stride[tensor] = move->values;
    if (__builtin_mul_overflow(move->values, axis.extent, &move->values)) move->values = SIZE_MAX;
  }
  if (count == 0) move->steps[move->count++] = {1, 1, 1};
}

// ---- running ----

void Product::place(Workspace* workspace) {
  for (Move& move : move_)
    if (move.values > 0) move.floats = workspace->take<float>(move.values);
  if (ones_ > 0) one_ = workspace->take<float>(ones_);
  if (!by_rows_) work_ = workspace->take(gemm::work_bytes(engine_product()));
}

void Product::run() const {
  if (by_rows_) return run_rows();
  if (move_[kFirst].values > 0) copy_in(move_[kFirst], p_.tensor[kFirst], threads_);
  if (move_[kSecond].values > 0) copy_in(move_[kSecond], p_.tensor[kSecond], threads_);
  if (ones_ > 0) std::fill_n(one_, ones_, 1.0f);
  run_products();
  if (move_[kResult].values > 0) copy_out(move_[kResult], p_.tensor[kResult], p_.accumulate, threads_);
}

// The product at the beginning of all loops.
gemm::Product Product::engine_product() const {
  const auto extent = [&](size_t axis) { return axis == kNone ? 1 : p_.axes[axis].extent; };
  const auto stride = [&](size_t axis, size_t tensor) { return axis == kNone ? 1 : p_.axes[axis].stride[tensor]; };
  const auto operand = [&](size_t tensor, size_t row, size_t column) {
    const bool is_copy = move_[tensor].values > 0, is_ones = tensor == kSecond && ones_ > 0;
    return gemm::Operand{is_copy ? move_[tensor].floats : is_ones ? one_ : p_.tensor[tensor].data, stride(row, tensor),
                         stride(column, tensor), is_copy ? BNNSDataTypeFloat32 : p_.tensor[tensor].type};
  };
  const bool is_copy = move_[kResult].values > 0;
  gemm::Product p;
  p.m = extent(m_);
  p.n = extent(n_);
  p.k = extent(k_);
  p.a = operand(kFirst, m_, k_);
  p.b = operand(kSecond, k_, n_);
  p.c = is_copy ? move_[kResult].floats : static_cast<float*>(const_cast<void*>(p_.tensor[kResult].data));
  p.c_row = m_ == kNone ? p.n : stride(m_, kResult);
  p.alpha = p_.alpha;
  p.accumulate = p_.accumulate && !is_copy;
  p.precision = precision();
  return p;
}

namespace {

// How far the tensors are at a place in the loops over some axes.
struct Offsets {
  size_t of[kTensors] = {};

  void move(const Axis* axes, const size_t* list, size_t count, size_t index) {
    for (size_t i = 0; i < count; ++i) {
      const Axis& axis = axes[list[i]];
      for (size_t t = 0; t < kTensors; ++t) of[t] += index % axis.extent * axis.stride[t];
      index /= axis.extent;
    }
  }
};

size_t places(const Axis* axes, const size_t* list, size_t count) {
  size_t all = 1;
  for (size_t i = 0; i < count; ++i) all *= axes[list[i]].extent;
  return all;
}

}  // namespace

void Product::run_products() const {
  const gemm::Product first = engine_product();
  const size_t products = places(p_.axes, outer_, outer_count_), parts = places(p_.axes, sums_, sums_count_);
  // body(a, b, c, accumulate) for all parts of the sum at one place of the outer loops
  const auto walk = [&](size_t index, const auto& body) {
    Offsets start;
    start.move(p_.axes, outer_, outer_count_, index);
    for (size_t part = 0; part < parts; ++part) {
      Offsets here = start;
      if (parts > 1) here.move(p_.axes, sums_, sums_count_, part);
      body(static_cast<const std::byte*>(first.a.data) + here.of[kFirst] * bytes_of(first.a.type),
           static_cast<const std::byte*>(first.b.data) + here.of[kSecond] * bytes_of(first.b.type),
           first.c + start.of[kResult], first.accumulate || part > 0);
    }
  };
  const size_t threads = threads_for(threads_), work_each = first.m * first.n * first.k * parts;
  if (products < 2 * threads && work_each / parts >= kAlone) {
    for (size_t i = 0; i < products; ++i)
      walk(i, [&](const void* a, const void* b, float* c, bool accumulate) {
        gemm::Product p = first;
        p.a.data = a;
        p.b.data = b;
        p.c = c;
        p.accumulate = accumulate;
        gemm::run(p, threads, work_);
      });
    return;
  }
  const size_t at_once = std::max(divide_up(kTicketWork, work_each), products / (kTicketsPerThread * threads));
  const gemm::Repeated each(first);
  by_index(products, at_once, products * work_each < kAlone ? 1 : threads_, [&](size_t i) {
    walk(i, [&](const void* a, const void* b, float* c, bool accumulate) { each.run(a, b, c, accumulate); });
  });
}

// ---- row by row ----

// Rows run along the axis where the result takes its smallest steps.
void Product::run_rows() const {
  size_t row = kNone;
  for (size_t i = 0; i < outer_count_; ++i)
    if (row == kNone || p_.axes[outer_[i]].stride[kResult] < p_.axes[row].stride[kResult]) row = outer_[i];
  const size_t length = row == kNone ? 1 : p_.axes[row].extent, blocks = divide_up(length, kBlock);
  const size_t rows = places(p_.axes, outer_, outer_count_) / length;
  const size_t block_work = std::min(length, kBlock) * places(p_.axes, sums_, sums_count_);
  by_index(rows * blocks, std::max<size_t>(1, kPieceValues / block_work), threads_,
           [&](size_t piece) { run_row(piece, row, blocks); });
}

void Product::run_row(size_t piece, size_t row, size_t blocks) const {
  const Axis single = {1, {1, 1, 1}};
  const Axis& along = row == kNone ? single : p_.axes[row];
  const size_t first = piece % blocks * kBlock, n = std::min(kBlock, along.extent - first);
  Offsets start;
  for (size_t t = 0; t < kTensors; ++t) start.of[t] = first * along.stride[t];
  size_t index = piece / blocks;
  for (size_t i = 0; i < outer_count_; ++i) {
    if (outer_[i] == row) continue;
    const size_t extent = p_.axes[outer_[i]].extent;
    start.move(p_.axes, outer_ + i, 1, index % extent);
    index /= extent;
  }
  float sum[kBlock], a_buffer[kBlock], b_buffer[kBlock];
  const size_t parts = places(p_.axes, sums_, sums_count_);
  for (size_t part = 0; part < parts; ++part) {
    Offsets here = start;
    here.move(p_.axes, sums_, sums_count_, part);
    const float* a = row_at(p_.tensor[kFirst], here.of[kFirst], along.stride[kFirst], n, a_buffer);
    if (p_.inputs == 1) {
      for (size_t i = 0; i < n; ++i) sum[i] = part == 0 ? a[i] : sum[i] + a[i];
      continue;
    }
    const float* b = row_at(p_.tensor[kSecond], here.of[kSecond], along.stride[kSecond], n, b_buffer);
    for (size_t i = 0; i < n; ++i) sum[i] = part == 0 ? a[i] * b[i] : sum[i] + a[i] * b[i];
  }
  for (size_t i = 0; i < n; ++i) sum[i] *= p_.alpha;
  store(p_.tensor[kResult], start.of[kResult], along.stride[kResult], n, sum, p_.accumulate);
}

// ---- whole tensors ----

namespace {

Move move_of(const View& view, size_t batch, size_t step) {
  Move move;
  move.values = 1;
  for (size_t k = 0; k < view.rank; ++k) {
    move.steps[move.count++] = {view.extent[k], view.stride[k], move.values};
    move.values *= view.extent[k];
  }
  if (batch > 1) {
    move.steps[move.count++] = {batch, step, move.values};
    move.values *= batch;
  }
  return move;
}

Values values_of(const View& view, const void* data) {
  return {data, view.type, view.scale, view.bias, view.table, view.table_type};
}

}  // namespace

void clear(const View& view, void* data, size_t batch, size_t step, size_t threads) {
  const Move move = move_of(view, batch, step);
  const Values values = values_of(view, data);
  static constexpr float kZeros[kBlock] = {};
  each_row(move, 0, threads, [&](size_t offset, size_t) {
    for (size_t done = 0; done < view.extent[0]; done += kBlock)
      store(values, offset + done * view.stride[0], view.stride[0], std::min(kBlock, view.extent[0] - done), kZeros,
            false);
  });
}

void copy_packed(const View& view, const void* data, BNNSDataType type, void* to) {
  const Values from = values_of(view, data), copy = {to, type, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32};
  each_row(move_of(view, 1, 0), 0, 1, [&](size_t offset, size_t place) {
    float row[kBlock];
    for (size_t done = 0; done < view.extent[0]; done += kBlock) {
      const size_t n = std::min(kBlock, view.extent[0] - done);
      load(from, offset + done * view.stride[0], view.stride[0], n, row);
      store(copy, place + done, 1, n, row, false);
    }
  });
}

void copy_unpacked(const float* from, const View& view, void* data, size_t batch, size_t step, bool accumulate,
                   size_t threads) {
  Move move = move_of(view, batch, step);
  move.floats = const_cast<float*>(from);
  copy_out(move, values_of(view, data), accumulate, threads);
}

void make_packed(View* view) {
  size_t step = 1;
  for (size_t k = 0; k < view->rank; step *= view->extent[k++]) view->stride[k] = step;
  view->span = view->packed_batch = view->count;
}

}  // namespace obn::matmul
