// Attention, the passes: where everything lies, the products of the projections, and who does which head. Letters as in
// attention.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "activation/activation.h"
#include "attention/attention_filter.h"
#include "base/integer.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/precision.h"
#include "base/types.h"

namespace obn {

namespace attention {

namespace {

constexpr double kValue = 1.0;                  // nanoseconds to copy one with gaps, about
constexpr size_t kPerPiece = size_t{1} << 19;   // those that a piece should hold at least
constexpr size_t kChunkRows = 128;              // rows that go through the spare block at a time
constexpr size_t kNear = size_t{1} << 16;       // projected values that stay in the caches
constexpr size_t kSlowRows = 16;                // rows of a piece of the obvious loops

size_t times(size_t a, size_t b) {
  size_t n;
  return __builtin_mul_overflow(a, b, &n) ? SIZE_MAX : n;
}
const std::byte* at(const void* data, size_t values, BNNSDataType type) {
  return static_cast<const std::byte*>(data) + values * bytes_of(type);
}

void get_random(const void* stream, uint64_t position, uint32_t* values, size_t n) {
  static_cast<const RandomStream*>(stream)->get(position, values, n);
}

bool is_row(const Weights& w) { return w.type == BNNSDataTypeFloat32 && w.is_matrix() && w.column_step() == 1; }
// Can be an operand where it lies.
bool is_usable(const Weights& w) { return w.is_matrix(); }

}  // namespace

// ---- parameters ----

Weights packed_like(const Weights& weights, const float* to, bool turned) {
  Weights w = weights;
  w.data = to;
  w.type = BNNSDataTypeFloat32;
  w.input_step = turned ? 1 : w.columns();
  w.width_step = turned ? w.inputs : 1;
  w.head_step = w.width * w.width_step;
  return w;
}

void copy_weights(const Weights& from, const Weights& to, size_t threads) {
  const auto load = activation::targets.best().load;
  float* out = static_cast<float*>(const_cast<void*>(to.data));
  if (to.input_step == 1 && from.inputs > 1) {
    parallel(from.columns(), threads, 8 * kByte * from.columns() * from.inputs, [&](size_t j) {
      const size_t h = j / from.width, w = j % from.width;
      load(from.type, at(from.data, h * from.head_step + w * from.width_step, from.type), from.input_step, from.inputs,
           out + j * from.inputs);
    });
    return;
  }
  parallel(divide_up(from.inputs, 16), threads, 8 * kByte * from.columns() * from.inputs, [&](size_t piece) {
    for (size_t e = piece * 16; e < std::min(from.inputs, piece * 16 + 16); ++e) {
      for (size_t h = 0; h < from.heads; ++h)
        load(from.type, at(from.data, e * from.input_step + h * from.head_step, from.type), from.width_step, from.width,
             out + e * from.columns() + h * from.width);
    }
  });
}

namespace {

// from (inputs, columns), or turned, to where the gradient lies.
void scatter(const float* from, bool turned, const Weights& to, size_t threads) {
  float* out = static_cast<float*>(const_cast<void*>(to.data));
  const size_t i_step = turned ? 1 : to.columns(), j_step = turned ? to.inputs : 1;
  const auto each = [&](size_t i, size_t j, size_t h, size_t w) {
    float& value = out[i * to.input_step + h * to.head_step + w * to.width_step];
    const float sum = from[i * i_step + j * j_step];
    value = to.accumulate ? value + sum : sum;
  };
  const double work = kValue * to.inputs * to.columns();
  if (turned) {
    parallel(to.columns(), threads, work, [&](size_t j) {
      for (size_t i = 0; i < to.inputs; ++i) each(i, j, j / to.width, j % to.width);
    });
  } else {
    parallel(to.inputs, threads, work, [&](size_t i) {
      for (size_t h = 0; h < to.heads; ++h)
        for (size_t w = 0; w < to.width; ++w) each(i, h * to.width + w, h, w);
    });
  }
}

}  // namespace

// ---- where everything lies ----

// What a forward pass leaves for a backward pass.
struct Attention::Saved {
  float *q = nullptr, *k = nullptr, *v = nullptr;  // (B, T or S, H, width)
  float* a = nullptr;                              // (B, T, H, d_value), its memory as wide as d_key at least
  float *top = nullptr, *inverse = nullptr;        // (B, H, T)
  float* p = nullptr;                              // (B, H), each kept_each(); NULL: not kept
};

struct Attention::Plan {
  Saved saved;
  Weights q, k, v, o;                                     // matrices
  const float *q_bias = nullptr, *k_bias = nullptr;       // rows; NULL: none
  const float *v_bias = nullptr, *o_bias = nullptr;
  float* packed[4] = {};                                  // copies of weights and biases that cannot be used in place
  float* packed_bias[4] = {};
  float *extra_k = nullptr, *extra_v = nullptr;           // (H, extra, width)
  float *da = nullptr, *dots = nullptr;                   // (B, T, H, d_value), (B, H, T)
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float *extra_dk = nullptr, *extra_dv = nullptr;         // (B, H, extra, width)
  float* spare = nullptr;
  std::byte* work = nullptr;                              // of the matrix engine
  uint64_t start = 0;                                     // of the dropout
  size_t threads = 1;
  bool causal = false;
};

void Attention::place_saved(size_t batch, bool keeps_scores, Workspace* workspace, Saved* saved) const {
  const size_t queries = times(batch, t_), keys = times(batch, s_);
  saved->q = workspace->take<float>(queries, key_columns());
  saved->k = workspace->take<float>(keys, key_columns());
  saved->v = workspace->take<float>(keys, value_columns());
  saved->a = workspace->take<float>(queries, std::max(key_columns(), value_columns()));
  saved->top = workspace->take<float>(queries, heads_);
  saved->inverse = workspace->take<float>(queries, heads_);
  if (keeps_scores) saved->p = workspace->take<float>(times(batch, heads_), kept_each());
}

size_t Attention::cache_bytes(size_t batch) const {
  Workspace workspace;
  Saved saved;
  workspace.take(sizeof(CacheHeader));
  place_saved(batch, keeps_scores_, &workspace, &saved);
  return workspace.used();
}

void Attention::place(size_t batch, bool is_backward, bool has_cache, Workspace* workspace, Plan* plan) const {
  const size_t queries = times(batch, t_), keys = times(batch, s_);
  if (!has_cache) place_saved(batch, is_backward && keeps_scores_, workspace, &plan->saved);
  const Projection* projections[] = {&q_, &k_, &v_, &o_};
  size_t widest = 0;
  for (size_t i = 0; i < 4; ++i) {
    const Projection& p = *projections[i];
    if (!is_usable(p.weights)) plan->packed[i] = workspace->take<float>(p.inputs, p.weights.columns());
    if (p.bias.data && !is_row(p.bias)) plan->packed_bias[i] = workspace->take<float>(1, p.weights.columns());
    widest = std::max({widest, times(p.inputs, p.weights.columns()),
                       times(kChunkRows, std::max(p.inputs, p.weights.columns()))});
  }
  plan->extra_k = workspace->take<float>(extra(), key_columns());
  plan->extra_v = workspace->take<float>(extra(), value_columns());
  const bool is_direct = o_.x.type == BNNSDataTypeFloat32 && o_.column == 1;
  if (is_backward) {
    plan->da = workspace->take<float>(queries, value_columns());
    plan->dots = workspace->take<float>(queries, heads_);
    plan->extra_dk = workspace->take<float>(times(batch, extra()), key_columns());
    plan->extra_dv = workspace->take<float>(times(batch, extra()), value_columns());
    // Without a cache dq takes the place of a, and the others that of what they are gradients of.
    const bool in_place = !has_cache && backward_blocks_.columns > 0;
    plan->dq = has_cache ? workspace->take<float>(queries, key_columns()) : plan->saved.a;
    plan->dk = in_place ? plan->saved.k : workspace->take<float>(keys, key_columns());
    plan->dv = in_place ? plan->saved.v : workspace->take<float>(keys, value_columns());
    plan->spare = workspace->take<float>(1, widest);
  } else if (!is_direct) {
    plan->spare = workspace->take<float>(kChunkRows, o_.weights.width);
  }
  plan->work = workspace->take(0);  // the last: how much, only plan_bytes() needs to know
}

// The most that any product of the call asks for. Counting takes as long as a small product, so the result for the last
// batch size is remembered.
size_t Attention::product_bytes(size_t batch, bool is_backward) const {
  constexpr size_t kMost = UINT32_MAX;
  std::atomic<uint64_t>& counted = counted_[is_backward];
  const uint64_t last = counted.load(std::memory_order_relaxed);
  if (batch == last >> 32) return (last & kMost) * kAlignment;
  const size_t blocks = divide_up(count_product_bytes(batch, is_backward), kAlignment);
  if (batch <= kMost && blocks <= kMost) counted.store(batch << 32 | blocks, std::memory_order_relaxed);
  return blocks * kAlignment;
}

size_t Attention::count_product_bytes(size_t batch, bool is_backward) const {
  size_t most = 0;
  const auto count = [&](size_t m, size_t n, size_t k, const gemm::Operand& a, const gemm::Operand& b, size_t times) {
    gemm::Product p = {.m = m, .n = n, .k = k, .a = a, .b = b, .c = nullptr, .c_row = n};
    p.precision = precision();
    most = std::max(most, gemm::work_bytes(p, times));
  };
  const Projection* projections[] = {&q_, &k_, &v_, &o_};
  for (const Projection* p : projections) {
    const Weights w = is_usable(p->weights) ? p->weights : packed_like(p->weights, nullptr, p->weights.input_step == 1);
    const bool is_output = p == &o_;
    const size_t n = w.columns(), k = w.inputs, rows = p->rows;
    const gemm::Operand x = {nullptr, p->row, p->column, p->x.type};
    const gemm::Operand ours = {nullptr, is_output ? k : n, 1};
    const gemm::Operand in = is_output ? ours : x, out = is_output ? x : ours;
    count(rows, n, k, in, w.operand(), batch);
    if (!is_backward) continue;
    count(rows, k, n, out, w.turned(), batch);
    count(k, n, batch * rows, {nullptr, in.column, in.row, in.type}, out, 1);
    count(n, k, batch * rows, {nullptr, out.column, out.row, out.type}, in, 1);
    count(1, n, batch * rows, {nullptr, 0, 0}, out, 1);
  }
  return most;
}

size_t Attention::plan_bytes(size_t batch, bool is_backward, bool has_cache) const {
  for (const Projection* p : {&q_, &k_, &v_, &o_})
    if (check_batch_size(p->x, batch) != 0) return SIZE_MAX;
  Workspace workspace;
  Plan plan;
  place(batch, is_backward, has_cache, &workspace, &plan);
  if (workspace.used() != SIZE_MAX) workspace.take(product_bytes(batch, is_backward));
  const size_t used = workspace.used();
  return used > SIZE_MAX - kAlignment ? SIZE_MAX : used + kAlignment;  // the caller's block need not be aligned
}

size_t Attention::work_bytes(size_t batch) const {
  return std::max(plan_bytes(batch, false, false), plan_bytes(batch, true, false));
}

size_t Attention::threads() const { return threads_for(options().threads); }

Attention::Plan Attention::begin(const Job& job, bool is_backward) const {
  Plan plan;
  Workspace workspace(job.work);
  if (job.cache) {
    Workspace cache(job.cache);
    cache.take(sizeof(CacheHeader));
    place_saved(job.batch, keeps_scores_, &cache, &plan.saved);
  }
  place(job.batch, is_backward, job.cache, &workspace, &plan);
  plan.threads = threads();
  plan.causal = causal_.load(std::memory_order_relaxed);
  prepare_weights(&plan);
  return plan;
}

// Copies what cannot be used where it lies.
void Attention::prepare_weights(Plan* plan) const {
  const Projection* projections[] = {&q_, &k_, &v_, &o_};
  Weights* weights[] = {&plan->q, &plan->k, &plan->v, &plan->o};
  const float** biases[] = {&plan->q_bias, &plan->k_bias, &plan->v_bias, &plan->o_bias};
  for (size_t i = 0; i < 4; ++i) {
    const Projection& p = *projections[i];
    *weights[i] = p.weights;
    if (plan->packed[i]) {
      *weights[i] = packed_like(p.weights, plan->packed[i], p.weights.input_step == 1);
      copy_weights(p.weights, *weights[i], plan->threads);
    }
    *biases[i] = static_cast<const float*>(p.bias.data);
    if (plan->packed_bias[i]) {
      copy_weights(p.bias, packed_like(p.bias, plan->packed_bias[i]), 1);
      *biases[i] = plan->packed_bias[i];
    }
  }
  if (extra() == 0) return;
  const auto load = activation::targets.best().load;
  for (const bool is_key : {true, false}) {
    const Weights& bias = is_key ? key_bias_ : value_bias_;
    const size_t width = is_key ? key_width_ : value_width_;
    float* to = is_key ? plan->extra_k : plan->extra_v;
    for (size_t h = 0; h < heads_; ++h) {
      if (bias.data) {
        load(bias.type, at(bias.data, h * bias.head_step, bias.type), bias.width_step, width, to);
        to += width;
      }
      if (adds_zero_) to = std::fill_n(to, width, 0.0f);
    }
  }
}

// ---- products ----

void Attention::project(const Job& job, const Plan& plan) const {
  const auto run = [&](const Batch& x, size_t rows, const Weights& w, const float* bias, float* to) {
    const size_t n = w.columns();
    gemm::Product p = {.m = rows, .n = n, .k = w.inputs, .a = x.operand(), .b = w.operand(), .c = to, .c_row = n};
    p.column_bias = bias;
    p.precision = precision();
    gemm::run_batch(p, job.batch, x.step, 0, rows * n, plan.threads, plan.work);
  };
  run(job.q, t_, plan.q, plan.q_bias, plan.saved.q);
  run(job.k, s_, plan.k, plan.k_bias, plan.saved.k);
  run(job.v, s_, plan.v, plan.v_bias, plan.saved.v);
}

// to (B, rows, n) = a (B, rows, k) · b, through the spare block where rows of `to` are no runs of float32.
void Attention::multiply_rows(const Job& job, const Plan& plan, const float* a, size_t k, const gemm::Operand& b,
                              const float* bias, const Batch& to, size_t rows, size_t n, bool accumulate) const {
  gemm::Product p = {.m = rows, .n = n, .k = k, .a = {a, k, 1}, .b = b, .c = to.floats(), .c_row = to.row};
  p.column_bias = bias;
  p.precision = precision();
  if (to.type == BNNSDataTypeFloat32 && to.column == 1) {
    p.c_row = std::max(to.row, n);  // may be anything where there is one row
    p.accumulate = accumulate;
    return gemm::run_batch(p, job.batch, rows * k, 0, to.step, plan.threads, plan.work);
  }
  const activation::Kernels& kernels = activation::targets.best();
  p.c = plan.spare;
  p.c_row = n;
  for (size_t b_index = 0; b_index < job.batch; ++b_index) {
    for (size_t first = 0; first < rows; first += kChunkRows) {
      p.m = std::min(kChunkRows, rows - first);
      p.a.data = a + (b_index * rows + first) * k;
      gemm::run(p, plan.threads, plan.work);
      for (size_t i = 0; i < p.m; ++i) {
        const size_t offset = b_index * to.step + (first + i) * to.row;
        if (!accumulate) {
          void* row = const_cast<std::byte*>(at(to.data, offset, to.type));
          kernels.store(to.type, row, to.column, n, plan.spare + i * n);
          continue;
        }
        float* row = to.floats() + offset;  // gradients are float32
        for (size_t c = 0; c < n; ++c) row[c * to.column] += plan.spare[i * n + c];
      }
    }
  }
}

// to (inputs, columns) = Σ over samples and rows of left (inputs)ᵀ · right (columns)
void Attention::multiply_outer(const Job& job, const Plan& plan, const Batch& left, const Batch& right, size_t rows,
                               const Weights& to) const {
  // Rows of the caller's gradient that are no runs go down: across, they would need more work than was counted.
  const bool is_turned_matrix = to.input_step == 1 && to.inputs > 1, turned = is_turned_matrix || right.column != 1;
  const bool is_row_matrix = to.column_step() == 1 || to.columns() == 1;
  const bool is_direct = to.is_matrix() && (turned ? is_turned_matrix : is_row_matrix);
  const Batch &down = turned ? right : left, &across = turned ? left : right;
  gemm::Product p;
  p.m = turned ? to.columns() : to.inputs;
  p.n = turned ? to.inputs : to.columns();
  p.c = is_direct ? static_cast<float*>(const_cast<void*>(to.data)) : plan.spare;
  p.c_row = is_direct ? std::max(p.n, turned ? to.column_step() : to.input_step) : p.n;
  p.accumulate = is_direct && to.accumulate;
  p.precision = precision();
  p.a = down.turned();
  p.b = across.operand();
  if (left.is_tall(job.batch, rows) && right.is_tall(job.batch, rows)) {
    p.k = job.batch * rows;
    gemm::run(p, plan.threads, plan.work);
  } else {
    p.k = rows;
    for (size_t b = 0; b < job.batch; ++b) {
      p.a.data = at(down.data, b * down.step, down.type);
      p.b.data = at(across.data, b * across.step, across.type);
      gemm::run(p, plan.threads, plan.work);
      p.accumulate = true;
    }
  }
  if (!is_direct) scatter(plan.spare, turned, to, plan.threads);
}

// to = Σ over samples and rows: a product with ones.
void Attention::sum_rows(const Job& job, const Plan& plan, const Batch& from, size_t rows, const Weights& to) const {
  static const float one = 1.0f;
  gemm::Product p;
  p.m = 1;
  p.n = to.columns();
  p.a = {&one, 0, 0};
  p.b = from.operand();
  p.c = plan.spare;
  p.c_row = p.n;
  const bool is_tall = from.is_tall(job.batch, rows);
  p.k = is_tall ? job.batch * rows : rows;
  for (size_t b = 0; b < (is_tall ? 1 : job.batch); ++b) {
    p.b.data = at(from.data, b * from.step, from.type);
    p.accumulate = b > 0;
    gemm::run(p, plan.threads, plan.work);
  }
  scatter(plan.spare, false, to, plan.threads);
}

// ---- heads ----

Head Attention::head_of(const Job& job, const Plan& plan, size_t b, size_t h) const {
  Head head;
  head.t = t_;
  head.s = s_;
  head.extra = extra();
  head.key_width = key_width_;
  head.value_width = value_width_;
  head.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_width_)));
  head.q_row = head.k_row = key_columns();
  head.v_row = value_columns();
  head.q = plan.saved.q + b * t_ * head.q_row + h * key_width_;
  head.k = plan.saved.k + b * s_ * head.k_row + h * key_width_;
  head.v = plan.saved.v + b * s_ * head.v_row + h * value_width_;
  head.extra_k = plan.extra_k + h * extra() * key_width_;
  head.extra_v = plan.extra_v + h * extra() * value_width_;
  head.added = job.added;
  if (job.added.data) head.added.data = at(job.added.data, b * job.added_batch + h * job.added_head, job.added.type);
  if (job.hidden) head.hidden = job.hidden + b * job.hidden_batch;
  head.hidden_step = job.hidden_step;
  head.causal = plan.causal;
  if (has_dropout()) {
    const size_t row = s_ + extra();
    head.dropout = {get_random, &stream_, plan.start + (b * heads_ + h) * t_ * row, row, threshold_, factor_};
  }
  return head;
}

