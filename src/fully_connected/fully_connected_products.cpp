// Fully connected, the products: how each is cut into pieces, what has to be converted first, and whether few samples
// make it a walk over the weights or many make it a job for the matrix engine. Letters as in fully_connected.h.
#include <algorithm>
#include <cstddef>

#include "activation/activation_walk.h"
#include "base/integer.h"
#include "base/pool.h"
#include "base/types.h"
#include "fully_connected/fully_connected.h"
#include "gemm/gemm.h"

namespace obn::fully_connected {

namespace {

constexpr double kMultiplication = 0.06;            // nanoseconds, about: one of the factors comes from memory
constexpr size_t kPieceWork = size_t{1} << 17;      // multiplications of one piece: some 10 us
constexpr size_t kFarWork = size_t{1} << 18;        // the same where the weights come from memory: fewer starts
constexpr size_t kPartValues = size_t{1} << 18;     // weights behind one partial sum of run_combine
constexpr size_t kPieceValues = size_t{1} << 16;    // values of one piece that only moves them
constexpr size_t kFewRows = 16;                     // up to this many results per sample are dot products even
constexpr size_t kLongRow = 256;                    // in large batches, if they are at least this long
constexpr size_t kWideBand = 1024;                  // columns of a piece of long sums, at least
constexpr size_t kBandUnit = 64;                    // columns: whole strips of the kernels, whole cache lines
constexpr size_t kBlock = 512;                      // values converted in the first-level cache at a time


// Rows whose values make a piece.
size_t rows_of(size_t values, size_t columns) { return std::max<size_t>(1, values / columns); }

// from (rows, columns) as float32 without gaps.
void load_rows(const Array& from, size_t rows, size_t limit, float* to) {
  by_pieces(rows, rows_of(kPieceValues, from.columns), limit, [&](size_t first, size_t count) {
    for (size_t r = first; r < first + count; ++r) load_row(from, r, 0, from.columns, to + r * from.columns);
  });
}

// The way back.
void store_rows(const float* from, const Array& to, size_t rows, bool accumulate, size_t limit) {
  by_pieces(rows, rows_of(kPieceValues, to.columns), limit, [&](size_t first, size_t count) {
    for (size_t r = first; r < first + count; ++r)
      store_row(to, r, 0, to.columns, from + r * to.columns, accumulate);
  });
}

Array array_of_floats(const float* data, size_t columns) {
  return {{data, BNNSDataTypeFloat32, 1.0f, 0.0f, nullptr, BNNSDataTypeFloat32}, columns, 1, columns};
}

gemm::Operand operand_of(const Array& array) {
  return {array.values.data, array.row, array.column, array.values.type};
}

bool is_run(const Array& array) { return array.column == 1 || array.columns == 1; }

}  // namespace

void load_row(const Array& from, size_t n, size_t first, size_t count, float* row) {
  if (is_float_type(from.values.type)) {
    activation::targets.best().load(from.values.type, from.at(n, first), from.column, count, row);
    return;
  }
  double reals[kBlock];
  for (size_t done = 0; done < count; done += kBlock) {
    const size_t m = std::min(kBlock, count - done);
    activation::ref::get_reals(from.values, n * from.row + (first + done) * from.column, from.column, m, reals);
    for (size_t i = 0; i < m; ++i) row[done + i] = static_cast<float>(reals[i]);
  }
}

void store_row(const Array& to, size_t n, size_t first, size_t count, const float* row, bool accumulate) {
  const activation::Kernels& kernels = activation::targets.best();
  if (!accumulate) return kernels.store(to.values.type, to.at(n, first), to.column, count, row);
  float sum[kBlock];
  for (size_t done = 0; done < count; done += kBlock) {
    const size_t m = std::min(kBlock, count - done);
    kernels.load(to.values.type, to.at(n, first + done), to.column, m, sum);
    kernels.add(row + done, sum, m);
    kernels.store(to.values.type, to.at(n, first + done), to.column, m, sum);
  }
}

// ---- to = from · matrix ----

// Few samples, or few results of long sums, or many results of short ones.
bool Multiply::uses_kernels() const {
  const bool is_flat = m.columns >= kLongRow && rows <= (sums_along_rows ? kFewRows : choice.kernels->short_sum);
  return n <= choice.few_samples || (choice.few_samples > 0 && is_flat);
}

// How many parts the rows are cut into whose sums are added up afterwards.
size_t Multiply::parts() const {
  const size_t at_least = 16 * n;  // rows in a part: the partial sums are to cost little beside the weights
  return std::clamp<size_t>(rows * m.columns / kPartValues, 1, std::max<size_t>(1, rows / at_least));
}

void Multiply::place(Workspace* workspace) {
  const bool kernels = uses_kernels();
  const bool m_is_usable = is_float_type(m.values.type) && (!kernels || is_run(m));
  const bool from_is_usable = kernels ? from.is_ready(n) : is_float_type(from.values.type);
  if (!m_is_usable) m_ = workspace->take<float>(rows, m.columns);
  if (!from_is_usable) from_ = workspace->take<float>(n, from.columns);
  if (!to.is_ready(n)) to_ = workspace->take<float>(n, to.columns);
  if (bias && !bias->is_ready(1)) bias_ = workspace->take<float>(1, bias->columns);
  if (kernels && !sums_along_rows && parts() > 1) partial_ = workspace->take<float>(parts() * n, m.columns);
  if (!kernels) work_ = workspace->take(gemm::work_bytes(engine_product()));
}

// The same for the matrix engine: b (k, j) is the matrix, transposed when sums run along its rows.
gemm::Product Multiply::engine_product() const {
  const Array source = from_ ? array_of_floats(from_, from.columns) : from;
  const Array weights = m_ ? array_of_floats(m_, m.columns) : m;
  gemm::Product p;
  p.m = n;
  p.n = to.columns;
  p.k = from.columns;
  p.a = operand_of(source);
  p.b = operand_of(weights);
  if (sums_along_rows) std::swap(p.b.row, p.b.column);
  p.c = to_ ? to_ : static_cast<float*>(const_cast<void*>(to.values.data));
  p.c_row = to_ ? to.columns : to.row;
  p.accumulate = accumulate && !to_;
  p.column_bias = !bias ? nullptr : bias_ ? bias_ : static_cast<const float*>(bias->values.data);
  p.activation = activation;
  p.precision = precision;
  return p;
}

void Multiply::run() const {
  if (m_) load_rows(m, rows, threads, m_);
  if (from_) load_rows(from, n, threads, from_);
  if (bias_) load_row(*bias, 0, 0, bias->columns, bias_);
  float* out = to_ ? to_ : static_cast<float*>(const_cast<void*>(to.values.data));
  const size_t out_row = to_ ? to.columns : to.row;
  const Array source = from_ ? array_of_floats(from_, from.columns) : from;
  const Array weights = m_ ? array_of_floats(m_, m.columns) : m;

  const bool is_far = rows * weights.columns * bytes_of(weights.values.type) > choice.near_bytes;
  const Matrix matrix = {weights.values.data, weights.row, weights.columns, weights.values.type, is_far};
  const Floats vectors = {static_cast<const float*>(source.values.data), source.row};
  if (!uses_kernels()) {
    gemm::run(engine_product(), threads_for(threads), work_);
  } else if (sums_along_rows) {
    run_dot(matrix, vectors, out, out_row);
  } else {
    run_combine(matrix, vectors, out, out_row);
  }
  if (to_) store_rows(to_, to, n, accumulate, threads);
}

// Bias and activation of values (s, first …).
void Multiply::finish(float* out, size_t first, size_t count) const {
  if (bias) {
    const float* b = bias_ ? bias_ : static_cast<const float*>(bias->values.data);
    activation::targets.best().add(b + first, out + first, count);
  }
  if (activation && (!activation_needs_rows || count == to.columns)) activation->forward(out + first, count);
}

void Multiply::run_dot(const Matrix& matrix, const Floats& v, float* out, size_t out_row) const {
  const bool adds = accumulate && !to_;
  const auto piece = [&](size_t first, size_t count, size_t sample, size_t samples) {
    const Floats vectors = {v.data + sample * v.row, v.row};
    choice.kernels->dot(matrix, {first, count}, vectors, samples, out + sample * out_row, out_row, adds);
    if (!bias && !activation) return;
    for (size_t s = sample; s < sample + samples; ++s) finish(out + s * out_row, first, count);
  };
  // Pieces of up to 8 samples, more where the matrix is small.
  const size_t per_sample = rows * matrix.columns;
  const size_t samples = std::min(n, std::max<size_t>(8, kPieceWork / per_sample));
  const size_t per_row = matrix.columns * samples;
  const size_t work = matrix.is_far ? kFarWork : kPieceWork;
  const size_t count = per_row >= work ? 8 : std::min(rows, round_up(work / per_row, 40));
  if (samples == n && count >= rows) return piece(0, rows, 0, n);
  const size_t row_pieces = divide_up(rows, count), sample_pieces = divide_up(n, samples);
  parallel(row_pieces * sample_pieces, threads_for(threads), kMultiplication * n * per_sample, [&](size_t i) {
    const size_t first = i % row_pieces * count, sample = i / row_pieces * samples;
    piece(first, std::min(count, rows - first), sample, std::min(samples, n - sample));
  });
  if (activation_needs_rows && row_pieces > 1) {
    for (size_t s = 0; s < n; ++s) activation->forward(out + s * out_row, rows);
  }
}

void Multiply::run_combine(const Matrix& matrix, const Floats& u, float* out, size_t out_row) const {
  const bool adds = accumulate && !to_;
  const size_t columns = matrix.columns;
  if (!partial_) {
    // Each column is a sum of its own: pieces are bands of columns. Narrow bands of many rows would be slow to read.
    const size_t narrowest = rows <= choice.kernels->short_sum ? kLongRow : kWideBand;
    const size_t band = round_up(std::max(kPieceWork / (rows * n), narrowest), kBandUnit);
    by_pieces(columns, band, threads, [&](size_t first, size_t count) {
      const auto* data = static_cast<const std::byte*>(matrix.data) + first * bytes_of(matrix.type);
      choice.kernels->combine({data, matrix.row, count, matrix.type, matrix.is_far}, {0, rows}, u, n, out + first,
                              out_row, adds);
    }, kMultiplication * rows * n * band);
  } else {
    const size_t all = parts();
    parallel(all, threads_for(threads), kMultiplication * rows * n * columns, [&](size_t i) {
      const size_t first = rows * i / all;
      const Part part = {first, rows * (i + 1) / all - first};
      float* sums = partial_ + i * n * columns;
      choice.kernels->combine(matrix, part, u, n, sums, columns, false);
    });
    // Partial sums are added in their order, column by column.
    const activation::Kernels& row_kernels = activation::targets.best();
    by_pieces(n * columns, round_up(rows_of(kPieceValues, all), kLongRow), threads, [&](size_t first, size_t count) {
      for (size_t at = first; at < first + count;) {
        const size_t s = at / columns, c = at % columns, m = std::min(first + count - at, columns - c);
        float* to_here = out + s * out_row + c;
        if (!adds) std::fill_n(to_here, m, 0.0f);
        for (size_t i = 0; i < all; ++i) row_kernels.add(partial_ + (i * n + s) * columns + c, to_here, m);
        at += m;
      }
    });
  }
  if (!bias && !activation) return;
  for (size_t s = 0; s < n; ++s) finish(out + s * out_row, 0, columns);
}

// ---- dw = uᵀ · v ----

bool Outer::has_few_rows() const { return rows <= choice.kernels->short_sum && to.columns >= kLongRow; }

bool Outer::uses_kernels() const {
  return n <= choice.few_samples || (choice.few_samples > 0 && has_few_rows() && to.is_ready(rows));
}

bool Outer::is_streamed() const {
  return uses_kernels() && !accumulate && to.values.type == BNNSDataTypeFloat32 && is_run(to) &&
         rows * to.columns * sizeof(float) > choice.near_bytes;
}

void Outer::place(Workspace* workspace) {
  if (uses_kernels()) {
    if (!u.is_ready(n)) u_ = workspace->take<float>(n, u.columns);
    if (!v.is_ready(n)) v_ = workspace->take<float>(n, v.columns);
  } else {
    if (!to.is_ready(rows)) to_ = workspace->take<float>(rows, to.columns);
    work_ = workspace->take(gemm::work_bytes(engine_product()));
  }
}

gemm::Product Outer::engine_product() const {
  gemm::Product p;
  p.m = rows;
  p.n = to.columns;
  p.k = n;
  p.a = operand_of(u);
  std::swap(p.a.row, p.a.column);
  p.b = operand_of(v);
  p.c = to_ ? to_ : static_cast<float*>(const_cast<void*>(to.values.data));
  p.c_row = to_ ? to.columns : to.row;
  p.accumulate = accumulate && !to_;
  p.precision = precision;
  return p;
}

void Outer::run() const {
  if (!uses_kernels()) {
    gemm::run(engine_product(), threads_for(threads), work_);
    if (to_) store_rows(to_, to, rows, accumulate, threads);
    return;
  }
  if (u_) load_rows(u, n, threads, u_);
  if (v_) load_rows(v, n, threads, v_);
  const Floats u_rows = {u_ ? u_ : static_cast<const float*>(u.values.data), u_ ? u.columns : u.row};
  const Floats v_rows = {v_ ? v_ : static_cast<const float*>(v.values.data), v_ ? v.columns : v.row};
  const Gradient g = {static_cast<std::byte*>(const_cast<void*>(to.values.data)), to.row, is_run(to) ? 1 : to.column,
                      to.values.type, accumulate, is_streamed()};
  const size_t columns = to.columns;
  if (has_few_rows() && to.is_ready(rows)) {  // pieces are bands of columns
    const size_t band = round_up(std::max(kPieceWork / (rows * n), kLongRow), kBandUnit);
    return by_pieces(columns, band, threads, [&](size_t first, size_t count) {
      const Floats v_band = {v_rows.data + first, v_rows.row};
      Gradient g_band = g;
      g_band.data += first * sizeof(float);
      choice.kernels->outer(u_rows, v_band, n, count, {0, rows}, g_band);
    }, kMultiplication * rows * n * band);
  }
  const size_t piece = round_up(rows_of(kPieceWork, columns * std::min<size_t>(n, 8)), 4);
  by_pieces(rows, piece, threads, [&](size_t first, size_t count) {
    choice.kernels->outer(u_rows, v_rows, n, columns, {first, count}, g);
  }, kMultiplication * columns * n * piece);
}

}  // namespace obn::fully_connected
