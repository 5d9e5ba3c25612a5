// Normalization, forward: statistics and outputs of all groups, and what a training call keeps.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/memory.h"
#include "base/status.h"
#include "normalization/normalization.h"
#include "normalization/normalization_walk.h"

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

  ForwardWork(const Plan& plan, size_t batch, bool training, bool stages, Room* room) {
    gamma = is_copied(plan, plan.gamma, batch) ? room->take<float>(plan.gamma.count) : nullptr;
    beta = is_copied(plan, plan.beta, batch) ? room->take<float>(plan.beta.count) : nullptr;
    const bool updates = training && (plan.moving_mean || plan.moving_variance);
    mean = updates ? room->take<double>(plan.groups(batch)) : nullptr;
    variance = updates ? room->take<double>(plan.groups(batch)) : nullptr;
    moments = training && may_stay_with_samples(plan) ? room->take<RunMoments>(batch, plan.runs) : nullptr;
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
    const bool streams = bytes * (copies ? 2 : 1) >= streamed_bytes(plan.threads);
    stream_y_ = streams && y_ready_ && acts_in_kernel();
    stream_copy_ = streams && copies;
    if (!state) return;
    if (copies && !source) {
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

  void run() {
    if (plan_.is_columns()) {
      by_column_blocks(plan_, batch_, [&](size_t block) { columns(block); });
    } else if (state_ && plan_.spans_batch() && x_ready_ && y_ready_ && (moments_ || finds_moments())) {
      run_in_order();
    } else {
      by_groups(plan_, batch_, [&](size_t first, size_t end) {
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
  bool finds_moments() const { return !source_ && work_.moments && stays_with_samples(plan_, batch_); }
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

  // Batch norm whose moments are all known, or found now: the statistics of every channel, then y in the order of memory.
  // Runs of one channel lie on pages far apart.
  void run_in_order() {
    if (!moments_) {
      by_runs(
          plan_, batch_, plan_.length,
          [&](size_t n, size_t run) {
            const Runs x = {address(x_, n, run * plan_.length), 0};
            plan_.kernels->run_moments(x, 1, plan_.length, work_.moments + n * plan_.runs + run);
          },
          [] {});
      moments_ = work_.moments;
    }
    by_groups(plan_, batch_, [&](size_t first, size_t end) {
      for (size_t g = first; g < end; ++g) {
        Moments m = moments_of({}, g, batch_, plan_.runs);
        double variance = m.squares / m.count;
        take_statistics(g, g, &m.mean, &variance);
        keep(g, standard_of(m.mean, variance, plan_.epsilon));
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
    job.ahead = x_ready_ && stream_y_ ? length : 0;
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

}  // namespace

// ---- what is kept ----

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

int State::reserve(const Plan& plan, size_t samples, bool copies) {
  const StatePlaces places(plan, samples, copies);
  if (places.all == SIZE_MAX)
    return fail("batch: expected a size that can be kept for the gradients; %zu samples overflow", samples);
  if (block.reserve(places.all, &batch) != 0) return -1;
  std::byte* at = block.data();
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

// ---- the calls ----

size_t forward_bytes(const Plan& plan, size_t batch, const Tensor& x, const Tensor& y, bool training) {
  Room room(nullptr);
  ForwardWork(plan, batch, training, !is_ready(plan, x) || !is_ready(plan, y), &room);
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

}  // namespace normalization
}  // namespace obn
