// A convolution of few taps with a batch norm behind it: what the sums of the kernels become. Letters as in
// fused_narrow.h.
#include "fused/fused_narrow.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/status.h"
#include "base/types.h"
#include "convolution/narrow.h"
#include "fused/fused_parameters.h"
#include "fused/fused_room.h"

namespace obn::fused {
namespace {

namespace narrow = convolution::narrow;

constexpr size_t kTapsPerOutput = 16;    // T²/O at most: covariances cost T² per pixel, what they save grows with O
constexpr size_t kLeastPixels = 64;      // of a plane
constexpr double kFarFromZero = 4.0;     // standard deviations: means that are farther are taken off the taps

double dot(const float* a, const double* b, size_t n) {
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

}  // namespace

struct NarrowNorm::Kept {
  float* x;       // (N, C, H, W)
  float* w;       // (O, T)
  float* centre;  // (C)
  double* mean;   // (T): m
  double* kw;     // (O, T): K w
  double* r;      // (O)
  double* scale;  // (O): s
  uint8_t* winners;  // (N, O, windows), or none
};

struct NarrowNorm::ForwardWork {
  double* sums;         // T of taps, (T, T) of their products
  double* covariances;  // (T, T): K
  double *mean, *variance, *gamma, *beta;  // (O)
  float *scaled, *shift;                   // (O, T): s·w; (O)
  float* shared;                           // (O, 12) of scaled, or NULL
  float *bias, *row;                       // (O)
  std::byte* kept;                         // for an inference
  std::byte* kernels;

  ForwardWork(const NarrowNorm& layer, size_t batch, bool training, Room* room) {
    const size_t o = layer.outputs_, t = layer.taps_;
    sums = room->take_many<double>(t, t + 1);
    covariances = room->take_many<double>(t, t);
    for (double** array : {&mean, &variance, &gamma, &beta}) *array = room->take_many<double>(o, 1);
    scaled = room->take_many<float>(o, t);
    for (float** array : {&shift, &bias, &row}) *array = room->take_many<float>(o, 1);
    shared = layer.sums_by_windows_ ? room->take_many<float>(o, 12) : nullptr;
    size_t bytes = 0;
    if (!training) layer.lay_out_kept(batch, nullptr, &bytes);
    kept = room->take(bytes);
    kernels = room->take(narrow::tap_moments_bytes(layer.problem(batch)));
  }
};

struct NarrowNorm::BackwardWork {
  double* sums;              // (O, T) of D, then (O) of D₀
  double *dgamma, *db;       // (O)
  float *dw, *row;           // (O, T), (O)
  double* sloped;            // (1 + T, T): sums of what follows
  float *w, *start, *slope;  // (O, T), (T), (T, T): dx from dz and the taps
  float *dy, *dx;            // as the layer's output, (N, C, H, W), where the caller's do not serve, or NULL
  float* dz;                 // (N, O, P, Q) of the pixels that won, or NULL
  std::byte* kernels;

