// Checked calls of the loss layer, cut into pieces: a runner for every kind of loss. Letters as in loss.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/integer.h"
#include "base/memory.h"
#include "base/pool.h"
#include "loss/loss_filter.h"

namespace obn::loss {
namespace {

constexpr size_t kPiece = 16384;            // values of a piece of parallel work, about,
constexpr size_t kLongPiece = 16 * kPiece;  // up to this where there are
constexpr size_t kManyPieces = 64;          // more than so many
constexpr size_t kShortRows = 256;          // short rows that one call of the kernel does at most

bool is_softmax(Function function) {
  return function == BNNSLossFunctionSoftmaxCrossEntropy || function == BNNSLossFunctionCategoricalCrossEntropy;
}

}  // namespace

// The function decides, and for softmax the length of a row.
constinit const Loss::Runner Loss::kRunners[] = {
    {"yolo", [](Function function, size_t) { return function == BNNSLossFunctionYolo; }, &Loss::run_yolo},
    {"short rows", [](Function function, size_t n) { return is_softmax(function) && n <= kShortRow; },
     &Loss::run_short_rows},
    {"softmax", [](Function function, size_t) { return is_softmax(function); }, &Loss::run_softmax},
    {"cosine", [](Function function, size_t) { return function == BNNSLossFunctionCosineDistance; }, &Loss::run_cosine},
    {"values", nullptr, &Loss::run_values}};

// ---- what runners share ----

size_t Loss::piece_units(size_t batch) const {
  const size_t shares = batch * x_.count / kManyPieces / kPiece;
  return std::max<size_t>(1, std::clamp(shares * kPiece, kPiece, kLongPiece) / unit_);
}

size_t Loss::work_bytes(size_t batch) const {
  if (check_batch_size(x_, batch) != 0) return SIZE_MAX;
  return divide_up(units(batch), piece_units(batch)) * sizeof(double);  // one partial sum per piece
}

namespace {

double sum_of(const double* partial, size_t units, size_t piece) {
  double sum = 0.0;
  for (size_t i = 0; i * piece < units; ++i) sum += partial[i];
  return sum;
}

}  // namespace

// What the sum of the losses is divided by (docs/interface/loss.md 2); 0 stands for a result of 0.
double Loss::denominator(const Job& job) const {
  const double n = static_cast<double>(x_.count), batch = static_cast<double>(job.batch);
  const double losses = is_per_value() ? n * batch : batch;
  if (reduction_ == BNNSLossReductionMean) return losses;
  if (reduction_ != BNNSLossReductionWeightedMean && reduction_ != BNNSLossReductionNonZeroWeightMean) return 1.0;
  const bool counts = reduction_ == BNNSLossReductionNonZeroWeightMean;
  if (job.weighting == Job::Weighting::none) return losses;
  if (job.weighting == Job::Weighting::one) return counts ? (*job.w != 0.0f) * losses : *job.w * losses;
  // Σ or count of w (m), by blocks.
  const auto total = [&](const float* w, size_t m) {
    double sum = 0.0;
    by_blocks(0, m, kBlock, [&](size_t i, size_t some) {
      sum += counts ? static_cast<double>(kernels_.count_nonzero(w + i, some)) : kernels_.sum(w + i, some);
    });
    return sum;
  };
  if (job.weighting == Job::Weighting::per_sample) return total(job.w, job.batch) * (is_per_value() ? n : 1.0);
  const size_t all = units(job.batch), piece = piece_units(job.batch);
  by_pieces(all, piece, options().threads, [&](size_t first, size_t count) {
    if (is_per_value()) {
      job.partial[first / piece] = total(job.w + first, count);
      return;
    }
    double sum = 0.0;  // the weight of a sample is the mean of its weights
    for (size_t b = first; b < first + count; ++b) {
      double weight = 0.0;
      by_blocks(b * x_.count, x_.count, kBlock,
                [&](size_t i, size_t some) { weight += kernels_.sum(job.w + i, some); });
      sum += counts ? weight != 0.0 : weight / n;
    }
    job.partial[first / piece] = sum;
  });
  return sum_of(job.partial, all, piece);
}

// Sets the factor of the gradient; the denominator.
double Loss::begin(Job* job) const {
  const double divisor = denominator(*job);
  double factor = kDivideGradient ? (divisor == 0.0 ? 0.0 : 1.0 / divisor) : 1.0;
  if (job->has_dy && is_reduced()) {
    float dy;
    Cursor at(job->dy, 0);
    activation::read_row(activation::targets.best(), at, 1, &dy);
    factor *= dy;
    job->has_dy = false;
  }
  job->factor = static_cast<float>(factor);
  return divisor;
}

// Adds up what the pieces found.
int Loss::finish(const Job& job, double divisor) const {
  if (!job.wants_y || !is_reduced()) return 0;
  const double sum = sum_of(job.partial, units(job.batch), piece_units(job.batch));
  write_loss(job.y, divisor == 0.0 ? 0.0f : static_cast<float>(sum / divisor));
  return 0;
}

// Every sample for itself: job.partial gets piece(first, count, scratch, y, dx), the sum of those losses.
template <class Piece>
void Loss::by_samples(const Job& job, const Piece& piece) const {
  const size_t samples = piece_units(job.batch);
  by_pieces(job.batch, samples, options().threads, [&](size_t first, size_t count) {
    const Scratch scratch;
    if (job.are_classes) std::fill_n(scratch.l, kRowBlock, 0.0f);
    Sink y(job.keeps_losses() ? job.y : job.x, first, false, scratch.y);
    Gradient dx(kernels_, job.wants_dx ? job.dx : job.x, first * x_.count, job.accumulates, job.streams, scratch.dx);
    job.partial[first / samples] = piece(first, count, scratch, &y, &dx);
    if (job.wants_dx) dx.finish();
  });
}

// The same by row(sample, scratch, dx), the loss of one.
template <class Row>
int Loss::run_rows(Job* job, const Row& row) const {
  const double divisor = begin(job);
  by_samples(*job, [&](size_t first, size_t count, const Scratch& scratch, Sink* y, Gradient* dx) {
    double sum = 0.0;
    for (size_t b = first; b < first + count; ++b) {
      const double loss = row(b, scratch, dx);
      sum += loss;
      if (!job->keeps_losses()) continue;
      *y->to() = static_cast<float>(loss);
      y->done(1);
    }
    return sum;
  });
  return finish(*job, divisor);
}

namespace {

// The weights of m values from linear index i on, where each sample of n values has one.
void spread(const float* w, size_t n, size_t i, size_t m, float* row) {
  for (size_t done = 0; done < m;) {
    const size_t sample = (i + done) / n, some = std::min(m - done, (sample + 1) * n - (i + done));
    std::fill_n(row + done, some, w[sample]);
    done += some;
  }
}

}  // namespace

// ---- runners ----

// Every value for itself.
int Loss::run_values(Job* given) const {
  const double divisor = begin(given);
  const Job& job = *given;
  const size_t n = x_.count, piece = piece_units(job.batch);
  const float one = 1.0f;
  const ValueLoss loss = kernels_.values[function_];
  const bool keeps = job.keeps_losses(), reads_twice = function_ == BNNSLossFunctionSigmoidCrossEntropy;
  by_pieces(units(job.batch), piece, options().threads, [&](size_t first, size_t count) {
    const Scratch scratch;
    Source x(job.x, first, scratch.x), l(job.l, first, scratch.l), dy(job.has_dy ? job.dy : job.x, first, scratch.y);
    Sink y(keeps ? job.y : job.x, first, false, scratch.y);
    Gradient dx(kernels_, job.wants_dx ? job.dx : job.x, first, job.accumulates, job.streams, scratch.dx);
    double sum = 0.0;
    by_blocks(first, count, kBlock, [&](size_t i, size_t m) {
      ValueRun run{x.next(m), l.next(m), &one, false, m, shape_, job.factor, job.wants_y, nullptr, nullptr};
      if (job.weighting == Job::Weighting::one) run.w = job.w;
      if (job.weighting == Job::Weighting::per_value) {
        run.w = job.w + i;
        run.w_moves = true;
      }
      if (job.weighting == Job::Weighting::per_sample) {
        run.w = job.w + i / n;
        if (i / n != (i + m - 1) / n) {  // several samples
          spread(job.w, n, i, m, scratch.w);
          run.w = scratch.w;
          run.w_moves = true;
        }
      }
      if (job.has_dy) {  // acts like a weight
        const float* gradient = dy.next(m);
        for (size_t k = 0; k < m; ++k) scratch.w[k] = run.w[run.w_moves ? k : 0] * gradient[k];
        run.w = scratch.w;
        run.w_moves = true;
      }
      if (keeps) run.y = y.to();
      float* to = job.wants_dx ? dx.to() : nullptr;
      const bool is_in_place = reads_twice && to && (to == run.x || to == run.l);
      run.dx = is_in_place ? scratch.dx : to;
      sum += loss(run);
      if (is_in_place) std::copy_n(scratch.dx, m, to);
      if (keeps) y.done(m);
      if (job.wants_dx) dx.done(m);
    });
    if (job.wants_dx) dx.finish();
    job.partial[first / piece] = sum;
  });
  return finish(job, divisor);
}

// Rows of up to kShortRow values, several per call of the kernel.
int Loss::run_short_rows(Job* given) const {
  const double divisor = begin(given);
  const Job& job = *given;
  const size_t n = x_.count, some = std::min(kBlock / n, kShortRows);
  const bool is_categorical = function_ == BNNSLossFunctionCategoricalCrossEntropy;
  by_samples(job, [&](size_t first, size_t count, const Scratch& scratch, Sink* y, Gradient* dx) {
    Source x(job.x, first * n, scratch.x), l(job.are_classes ? job.x : job.l, first * n, scratch.l);
    Source dy(job.has_dy ? job.dy : job.x, first, scratch.w);
    float losses[kShortRows];
    size_t classes[kShortRows];
    double sum = 0.0;
    by_blocks(first, count, some, [&](size_t b, size_t rows) {
      const RowWeights weights = job.weights_of(b, n);
      RowsRun run{x.next(rows * n), nullptr, n, nullptr, weights.w, weights.step, weights.moves, n, rows, shape_,
                  is_categorical, job.factor, job.has_dy ? dy.next(rows) : nullptr, losses,
                  job.wants_dx ? dx->to() : nullptr};
      if (job.are_classes) {
        for (size_t k = 0; k < rows; ++k) classes[k] = job.class_of(b + k);
        run.classes = classes;
        run.l_step = 0;
        if (shape_.label_shift != 0.0f) run.l = scratch.l;
      } else {
        run.l = l.next(rows * n);
      }
      kernels_.softmax_rows(run);
      if (job.wants_dx) dx->done(rows * n);
      for (size_t k = 0; k < rows; ++k) sum += losses[k];
      if (!job.keeps_losses()) return;
      for (size_t done = 0; done < rows; ++done) {
        *y->to() = losses[done];
        y->done(1);
      }
    });
    return sum;
  });
  return finish(job, divisor);
}

int Loss::run_softmax(Job* job) const {
  return run_rows(job, [&](size_t sample, const Scratch& scratch, Gradient* dx) {
    return softmax_row(*job, sample, scratch, dx);
  });
}

int Loss::run_cosine(Job* job) const {
  return run_rows(job, [&](size_t sample, const Scratch& scratch, Gradient* dx) {
    return cosine_row(*job, sample, scratch, dx);
  });
}

double Loss::softmax_row(const Job& job, size_t sample, const Scratch& scratch, Gradient* dx) const {
  const size_t n = x_.count, first = sample * n;
  const bool is_categorical = function_ == BNNSLossFunctionCategoricalCrossEntropy;
  const bool keeps = job.wants_dx && n <= kKept;
  const RowWeights weights = job.weights_of(sample, n);
  const size_t label = job.are_classes ? job.class_of(sample) : n;
  const float label_weight = job.are_classes ? shape_.label_scale * *weights.at(label) : 0.0f;
  const float* zeros = shape_.label_shift != 0.0f ? scratch.l : nullptr;  // under the label that is a class
  const auto is_here = [&](size_t i, size_t count) { return label >= i && label < i + count; };

  // ℓ = Σ w·l·(log S + m - x) with m = max x, S = Σ e^(x - m), from blocks that have an m of their own.
  double m = 0.0, total = 0.0, all = 0.0, distance = 0.0;
  size_t nonzero = job.are_classes;
  float largest[kKept / kRowBlock];
  {
    Source x(job.x, first, scratch.x), l(job.are_classes ? job.x : job.l, first, scratch.l);
    by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
      const float *values = x.next(count), *labels = job.are_classes ? zeros : l.next(count);
      SoftmaxSums part = kernels_.softmax({values, labels, weights.at(i), weights.moves, count, shape_,
                                           keeps ? scratch.e + i : nullptr});
      if (is_here(i, count)) {
        part.labels += label_weight;
        part.distance += label_weight * (part.largest - values[label - i]);
      }
      if (is_categorical && !job.are_classes) nonzero += kernels_.count_nonzero(labels, count);
      if (keeps) largest[i / kRowBlock] = part.largest;
      const double higher = i == 0 ? part.largest : std::max(m, double{part.largest});
      total = (i == 0 ? 0.0 : total * std::exp(m - higher)) + part.total * std::exp(part.largest - higher);
      distance += (i == 0 ? 0.0 : all * (higher - m)) + part.distance + part.labels * (higher - part.largest);
      all += part.labels;
      m = higher;
    });
  }
  const double share = is_categorical ? (nonzero ? 1.0 / static_cast<double>(nonzero) : 0.0) : 1.0;
  const double loss = share * (all * std::log(total) + distance);
  if (!job.wants_dx) return loss;

  double factor = nonzero == 0 && is_categorical ? 0.0 : job.factor;
  if (job.has_dy) factor *= *Source(job.dy, sample, scratch.y).next(1);
  const double e_factor = factor * (is_categorical ? 1.0 : all) / total;
  const float l_factor = static_cast<float>(factor * share);
  Source x(job.x, first, scratch.x), l(job.are_classes ? job.x : job.l, first, scratch.l);
  by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
    const double own = keeps ? std::exp(largest[i / kRowBlock] - m) : 1.0;
    const float *e = keeps ? scratch.e + i : x.next(count), *labels = job.are_classes ? zeros : l.next(count);
    dx->put(count, [&](size_t at, size_t some, float* to, bool streams) {
      const SlopeRun run{e + at, labels ? labels + at : nullptr, weights.at(i + at), weights.moves, some, shape_, !keeps,
                         static_cast<float>(m), static_cast<float>(e_factor * own), l_factor, to, streams};
      const bool has_label = is_here(i + at, some);
      if (is_categorical) {
        kernels_.categorical_slopes(run);
        if (has_label) to[label - i - at] = label_weight * (to[label - i - at] - l_factor);
      } else {
        kernels_.slopes(run);
        if (has_label) to[label - i - at] -= label_weight * l_factor;
      }
    });
  });
  return loss;
}

