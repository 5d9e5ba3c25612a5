// Normalization, the computation: cuts a call into groups, brings what is not packed float32 into that form, and calls
// the kernels. Letters as in normalization.h. Borders of pieces follow from shapes alone, and sums of pieces are added
// in their order.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/memory.h"
#include "base/status.h"
#include "normalization/normalization.h"

namespace obn {

namespace portable::normalization {
extern const obn::normalization::Kernels kernels;
}
namespace avx2::normalization {
extern const obn::normalization::Kernels kernels;
}
namespace avx512::normalization {
extern const obn::normalization::Kernels kernels;
}

namespace normalization {

#if defined(OBN_X86)
constinit const Targets<Kernels> targets = {&portable::normalization::kernels, &avx2::normalization::kernels,
                                            &avx512::normalization::kernels, nullptr};
#else
constinit const Targets<Kernels> targets = {&portable::normalization::kernels, nullptr, nullptr, nullptr};
#endif

namespace {

using activation::by_pieces;
using activation::Cursor;
using activation::Walk;

constexpr size_t kPiece = 16384;                      // values of a piece, at least; fewer are not worth a thread
constexpr size_t kBlock = 2048;                       // values converted at a time
constexpr size_t kStage = kScratchBytes / 4 - kBlock; // floats of scratch for one group; the rest is for a block
constexpr size_t kStreamBytes = size_t{16} << 20;     // results from this on are written past the caches
constexpr size_t kNearValues = size_t{1} << 15;       // of a group, so that four times as many floats lie near
constexpr size_t kRowBlocks = 64;                     // partial sums of dγ and dβ, at most
constexpr size_t kRowBlockRows = 16;                  // rows of each, at least
constexpr size_t kMomentsTogether = 64;               // runs whose moments are averaged at a time
constexpr float kOne = 1.0f, kZero = 0.0f;

const activation::Kernels& conversion() { return activation::targets.best(); }

// Groups of a piece: not too few values, and some groups one after the other where there are many.
size_t groups_together(size_t groups, size_t values) {
  return std::max({size_t{1}, kPiece / values, std::min(groups / 16, std::max<size_t>(4, 4 * kPiece / values))});
}

// The same where a group's memory is read while that of the one before is written: more of them. A group has the same
// result in any piece.
size_t groups_in_line(size_t groups, size_t values, size_t thread_limit) {
  return std::max(groups_together(groups, values), groups / (4 * threads_for(thread_limit)));
}

// ---- workspace: counted first, then placed ----

class Room {
 public:
  explicit Room(std::byte* block) : block_(block) {}

  template <class T>
  T* take(size_t rows, size_t columns = 1) {
    size_t bytes;
    if (used_ == SIZE_MAX || __builtin_mul_overflow(rows, columns, &bytes) ||
        __builtin_mul_overflow(bytes, sizeof(T), &bytes) || bytes > SIZE_MAX / 2 - used_) {
      used_ = SIZE_MAX;
      return nullptr;
    }
    T* place = block_ ? reinterpret_cast<T*>(block_ + used_) : nullptr;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }
  size_t used() const { return used_; }

 private:
  std::byte* block_;
  size_t used_ = 0;
};

// ---- tensors ----

// Values first … first + length - 1 of samples n … n + samples - 1.
struct Span {
  size_t n, samples, first, length;

  size_t values() const { return samples * length; }
};

Span span_of(const Plan& plan, size_t batch, size_t group) {
  if (plan.spans_batch()) return {0, batch, group * plan.length, plan.length};
  const size_t in_sample = plan.runs / plan.group_runs, length = plan.group_runs * plan.length;
  return {group / in_sample, 1, group % in_sample * length, length};
}

// Of rows, where a group is a run: `count` of them. One division for all.
void set_spans(const Plan& plan, size_t first, size_t count, Span* spans) {
  size_t n = first / plan.runs, run = first - n * plan.runs;
  for (size_t k = 0; k < count; ++k) {
    spans[k] = {n, 1, run * plan.length, plan.length};
    if (++run < plan.runs) continue;
    run = 0;
    ++n;
  }
}

// Kernels can work on it where it lies.
bool is_ready(const Plan& plan, const Tensor& t) {
  if (t.walk.type != BNNSDataTypeFloat32) return false;
  if (plan.is_columns()) return plan.runs == 1 || (t.walk.rank == 1 && t.walk.stride[0] == 1);
  return plan.length == 1 || (t.walk.stride[0] == 1 && t.walk.extent[0] % plan.length == 0);
}

float* address(const Tensor& t, size_t n, size_t index) {
  const size_t offset = t.walk.rank == 1 ? index * t.walk.stride[0] : Cursor(t.walk, index).offset();
  return reinterpret_cast<float*>(t.walk.data) + n * t.step + offset;
}

// The runs of a group in a tensor that is ready.
Runs runs_in(const Plan& plan, const Tensor& t, const Span& span) {
  float* first = address(t, span.n, span.first);
  if (span.samples > 1) return {first, t.step};
  if (span.length == plan.length) return {first, 0};
  return {first, static_cast<size_t>(address(t, span.n, span.first + plan.length) - first)};
}

// The runs of a group that lies in a buffer without gaps.
Runs runs_in(const Plan& plan, float* buffer, const Span& span) {
  return {buffer, span.samples > 1 ? span.length : plan.length};
}

Walk walk_at(const Tensor& t, size_t n) {
  Walk walk = t.walk;
  walk.data += n * t.step * bytes_of(walk.type);
  return walk;
}

void load_group(const Tensor& t, const Span& span, float* buffer) {
  for (size_t s = 0; s < span.samples; ++s) {
    const Walk walk = walk_at(t, span.n + s);
    Cursor from(walk, span.first);
    activation::read_row(conversion(), from, span.length, buffer + s * span.length);
  }
}

// row (n) to the place of `to`; `block` (kBlock) serves for adding.
void store_values(Cursor& to, Cursor& old, size_t n, float* row, bool accumulate, float* block) {
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t m = std::min(kBlock, n - i);
    if (accumulate) {
      activation::read_row(conversion(), old, m, block);
      conversion().add(block, row + i, m);
    }
    activation::write_row(conversion(), to, m, row + i);
  }
}

void store_group(const Tensor& t, const Span& span, float* buffer, bool accumulate, float* block) {
  for (size_t s = 0; s < span.samples; ++s) {
    const Walk walk = walk_at(t, span.n + s);
    Cursor to(walk, span.first), old(walk, span.first);
    store_values(to, old, span.length, buffer + s * span.length, accumulate, block);
  }
}

// γ or β as packed float32; NULL: absent.
const float* read_parameter(const Parameter& parameter, float* place) {
  if (!parameter.is_read_each_call) return parameter.values;
  Cursor from(parameter.walk, 0);
  activation::read_row(conversion(), from, parameter.count, place);
  return place;
}

// One γ or β of channels.
struct PerChannel {
  const float* values;
  const float& absent;