// What head i of all will read, in that order; nothing where the caches hold all heads.
Coming Attention::coming_of(const Job& job, const Plan& plan, size_t i) const {
  const size_t b = i / heads_, h = i % heads_, keys = key_columns(), values = value_columns();
  Coming coming;
  if (i == job.batch * heads_ || job.batch * (t_ + s_) * (keys + values) < kNear) return coming;
  coming.add(plan.saved.k + b * s_ * keys + h * key_width_, keys, s_, key_width_);
  coming.add(plan.saved.v + b * s_ * values + h * value_width_, values, s_, value_width_);
  coming.add(plan.saved.q + b * t_ * keys + h * key_width_, keys, t_, key_width_);
  if (!plan.da) return coming;
  coming.add(plan.da + b * t_ * values + h * value_width_, values, t_, value_width_);
  coming.add(plan.saved.p + i * kept_each(), kLineFloats, kept_each() / kLineFloats, kLineFloats);
  return coming;
}

void Attention::attend(const Job& job, const Plan& plan) const {
  const Kernels& kernels = targets.best();
  const bool is_slow = forward_blocks_.columns == 0;
  const size_t rows = is_slow ? kSlowRows : forward_blocks_.rows, down = divide_up(t_, rows);
  const size_t each = std::max<size_t>(1, rows * (s_ + extra()) * (key_width_ + value_width_));
  const size_t jobs = job.batch * heads_ * down, at_once = divide_up(kPerPiece, each);
  const size_t row = value_columns();
  parallel(divide_up(jobs, at_once), plan.threads, 2 * kMultiplyAdd * jobs * each, [&](size_t piece) {
    for (size_t i = piece * at_once; i < std::min(jobs, (piece + 1) * at_once); ++i) {
      const size_t b = i / down / heads_, h = i / down % heads_, first = i % down * rows;
      const size_t count = std::min(rows, t_ - first), stats = (b * heads_ + h) * t_;
      const Head head = head_of(job, plan, b, h);
      const Coming coming = down == 1 ? coming_of(job, plan, i + 1) : Coming();
      float* a = plan.saved.a + b * t_ * row + h * value_width_;
      if (is_slow) {
        ref::forward(head, first, count, a, row, plan.saved.top + stats, plan.saved.inverse + stats);
      } else {
        float* kept = plan.saved.p ? plan.saved.p + (b * heads_ + h) * kept_each() : nullptr;
        kernels.forward(head, coming, forward_blocks_, first, count, a, row, plan.saved.top + stats,
                        plan.saved.inverse + stats, kept, reinterpret_cast<float*>(scratch()));
      }
    }
  });
}