  BackwardWork(const NarrowNorm& layer, size_t batch, bool has_dx, bool copies_dy, bool copies_dx, Room* room) {
    const size_t o = layer.outputs_, t = layer.taps_;
    sums = room->take_many<double>(o, t + 1);
    dgamma = room->take_many<double>(o, 1);
    db = room->take_many<double>(o, 1);
    dw = room->take_many<float>(o, t);
    row = room->take_many<float>(o, 1);
    sloped = has_dx ? room->take_many<double>(1 + t, t) : nullptr;
    w = has_dx ? room->take_many<float>(o, t) : nullptr;
    start = has_dx ? room->take_many<float>(1, t) : nullptr;
    slope = has_dx ? room->take_many<float>(t, t) : nullptr;
    dy = copies_dy ? room->take_many<float>(batch, layer.y_->count) : nullptr;
    dx = copies_dx ? room->take_many<float>(batch, layer.first_->input().count) : nullptr;
    dz = layer.scatters(has_dx) ? room->take_many<float>(batch, layer.first_->output().count) : nullptr;
    kernels = room->take(layer.sums_by_windows_ ? windows::winner_sums_bytes(layer.plan_windows(batch))
                                                : narrow::masked_sums_bytes(layer.problem(batch)));
  }
};

bool NarrowNorm::prepare(convolution::Convolution* first, normalization::Normalization* second) {
  const convolution::Problem& s = first->problem();
  const normalization::Plan& plan = second->plan;
  const convolution::Images y = {&second->output(), nullptr, 0};
  first_ = first;
  second_ = second;
  y_ = &second->output();
  channels_ = s.in_channels;
  outputs_ = s.out_channels;
  if (first->is_transposed() || first->has_activation() || !is_float(first->input().type) ||
      first->output().type != BNNSDataTypeFloat32 || !first->has_float_weights() || !y.is_direct())
    return false;
  if (plan.kind != normalization::Kind::batch || !(plan.activation.is_identity() || plan.is_relu) ||
      plan.length < kLeastPixels || !narrow::fits_norm(s))
    return false;
  taps_ = s.in_channels * static_cast<size_t>(s.x.kernel * s.y.kernel);
  return taps_ * taps_ <= kTapsPerOutput * outputs_;
}

bool NarrowNorm::join(const pooling::Plan& pooling, const View& y) {
  const auto is_plain = [](const pooling::Axis& axis) { return axis.before == 0 && axis.dilation == 1; };
  if (pooling.function != BNNSPoolingFunctionMax || pooling.bias.data || pooling.has_activation ||
      !is_plain(pooling.x) || !is_plain(pooling.y))
    return false;
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  // One window has no stride of its own.
  const auto stride = [](const pooling::Axis& axis) {
    return static_cast<size_t>(axis.windows == 1 ? axis.kernel : axis.stride);
  };
  windows_ = {size(pooling.y.windows), size(pooling.x.windows), size(pooling.y.kernel), size(pooling.x.kernel),
              stride(pooling.y), stride(pooling.x)};
  windows::Plan plan;
  if (!windows::make_plan(problem(1), windows_, &plan) || !has_plain_planes(y)) return false;
  y_ = &y;
  is_pooled_ = true;
  sums_by_windows_ = plan.in_pairs;
  return true;
}

windows::Plan NarrowNorm::plan_windows(size_t batch) const {
  windows::Plan plan;
  windows::make_plan(problem(batch), windows_, &plan);
  return plan;
}

convolution::Problem NarrowNorm::problem(size_t batch) const {
  convolution::Problem problem = first_->problem();
  problem.batch = batch;
  return problem;
}

double NarrowNorm::pixels(size_t batch) const { return static_cast<double>(batch * second_->plan.length); }

convolution::Planes NarrowNorm::planes_of_output(void* y, size_t step) const {
  return convolution::Images{y_, static_cast<std::byte*>(y), step}.planes(0);
}

// ---- what is kept ----

NarrowNorm::Kept NarrowNorm::lay_out_kept(size_t batch, std::byte* block, size_t* bytes) const {
  Room room(block);
  Kept kept;
  kept.x = room.take_many<float>(batch, first_->input().count);
  kept.w = room.take_many<float>(outputs_, taps_);
  kept.centre = room.take_many<float>(channels_, 1);
  kept.mean = room.take_many<double>(taps_, 1);
  kept.kw = room.take_many<double>(outputs_, taps_);
  kept.r = room.take_many<double>(outputs_, 1);
  kept.scale = room.take_many<double>(outputs_, 1);
  kept.winners = is_pooled_ ? room.take_many<uint8_t>(batch, outputs_ * windows_.rows * windows_.columns) : nullptr;
  *bytes = room.used();
  return kept;
}

size_t NarrowNorm::kept_bytes(size_t batch) const {
  size_t bytes;
  lay_out_kept(batch, nullptr, &bytes);
  return check_kept(bytes, batch);
}

int NarrowNorm::reserve(size_t batch) {
  const size_t needed = kept_bytes(batch);
  return needed == SIZE_MAX ? -1 : block_.reserve(needed, &second_->state.batch);
}

size_t NarrowNorm::work_bytes(size_t batch) const {
  if (first_->work_bytes(batch) == SIZE_MAX) return SIZE_MAX;  // with its sentence
  Room forward, inference, backward;
  ForwardWork(*this, batch, true, &forward);
  ForwardWork(*this, batch, false, &inference);
  BackwardWork(*this, batch, true, true, true, &backward);
  return std::max({forward.used(), inference.used(), backward.used()});
}

// ---- forward ----

// m, c and K from the sums over taps less `first` (C).
void NarrowNorm::find_moments(const double* sums, const float* first, double n, const Kept& kept,
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
    kept.centre[c] = is_far ? static_cast<float>(mean) : 0.0f;
    const double apart = static_cast<double>(first[c]) - static_cast<double>(kept.centre[c]);
    for (size_t i = c * per_channel; i < (c + 1) * per_channel; ++i) kept.mean[i] = sums[i] / n + apart;
  }
}

// Mean and variance of every z(o), and what makes y of the taps.
void NarrowNorm::find_statistics(const ForwardWork& work, const Kept& kept, bool training) const {
  const normalization::Plan& plan = second_->plan;
  const size_t t = taps_, per_channel = t / channels_;
  for (size_t o = 0; o < outputs_; ++o) {
    const float* w = kept.w + o * t;
    double base = static_cast<double>(work.bias[o]);  // z where all taps are at their centre
    for (size_t i = 0; i < t; ++i)
      base += static_cast<double>(w[i]) * static_cast<double>(kept.centre[i / per_channel]);
    double* kw = kept.kw + o * t;
    std::fill_n(kw, t, 0.0);
    for (size_t k = 0; k < t; ++k) {  // K is symmetric: sums beside each other, not one after the other
      const double weight = static_cast<double>(w[k]);
      for (size_t i = 0; i < t; ++i) kw[i] += weight * work.covariances[k * t + i];
    }
    const double variance = dot(w, kw, t), shift = dot(w, kept.mean, t);
    work.mean[o] = base + shift;
    work.variance[o] = variance < 0.0 ? 0.0 : variance;  // by rounding
    double mean = work.mean[o], used = work.variance[o], apart = -shift;
    if (!training && plan.moving_mean) {
      mean = static_cast<double>(plan.moving_mean[o * plan.moving_mean_step]);
      apart = base - mean;
    }
    if (!training && plan.moving_variance)
      used = static_cast<double>(plan.moving_variance[o * plan.moving_variance_step]);
    kept.r[o] = 1.0 / std::sqrt(used + static_cast<double>(plan.epsilon));
    kept.scale[o] = work.gamma[o] * kept.r[o];
    for (size_t i = 0; i < t; ++i)
      work.scaled[o * t + i] = static_cast<float>(kept.scale[o] * static_cast<double>(w[i]));
    work.shift[o] = static_cast<float>(work.beta[o] + kept.scale[o] * apart);
  }
}

int NarrowNorm::apply(size_t batch, const convolution::Images& x, float* y, size_t y_step, bool training) {
  const normalization::Plan& plan = second_->plan;
  Room counted;
  ForwardWork(*this, batch, training, &counted);
  Room room(workspace_for(counted));
  const ForwardWork work(*this, batch, training, &room);
  if (!work.sums || (training && reserve(batch) != 0)) return -1;
  size_t unused;
  const Kept kept = lay_out_kept(batch, training ? block_.data() : work.kept, &unused);
  const narrow::Kernels& kernels = narrow::targets.best();
  const convolution::Problem s = problem(batch);
  const size_t threads = first_->make_run(batch).threads;
  first_->read_parameters(threads, kept.w, work.bias);
  read_parameter(plan.gamma, outputs_, 1.0, work.row, work.gamma);
  read_parameter(plan.beta, outputs_, 0.0, work.row, work.beta);
  convolution::Planes from;
  if (!training && x.is_direct()) {
    from = x.planes(0);
  } else {
    convolution::load_images(x, 0, batch, threads, kept.x);
    from = convolution::dense_planes(first_->input(), kept.x);
  }
  if (training || !plan.moving_mean || !plan.moving_variance) {
    float first[narrow::kMostNormTaps];
    for (size_t c = 0; c < channels_; ++c) first[c] = from.data[c * from.plane];
    narrow::tap_moments(kernels, s, {from, first}, threads, work.sums, work.kernels);
    find_moments(work.sums, first, pixels(batch), kept, work.covariances);
  } else {
    std::fill_n(kept.centre, channels_, 0.0f);
    std::fill_n(kept.mean, taps_, 0.0);
    std::fill_n(work.covariances, taps_ * taps_, 0.0);
  }
  find_statistics(work, kept, training);
  const float low = plan.is_relu ? 0.0f : -std::numeric_limits<float>::infinity();
  const convolution::Planes to = planes_of_output(y, y_step);
  if (is_pooled_) {
    const windows::Plan of_windows = plan_windows(batch);
    const bool shares = work.shared && windows::shares_weights(of_windows) && first_->uses_winograd();
    if (shares) windows::share_weights(of_windows, work.scaled, work.shared);
    windows::maxima(windows::targets.best(), of_windows,
                    {{from, kept.centre}, work.scaled, shares ? work.shared : nullptr, work.shift, low, plan.is_relu, to,
                     training ? kept.winners : nullptr},
                    threads);
  } else {
    narrow::standardize(kernels, s, {{from, kept.centre}, work.scaled, work.shift, low, to}, threads);
  }
  if (!training) return 0;
  normalization::update_moving(plan, batch, work.mean, work.variance);
  second_->state.batch = batch;
  return 0;
}

// ---- backward ----

// dγ and dw from the sums of the kernels.
void NarrowNorm::find_gradients(const BackwardWork& work, const Kept& kept) const {
  const size_t t = taps_;
  const double* dz_sums = work.sums + outputs_ * t;
  for (size_t o = 0; o < outputs_; ++o) {
    const float* w = kept.w + o * t;
    const double *d = work.sums + o * t, *kw = kept.kw + o * t;
    const double r = kept.r[o], at_mean = dot(w, kept.mean, t), dgamma = r * (dot(w, d, t) - at_mean * dz_sums[o]);
    for (size_t i = 0; i < t; ++i)
      work.dw[o * t + i] =
          static_cast<float>(kept.scale[o] * (d[i] - kept.mean[i] * dz_sums[o] - r * dgamma * kw[i]));
    work.dgamma[o] = dgamma;
    work.db[o] = 0.0;
  }
}

// The gradient of tap t is Σ w(o, t)·u(o), and u(o) = s·dz(o) + a number - another one·Σ w(o, k)·tap(k).
void NarrowNorm::find_tap_gradients(const BackwardWork& work, const Kept& kept, double n) const {
  const size_t t = taps_;
  std::fill_n(work.sloped, (1 + t) * t, 0.0);
  for (size_t o = 0; o < outputs_; ++o) {
    const float* w = kept.w + o * t;
    const double scale = kept.scale[o], slope = scale * kept.r[o] * work.dgamma[o] / n;
    const double start = slope * dot(w, kept.mean, t) - scale * work.sums[outputs_ * t + o] / n;
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

int NarrowNorm::apply_backward(const convolution::Gradients& first, const normalization::Gradients& g) {
  const size_t batch = second_->state.batch;
  const convolution::Images dy = {&g.dy_view, static_cast<std::byte*>(g.dy_view.data), g.dy_stride};
  const bool has_dx = first.dx.data, copies_dx = has_dx && !first.dx.is_direct();
  const bool copies_dy = !(is_pooled_ ? has_plain_planes(g.dy_view) : dy.is_direct());
  Room counted;
  BackwardWork(*this, batch, has_dx, copies_dy, copies_dx, &counted);
  Room room(workspace_for(counted));
  const BackwardWork work(*this, batch, has_dx, copies_dy, copies_dx, &room);
  if (!work.sums) return -1;
  size_t unused;
  const Kept kept = lay_out_kept(batch, block_.data(), &unused);
  const narrow::Kernels& kernels = narrow::targets.best();
  const convolution::Problem s = problem(batch);
  const size_t threads = first_->make_run(batch).threads;
  if (copies_dy) convolution::load_images(dy, 0, batch, threads, work.dy);
  const convolution::Planes given = copies_dy ? convolution::dense_planes(*y_, work.dy) : dy.planes(0);
  narrow::Masked dz = {given, g.y.is_given() ? planes_of_output(g.y.walk.data, g.y_stride) : convolution::Planes{}};
  const narrow::Taps taps = {convolution::dense_planes(first_->input(), kept.x), kept.centre};
  if (work.dz) {
    windows::scatter(s, windows_, given, kept.winners, threads, work.dz);
    dz = {convolution::dense_planes(first_->output(), work.dz), {}};
  }
  if (sums_by_windows_) {
    windows::winner_sums(windows::targets.best(), plan_windows(batch), {taps, given, kept.winners}, threads, work.sums,
                         work.kernels);
  } else {
    narrow::masked_sums(kernels, s, taps, dz, threads, work.sums, work.kernels);
  }
  find_gradients(work, kept);
  store_gradient(g.dbeta, work.sums + outputs_ * taps_, outputs_, work.row);
  store_gradient(g.dgamma, work.dgamma, outputs_, work.row);
  first_->put_gradients(first, work.dw, work.db, threads);
  if (!has_dx) return 0;
  find_tap_gradients(work, kept, pixels(batch));
  const bool accumulate = first.dx_view.accumulate;
  const convolution::Planes dx =
      copies_dx ? convolution::dense_planes(first_->input(), work.dx) : first.dx.planes(0);
  narrow::norm_input_gradient(kernels, s, {taps, dz, work.w, work.start, work.slope, dx, !copies_dx && accumulate},
                              threads);
  if (copies_dx) convolution::store_images(work.dx, first.dx, 0, batch, accumulate, threads);
  return 0;
}

}  // namespace obn::fused