  const float& operator[](size_t run) const { return values ? values[run] : absent; }
};

// The γ or β along run r of rows.
const float* along_run(const Plan& plan, const float* values, size_t count, size_t r) {
  return values && count > plan.length ? values + r * plan.length : values;
}

// A buffer for one group at a time: the thread's own where it fits, else a place of the group in the workspace.
float* stage_of(float* shared, size_t group, size_t values) {
  return shared ? shared + group * values : reinterpret_cast<float*>(scratch()) + kBlock;
}

// Gradients of channels find where ReLU was open from x̂; but a half output may have become 0 by rounding.
bool masks_by_input(const Plan& plan) { return plan.is_relu && !plan.is_rows; }

// ---- forward ----

// Runs of `length` values, `step` apart in `runs`, into the moments of the group. At most kMomentsTogether.
void add_runs(const RunMoments* runs, size_t step, size_t count, size_t length, Moments* all) {
  if (count == 1) return add({static_cast<double>(length), runs->mean, runs->squares}, all);
  constexpr size_t kWays = 4;  // sums side by side: one would wait for itself
  double means[kWays] = {}, squares[kWays] = {};
  for (size_t k = 0; k < count; ++k) means[k % kWays] += runs[k * step].mean;
  const double mean = ((means[0] + means[1]) + (means[2] + means[3])) / static_cast<double>(count);
  const double n = static_cast<double>(length);
  for (size_t k = 0; k < count; ++k) {
    const double apart = runs[k * step].mean - mean;
    squares[k % kWays] += runs[k * step].squares + n * apart * apart;
  }
  add({n * static_cast<double>(count), mean, (squares[0] + squares[1]) + (squares[2] + squares[3])}, all);
}

struct ForwardWork {
  float *gamma, *beta;
  double *mean, *variance;  // (groups), for the running statistics
  float* stage;             // (N, R, P), where a group does not fit into scratch

  ForwardWork(const Plan& plan, size_t batch, bool training, bool stages, Room* room) {
    gamma = plan.gamma.is_read_each_call ? room->take<float>(plan.gamma.count) : nullptr;
    beta = plan.beta.is_read_each_call ? room->take<float>(plan.beta.count) : nullptr;
    const bool updates = training && (plan.moving_mean || plan.moving_variance);
    mean = updates ? room->take<double>(plan.groups(batch)) : nullptr;
    variance = updates ? room->take<double>(plan.groups(batch)) : nullptr;
    const size_t values = plan.group_values(batch) * (plan.is_columns() ? std::min(kColumns, plan.runs) : 1);
    stage = stages && values > kStage ? room->take<float>(batch, plan.sample()) : nullptr;
  }
};

class ForwardCall {
 public:
  ForwardCall(const Plan& plan, State* state, size_t batch, const Tensor& x, const Tensor& y, std::byte* work,
              const RunMoments* moments, const RunSource* source = nullptr)
      : plan_(plan), state_(state), batch_(batch), x_(x), y_(y), moments_(moments), source_(source),
        x_ready_(is_ready(plan, x)), y_ready_(is_ready(plan, y)), room_(work),
        work_(plan, batch, state != nullptr, !x_ready_ || !y_ready_, &room_) {
    gamma_ = read_parameter(plan.gamma, work_.gamma);
    beta_ = read_parameter(plan.beta, work_.beta);
    const size_t bytes = batch * plan.sample() * sizeof(float);
    const bool copies = state && (state->copy || source);
    const bool streams = bytes * (copies ? 2 : 1) >= kStreamBytes;
    stream_y_ = streams && y_ready_ && acts_in_kernel();
    stream_copy_ = streams && copies;
    if (!state) return;
    if (copies && !source) {
      // The copy gets the alignment of y, so that both may be streamed.
      const bool is_float32 = y.walk.type == BNNSDataTypeFloat32;
      const size_t offset = is_float32 ? reinterpret_cast<uintptr_t>(y.walk.data) % kAlignment : 0;
      state->copy = reinterpret_cast<float*>(static_cast<std::byte*>(state->block) + offset);
    }
    state->x = state->copy ? state->copy : reinterpret_cast<const float*>(x.walk.data);
    state->x_step = state->copy ? plan.sample() : x.step;
    state->batch = batch;
    if (!masks_by_input(plan)) return;
    const PerChannel gamma = {gamma_, kOne}, beta = {beta_, kZero};
    for (size_t c = 0; c < plan.c; ++c) {
      state->gamma[c] = gamma[c];
      state->beta[c] = beta[c];
    }
  }

  void run() {
    if (plan_.is_columns()) {
      const size_t blocks = (plan_.runs + kColumns - 1) / kColumns;
      by_pieces(blocks, groups_together(blocks, batch_ * kColumns), plan_.threads, [&](size_t first, size_t count) {
        for (size_t k = first; k < first + count; ++k) columns(k);
      });
    } else {
      const size_t groups = plan_.groups(batch_);
      by_pieces(groups, groups_in_line(groups, plan_.group_values(batch_), plan_.threads), plan_.threads,
                [&](size_t first, size_t count) {
        const size_t end = first + count;
        if (plan_.is_rows) {
          rows(first, end);
        } else if (source_) {
          made_groups(first, end);
        } else {
          RunMoments moments[kMomentsTogether];
          bool is_gathered = false;
          for (size_t g = first; g < end; ++g) is_gathered = group(g, g + 1 < end, is_gathered, moments);
        }
        if (stream_y_) plan_.kernels->end_streams();
      });
    }
    if (work_.mean) update_moving(plan_, batch_, work_.mean, work_.variance);
  }

 private:
  bool acts_in_kernel() const { return plan_.activation.is_identity() || plan_.is_relu; }
  float low() const { return plan_.is_relu ? 0.0f : -std::numeric_limits<float>::infinity(); }

  bool uses_moving(const float* moving) const { return moving && !state_; }

  // Notes the statistics of group g, and puts the running ones of channel c in their place where those are used.
  void take_statistics(size_t g, size_t c, double* mean, double* variance) const {
    if (work_.mean) {
      work_.mean[g] = *mean;
      work_.variance[g] = *variance;
    }
    if (uses_moving(plan_.moving_mean)) *mean = static_cast<double>(plan_.moving_mean[c * plan_.moving_mean_step]);
    if (uses_moving(plan_.moving_variance))
      *variance = static_cast<double>(plan_.moving_variance[c * plan_.moving_variance_step]);
  }
  bool needs_moments() const { return !uses_moving(plan_.moving_mean) || !uses_moving(plan_.moving_variance); }