void Attention::attend_backward(const Job& job, const Plan& plan) const {
  const Kernels& kernels = targets.best();
  const size_t row = value_columns(), all = s_ + extra();
  if (!plan.saved.p) {  // before dq takes the place of a
    const size_t rows_each = std::max<size_t>(1, t_ * row);
    parallel(job.batch * heads_, plan.threads, 8 * kByte * job.batch * rows_each, [&](size_t i) {
      const size_t offset = i / heads_ * t_ * row + i % heads_ * value_width_;
      kernels.dots(plan.saved.a + offset, row, plan.da + offset, row, t_, value_width_, plan.dots + i * t_);
    });
  }
  const size_t each = std::max<size_t>(1, 5 * t_ * all * ((key_width_ + value_width_) / 2));
  const size_t jobs = job.batch * heads_, at_once = divide_up(kPerPiece, each);
  parallel(divide_up(jobs, at_once), plan.threads, 2 * kMultiplyAdd * jobs * each, [&](size_t piece) {
    for (size_t i = piece * at_once; i < std::min(jobs, (piece + 1) * at_once); ++i) {
      const size_t b = i / heads_, h = i % heads_;
      const Head head = head_of(job, plan, b, h);
      HeadGradients g;
      g.da = plan.da + b * t_ * row + h * value_width_;
      g.da_row = row;
      g.top = plan.saved.top + i * t_;
      g.inverse = plan.saved.inverse + i * t_;
      g.dots = plan.dots + i * t_;
      g.dq_row = g.dk_row = key_columns();
      g.dv_row = row;
      g.dq = plan.dq + b * t_ * g.dq_row + h * key_width_;
      g.dk = plan.dk + b * s_ * g.dk_row + h * key_width_;
      g.dv = plan.dv + b * s_ * g.dv_row + h * value_width_;
      g.extra_dk = plan.extra_dk + i * extra() * key_width_;
      g.extra_dv = plan.extra_dv + i * extra() * value_width_;
      if (plan.saved.p) {
        const Coming coming = coming_of(job, plan, i + 1);
        kernels.backward_kept(head, coming, g, plan.saved.p + i * kept_each(), reinterpret_cast<float*>(scratch()));
      } else if (backward_blocks_.columns == 0) {
        ref::backward(head, g);
      } else {
        kernels.backward(head, g, backward_blocks_, reinterpret_cast<float*>(scratch()));
      }
    }
  });
}

