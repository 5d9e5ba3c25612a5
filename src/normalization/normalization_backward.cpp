// Normalization, backward: the sums of all groups, then their input gradients. Letters as in normalization.h.
#include <algorithm>
#include <cstddef>

#include "base/integer.h"
#include "base/memory.h"
#include "base/workspace.h"
#include "normalization/normalization.h"
#include "normalization/normalization_walk.h"

namespace obn::normalization {
namespace {

constexpr size_t kNearValues = size_t{1} << 15;  // of a group, so that four times as many floats lie near
constexpr size_t kRowBlocks = 64;                // partial sums of dγ and dβ, at most
constexpr size_t kRowBlockRows = 16;             // rows of each, at least

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
    block_rows = by_run ? batch : std::max(least_rows, divide_up(rows, most));
    blocks = by_run ? plan.runs : divide_up(rows, block_rows);
  }
};

// The two means of the input gradient.
struct Means {
  float g, g_xhat;
};

// Samples whose values are summed in float together, and how often there are so many.
size_t samples_together(const Plan& plan) { return std::max<size_t>(1, kSumBlock / plan.length); }
size_t sample_parts(const Plan& plan, size_t batch) {
  return (batch + samples_together(plan) - 1) / samples_together(plan);
}

bool may_go_in_order(const Plan& plan) { return may_stay_with_samples(plan) && plan.length <= kSumBlock; }

struct BackwardWork {
  float* gamma;
  Sums* sums;     // channels: one per channel (batch norm) or run; rows: none
  Means* means;   // (groups)
  Sums* parts;    // where threads stay with their samples: of some samples and a run
  float* partial; // rows: (blocks, 2, P): dβ, dγ
  float* stage;

  BackwardWork(const Plan& plan, size_t batch, bool stages, const RowPlan& rows, bool sums_parameters,
               Workspace* space) {
    gamma = is_copied(plan, plan.gamma, batch) ? space->take<float>(plan.gamma.count) : nullptr;
    sums = !plan.is_rows ? space->take<Sums>(plan.spans_batch() ? 1 : batch, plan.runs) : nullptr;
    means = space->take<Means>(plan.groups(batch));
    parts = may_go_in_order(plan) ? space->take<Sums>(sample_parts(plan, batch), plan.runs) : nullptr;
    partial = plan.is_rows && sums_parameters ? space->take<float>(2 * rows.blocks, plan.length) : nullptr;
    const size_t values = plan.group_values(batch) * (plan.is_columns() ? std::min(kColumns, plan.runs) : 1);
    stage = stages && values > kStage ? space->take<float>(batch, plan.sample()) : nullptr;
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

bool streams_gradient(const Plan& plan, size_t batch, bool others_read) {
  const size_t bytes = batch * plan.sample() * sizeof(float);
  return bytes * 2 >= streamed_bytes(plan.threads) ||
         (others_read && bytes >= kFewestStreamed && threads_for(plan.threads) > 1);
}

class BackwardCall;

}  // namespace

// As ForwardWay in normalization_forward.cpp.
struct BackwardWay {
  const char* name;
  bool (*fits)(const Plan& plan);
  bool (*takes)(const BackwardCall& call);
  void (BackwardCall::*run)() const;
};

namespace {

class BackwardCall {
 public:
  BackwardCall(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y, const Tensor& dx,
               bool accumulate, const ParameterGradient& dbeta, const ParameterGradient& dgamma, std::byte* work,
               const ChannelSink* sink, bool others_read)
      : plan_(plan), state_(state), batch_(state.batch), dy_(dy), y_(y), dx_(dx), sink_(sink), accumulate_(accumulate),
        dbeta_(dbeta), dgamma_(dgamma), stages_(stages_dz(plan, dy, y, dx)),
        mask_(stages_ ? Mask::none : mask_of(plan, y)), rows_(plan, state.batch, dbeta.count, dgamma.count),
        space_(work), work_(plan, state.batch, stages_, rows_, dbeta.is_wanted || dgamma.is_wanted, &space_) {
    gamma_ = work_.gamma ? work_.gamma : plan.gamma.values;
    stream_ = streams_gradient(plan, batch_, others_read) && !stages_ && !accumulate;
  }