  // The moments of its runs may have been gathered already; those of the next group take their place. True: they do.
  bool group(size_t g, bool has_next, bool is_gathered, RunMoments* moments) const {
    const Span span = span_of(plan_, batch_, g);
    float* stage = x_ready_ && y_ready_ ? nullptr : stage_of(work_.stage, g, span.values());
    if (!x_ready_) load_group(x_, span, stage);
    const size_t run = span.first / plan_.length;
    const size_t count = span.samples > 1 ? span.samples : span.length / plan_.length;
    Forward job;
    job.count = 1;
    job.length = plan_.length;
    job.x = x_ready_ ? runs_in(plan_, x_, span) : runs_in(plan_, stage, span);
    job.y = y_ready_ ? runs_in(plan_, y_, span) : runs_in(plan_, stage, span);
    if (copy())
      job.copy = {copy() + span.n * plan_.sample() + span.first, span.samples > 1 ? plan_.sample() : plan_.length};
    job.low = low();
    job.stream_y = stream_y_;
    job.stream_copy = stream_copy_;
    Moments m;
    if (is_gathered) {
      add_runs(moments, 1, count, plan_.length, &m);
    } else if (needs_moments()) {
      m = moments_of(job.x, span.n * plan_.runs + run, count, span.samples > 1 ? plan_.runs : 1);
    }
    double variance = m.count > 0.0 ? m.squares / m.count : 0.0;
    take_statistics(g, run, &m.mean, &variance);
    job.standard = standard_of(m.mean, variance, plan_.epsilon);
    if (state_) keep(g, job.standard);
    const bool gathers = has_next && needs_moments() && !moments_ && x_ready_ && count <= kMomentsTogether &&
                         plan_.length > kShortRun;
    if (gathers) {
      job.next = runs_in(plan_, x_, span_of(plan_, batch_, g + 1));
      job.next_moments = moments;
    }
    forward_runs(job, run, count, span.samples > 1);
    if (!y_ready_) store_group(y_, span, stage, false, nullptr);
    return gathers;
  }

  // Run k of a group.
  struct RunPlace {
    size_t n, run;
  };
  RunPlace run_at(const Span& span, size_t k) const {
    const size_t run = span.first / plan_.length;
    return span.samples > 1 ? RunPlace{k, run} : RunPlace{span.n, run + k};
  }

  void make_run(const Span& span, size_t k, float* x, RunMoments* moments) const {
    const RunPlace place = run_at(span, k);
    source_->make(source_->context, place.n, place.run, x);
    plan_.kernels->run_moments({x, plan_.length}, 1, plan_.length, moments + k);
  }
  void find_run(const Span& span, size_t k, const float* (&from)[2]) const {
    const RunPlace place = run_at(span, k);
    source_->find(source_->context, place.n, place.run, from);
  }

  // Run by run, y of a group is written and x of the next group made: in a ring of one place more than a group has
  // runs, so that run k takes the place that run k - 1 has left.
  void made_groups(size_t first, size_t end) const {
    const PerChannel gamma = {gamma_, kOne}, beta = {beta_, kZero};
    RunMoments* moments = reinterpret_cast<RunMoments*>(scratch());
    const size_t count = plan_.group_values(batch_) / plan_.length, places = count + 1;
    const bool adds = source_->is_sum;
    const auto place_of = [&](size_t g, size_t k) {
      const size_t begin = (places - (g - first) % places) % places;
      return reinterpret_cast<float*>(scratch()) + kBlock + (begin + k) % places * plan_.length;
    };
    for (size_t k = 0; k < count; ++k) make_run(span_of(plan_, batch_, first), k, place_of(first, k), moments);
    for (size_t g = first; g < end; ++g) {
      const bool has_next = g + 1 < end;
      const Span span = span_of(plan_, batch_, g), next = span_of(plan_, batch_, std::min(g + 1, end - 1));
      const Span then = span_of(plan_, batch_, std::min(g + 2, end - 1));
      Moments m;
      for (size_t k = 0; k < count; k += kMomentsTogether)
        add_runs(moments + k, 1, std::min(kMomentsTogether, count - k), plan_.length, &m);
      double variance = m.squares / m.count;
      take_statistics(g, run_at(span, 0).run, &m.mean, &variance);
      Forward job;
      job.count = 1;
      job.length = plan_.length;
      job.standard = standard_of(m.mean, variance, plan_.epsilon);
      keep(g, job.standard);
      job.low = low();
      job.stream_y = stream_y_;
      job.stream_copy = stream_copy_;
      for (size_t k = 0; k < count; ++k) {
        const RunPlace place = run_at(span, k);
        job.x = {place_of(g, k), 0};
        job.y = {address(y_, place.n, place.run * plan_.length), 0};
        job.copy = {address(x_, place.n, place.run * plan_.length), 0};
        job.gamma = &gamma[place.run];
        job.beta = &beta[place.run];
        float* made = place_of(g + 1, k);
        if (has_next && adds) {  // the kernel makes the run, and fetches the one after it
          const float* from[2];
          find_run(next, k, from);
          job.next = {const_cast<float*>(from[0]), 0};
          job.next2 = {const_cast<float*>(from[1]), 0};
          job.made = {made, 0};
          job.next_moments = moments + k;
          find_run(k + 1 < count ? next : then, k + 1 < count ? k + 1 : 0, job.fetch);
        } else if (has_next) {
          find_run(next, k, job.fetch);
        }
        plan_.kernels->channel_forward(job);
        if (has_next && !adds) make_run(next, k, made, moments);
      }
    }
  }

  float* copy() const { return state_ ? state_->copy : nullptr; }

  void keep(size_t g, const Standard& standard) const {
    state_->mean[g] = standard.mean;
    state_->r[g] = standard.r;
    state_->rest[g] = standard.rest;
  }

  // Of the runs of a group, which are first, first + step, … of (N, R).
  Moments moments_of(const Runs& x, size_t first, size_t count, size_t step) const {
    Moments all;
    RunMoments here[kMomentsTogether];
    for (size_t k = 0; k < count; k += kMomentsTogether) {
      const size_t together = std::min(kMomentsTogether, count - k);
      if (!moments_) plan_.kernels->run_moments({x.data + k * x.step, x.step}, together, plan_.length, here);
      const RunMoments* runs = moments_ ? moments_ + first + k * step : here;
      add_runs(runs, moments_ ? step : 1, together, plan_.length, &all);
    }
    return all;
  }

  // Rows first … end - 1, some at a time while they share γ.
  void rows(size_t first, size_t end) const {
    const bool shares_gamma = plan_.runs == 1 || std::max(plan_.gamma.count, plan_.beta.count) <= plan_.length;
    const bool stages = !x_ready_ || !y_ready_;
    const size_t together = shares_gamma && (!stages || kRowsTogether * plan_.length <= kStage) ? kRowsTogether : 1;
    for (size_t g = first; g < end; g += together) some_rows(g, std::min(together, end - g));
  }

