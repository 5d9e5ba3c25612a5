// A convolution of few taps with a batch norm behind it: what the sums of the kernels become. Letters as in
// fused_few_channels.h.
#include "fused/fused_few_channels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/types.h"
#include "base/workspace.h"
#include "convolution/few_channels/few_channels.h"
#include "fused/fused.h"
#include "fused/fused_parameters.h"

namespace obn::fused {
namespace {

namespace few_channels = convolution::few_channels;

constexpr size_t kTapsPerOutput = 16;    // T²/O at most: covariances cost T² per pixel, what they save grows with O
constexpr size_t kLeastPixels = 64;      // of a plane
constexpr double kFarFromZero = 4.0;     // standard deviations: means that are farther are taken off the taps

double dot(const float* a, const double* b, size_t n) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

struct FewChannelsNorm::Saved {
  float* x;       // (N, C, H, W)
  float* w;       // (O, T)
  float* centre;  // (C)
  double* mean;   // (T): m
  double* kw;     // (O, T): K w
  double* r;      // (O)
  double* scale;  // (O): s
};

struct FewChannelsNorm::ForwardWork {
  double* sums;         // T of taps, (T, T) of their products
  double* covariances;  // (T, T): K
  double *mean, *variance, *gamma, *beta;  // (O)
  float *scaled, *shift;                   // (O, T): s·w; (O)
  float *bias, *row;                       // (O)
  std::byte* saved;                         // for an inference
  std::byte* kernels;

  ForwardWork(const FewChannelsNorm& layer, size_t batch, bool training, Workspace* space) {
    const size_t o = layer.outputs_, t = layer.taps_;
    sums = space->take<double>(t, t + 1);
    covariances = space->take<double>(t, t);
    for (double** array : {&mean, &variance, &gamma, &beta}) *array = space->take<double>(o);
    scaled = space->take<float>(o, t);
    for (float** array : {&shift, &bias, &row}) *array = space->take<float>(o);
    size_t bytes = 0;
    if (!training) layer.lay_out_saved(batch, nullptr, &bytes);
    saved = space->take(bytes);
    kernels = space->take(few_channels::tap_moments_bytes(layer.problem(batch)));
  }
};

struct FewChannelsNorm::BackwardWork {
  double* sums;              // (O, T) of D, then (O) of D₀
  double *dgamma, *db;       // (O)
  float *dw, *row;           // (O, T), (O)
  double* sloped;            // (1 + T, T): sums of what follows
  float *w, *start, *slope;  // (O, T), (T), (T, T): dx from dz and the taps
  float *dy, *dx;            // as the layer's output, (N, C, H, W), where the caller's do not serve, or NULL
  std::byte* kernels;