  // All sums; with them the input gradient where it is given.
  void run() const {
    read_parameter(plan_.gamma, work_.gamma);
    const BackwardWay* way = plan_.backward_way;
    while (!way->fits(plan_) || !way->takes(*this)) ++way;
    (this->*way->run)();
    if (plan_.is_rows) return;  // which have stored theirs
    if (dbeta_.is_wanted) store_channel_sums(dbeta_, &Sums::dz);
    if (dgamma_.is_wanted) store_channel_sums(dgamma_, &Sums::dz_xhat);
  }

  void run_columns() const {
    by_column_blocks(plan_, batch_, [&](size_t block) { columns(block); });
  }

  void run_by_groups() const {
    by_groups(plan_, batch_, [&](size_t first, size_t end) {
      bool is_summed = false;
      for (size_t g = first; g < end; ++g) is_summed = group(g, g + 1 < end, is_summed);
      if (stream_) plan_.kernels->end_streams();
    });
  }

  bool goes_in_order() const { return !stages_ && !sink_ && stays_with_samples(plan_, batch_); }

  // Batch norm: the sums of some samples at a time, then those of every channel, then the input gradient, all in the
  // order of memory. The kernel sums so many samples in float, too, so bits are those of group().
  void run_in_order() const {
    const size_t together = samples_together(plan_), parts = sample_parts(plan_, batch_);
    by_runs(
        plan_, parts, together * plan_.length,
        [&](size_t part, size_t run) {
          const Span span = {part * together, std::min(together, batch_ - part * together), run * plan_.length,
                             plan_.length};
          Gradient job = job_of(span, run, nullptr);
          job.count = span.samples;
          set_channel(&job, run);
          work_.parts[part * plan_.runs + run] = plan_.kernels->channel_sums(job);
        },
        [] {});
    const PerChannel gamma = {gamma_, kOne};
    for (size_t run = 0; run < plan_.runs; ++run) {
      Sums all;
      for (size_t part = 0; part < parts; ++part) {
        all.dz += work_.parts[part * plan_.runs + run].dz;
        all.dz_xhat += work_.parts[part * plan_.runs + run].dz_xhat;
      }
      work_.sums[run] = all = settled(all);
      Sums scaled;  // added to, as in group(): what is zero then has no sign
      scaled.dz += static_cast<double>(gamma[run]) * all.dz;
      scaled.dz_xhat += static_cast<double>(gamma[run]) * all.dz_xhat;
      work_.means[run] = means_of(scaled, static_cast<double>(batch_ * plan_.length));
    }
    if (!dx_.is_given()) return;
    by_runs(
        plan_, batch_, plan_.length, [&](size_t n, size_t run) { input_run(n, run); },
        [&] {
          if (stream_) plan_.kernels->end_streams();
        });
  }