  void some_rows(size_t first, size_t count) const {
    const size_t length = plan_.length, run = first % plan_.runs;
    RowForward job;
    Span spans[kRowsTogether];
    set_spans(plan_, first, count, spans);
    for (size_t k = 0; k < count; ++k) {
      const Span& span = spans[k];
      float* stage = x_ready_ && y_ready_ ? nullptr
                     : work_.stage        ? work_.stage + (first + k) * length
                                          : reinterpret_cast<float*>(scratch()) + kBlock + k * length;
      if (!x_ready_) load_group(x_, span, stage);
      job.x[k] = x_ready_ ? address(x_, span.n, span.first) : stage;
      job.y[k] = y_ready_ ? address(y_, span.n, span.first) : stage;
      job.copy[k] = copy() ? copy() + (first + k) * length : nullptr;
    }
    job.rows = count;
    job.length = length;
    job.gamma = along_run(plan_, gamma_, plan_.gamma.count, run);
    job.beta = along_run(plan_, beta_, plan_.beta.count, run);
    job.epsilon = plan_.epsilon;
    job.low = low();
    job.stream_y = stream_y_;
    job.stream_copy = stream_copy_;
    job.ahead = x_ready_ ? length : 0;
    plan_.kernels->row_forward(&job);
    for (size_t k = 0; k < count; ++k) {
      if (state_) keep(first + k, job.standard[k]);
      if (!acts_in_kernel()) plan_.activation.forward(job.y[k], length);
      if (!y_ready_) store_group(y_, spans[k], job.y[k], false, nullptr);
    }
  }

  // The runs of a group, with one γ for all of them or one for each.
  void forward_runs(Forward& job, size_t run, size_t count, bool shares_gamma) const {
    const PerChannel gamma = {gamma_, kOne}, beta = {beta_, kZero};
    job.gamma = &gamma[run];
    job.beta = &beta[run];
    if (shares_gamma && acts_in_kernel()) {
      job.count = count;
      plan_.kernels->channel_forward(job);
      return;
    }
    for (size_t k = 0; k < count; ++k) {
      if (!shares_gamma) {
        job.gamma = &gamma[run + k];
        job.beta = &beta[run + k];
      }
      plan_.kernels->channel_forward(job);
      if (!acts_in_kernel()) plan_.activation.forward(job.y.data, plan_.length);
      job.x.data += job.x.step;
      job.y.data += job.y.step;
      if (job.copy.data) job.copy.data += job.copy.step;
      if (!job.next_moments) continue;
      job.next.data += job.next.step;
      ++job.next_moments;
    }
  }

  void columns(size_t block) const {
    const size_t c = block * kColumns, width = std::min(kColumns, plan_.runs - c);
    const Span span = {0, batch_, c, width};
    float* stage = x_ready_ && y_ready_ ? nullptr : stage_of(work_.stage, c, batch_);
    if (!x_ready_) load_group(x_, span, stage);
    double mean[kColumns] = {}, variance[kColumns] = {};
    float means[kColumns], rs[kColumns], rests[kColumns], gammas[kColumns], betas[kColumns];
    Columns job;
    job.rows = batch_;
    job.width = width;
    job.x = x_ready_ ? Runs{address(x_, 0, c), x_.step} : Runs{stage, width};
    job.y = y_ready_ ? Runs{address(y_, 0, c), y_.step} : Runs{stage, width};
    if (copy()) job.copy = {copy() + c, plan_.sample()};
    if (needs_moments()) plan_.kernels->column_moments(job.x, batch_, width, mean, variance);
    const PerChannel gamma = {gamma_, kOne}, beta = {beta_, kZero};
    for (size_t i = 0; i < width; ++i) {
      take_statistics(c + i, c + i, &mean[i], &variance[i]);
      gammas[i] = gamma[c + i];
      betas[i] = beta[c + i];
    }
    plan_.kernels->standards(width, mean, variance, plan_.epsilon, means, rs, rests);
    if (state_) {
      std::copy_n(means, width, state_->mean + c);
      std::copy_n(rs, width, state_->r + c);
      std::copy_n(rests, width, state_->rest + c);
    }
    job.mean = means;
    job.r = rs;
    job.rest = rests;
    job.gamma = gammas;
    job.beta = betas;
    job.low = low();
    plan_.kernels->column_forward(job);
    if (!acts_in_kernel())
      for (size_t n = 0; n < batch_; ++n) plan_.activation.forward(job.y.data + n * job.y.step, width);
    if (!y_ready_) store_group(y_, span, stage, false, nullptr);
  }

  const Plan& plan_;
  State* state_;
  size_t batch_;
  const Tensor &x_, &y_;
  const RunMoments* moments_;
  const RunSource* source_;
  bool x_ready_, y_ready_;
  Room room_;
  ForwardWork work_;
  const float *gamma_, *beta_;
  bool stream_y_, stream_copy_;
};

// ---- backward ----

// How dγ and dβ of rows are summed: over the samples of each run, or over blocks of rows.
struct RowPlan {
  bool by_run;
  size_t blocks;      // accumulators (P) for each of dγ and dβ
  size_t block_rows;  // of a block

  RowPlan(const Plan& plan, size_t batch, size_t dbeta_count, size_t dgamma_count) {
    const size_t rows = batch * plan.runs;
    by_run = plan.runs > 1 && std::max({plan.gamma.count, dbeta_count, dgamma_count}) > plan.length;
    // no more of them than a few million values
    const size_t most = std::clamp<size_t>((size_t{1} << 21) / plan.length, 4, kRowBlocks);
    const size_t least_rows = rows * plan.length <= kPiece ? rows : kRowBlockRows;
    block_rows = by_run ? batch : std::max(least_rows, (rows + most - 1) / most);
    blocks = by_run ? plan.runs : (rows + block_rows - 1) / block_rows;
  }
};

// The two means of the input gradient.
struct Means {
  float g, g_xhat;
};

struct BackwardWork {
  float* gamma;
  Sums* sums;     // channels: one per channel (batch norm) or run; rows: none
  Means* means;   // (groups)
  float* partial; // rows: (blocks, 2, P): dβ, dγ
  float* stage;