// ---- passes ----

void Attention::run_forward(const Job& job) const {
  Plan plan = begin(job, false);
  if (has_dropout()) {
    const uint64_t numbers = static_cast<uint64_t>(job.batch) * heads_ * t_ * (s_ + extra());
    plan.start = position_.fetch_add(numbers, std::memory_order_relaxed);
  }
  if (job.cache) {
    const CacheHeader header = header_of(job.batch, plan.start);
    std::memcpy(job.cache, &header, sizeof header);
  }
  project(job, plan);
  attend(job, plan);
  multiply_rows(job, plan, plan.saved.a, value_columns(), plan.o.operand(), plan.o_bias, job.y, t_, o_.weights.width,
                false);
}

// Gradients of one of query, key, value from those of its projected rows.
void Attention::give(const Job& job, const Plan& plan, const Delta& delta, const Projection& projection,
                     const Weights& weights, const Batch& x, const float* dx, bool is_repeated) const {
  const size_t rows = projection.rows, n = weights.columns();
  const Batch gradient = {dx, BNNSDataTypeFloat32, rows * n, n, 1};
  if (delta.x.data) {
    multiply_rows(job, plan, dx, n, weights.turned(), nullptr, delta.x, rows, weights.inputs,
                  delta.x_accumulates || is_repeated);
  }
  if (delta.weights.data) multiply_outer(job, plan, x, gradient, rows, delta.weights);
  if (delta.bias.data) sum_rows(job, plan, gradient, rows, delta.bias);
}

