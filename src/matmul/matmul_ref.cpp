// The formula as it stands, summed in float64: what the products are compared with. Gradients are sums of the same
// kind, with the tensors in other places.
#include <cstddef>

#include "matmul/matmul.h"

namespace obn::matmul {
namespace {

using activation::ref::get_reals;
using activation::ref::put_reals;

// The sum over the axes from `axis` on along which the result does not move, and the result at all others.
struct Loop {
  const Problem& p;

  double sum(size_t axis, size_t first, size_t second) const {
    while (axis < p.count && p.axes[axis].stride[kResult] != 0) ++axis;
    double a, b = 1.0;
    if (axis == p.count) {
      get_reals(p.tensor[kFirst], first, 1, 1, &a);
      if (p.inputs == 2) get_reals(p.tensor[kSecond], second, 1, 1, &b);
      return a * b;
    }
    double all = 0.0;
    for (size_t i = 0; i < p.axes[axis].extent; ++i)
      all += sum(axis + 1, first + i * p.axes[axis].stride[kFirst], second + i * p.axes[axis].stride[kSecond]);
    return all;
  }

  void run(size_t axis, size_t first, size_t second, size_t result) const {
    while (axis < p.count && p.axes[axis].stride[kResult] == 0) ++axis;
    if (axis == p.count) {
      double value = static_cast<double>(p.alpha) * sum(0, first, second), old = 0.0;
      if (p.accumulate) get_reals(p.tensor[kResult], result, 1, 1, &old);
      value += old;
      return put_reals(p.tensor[kResult], result, 1, 1, &value);
    }
    const Axis& here = p.axes[axis];
    for (size_t i = 0; i < here.extent; ++i)
      run(axis + 1, first + i * here.stride[kFirst], second + i * here.stride[kSecond],
          result + i * here.stride[kResult]);
  }
};

}  // namespace

void run_reference(const Problem& problem) { Loop{problem}.run(0, 0, 0, 0); }

}  // namespace obn::matmul