  BackwardWork(const Plan& plan, size_t batch, bool stages, const RowPlan& rows, bool sums_parameters, Room* room) {
    gamma = plan.gamma.is_read_each_call ? room->take<float>(plan.gamma.count) : nullptr;
    sums = !plan.is_rows ? room->take<Sums>(plan.spans_batch() ? 1 : batch, plan.runs) : nullptr;
    means = room->take<Means>(plan.groups(batch));
    partial = plan.is_rows && sums_parameters ? room->take<float>(2 * rows.blocks, plan.length) : nullptr;
    const size_t values = plan.group_values(batch) * (plan.is_columns() ? std::min(kColumns, plan.runs) : 1);
    stage = stages && values > kStage ? room->take<float>(batch, plan.sample()) : nullptr;
  }
};

Mask mask_of(const Plan& plan, const Tensor& y) {
  if (!plan.is_relu) return Mask::none;
  return masks_by_input(plan) && y.walk.type == BNNSDataTypeFloat32 ? Mask::input : Mask::output;
}

// dz is made in a buffer unless the kernels can take dy and y as they are.
bool stages_dz(const Plan& plan, const Tensor& dy, const Tensor& y, const Tensor& dx) {
  if (!is_ready(plan, dy) || (dx.is_given() && !is_ready(plan, dx))) return true;
  if (plan.activation.is_identity()) return false;
  return !plan.is_relu || (mask_of(plan, y) == Mask::output && !is_ready(plan, y));
}

bool streams_gradient(const Plan& plan, size_t batch) {
  return batch * plan.sample() * sizeof(float) * 2 >= kStreamBytes;
}

class BackwardCall {
 public:
  BackwardCall(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y, const Tensor& dx,
               bool accumulate, const ParameterGradient& dbeta, const ParameterGradient& dgamma, std::byte* work,
               const RunSink* sink = nullptr, const Tensor* twin = nullptr)
      : plan_(plan), state_(state), batch_(state.batch), dy_(dy), y_(y), dx_(dx), sink_(sink), twin_(twin),
        accumulate_(accumulate),
        dbeta_(dbeta), dgamma_(dgamma), stages_(stages_dz(plan, dy, y, dx)),
        mask_(stages_ ? Mask::none : mask_of(plan, y)), rows_(plan, state.batch, dbeta.count, dgamma.count),
        room_(work), work_(plan, state.batch, stages_, rows_, dbeta.is_wanted || dgamma.is_wanted, &room_) {
    gamma_ = plan.gamma.is_read_each_call ? work_.gamma : plan.gamma.values;
    stream_ = streams_gradient(plan, batch_) && !stages_ && !accumulate;
  }

  // All sums; with them, group by group, the input gradient where it is given.
  void run() {
    read_parameter(plan_.gamma, work_.gamma);
    if (plan_.is_rows) {
      run_rows();
      return;
    }
    if (plan_.is_columns()) {
      const size_t blocks = (plan_.runs + kColumns - 1) / kColumns;
      by_pieces(blocks, groups_together(blocks, batch_ * kColumns), plan_.threads, [&](size_t first, size_t count) {
        for (size_t k = first; k < first + count; ++k) columns(k);
      });
    } else {
      const size_t groups = plan_.groups(batch_);
      by_pieces(groups, groups_in_line(groups, plan_.group_values(batch_), plan_.threads), plan_.threads,
                [&](size_t first, size_t count) {
        bool is_summed = false;
        for (size_t g = first; g < first + count; ++g) is_summed = group(g, g + 1 < first + count, is_summed);
        if (stream_) plan_.kernels->end_streams();
      });
    }
    if (dbeta_.is_wanted) store_channel_sums(dbeta_, &Sums::dz);
    if (dgamma_.is_wanted) store_channel_sums(dgamma_, &Sums::dz_xhat);
  }

  // After run(): the input gradient of some samples, run by run. dx_ begins at sample `first`.
  void run_input(size_t first, size_t count) const {
    if (plan_.is_columns()) {
      const size_t blocks = (plan_.runs + kColumns - 1) / kColumns;
      by_pieces(blocks, groups_together(blocks, count * kColumns), plan_.threads, [&](size_t from, size_t some) {
        for (size_t k = from; k < from + some; ++k) input_columns(k, first, count);
      });
      return;
    }
    const size_t runs = count * plan_.runs;
    by_pieces(runs, groups_together(runs, plan_.length), plan_.threads, [&](size_t from, size_t some) {
      for (size_t k = from; k < from + some; ++k) input_run(first, k / plan_.runs, k % plan_.runs);
    });
  }

 private:
  // dz of a group in `buffer`
  void make_dz(const Span& span, float* buffer) const {
    load_group(dy_, span, buffer);
    if (plan_.activation.is_identity()) return;
    float* block = reinterpret_cast<float*>(scratch());
    for (size_t s = 0; s < span.samples; ++s) {
      const Walk walk = walk_at(y_, span.n + s);
      Cursor from(walk, span.first);
      for (size_t i = 0; i < span.length; i += kBlock) {
        const size_t n = std::min(kBlock, span.length - i);
        activation::read_row(conversion(), from, n, block);
        plan_.activation.backward(block, buffer + s * span.length + i, n);
      }
    }
  }

  Runs kept(const Span& span) const {
    return {const_cast<float*>(state_.x) + span.n * state_.x_step + span.first,
            span.samples > 1 ? state_.x_step : plan_.length};
  }

  Standard standard_at(size_t g) const { return {state_.mean[g], state_.r[g], state_.rest[g]}; }

  // The tensors of a group as the kernels take them.
  Gradient job_of(const Span& span, size_t g, float* stage) const {
    Gradient job;
    job.count = 1;
    job.length = plan_.length;
    job.dy = stages_ ? runs_in(plan_, stage, span) : runs_in(plan_, dy_, span);
    if (mask_ == Mask::output) job.y = runs_in(plan_, y_, span);
    job.x = kept(span);
    job.standard = standard_at(g);
    job.mask = mask_;
    job.accumulate = accumulate_ && !stages_;
    return job;
  }

  // γ and, for the mask, both parameters of the forward call.
  void set_channel(Gradient* job, size_t run) const {
    job->gamma = gamma_ ? gamma_ + run : &kOne;
    if (mask_ != Mask::input) return;
    job->mask_gamma = state_.gamma[run];
    job->mask_beta = state_.beta[run];
  }

  static void advance(Gradient* job) {
    job->dy.data += job->dy.step;
    if (job->y.data) job->y.data += job->y.step;
    job->x.data += job->x.step;
    if (job->dx.data) job->dx.data += job->dx.step;
    if (job->also.data) job->also.data += job->also.step;
  }

  // Where the sums of a group's channels go.
  Sums* sums_at(const Span& span, size_t g) const {
    return work_.sums + (plan_.spans_batch() ? g : span.n * plan_.runs + span.first / plan_.length);
  }

