// The obvious loops, in double precision. Letters as in loss.h; ε and the open choices too.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "loss/loss.h"

namespace obn::loss::ref {
namespace {

struct Both {
  double y, slope;
};

// One value, without its weight.
Both value(const Problem& p, double x, double l) {
  const double e = x - l;
  switch (p.function) {
    case BNNSLossFunctionSigmoidCrossEntropy: {
      l = l * (1 - p.label_smooth) + p.label_smooth / 2;
      return {std::max(x, 0.0) - x * l + std::log1p(std::exp(-std::fabs(x))), 1 / (1 + std::exp(-x)) - l};
    }
    case BNNSLossFunctionMeanSquareError: return {e * e, 2 * e};
    case BNNSLossFunctionHuber:
      if (std::fabs(e) <= p.delta) return {e * e / 2, e};
      return {p.delta * (std::fabs(e) - p.delta / 2), std::copysign(p.delta, e)};
    case BNNSLossFunctionLog: {
      const double epsilon = kLogEpsilon, one = x + epsilon, zero = 1 - x + epsilon;
      return {-l * std::log(one) - (1 - l) * std::log(zero), (one - l) / (one * zero)};
    }
    case BNNSLossFunctionHinge: {
      const double t = 2 * l - 1;
      return {std::max(0.0, 1 - t * x), t * x <= 1 ? -t : 0.0};
    }
    case BNNSLossFunctionMeanAbsoluteError: return {std::fabs(e), x >= l ? 1.0 : -1.0};
    default: return {0, 0};
  }
}

// One sample; weight(i) is that of class i. dx, unless NULL, gets the gradient.
template <class Weight>
double sample(const Problem& p, const double* x, const double* l, const Weight& weight, double* dx) {
  const size_t n = p.n;
  if (p.function == BNNSLossFunctionCosineDistance) {
    double y = 1;
    for (size_t i = 0; i < n; ++i) y -= weight(i) * l[i] * x[i];
    for (size_t i = 0; dx && i < n; ++i) dx[i] = -weight(i) * l[i] + (1 - y) * x[i];
    return y;
  }
  double m = -INFINITY, total = 0, all = 0, y = 0, nonzero = 0;
  for (size_t i = 0; i < n; ++i) m = std::max(m, x[i]);
  for (size_t i = 0; i < n; ++i) total += std::exp(x[i] - m);
  const auto log_p = [&](size_t i) { return x[i] - m - std::log(total); };
  const auto smooth = [&](size_t i) { return l[i] * (1 - p.label_smooth) + p.label_smooth / static_cast<double>(n); };
  if (p.function == BNNSLossFunctionSoftmaxCrossEntropy) {
    for (size_t i = 0; i < n; ++i) {
      all += weight(i) * smooth(i);
      if (smooth(i) != 0) y -= weight(i) * smooth(i) * log_p(i);
    }
    for (size_t i = 0; dx && i < n; ++i) dx[i] = std::exp(log_p(i)) * all - weight(i) * smooth(i);
    return y;
  }
  for (size_t i = 0; i < n; ++i) nonzero += l[i] != 0;
  for (size_t i = 0; i < n; ++i)
    if (l[i] != 0) y -= log_p(i) * l[i] * weight(i) / nonzero;
  for (size_t i = 0; dx && i < n; ++i) {
    const double probability = std::exp(log_p(i));
    dx[i] = nonzero == 0 ? 0 : (l[i] != 0 ? weight(i) * (probability - 1 / nonzero) : probability);
  }
  return y;
}

}  // namespace

bool is_per_value(Function function) {
  return function != BNNSLossFunctionSoftmaxCrossEntropy && function != BNNSLossFunctionCosineDistance &&
         function != BNNSLossFunctionCategoricalCrossEntropy;
}

void run(const Problem& p, double* y, const double* dy, double* dx) {
  const bool per_value = is_per_value(p.function), keeps = p.reduction == BNNSLossReductionNone;
  const auto weight = [&](size_t b, size_t i) {
    return p.weights == 0 ? 1 : p.w[p.weights == 1 ? 0 : (p.weights == p.b ? b : b * p.n + i)];
  };
  double sum = 0, weights = 0, nonzero = 0;
  const auto count_weight = [&](double w) {
    weights += w;
    nonzero += w != 0;
  };
  for (size_t b = 0; b < p.b; ++b) {
    double mean = 0;
    for (size_t i = 0; i < p.n; ++i) mean += weight(b, i);
    if (!per_value) count_weight(mean / static_cast<double>(p.n));
    for (size_t i = 0; per_value && i < p.n; ++i) count_weight(weight(b, i));
  }
  const double losses = static_cast<double>(per_value ? p.b * p.n : p.b);
  double divisor = 1;
  if (p.reduction == BNNSLossReductionMean) divisor = losses;
  if (p.reduction == BNNSLossReductionWeightedMean) divisor = weights;
  if (p.reduction == BNNSLossReductionNonZeroWeightMean) divisor = nonzero;
  const double factor = divisor == 0 ? 0 : 1 / divisor, slope_factor = kDivideGradient ? factor : 1;

  for (size_t b = 0; b < p.b; ++b) {
    const double *x = p.x + b * p.n, *l = p.l + b * p.n;
    double* slopes = dx ? dx + b * p.n : nullptr;
    if (!per_value) {
      const double loss = sample(p, x, l, [&](size_t i) { return weight(b, i); }, slopes);
      sum += loss;
      if (y && keeps) y[b] = loss;
      for (size_t i = 0; slopes && i < p.n; ++i) slopes[i] *= dy[keeps ? b : 0] * slope_factor;
      continue;
    }
    for (size_t i = 0; i < p.n; ++i) {
      const Both both = value(p, x[i], l[i]);
      const double w = weight(b, i);
      sum += w * both.y;
      if (y && keeps) y[b * p.n + i] = w * both.y;
      if (slopes) slopes[i] = dy[keeps ? b * p.n + i : 0] * slope_factor * w * both.slope;
    }
  }
  if (y && !keeps) *y = sum * factor;
}

}  // namespace obn::loss::ref