  void run_rows() const {
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

  Runs saved(const Span& span) const {
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
    job.x = saved(span);
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
      sums[k] = settled(is_summed ? sums[k] : plan_.kernels->channel_sums(at));
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
    const bool gathers = has_next && stream_ && span.values() <= kNearValues;
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

  // The input gradient of a channel of all samples, for the sink.
  void drain(Gradient job, size_t channel, const Span& span) const {
    float* u = reinterpret_cast<float*>(scratch() + kScratchBytes / 2);
    job.stream = false;
    job.dx = {u, plan_.length};
    set_means(&job, channel);
    set_channel(&job, channel);
    plan_.kernels->channel_gradient(job);
    if (channel + 1 < plan_.runs && span.values() <= kNearValues) {
      for (size_t n = 0; n < batch_; ++n) {
        bring_near(address(dy_, n, (channel + 1) * plan_.length), plan_.length);
        bring_near(state_.x + n * state_.x_step + (channel + 1) * plan_.length, plan_.length);
      }
    }
    sink_->take(sink_->context, channel, u);
  }

  static Means means_of(const Sums& sums, double size) {
    return {static_cast<float>(sums.dz / size), static_cast<float>(sums.dz_xhat / size)};
  }
  void set_means(Gradient* job, size_t g) const {
    job->mean_g = work_.means[g].g;
    job->mean_g_xhat = work_.means[g].g_xhat;
  }

  // Run r of sample first + s.
  void input_run(size_t n, size_t run) const {
    const Span span = {n, 1, run * plan_.length, plan_.length};
    Gradient job = job_of(span, run, nullptr);
    job.dx = {address(dx_, n, span.first), 0};
    job.stream = stream_;
    set_means(&job, run);
    set_channel(&job, run);
    plan_.kernels->channel_gradient(job);
  }

  // ---- columns ----

  // A block of columns; dx is left out.
  ColumnGradient column_job(size_t c, size_t width, float* stage) const {
    ColumnGradient job;
    job.rows = batch_;
    job.width = width;
    job.dy = stages_ ? Runs{stage, width} : Runs{address(dy_, 0, c), dy_.step};
    if (mask_ == Mask::output) job.y = {address(y_, 0, c), y_.step};
    job.x = {const_cast<float*>(state_.x) + c, state_.x_step};
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
    ColumnGradient job = column_job(c, width, stage);
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
    job.ahead = !stream_ ? 0 : rows_.by_run ? plan_.sample() : length;
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
        for (size_t k = 0; k < n; ++k) row[k] = settled(row[k]);
        store_values(to, old, n, row, gradient.accumulate, old_row);
        done += n;
      }
    });
  }

  const Plan& plan_;
  const State& state_;
  size_t batch_;
  const Tensor &dy_, &y_, &dx_;
  const ChannelSink* sink_;
  bool accumulate_;
  const ParameterGradient &dbeta_, &dgamma_;
  bool stages_;
  Mask mask_;
  RowPlan rows_;
  Workspace space_;
  BackwardWork work_;
  const float* gamma_;
  bool stream_;
};

}  // namespace

// ---- the calls ----

namespace {

bool always(const BackwardCall&) { return true; }

// Best first; the last one fits and takes all.
constexpr BackwardWay kBackward[] = {
    {"columns", [](const Plan& plan) { return plan.is_columns(); }, always, &BackwardCall::run_columns},
    {"channels in order", may_go_in_order, [](const BackwardCall& call) { return call.goes_in_order(); },
     &BackwardCall::run_in_order},
    {"rows", [](const Plan& plan) { return plan.is_rows; }, always, &BackwardCall::run_rows},
    {"channels by groups", [](const Plan&) { return true; }, always, &BackwardCall::run_by_groups}};

}  // namespace

const BackwardWay* choose_backward(const Plan& plan) {
  const BackwardWay* way = kBackward;
  while (!way->fits(plan)) ++way;
  return way;
}

size_t backward_bytes(const Plan& plan, size_t batch, const Tensor& dy, const Tensor& y, const Tensor& dx,
                      const ParameterGradient& dbeta, const ParameterGradient& dgamma) {
  Workspace space;
  BackwardWork(plan, batch, stages_dz(plan, dy, y, dx), RowPlan(plan, batch, dbeta.count, dgamma.count),
               dbeta.is_wanted || dgamma.is_wanted, &space);
  return space.used();
}

void backward(const Plan& plan, const State& state, const Tensor& dy, const Tensor& y, const Tensor& dx,
              bool accumulate, const ParameterGradient& dbeta, const ParameterGradient& dgamma, std::byte* work,
              const ChannelSink* sink, bool others_read) {
  BackwardCall(plan, state, dy, y, dx, accumulate, dbeta, dgamma, work, sink, others_read).run();
}

bool takes_sink(const Plan& plan, size_t batch, const Tensor& dy, const Tensor& y) {
  return may_stay_with_samples(plan) &&
         plan.group_values(batch) <= kScratchBytes / 2 / sizeof(float) && !stages_dz(plan, dy, y, Tensor());
}

}  // namespace obn::normalization