  // Its sums may have been gathered already; those of the next group are gathered while this one's gradient is
  // written. True: they are.
  bool group(size_t g, bool has_next, bool is_summed) const {
    const Span span = span_of(plan_, batch_, g);
    float* stage = stages_ ? stage_of(work_.stage, g, span.values()) : nullptr;
    if (stages_) make_dz(span, stage);
    Gradient job = job_of(span, g, stage);
    if (dx_.is_given()) job.dx = stages_ ? job.dy : runs_in(plan_, dx_, span);
    if (twin_) job.also = runs_in(plan_, *twin_, span);
    job.stream = stream_;
    const PerChannel gamma = {gamma_, kOne};
    const size_t run = span.first / plan_.length;
    const bool shares_gamma = span.samples > 1 || span.length == plan_.length;
    const size_t count = shares_gamma ? 1 : span.length / plan_.length;
    job.count = span.samples;
    Sums all, *sums = sums_at(span, g);
    Gradient at = job;
    for (size_t k = 0; k < count; ++k, advance(&at)) {
      set_channel(&at, run + k);
      if (!is_summed) sums[k] = plan_.kernels->channel_sums(at);
      all.dz += static_cast<double>(gamma[run + k]) * sums[k].dz;
      all.dz_xhat += static_cast<double>(gamma[run + k]) * sums[k].dz_xhat;
    }
    work_.means[g] = means_of(all, static_cast<double>(span.values()));
    if (sink_) {
      drain(job, g, span);
      return false;
    }
    if (!dx_.is_given()) return false;
    set_means(&job, g);
    // two places take so long to write that the next group may come back from a farther cache
    const bool gathers = has_next && stream_ && span.values() <= kNearValues * (twin_ ? 4 : 1);
    Gradient next;
    Span next_span = {};
    if (gathers) {
      next_span = span_of(plan_, batch_, g + 1);
      next = job_of(next_span, g + 1, nullptr);
      job.next = &next;
      job.next_sums = sums_at(next_span, g + 1);
    }
    for (size_t k = 0; k < count; ++k, advance(&job)) {
      set_channel(&job, run + k);
      if (gathers) set_channel(&next, next_span.first / plan_.length + k);
      plan_.kernels->channel_gradient(job);
      if (!gathers) continue;
      advance(&next);
      ++job.next_sums;
    }
    if (stages_) store_group(dx_, span, stage, accumulate_, reinterpret_cast<float*>(scratch()));
    return gathers;
  }

  // The input gradient run by run, last run first: it was read last.
  void drain(Gradient job, size_t g, const Span& span) const {
    const size_t run = span.first / plan_.length, runs = span.values() / plan_.length;
    const bool has_samples = span.samples > 1;
    float* u = reinterpret_cast<float*>(scratch() + kScratchBytes / 2);
    job.stream = false;
    set_means(&job, g);
    if (sink_->takes_groups) {
      set_channel(&job, run);
      job.dx = {u, plan_.length};
      plan_.kernels->channel_gradient(job);
      if (run + 1 < plan_.runs && span.values() <= kNearValues) {
        for (size_t n = 0; n < batch_; ++n) {
          bring_near(address(dy_, n, (run + 1) * plan_.length), plan_.length);
          bring_near(state_.x + n * state_.x_step + (run + 1) * plan_.length, plan_.length);
        }
      }
      return sink_->take(sink_->context, 0, run, u);
    }
    job.count = 1;
    for (size_t k = runs; k-- > 0;) {
      Gradient one = job;
      one.dy.data += k * job.dy.step;
      if (one.y.data) one.y.data += k * job.y.step;
      one.x.data += k * job.x.step;
      one.dx = {u, 0};
      set_channel(&one, has_samples ? run : run + k);
      plan_.kernels->channel_gradient(one);
      sink_->take(sink_->context, has_samples ? k : span.n, has_samples ? run : run + k, u);
    }
  }

  static Means means_of(const Sums& sums, double size) {
    return {static_cast<float>(sums.dz / size), static_cast<float>(sums.dz_xhat / size)};
  }
  void set_means(Gradient* job, size_t g) const {
    job->mean_g = work_.means[g].g;
    job->mean_g_xhat = work_.means[g].g_xhat;
  }

  // Run r of sample first + s.
  void input_run(size_t first, size_t s, size_t r) const {
    const Span span = {first + s, 1, r * plan_.length, plan_.length};
    const size_t g = plan_.spans_batch() ? r : span.n * (plan_.runs / plan_.group_runs) + r / plan_.group_runs;
    float* stage = stages_ ? stage_of(work_.stage, span.n * plan_.runs + r, plan_.length) : nullptr;
    if (stages_) make_dz(span, stage);
    float* dx = address(dx_, s, span.first);
    if (plan_.is_rows) {
      RowGradient job = row_job(r, 1);
      set_row(&job, 0, span, stage);
      job.dx[0] = dx;
      job.mean_g[0] = work_.means[g].g;
      job.mean_g_xhat[0] = work_.means[g].g_xhat;
      plan_.kernels->row_gradient(job);
      return;
    }
    Gradient job = job_of(span, g, stage);
    job.dx = {dx, 0};
    set_means(&job, g);
    set_channel(&job, r);
    plan_.kernels->channel_gradient(job);
  }

  // ---- columns ----

  // `count` samples from `first` on of a block of columns; dx is left out.
  ColumnGradient column_job(size_t c, size_t width, size_t first, size_t count, float* stage) const {
    ColumnGradient job;
    job.rows = count;
    job.width = width;
    job.dy = stages_ ? Runs{stage, width} : Runs{address(dy_, first, c), dy_.step};
    if (mask_ == Mask::output) job.y = {address(y_, first, c), y_.step};
    job.x = {const_cast<float*>(state_.x) + first * state_.x_step + c, state_.x_step};
    job.mean = state_.mean + c;
    job.r = state_.r + c;
    job.rest = state_.rest + c;
    job.mask = mask_;
    if (mask_ == Mask::input) {
      job.mask_gamma = state_.gamma + c;
      job.mask_beta = state_.beta + c;
    }
    job.accumulate = accumulate_ && !stages_;
    return job;
  }

  void column_gradient(ColumnGradient job, size_t c) const {
    float gammas[kColumns], mean_g[kColumns], mean_g_xhat[kColumns];
    const PerChannel gamma = {gamma_, kOne};
    for (size_t i = 0; i < job.width; ++i) {
      gammas[i] = gamma[c + i];
      mean_g[i] = work_.means[c + i].g;
      mean_g_xhat[i] = work_.means[c + i].g_xhat;
    }
    job.gamma = gammas;
    job.mean_g = mean_g;
    job.mean_g_xhat = mean_g_xhat;
    plan_.kernels->column_gradient(job);
  }

  void columns(size_t block) const {
    const size_t c = block * kColumns, width = std::min(kColumns, plan_.runs - c);
    const Span span = {0, batch_, c, width};
    float* stage = stages_ ? stage_of(work_.stage, c, batch_) : nullptr;
    if (stages_) make_dz(span, stage);
    ColumnGradient job = column_job(c, width, 0, batch_, stage);
    Sums* sums = work_.sums + c;
    plan_.kernels->column_sums(job, sums);
    const PerChannel gamma = {gamma_, kOne};
    const double inverse = 1.0 / static_cast<double>(batch_);
    for (size_t i = 0; i < width; ++i) {
      const double scale = static_cast<double>(gamma[c + i]);
      work_.means[c + i] = {static_cast<float>(scale * sums[i].dz * inverse),
                            static_cast<float>(scale * sums[i].dz_xhat * inverse)};
    }
    if (!dx_.is_given()) return;
    job.dx = stages_ ? job.dy : Runs{address(dx_, 0, c), dx_.step};
    column_gradient(job, c);
    if (stages_) store_group(dx_, span, stage, accumulate_, reinterpret_cast<float*>(scratch()));
  }