// The bias row is the first of the extra ones.
void Attention::sum_attention_bias(const Job& job, const float* partial, size_t width, const Weights& to) const {
  float* out = static_cast<float*>(const_cast<void*>(to.data));
  for (size_t h = 0; h < heads_; ++h) {
    for (size_t w = 0; w < width; ++w) {
      float sum = 0.0f;
      for (size_t b = 0; b < job.batch; ++b) sum += partial[(b * heads_ + h) * extra() * width + w];
      float& value = out[h * to.head_step + w * to.width_step];
      value = to.accumulate ? value + sum : sum;
    }
  }
}

void Attention::run_backward(const Job& job) const {
  Plan plan = begin(job, true);
  const bool wants_core = job.wants_core();
  if (job.cache) {
    CacheHeader header;
    std::memcpy(&header, job.cache, sizeof header);
    plan.start = header.start;
  } else if (wants_core || job.output.weights.data) {
    project(job, plan);
    attend(job, plan);
  }
  const size_t n = value_columns();
  const Batch a = {plan.saved.a, BNNSDataTypeFloat32, t_ * n, n, 1};
  if (job.output.weights.data) multiply_outer(job, plan, a, job.dy, t_, job.output.weights);
  if (job.output.bias.data) sum_rows(job, plan, job.dy, t_, job.output.bias);
  if (!wants_core) return;

  gemm::Product p = {.m = t_, .n = n, .k = o_.weights.width, .a = job.dy.operand(), .b = plan.o.turned(), .c = plan.da,
                     .c_row = n};
  p.precision = precision();
  gemm::run_batch(p, job.batch, job.dy.step, 0, t_ * n, plan.threads, plan.work);
  attend_backward(job, plan);

  const bool key_repeats = job.dk.x.data && job.dk.x.data == job.dq.x.data;
  const bool value_repeats = job.dv.x.data && (job.dv.x.data == job.dq.x.data || job.dv.x.data == job.dk.x.data);
  give(job, plan, job.dq, q_, plan.q, job.q, plan.dq, false);
  give(job, plan, job.dk, k_, plan.k, job.k, plan.dk, key_repeats);
  give(job, plan, job.dv, v_, plan.v, job.v, plan.dv, value_repeats);
  if (job.key_bias.data) sum_attention_bias(job, plan.extra_dk, key_width_, job.key_bias);
  if (job.value_bias.data) sum_attention_bias(job, plan.extra_dv, value_width_, job.value_bias);
}

}  // namespace attention
}  // namespace obn
