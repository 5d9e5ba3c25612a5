// The obvious formulas (docs/interface/optimizer.md), one value at a time.
#include <algorithm>
#include <cmath>

#include "optimizer/optimizer.h"

namespace obn::optimizer::ref {

double gradient(const Numbers& c, double w, double g) {
  if (g < c.low) g = c.low;
  if (g > c.high) g = c.high;
  g *= c.scale;
  switch (c.penalty) {
    case Penalty::none: return g;
    case Penalty::l1: return g + static_cast<double>(c.penalty_scale) * ((w > 0.0) - (w < 0.0));
    case Penalty::l2: return g + static_cast<double>(c.penalty_scale) * w;
  }
  return g;
}

double step(Rule rule, const Numbers& c, double w, double g, double* a) {
  const double rate = c.rate, m = c.momentum, before = a[0];
  switch (rule) {
    case Rule::sgd:
      return w - rate * g;
    case Rule::sgd_momentum_0:
      a[0] = m * a[0] - rate * g;
      return w + a[0];
    case Rule::sgd_nesterov_0:
      a[0] = m * a[0] - rate * g;
      return w + a[0] + m * (a[0] - before);
    case Rule::sgd_momentum_1:
      a[0] = m * a[0] + g;
      return w - rate * a[0];
    case Rule::sgd_nesterov_1:
      a[0] = m * a[0] + g;
      return w - rate * (g + m * a[0]);
    case Rule::sgd_momentum_2:
      a[0] = m * a[0] + rate * g;
      return w - a[0];
    case Rule::adam:
    case Rule::amsgrad: {
      a[0] = static_cast<double>(c.beta1) * a[0] + static_cast<double>(c.rest1) * g;
      a[1] = static_cast<double>(c.beta2) * a[1] + static_cast<double>(c.rest2) * g * g;
      double square = a[1];
      if (rule == Rule::amsgrad) square = a[2] = std::max(a[2], a[1]);
      return static_cast<double>(c.keep) * w - rate * a[0] / (std::sqrt(square) + static_cast<double>(c.epsilon));
    }
    case Rule::rmsprop:
    case Rule::rmsprop_momentum:
    case Rule::rmsprop_centered:
    case Rule::rmsprop_centered_momentum: {
      const bool is_centered = rule == Rule::rmsprop_centered || rule == Rule::rmsprop_centered_momentum;
      a[0] = static_cast<double>(c.beta2) * a[0] + static_cast<double>(c.rest2) * g * g;
      double square = a[0];
      if (is_centered) {
        a[1] = static_cast<double>(c.beta2) * a[1] + static_cast<double>(c.rest2) * g;
        square = std::max(0.0, square - a[1] * a[1]);
      }
      double change = -rate * g / (std::sqrt(square) + static_cast<double>(c.epsilon));
      if (rule == Rule::rmsprop_momentum || rule == Rule::rmsprop_centered_momentum) {
        double& last = a[is_centered ? 2 : 1];
        change = last = m * last + change;
      }
      return w + change;
    }
  }
  return w;
}

}  // namespace obn::optimizer::ref