  // Columns of samples first … first + count - 1.
  void input_columns(size_t block, size_t first, size_t count) const {
    const size_t c = block * kColumns, width = std::min(kColumns, plan_.runs - c);
    float* stage = stages_ ? stage_of(work_.stage, c, batch_) : nullptr;
    if (stages_) make_dz({first, count, c, width}, stage);
    ColumnGradient job = column_job(c, width, first, count, stage);
    job.dx = {address(dx_, 0, c), dx_.step};
    column_gradient(job, c);
  }

  // Sums of all samples, channel by channel.
  void store_channel_sums(const ParameterGradient& gradient, double Sums::*member) const {
    const size_t samples = plan_.spans_batch() ? 1 : batch_;
    float row[kBlock], old_row[kBlock];
    Cursor to(gradient.walk, 0), old(gradient.walk, 0);
    for (size_t c = 0; c < plan_.runs; c += kBlock) {
      const size_t count = std::min(kBlock, plan_.runs - c);
      for (size_t i = 0; i < count; ++i) {
        double sum = 0.0;
        for (size_t n = 0; n < samples; ++n) sum += work_.sums[n * plan_.runs + c + i].*member;
        row[i] = static_cast<float>(sum);
      }
      store_values(to, old, count, row, gradient.accumulate, old_row);
    }
  }

  // ---- rows ----

  // Rows that share γ: block k is run k of all samples, or block_rows rows one after the other.
  size_t row_at(size_t block, size_t i) const {
    return rows_.by_run ? i * plan_.runs + block : block * rows_.block_rows + i;
  }

  void run_rows() {
    const size_t rows = batch_ * plan_.runs, length = plan_.length;
    const size_t together = !stages_ || kRowsTogether * length <= kStage ? kRowsTogether : 1;
    by_pieces(rows_.blocks, groups_together(rows_.blocks, rows_.block_rows * length), plan_.threads,
              [&](size_t first, size_t count) {
      for (size_t k = first; k < first + count; ++k) {
        const size_t in_block = rows_.by_run ? batch_ : std::min(rows_.block_rows, rows - k * rows_.block_rows);
        float* dbeta = work_.partial ? work_.partial + 2 * k * length : nullptr;
        if (dbeta) std::fill_n(dbeta, 2 * length, 0.0f);
        for (size_t i = 0; i < in_block; i += together) some_rows(k, i, std::min(together, in_block - i), dbeta);
      }
      if (stream_) plan_.kernels->end_streams();
    });
    if (dbeta_.is_wanted) store_row_sums(dbeta_, 0);
    if (dgamma_.is_wanted) store_row_sums(dgamma_, 1);
  }

  // `count` rows that share the γ of run r.
  RowGradient row_job(size_t r, size_t count) const {
    RowGradient job;
    job.rows = count;
    job.length = plan_.length;
    job.gamma = along_run(plan_, gamma_, plan_.gamma.count, r);
    job.accumulate = accumulate_ && !stages_;
    return job;
  }
  // What row k reads; dz is in the stage, if there is one.
  void set_row(RowGradient* job, size_t k, const Span& span, float* stage) const {
    const size_t row = span.n * plan_.runs + (plan_.runs == 1 ? 0 : span.first / plan_.length);
    job->dy[k] = stages_ ? stage : address(dy_, span.n, span.first);
    if (mask_ == Mask::output) job->y[k] = address(y_, span.n, span.first);
    job->x[k] = state_.x + span.n * state_.x_step + span.first;
    job->standard[k] = standard_at(row);
  }

  void some_rows(size_t block, size_t first, size_t count, float* dbeta) const {
    const size_t length = plan_.length;
    Span spans[kRowsTogether];
    float* stages[kRowsTogether] = {};
    RowGradient job = row_job(block, count);
    job.dbeta = dbeta;
    job.dgamma = dbeta ? dbeta + length : nullptr;
    job.stream = stream_;
    job.ahead = stages_ ? 0 : rows_.by_run ? plan_.sample() : length;
    if (!rows_.by_run) set_spans(plan_, row_at(block, first), count, spans);
    for (size_t k = 0; k < count; ++k) {
      const size_t row = row_at(block, first + k);
      if (rows_.by_run) spans[k] = span_of(plan_, batch_, row);
      if (stages_) {
        stages[k] = work_.stage ? work_.stage + row * length
                                : reinterpret_cast<float*>(scratch()) + kBlock + k * length;
        make_dz(spans[k], stages[k]);
      }
      set_row(&job, k, spans[k], stages[k]);
      if (dx_.is_given()) job.dx[k] = stages_ ? stages[k] : address(dx_, spans[k].n, spans[k].first);
    }
    if (!dx_.is_given()) {
      plan_.kernels->row_sums(&job);
      for (size_t k = 0; k < count; ++k) work_.means[row_at(block, first + k)] = {job.mean_g[k], job.mean_g_xhat[k]};
      return;
    }
    plan_.kernels->row_backward(&job);
    for (size_t k = 0; k < count && stages_; ++k)
      store_group(dx_, spans[k], stages[k], accumulate_, reinterpret_cast<float*>(scratch()));
  }

  // dβ (which 0) or dγ (1): the accumulators of a run for the whole parameter, all of them for the part.
  void store_row_sums(const ParameterGradient& gradient, size_t which) const {
    const size_t length = plan_.length;
    const bool is_whole = gradient.count > length;
    by_pieces(gradient.count, kPiece, plan_.threads, [&](size_t first, size_t count) {
      float row[kBlock], old_row[kBlock];
      Cursor to(gradient.walk, first), old(gradient.walk, first);
      for (size_t done = 0; done < count;) {
        const size_t run = is_whole ? (first + done) / length : 0, i = (first + done) - run * length;
        const size_t n = std::min({kBlock, count - done, length - i});
        std::copy_n(work_.partial + (2 * run + which) * length + i, n, row);
        for (size_t k = 1; k < rows_.blocks && !is_whole; ++k)
          conversion().add(work_.partial + (2 * k + which) * length + i, row, n);
        store_values(to, old, n, row, gradient.accumulate, old_row);
        done += n;
      }
    });
  }

  const Plan& plan_;
  const State& state_;
  size_t batch_;
  const Tensor &dy_, &y_, &dx_;
  const RunSink* sink_;
  const Tensor* twin_;
  bool accumulate_;
  const ParameterGradient &dbeta_, &dgamma_;
  bool stages_;
  Mask mask_;
  RowPlan rows_;
  Room room_;
  BackwardWork work_;
  const float* gamma_;
  bool stream_;
};

}  // namespace

namespace {

// The block of a State: the copy, with a cache line in front of it to choose the alignment, then the rest.
struct StatePlaces {
  size_t statistics = 0, parameters = 0;  // bytes of one of their arrays
  size_t copy = 0, all = SIZE_MAX;

