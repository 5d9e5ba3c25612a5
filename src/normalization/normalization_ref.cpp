// Normalization, the obvious loops: one value at a time. Everything the kernels compute is compared with them, in
// double precision; in float they are the plain loop whose error is the measure.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "normalization/normalization.h"

namespace obn::normalization::ref {

template <class Real>
size_t Problem<Real>::group_count() const {
  switch (kind) {
    case Kind::batch: return c;
    case Kind::instance: return n * c;
    case Kind::group: return n * groups;
    case Kind::layer: break;
  }
  return axis == 0 ? n : axis == 1 ? n * c : n * c * h;
}

template <class Real>
size_t Problem<Real>::group_of(size_t index) const {
  const size_t row = index / w, plane = row / h, sample = plane / c, channel = plane % c;
  switch (kind) {
    case Kind::batch: return channel;
    case Kind::instance: return plane;
    case Kind::group: return sample * groups + channel / (c / groups);
    case Kind::layer: break;
  }
  return axis == 0 ? sample : axis == 1 ? plane : row;
}

template <class Real>
size_t Problem<Real>::parameter_of(size_t index, size_t count) const {
  return kind == Kind::layer ? index % (c * h * w) % count : index / (h * w) % c;
}

namespace {

template <class Real>
Real gamma_at(const Problem<Real>& p, size_t i) {
  return p.gamma ? p.gamma[p.parameter_of(i, p.gamma_count)] : Real{1};
}

template <class Real>
Real beta_at(const Problem<Real>& p, size_t i) {
  return p.beta ? p.beta[p.parameter_of(i, p.beta_count)] : Real{0};
}

}  // namespace

// x̂ = (x - μ)/sqrt(v + ε), y = act(γ·x̂ + β)
template <class Real>
void forward(const Problem<Real>& p, const Real* x, Real* y, Real* xhat, Real* mean, Real* variance) {
  const size_t total = p.total(), groups = p.group_count();
  const Real size = static_cast<Real>(total / groups);
  std::fill_n(mean, groups, Real{0});
  std::fill_n(variance, groups, Real{0});
  for (size_t i = 0; i < total; ++i) mean[p.group_of(i)] += x[i];
  for (size_t k = 0; k < groups; ++k) mean[k] /= size;
  for (size_t i = 0; i < total; ++i) {
    const Real distance = x[i] - mean[p.group_of(i)];
    variance[p.group_of(i)] += distance * distance;
  }
  for (size_t k = 0; k < groups; ++k) variance[k] /= size;
  for (size_t i = 0; i < total; ++i) {
    const size_t k = p.group_of(i);
    xhat[i] = (x[i] - mean[k]) / std::sqrt(variance[k] + p.epsilon);
    const Real z = gamma_at(p, i) * xhat[i] + beta_at(p, i);
    y[i] = static_cast<Real>(activation::ref::forward(p.activation.function, z, p.activation.alpha,
                                                      p.activation.beta));
  }
}

// dz = dy·act'(y), g = γ·dz:  dβ = Σ dz, dγ = Σ dz·x̂, dx = (g - mean(g) - x̂·mean(g·x̂))/sqrt(v + ε)
template <class Real>
void backward(const Problem<Real>& p, const Real* xhat, const Real* variance, const Real* y, const Real* dy, Real* dx,
              Real* dbeta, Real* dgamma) {
  const size_t total = p.total(), groups = p.group_count();
  const Real size = static_cast<Real>(total / groups);
  std::fill_n(dbeta, p.beta_count, Real{0});
  std::fill_n(dgamma, p.gamma_count, Real{0});
  std::vector<Real> mean_g(groups), mean_g_xhat(groups), dz(total);
  for (size_t i = 0; i < total; ++i) {
    dz[i] = dy[i];
    if (p.activation.function != BNNSActivationFunctionIdentity)
      dz[i] *= static_cast<Real>(
          activation::ref::slope_from_y(p.activation.function, y[i], p.activation.alpha, p.activation.beta));
    dbeta[p.parameter_of(i, p.beta_count)] += dz[i];
    dgamma[p.parameter_of(i, p.gamma_count)] += dz[i] * xhat[i];
    mean_g[p.group_of(i)] += gamma_at(p, i) * dz[i] / size;
    mean_g_xhat[p.group_of(i)] += gamma_at(p, i) * dz[i] * xhat[i] / size;
  }
  for (size_t i = 0; i < total; ++i) {
    const size_t k = p.group_of(i);
    dx[i] = (gamma_at(p, i) * dz[i] - mean_g[k] - xhat[i] * mean_g_xhat[k]) / std::sqrt(variance[k] + p.epsilon);
  }
}

template struct Problem<double>;
template struct Problem<float>;
template void forward(const Problem<double>&, const double*, double*, double*, double*, double*);
template void forward(const Problem<float>&, const float*, float*, float*, float*, float*);
template void backward(const Problem<double>&, const double*, const double*, const double*, const double*, double*,
                       double*, double*);
template void backward(const Problem<float>&, const float*, const float*, const float*, const float*, float*, float*,
                       float*);

}  // namespace obn::normalization::ref