// ℓ = 1 - Σ w·l·x, and on the unit sphere ∂ℓ/∂x = (1 - ℓ)·x - w·l.
double Loss::cosine_row(const Job& job, size_t sample, const Scratch& scratch, Gradient* dx) const {
  const size_t n = x_.count, first = sample * n;
  const RowWeights weights = job.weights_of(sample, n);
  double product = 0.0;
  {
    Source x(job.x, first, scratch.x), l(job.l, first, scratch.l);
    by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
      product += kernels_.product(x.next(count), l.next(count), weights.at(i), weights.moves, count);
    });
  }
  if (!job.wants_dx) return 1.0 - product;
  double factor = job.factor;
  if (job.has_dy) factor *= *Source(job.dy, sample, scratch.y).next(1);
  Source x(job.x, first, scratch.x), l(job.l, first, scratch.l);
  by_blocks(0, n, kRowBlock, [&](size_t i, size_t count) {
    const float *values = x.next(count), *labels = l.next(count);
    dx->put(count, [&](size_t at, size_t some, float* to, bool streams) {
      kernels_.slopes({values + at, labels + at, weights.at(i + at), weights.moves, some, shape_, false, 0.0f,
                       static_cast<float>(factor * product), static_cast<float>(factor), to, streams});
    });
  });
  return 1.0 - product;
}

int Loss::run_yolo(Job* given) const {
  const double divisor = begin(given);
  const Job& job = *given;
  const size_t piece = piece_units(job.batch);
  by_pieces(units(job.batch), piece, options().threads, [&](size_t first, size_t count) {
    double* iou = reinterpret_cast<double*>(scratch());  // (anchors), then the values of a cell, three times
    float* buffer = reinterpret_cast<float*>(iou + yolo_.anchors);
    Source x(job.x, first * unit_, buffer), l(job.l, first * unit_, buffer + unit_);
    Sink dx(job.wants_dx ? job.dx : job.x, first * unit_, job.accumulates, buffer + 2 * unit_);
    double sum = 0.0;
    for (size_t cell = first; cell < first + count; ++cell) {
      sum += yolo_cell(yolo_, x.next(unit_), l.next(unit_), iou, job.factor, job.wants_dx ? dx.to() : nullptr);
      if (job.wants_dx) dx.done(unit_);
    }
    job.partial[first / piece] = sum;
  });
  return finish(job, divisor);
}

}  // namespace obn::loss