  StatePlaces(const Plan& plan, size_t batch, bool copies) {
    size_t values;
    const size_t groups = plan.groups(batch);
    if (__builtin_mul_overflow(batch, plan.sample(), &values) || values > SIZE_MAX / 32 || groups > SIZE_MAX / 32)
      return;
    statistics = rounded(groups * sizeof(float));
    parameters = masks_by_input(plan) ? rounded(plan.c * sizeof(float)) : 0;
    copy = copies ? rounded(values * sizeof(float) + kAlignment) : 0;
    all = copy + 3 * statistics + 2 * parameters;
  }
  static size_t rounded(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }
};

}  // namespace

size_t State::bytes_for(const Plan& plan, size_t batch, bool copies) { return StatePlaces(plan, batch, copies).all; }

int State::reserve(const Plan& plan, const Options& options, size_t samples, bool copies) {
  const StatePlaces places(plan, samples, copies);
  if (places.all == SIZE_MAX)
    return fail("batch: expected a size that can be kept for the gradients; %zu samples overflow", samples);
  if (places.all > bytes) {
    void* fresh = options.get(places.all);
    if (!fresh) return -1;
    options.release(block);
    block = fresh;
    bytes = places.all;
    batch = 0;
  }
  std::byte* at = static_cast<std::byte*>(block);
  copy = copies ? reinterpret_cast<float*>(at) : nullptr;
  at += places.copy;
  for (float** array : {&mean, &r, &rest}) {
    *array = reinterpret_cast<float*>(at);
    at += places.statistics;
  }
  for (float** array : {&gamma, &beta}) {
    *array = reinterpret_cast<float*>(at);
    at += places.parameters;
  }
  return 0;
}

// moving = momentum·moving + (1 - momentum)·current, current averaged over the samples of instance norm.
void update_moving(const Plan& plan, size_t batch, const double* means, const double* variances) {
  const size_t samples = plan.spans_batch() ? 1 : batch;
  const double size = static_cast<double>(plan.group_values(batch));
  const double unbiased = kRunningVarianceIsUnbiased && size > 1.0 ? size / (size - 1.0) : 1.0;
  const double momentum = static_cast<double>(plan.momentum);
  const auto update = [&](float* moving, double current) {
    // momentum 0 forgets what was there, also what is not a number
    const double kept = momentum > 0.0 ? momentum * static_cast<double>(*moving) : 0.0;
    *moving = static_cast<float>(kept + (1.0 - momentum) * current);
  };
  for (size_t c = 0; c < plan.runs; ++c) {
    double mean = 0.0, variance = 0.0;
    for (size_t n = 0; n < samples; ++n) {
      mean += means[n * plan.runs + c];
      variance += variances[n * plan.runs + c];
    }
    const double count = static_cast<double>(samples);
    if (plan.moving_mean) update(plan.moving_mean + c * plan.moving_mean_step, mean / count);
    if (plan.moving_variance)
      update(plan.moving_variance + c * plan.moving_variance_step, unbiased * variance / count);
  }
}

size_t forward_bytes(const Plan& plan, size_t batch, const Tensor& x, const Tensor& y, bool training) {
  Room room(nullptr);
  ForwardWork(plan, batch, training, !is_ready(plan, x) || !is_ready(plan, y), &room);
  return room.used();
}

size_t backward_bytes(const Plan& plan, size_t batch, const Tensor& dy, const Tensor& y, const Tensor& dx,
                      const ParameterGradient& dbeta, const ParameterGradient& dgamma) {
  Room room(nullptr);
  BackwardWork(plan, batch, stages_dz(plan, dy, y, dx), RowPlan(plan, batch, dbeta.count, dgamma.count),
               dbeta.is_wanted || dgamma.is_wanted, &room);
  return room.used();
}

void forward(const Plan& plan, State* state, size_t batch, const Tensor& x, const Tensor& y, std::byte* work,
             const RunMoments* moments) {
  ForwardCall(plan, state, batch, x, y, work, moments).run();
}

bool takes_source(const Plan& plan, size_t batch, const Tensor& y) {
  const size_t values = plan.group_values(batch);
  return takes_moments(plan) && is_ready(plan, y) && (plan.activation.is_identity() || plan.is_relu) &&
         values + plan.length <= kStage && values / plan.length * sizeof(RunMoments) <= kBlock * sizeof(float);
}

void forward_from(const Plan& plan, State* state, size_t batch, const RunSource& source, const Tensor& kept,
                  const Tensor& y, std::byte* work) {
  ForwardCall(plan, state, batch, kept, y, work, nullptr, &source).run();
}

void backward(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y, const Tensor& dx,
              bool accumulate, const ParameterGradient& dbeta, const ParameterGradient& dgamma, std::byte* work,
              const RunSink* sink) {
  BackwardCall(plan, state, dy, y, dx, accumulate, dbeta, dgamma, work, sink).run();
}

bool takes_twin(const Plan& plan, size_t batch, const Tensor& dy, const Tensor& y, const Tensor& dx,
                const Tensor& twin) {
  return takes_moments(plan) && streams_gradient(plan, batch) && !stages_dz(plan, dy, y, dx) && is_ready(plan, twin);
}

void backward_twice(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y, const Tensor& dx,
                    const Tensor& twin, const ParameterGradient& dbeta, const ParameterGradient& dgamma,
                    std::byte* work) {
  BackwardCall(plan, state, dy, y, dx, false, dbeta, dgamma, work, nullptr, &twin).run();
}

void backward_sums(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y,
                   const ParameterGradient& dbeta, const ParameterGradient& dgamma, std::byte* work) {
  const Tensor none;
  BackwardCall(plan, state, dy, y, none, false, dbeta, dgamma, work).run();
}

void backward_input(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y, size_t first,
                    size_t count, const Tensor& dx, const ParameterGradient& dbeta, const ParameterGradient& dgamma,
                    std::byte* work) {
  BackwardCall(plan, state, dy, y, dx, false, dbeta, dgamma, work).run_input(first, count);
}

bool takes_sink(const Plan& plan, const Tensor& dy, const Tensor& y) {
  return takes_moments(plan) && plan.length <= kScratchBytes / 2 / sizeof(float) && !stages_dz(plan, dy, y, Tensor());
}

bool takes_group_sink(const Plan& plan, size_t batch, const Tensor& dy, const Tensor& y) {
  return takes_sink(plan, dy, y) && plan.spans_batch() &&
         plan.group_values(batch) <= kScratchBytes / 2 / sizeof(float);
}

}  // namespace normalization
}  // namespace obn
