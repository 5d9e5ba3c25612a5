// Normalization, forward: statistics and outputs of all groups, and what a training call keeps.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/integer.h"
#include "base/interrupt.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/workspace.h"
#include "normalization/normalization.h"
#include "normalization/normalization_walk.h"

namespace obn {

namespace normalization {

namespace {

constexpr size_t kMomentsTogether = 64;  // runs whose moments are averaged at a time

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
  RunMoments* moments;      // (N, R), where threads stay with their samples
  float* stage;             // (N, R, P), where a group does not fit into scratch

  ForwardWork(const Plan& plan, size_t batch, bool training, bool stages, Workspace* space) {
    gamma = is_copied(plan, plan.gamma, batch) ? space->take<float>(plan.gamma.count) : nullptr;
    beta = is_copied(plan, plan.beta, batch) ? space->take<float>(plan.beta.count) : nullptr;
    const bool updates = training && (plan.moving_mean || plan.moving_variance);
    mean = updates ? space->take<double>(plan.groups(batch)) : nullptr;
    variance = updates ? space->take<double>(plan.groups(batch)) : nullptr;
    moments = training && may_stay_with_samples(plan) ? space->take<RunMoments>(batch, plan.runs) : nullptr;
    const size_t values = plan.group_values(batch) * (plan.is_columns() ? std::min(kColumns, plan.runs) : 1);
    stage = stages && values > kStage ? space->take<float>(batch, plan.sample()) : nullptr;
  }
};

class ForwardCall;

}  // namespace

// A plan has the first way that fits its shapes; whether it takes a call is asked where more decides: the batch, what
// is given, the number of threads.
struct ForwardWay {
  const char* name;
  bool (*fits)(const Plan& plan);
  bool (*takes)(const ForwardCall& call);
  void (ForwardCall::*run)() const;
};

namespace {

class ForwardCall {
 public:
  ForwardCall(const Plan& plan, State* state, size_t batch, const Tensor& x, const Tensor& y, std::byte* work)
      : plan_(plan), state_(state), batch_(batch), x_(x), y_(y), x_ready_(is_ready(plan, x)),
        y_ready_(is_ready(plan, y)), space_(work),
        work_(plan, batch, state != nullptr, !x_ready_ || !y_ready_, &space_) {
    gamma_ = read_parameter(plan.gamma, work_.gamma);
    beta_ = read_parameter(plan.beta, work_.beta);
    const size_t bytes = batch * plan.sample() * sizeof(float);
    const bool copies = state && state->copy;
    const bool streams = bytes * (copies ? 2 : 1) >= streamed_bytes(plan.threads);
    stream_y_ = streams && y_ready_ && acts_in_kernel();
    stream_copy_ = streams && copies;
    if (!state) return;
    if (copies) {
      // The copy gets the alignment of y, so that both may be streamed.
      const bool is_float32 = y.walk.type == BNNSDataTypeFloat32;
      const size_t offset = is_float32 ? reinterpret_cast<uintptr_t>(y.walk.data) % kAlignment : 0;
      state->copy = reinterpret_cast<float*>(state->block.data() + offset);
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

  void run() const {
    const ForwardWay* way = plan_.forward_way;
    while (!way->fits(plan_) || !way->takes(*this)) ++way;
    (this->*way->run)();
    if (work_.mean) update_moving(plan_, batch_, work_.mean, work_.variance);
  }

  void run_columns() const {
    by_column_blocks(plan_, batch_, [&](size_t block) { columns(block); });
  }

  // Rows first … end - 1 of a piece, some at a time while they share γ.
  void run_rows() const {
    const bool shares_gamma = plan_.runs == 1 || std::max(plan_.gamma.count, plan_.beta.count) <= plan_.length;
    const bool stages = !x_ready_ || !y_ready_;
    const size_t together = shares_gamma && (!stages || kRowsTogether * plan_.length <= kStage) ? kRowsTogether : 1;
    by_groups(plan_, batch_, [&](size_t first, size_t end) {
      for (size_t g = first; g < end; g += together) some_rows(g, std::min(together, end - g));
      if (stream_y_) plan_.kernels->end_streams();
    });
  }

  void run_by_groups() const {
    by_groups(plan_, batch_, [&](size_t first, size_t end) {
      RunMoments moments[kMomentsTogether];
      bool is_gathered = false;
      for (size_t g = first; g < end; ++g) is_gathered = group(g, g + 1 < end, is_gathered, moments);
      if (stream_y_) plan_.kernels->end_streams();
    });
  }

  // Batch norm: the moments of all runs, the statistics of every channel, then y, in the order of memory. Runs of one
  // channel lie on pages far apart.
  void run_in_order() const {
    by_runs(
        plan_, batch_, plan_.length,
        [&](size_t n, size_t run) {
          const Runs x = {address(x_, n, run * plan_.length), 0};
          plan_.kernels->run_moments(x, 1, plan_.length, work_.moments + n * plan_.runs + run);
        },
        [] {});
    by_groups(plan_, batch_, [&](size_t first, size_t end) {
      for (size_t g = first; g < end; ++g) {
        Moments m;
        for (size_t n = 0; n < batch_; n += kMomentsTogether)
          add_runs(work_.moments + n * plan_.runs + g, plan_.runs, std::min(kMomentsTogether, batch_ - n),
                   plan_.length, &m);
        double variance = m.squares / m.count;
        take_statistics(g, g, &m.mean, &variance);
        save(g, standard_of(m.mean, variance, plan_.epsilon));
      }
    });
    by_runs(
        plan_, batch_, plan_.length,
        [&](size_t n, size_t run) {
          Forward job;
          job.count = 1;
          job.length = plan_.length;
          job.x = {address(x_, n, run * plan_.length), 0};
          job.y = {address(y_, n, run * plan_.length), 0};
          if (copy()) job.copy = {copy() + n * plan_.sample() + run * plan_.length, 0};
          job.standard = {state_->mean[run], state_->r[run], state_->rest[run]};
          job.low = low();
          job.stream_y = stream_y_;
          job.stream_copy = stream_copy_;
          forward_runs(job, run, 1, true);
        },
        [&] {
          if (stream_y_) plan_.kernels->end_streams();
        });
  }

  bool goes_in_order() const { return state_ && x_ready_ && y_ready_ && stays_with_samples(plan_, batch_); }

 private:
  bool acts_in_kernel() const { return plan_.activation.is_identity() || plan_.is_relu; }
  float low() const { return plan_.is_relu ? 0.0f : -std::numeric_limits<float>::infinity(); }

  bool uses_moving(const float* moving) const { return moving && !state_; }

  // Notes the statistics of group g, and puts the running ones of channel c in their place where those are used.
  void take_statistics(size_t g, size_t c, double* mean, double* variance) const {
    if (work_.mean) {
      work_.mean[g] = settled(*mean);
      work_.variance[g] = settled(*variance);
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
      m = moments_of(job.x, count);
    }
    double variance = m.count > 0.0 ? m.squares / m.count : 0.0;
    take_statistics(g, run, &m.mean, &variance);
    job.standard = standard_of(m.mean, variance, plan_.epsilon);
    if (state_) save(g, job.standard);
    const bool gathers = has_next && needs_moments() && x_ready_ && count <= kMomentsTogether &&
                         plan_.length > kShortRun;
    if (gathers) {
      job.next = runs_in(plan_, x_, span_of(plan_, batch_, g + 1));
      job.next_moments = moments;
    }
    forward_runs(job, run, count, span.samples > 1);
    if (!y_ready_) store_group(y_, span, stage, false, nullptr);
    return gathers;
  }

  float* copy() const { return state_ ? state_->copy : nullptr; }

  void save(size_t g, const Standard& standard) const {
    state_->mean[g] = standard.mean;
    state_->r[g] = standard.r;
    state_->rest[g] = standard.rest;
  }

  // Of the runs of a group.
  Moments moments_of(const Runs& x, size_t count) const {
    Moments all;
    RunMoments here[kMomentsTogether];
    for (size_t k = 0; k < count; k += kMomentsTogether) {
      const size_t together = std::min(kMomentsTogether, count - k);
      plan_.kernels->run_moments({x.data + k * x.step, x.step}, together, plan_.length, here);
      add_runs(here, 1, together, plan_.length, &all);
    }
    return all;
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
    job.ahead = x_ready_ && stream_y_ ? length : 0;
    plan_.kernels->row_forward(&job);
    for (size_t k = 0; k < count; ++k) {
      if (state_) save(first + k, job.standard[k]);
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
  bool x_ready_, y_ready_;
  Workspace space_;
  ForwardWork work_;
  const float *gamma_, *beta_;
  bool stream_y_, stream_copy_;
};

}  // namespace

// ---- what is saved ----

namespace {

// The arrays of a State; behind the copy a cache line, so that its alignment can be chosen.
struct StateArrays {
  float *copy, *mean, *r, *rest, *gamma, *beta;

  StateArrays(const Plan& plan, size_t batch, bool copies, Workspace* space) {
    copy = copies ? space->take<float>(batch, plan.sample()) : nullptr;
    if (copies) space->take(kAlignment);
    for (float** array : {&mean, &r, &rest})
      *array = space->take<float>(plan.spans_batch() ? 1 : batch, plan.groups(1));
    for (float** array : {&gamma, &beta}) *array = masks_by_input(plan) ? space->take<float>(plan.c) : nullptr;
  }
};

}  // namespace

size_t State::bytes_for(const Plan& plan, size_t batch, bool copies) {
  Workspace space;
  StateArrays(plan, batch, copies, &space);
  return space.used();
}

int State::reserve(const Plan& plan, size_t samples, bool copies) {
  const size_t bytes = bytes_for(plan, samples, copies);
  if (bytes == SIZE_MAX)
    return fail("batch: expected a size that can be kept for the gradients; %zu samples overflow", samples);
  if (block.reserve(bytes, &batch) != 0) return -1;
  Workspace space(block.data());
  const StateArrays arrays(plan, samples, copies, &space);
  copy = arrays.copy;
  mean = arrays.mean;
  r = arrays.r;
  rest = arrays.rest;
  gamma = arrays.gamma;
  beta = arrays.beta;
  return 0;
}

// moving = momentum·moving + (1 - momentum)·current, current averaged over the samples of instance norm.
void update_moving(const Plan& plan, size_t batch, const double* means, const double* variances) {
  if (is_interrupted()) return;  // then these are not what they seem
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

// ---- the calls ----

namespace {

bool always(const ForwardCall&) { return true; }

// Best first; the last one fits and takes all.
constexpr ForwardWay kForward[] = {
    {"columns", [](const Plan& plan) { return plan.is_columns(); }, always, &ForwardCall::run_columns},
    {"channels in order", may_stay_with_samples, [](const ForwardCall& call) { return call.goes_in_order(); },
     &ForwardCall::run_in_order},
    {"rows", [](const Plan& plan) { return plan.is_rows; }, always, &ForwardCall::run_rows},
    {"channels by groups", [](const Plan&) { return true; }, always, &ForwardCall::run_by_groups}};

}  // namespace

const ForwardWay* choose_forward(const Plan& plan) {
  const ForwardWay* way = kForward;
  while (!way->fits(plan)) ++way;
  return way;
}

size_t forward_bytes(const Plan& plan, size_t batch, const Tensor& x, const Tensor& y, bool training) {
  Workspace space;
  ForwardWork(plan, batch, training, !is_ready(plan, x) || !is_ready(plan, y), &space);
  return space.used();
}

void forward(const Plan& plan, State* state, size_t batch, const Tensor& x, const Tensor& y, std::byte* work) {
  ForwardCall(plan, state, batch, x, y, work).run();
}

}  // namespace normalization
}  // namespace obn