  BackwardWork(const FewChannelsNorm& layer, size_t batch, bool has_dx, bool copies_dy, bool copies_dx, Workspace* space) {
    const size_t o = layer.outputs_, t = layer.taps_;
    sums = space->take<double>(o, t + 1);
    dgamma = space->take<double>(o);
    db = space->take<double>(o);
    dw = space->take<float>(o, t);
    row = space->take<float>(o);
    sloped = has_dx ? space->take<double>(1 + t, t) : nullptr;
    w = has_dx ? space->take<float>(o, t) : nullptr;
    start = has_dx ? space->take<float>(1, t) : nullptr;
    slope = has_dx ? space->take<float>(t, t) : nullptr;
    dy = copies_dy ? space->take<float>(batch, layer.second_->output().count) : nullptr;
    dx = copies_dx ? space->take<float>(batch, layer.first_->input().count) : nullptr;
    kernels = space->take(few_channels::masked_sums_bytes(layer.problem(batch)));
  }
};

bool FewChannelsNorm::prepare(convolution::Convolution* first, normalization::Normalization* second) {
  const convolution::Problem& s = first->problem();
  const normalization::Plan& plan = second->plan;
  const convolution::Images y = {&second->output(), nullptr, 0};
  first_ = first;
  second_ = second;
  channels_ = s.in_channels;
  outputs_ = s.out_channels;
  if (first->is_transposed() || first->has_activation() || !is_float(first->input().type) ||
      first->output().type != BNNSDataTypeFloat32 || !first->has_float_weights() || !y.is_direct())
    return false;
  if (plan.kind != normalization::Kind::batch || !(plan.activation.is_identity() || plan.is_relu) ||
      plan.length < kLeastPixels || !few_channels::fits_norm(s))
    return false;
  taps_ = s.in_channels * static_cast<size_t>(s.x.kernel * s.y.kernel);
  return taps_ * taps_ <= kTapsPerOutput * outputs_;
}

convolution::Problem FewChannelsNorm::problem(size_t batch) const {
  convolution::Problem problem = first_->problem();
  problem.batch = batch;
  return problem;
}

double FewChannelsNorm::pixels(size_t batch) const { return static_cast<double>(batch * second_->plan.length); }

convolution::Planes FewChannelsNorm::planes_of_output(void* y, size_t step) const {
  return convolution::Images{&second_->output(), static_cast<std::byte*>(y), step}.planes(0);
}

// ---- what is saved ----

FewChannelsNorm::Saved FewChannelsNorm::lay_out_saved(size_t batch, std::byte* block, size_t* bytes) const {
  Workspace space(block);
  Saved saved;
  saved.x = space.take<float>(batch, first_->input().count);
  saved.w = space.take<float>(outputs_, taps_);
  saved.centre = space.take<float>(channels_);
  saved.mean = space.take<double>(taps_);
  saved.kw = space.take<double>(outputs_, taps_);
  saved.r = space.take<double>(outputs_);
  saved.scale = space.take<double>(outputs_);
  *bytes = space.used();
  return saved;
}

size_t FewChannelsNorm::saved_bytes(size_t batch) const {
  size_t bytes;
  lay_out_saved(batch, nullptr, &bytes);
  return check_saved(bytes, batch);
}

int FewChannelsNorm::reserve(size_t batch) {
  const size_t needed = saved_bytes(batch);
  return needed == SIZE_MAX ? -1 : block_.reserve(needed, &second_->state.batch);
}

size_t FewChannelsNorm::work_bytes(size_t batch) const {
  if (first_->work_bytes(batch) == SIZE_MAX) return SIZE_MAX;  // with its sentence
  Workspace forward, inference, backward;
  ForwardWork(*this, batch, true, &forward);
  ForwardWork(*this, batch, false, &inference);
  BackwardWork(*this, batch, true, true, true, &backward);
  return std::max({forward.used(), inference.used(), backward.used()});
}

// ---- forward ----

// m, c and K from the sums over taps less `first` (C).
void FewChannelsNorm::find_moments(const double* sums, const float* first, double n, const Saved& saved,
                              double* covariances) const {
  const size_t t = taps_, per_channel = t / channels_;
  const double* products = sums + t;
  for (size_t i = 0; i < t; ++i)
    for (size_t k = i; k < t; ++k)
      covariances[i * t + k] = covariances[k * t + i] = products[i * t + k] / n - sums[i] / n * (sums[k] / n);
  for (size_t c = 0; c < channels_; ++c) {
    double mean = 0.0, variance = 0.0;
    for (size_t i = c * per_channel; i < (c + 1) * per_channel; ++i) {
      mean += sums[i] / n / static_cast<double>(per_channel);
      variance = std::max(variance, covariances[i * t + i]);
    }
    mean += static_cast<double>(first[c]);
    const bool is_far = std::fabs(mean) > kFarFromZero * std::sqrt(variance);
    saved.centre[c] = is_far ? static_cast<float>(mean) : 0.0f;
    const double apart = static_cast<double>(first[c]) - static_cast<double>(saved.centre[c]);
    for (size_t i = c * per_channel; i < (c + 1) * per_channel; ++i) saved.mean[i] = sums[i] / n + apart;
  }
}

// Mean and variance of every z(o), and what makes y of the taps.
void FewChannelsNorm::find_statistics(const ForwardWork& work, const Saved& saved, bool training) const {
  const normalization::Plan& plan = second_->plan;
  const size_t t = taps_, per_channel = t / channels_;
  for (size_t o = 0; o < outputs_; ++o) {
    const float* w = saved.w + o * t;
    double base = static_cast<double>(work.bias[o]);  // z where all taps are at their centre
    for (size_t i = 0; i < t; ++i)
      base += static_cast<double>(w[i]) * static_cast<double>(saved.centre[i / per_channel]);
    double* kw = saved.kw + o * t;
    std::fill_n(kw, t, 0.0);
    for (size_t k = 0; k < t; ++k) {  // K is symmetric: sums beside each other, not one after the other
      const double weight = static_cast<double>(w[k]);
      for (size_t i = 0; i < t; ++i) kw[i] += weight * work.covariances[k * t + i];
    }
    const double variance = dot(w, kw, t), shift = dot(w, saved.mean, t);
    work.mean[o] = base + shift;
    work.variance[o] = variance < 0.0 ? 0.0 : variance;  // by rounding
    double mean = work.mean[o], used = work.variance[o], apart = -shift;
    if (!training && plan.moving_mean) {
      mean = static_cast<double>(plan.moving_mean[o * plan.moving_mean_step]);
      apart = base - mean;
    }
    if (!training && plan.moving_variance)
      used = static_cast<double>(plan.moving_variance[o * plan.moving_variance_step]);
    saved.r[o] = 1.0 / std::sqrt(used + static_cast<double>(plan.epsilon));
    saved.scale[o] = work.gamma[o] * saved.r[o];
    for (size_t i = 0; i < t; ++i)
      work.scaled[o * t + i] = static_cast<float>(saved.scale[o] * static_cast<double>(w[i]));
    work.shift[o] = static_cast<float>(work.beta[o] + saved.scale[o] * apart);
  }
}

int FewChannelsNorm::apply(size_t batch, const convolution::Images& x, float* y, size_t y_step, bool training) {
  const normalization::Plan& plan = second_->plan;
  Workspace counted;
  ForwardWork(*this, batch, training, &counted);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  const ForwardWork work(*this, batch, training, &space);
  if (training && reserve(batch) != 0) return -1;
  size_t unused;
  const Saved saved = lay_out_saved(batch, training ? block_.data() : work.saved, &unused);
  const few_channels::Kernels& kernels = few_channels::targets.best();
  const convolution::Problem s = problem(batch);
  const size_t threads = first_->make_run(batch).threads;
  first_->read_parameters(threads, saved.w, work.bias);
  read_parameter(plan.gamma, outputs_, 1.0, work.row, work.gamma);
  read_parameter(plan.beta, outputs_, 0.0, work.row, work.beta);
  convolution::Planes from;
  if (!training && x.is_direct()) {
    from = x.planes(0);
  } else {
    convolution::load_images(x, 0, batch, threads, saved.x);
    from = convolution::dense_planes(first_->input(), saved.x);
  }
  if (training || !plan.moving_mean || !plan.moving_variance) {
    float first[few_channels::kMostNormTaps];
    for (size_t c = 0; c < channels_; ++c) first[c] = from.data[c * from.plane];
    few_channels::tap_moments(kernels, s, {from, first}, threads, work.sums, work.kernels);
    find_moments(work.sums, first, pixels(batch), saved, work.covariances);
  } else {
    std::fill_n(saved.centre, channels_, 0.0f);
    std::fill_n(saved.mean, taps_, 0.0);
    std::fill_n(work.covariances, taps_ * taps_, 0.0);
  }
  find_statistics(work, saved, training);
  const float low = plan.is_relu ? 0.0f : -std::numeric_limits<float>::infinity();
  few_channels::standardize(kernels, s, {{from, saved.centre}, work.scaled, work.shift, low, planes_of_output(y, y_step)},
                      threads);
  if (!training) return 0;
  normalization::update_moving(plan, batch, work.mean, work.variance);
  second_->state.batch = batch;
  return 0;
}

// ---- backward ----

// dγ and dw from the sums of the kernels.
void FewChannelsNorm::find_gradients(const BackwardWork& work, const Saved& saved) const {
  const size_t t = taps_;
  const double* dz_sums = work.sums + outputs_ * t;
  for (size_t o = 0; o < outputs_; ++o) {
    const float* w = saved.w + o * t;
    const double *d = work.sums + o * t, *kw = saved.kw + o * t;
    const double r = saved.r[o], at_mean = dot(w, saved.mean, t), dgamma = r * (dot(w, d, t) - at_mean * dz_sums[o]);
    for (size_t i = 0; i < t; ++i)
      work.dw[o * t + i] =
          static_cast<float>(saved.scale[o] * (d[i] - saved.mean[i] * dz_sums[o] - r * dgamma * kw[i]));
    work.dgamma[o] = dgamma;
    work.db[o] = 0.0;
  }
}

// The gradient of tap t is Σ w(o, t)·u(o), and u(o) = s·dz(o) + a number - another one·Σ w(o, k)·tap(k).
void FewChannelsNorm::find_tap_gradients(const BackwardWork& work, const Saved& saved, double n) const {
  const size_t t = taps_;
  std::fill_n(work.sloped, (1 + t) * t, 0.0);
  for (size_t o = 0; o < outputs_; ++o) {
    const float* w = saved.w + o * t;
    const double scale = saved.scale[o], slope = scale * saved.r[o] * work.dgamma[o] / n;
    const double start = slope * dot(w, saved.mean, t) - scale * work.sums[outputs_ * t + o] / n;
    for (size_t i = 0; i < t; ++i) {
      const double weight = static_cast<double>(w[i]);
      work.w[o * t + i] = static_cast<float>(scale * weight);
      work.sloped[i] += start * weight;
      for (size_t k = 0; k < t; ++k) work.sloped[(1 + k) * t + i] -= slope * weight * static_cast<double>(w[k]);
    }
  }
  const auto to_float = [](double value) { return static_cast<float>(value); };
  std::transform(work.sloped, work.sloped + t, work.start, to_float);
  std::transform(work.sloped + t, work.sloped + (1 + t) * t, work.slope, to_float);
}

int FewChannelsNorm::apply_backward(const convolution::Gradients& first, const normalization::Gradients& g) {
  const size_t batch = second_->state.batch;
  const convolution::Images dy = {&g.dy_view, static_cast<std::byte*>(g.dy_view.data), g.dy_stride};
  const bool has_dx = first.dx.data, copies_dx = has_dx && !first.dx.is_direct();
  const bool copies_dy = !dy.is_direct();
  Workspace counted;
  BackwardWork(*this, batch, has_dx, copies_dy, copies_dx, &counted);
  std::byte* block;
  if (find_workspace(counted.used(), &block) != 0) return -1;
  Workspace space(block);
  const BackwardWork work(*this, batch, has_dx, copies_dy, copies_dx, &space);
  size_t unused;
  const Saved saved = lay_out_saved(batch, block_.data(), &unused);
  const few_channels::Kernels& kernels = few_channels::targets.best();
  const convolution::Problem s = problem(batch);
  const size_t threads = first_->make_run(batch).threads;
  if (copies_dy) convolution::load_images(dy, 0, batch, threads, work.dy);
  const convolution::Planes given = copies_dy ? convolution::dense_planes(second_->output(), work.dy) : dy.planes(0);
  const few_channels::Masked dz = {
      given, g.y.is_given() ? planes_of_output(g.y.walk.data, g.y_stride) : convolution::Planes{}};
  const few_channels::Taps taps = {convolution::dense_planes(first_->input(), saved.x), saved.centre};
  few_channels::masked_sums(kernels, s, taps, dz, threads, work.sums, work.kernels);
  find_gradients(work, saved);
  store_gradient(g.dbeta, work.sums + outputs_ * taps_, outputs_, work.row);
  store_gradient(g.dgamma, work.dgamma, outputs_, work.row);
  first_->put_gradients(first, work.dw, work.db, threads);
  if (!has_dx) return 0;
  find_tap_gradients(work, saved, pixels(batch));
  const bool accumulate = first.dx_view.accumulate;
  const convolution::Planes dx =
      copies_dx ? convolution::dense_planes(first_->input(), work.dx) : first.dx.planes(0);
  few_channels::norm_input_gradient(kernels, s, {taps, dz, work.w, work.start, work.slope, dx, !copies_dx && accumulate},
                              threads);
  if (copies_dx) convolution::store_images(work.dx, first.dx, 0, batch, accumulate, threads);
  return 0;
}

}  // namespace obn::fused
